"""Watches: the objects that the scheduler follows, as events: objects of the server, its APIs, Kueue's
objects, and a device file.

Objects of one kind arrive in the order in which the server sends them. Kinds arrive in any order, and any
order gives the same state.

A custom resource may be installed, and a server upgraded, at any time. The server is asked after a pause that
grows up to a minute, so new PodGroups and operators are found without a restart, and watched from then on.
Every account may use discovery, and the rights to read every kind of PodGroup are always granted; the objects
of an operator are watched if they may be read.

A pod may exist before its operator's kind is known: then the server is asked at once. The pod waits until the
kind is watched or turns out to be forbidden, but no longer than ``_MAX_WAIT_SECONDS``.

If both programs admitted the same work, Kueue would suspend what Fluence starts. So the Lease of Kueue's
manager is checked regularly. While it is being renewed, or cannot be read, the objects do not count, and the
log says why.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, cast

import structlog

from fluence import names
from fluence.backoff import Backoff
from fluence.kube.client import Client
from fluence.kube.errors import Forbidden, KubeError, Missing, ServerFault, TooManyRequests, Unreachable
from fluence.kube.gangs import (
    GROUP,
    AnyGangs,
    CustomGroups,
    CustomResource,
    NoGangs,
    PodGroup,
    SigPodGroup,
    Workload,
    discover_custom,
    discover_gangs,
    discover_operators,
    may_read,
)
from fluence.kube.reflector import Reflector
from fluence.kube.resource import (
    BUDGETS,
    CLAIMS,
    CONFIG_MAPS,
    CSI_NODES,
    DEVICES,
    KUEUE,
    LEASES,
    NAMESPACES,
    NODES,
    OWNERS,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    SERVICES,
    STORAGE_CLASSES,
    VALIDATING_POLICIES,
    VALIDATING_POLICY_BINDINGS,
    VOLUMES,
    Resource,
    has_resource,
    resources_of,
    versions_of,
)
from fluence.model import kueue
from fluence.model.grant import by_one_name
from fluence.model.kueue import KueueObject
from fluence.model.meta import ConfigMap, ObjectMeta
from fluence.model.node import Node
from fluence.model.owner import system_of
from fluence.model.pod import Pod
from fluence.schedule.events import Changed, Event, Object
from fluence.schedule.gangs.submitters import NameGuard, NamePolicy, NamePolicyBinding, name_guard

log = structlog.get_logger("fluence.scheduler")


_PLAIN: tuple[Resource[Any], ...] = (
    *OWNERS,
    CLAIMS,
    VOLUMES,
    STORAGE_CLASSES,
    CSI_NODES,
    PRIORITY_CLASSES,
)


class Watches:
    """``put`` is called with each event. The stores of nodes and pods have the current objects."""

    def __init__(
        self,
        client: Client,
        put: Callable[[Event], None],
        *,
        devices: tuple[str, str] | None = None,
        scheduler: str = names.SCHEDULER,
        aliases: Collection[str] = (),
    ) -> None:
        self.nodes: Reflector[Node] = Reflector(client, NODES)
        self.pods: Reflector[Pod] = Reflector(client, PODS)
        self.namespaces: Reflector[Any] = Reflector(client, NAMESPACES)
        self._client = client
        self._put = put
        self._scheduler = scheduler
        self._aliases = frozenset(aliases) - {scheduler}  # other scheduler names that choose this scheduler
        self._devices = devices  # namespace and name of the ConfigMap that declares external resources
        self.all: list[Reflector[Any]] = []
        self.kueue: list[Reflector[KueueObject]] = []
        self.kueue_counts = False
        self._handlers: list[tuple[Reflector[Any], Callable[[Any, Any], None]]] = []

    def follow(self, *, devices: bool = False, budgets: bool = False) -> None:
        """Set up the watches that every server has. ``devices``: the server has dynamic resource allocation.
        ``budgets``: PodDisruptionBudgets count, because pods may be preempted."""
        for own in (self.nodes, self.pods, self.namespaces):
            self._hear(own, self._changed)
        for resource in _PLAIN:
            self._hear(Reflector(self._client, resource), self._changed)
        # Without the right to read Services, pods without another owner are not spread.
        self._hear(Reflector(self._client, SERVICES, may_be_denied=True), self._changed)
        if budgets:
            self._hear(Reflector(self._client, BUDGETS), self._changed)
        for resource in DEVICES if devices else ():
            self._hear(Reflector(self._client, resource, optional=True), self._changed)
        if self._devices is not None:
            self._hear(self._device_config(*self._devices), self._changed)

    def follow_native(self, gangs: AnyGangs) -> None:
        """Watch the server's native PodGroups."""
        assert gangs.resource is not None
        resource: Resource[Any] = gangs.resource
        self._hear(Reflector(self._client, resource, optional=True), self._native(gangs))

    def follow_custom(self, adapter: CustomGroups) -> None:
        """Watch PodGroups that are custom resources. Without the right to read those of another system, the
        scheduler works without them."""
        denied = bool(system_of(adapter.resource.group))
        groups = Reflector(self._client, adapter.resource, optional=True, may_be_denied=denied)
        self._hear(groups, self._custom(adapter))

    def follow_owners(self, resource: CustomResource) -> None:
        """Watch the custom objects of an operator."""
        owners = Reflector(self._client, resource, optional=True, may_be_denied=True)
        self._hear(owners, self._changed)

    def follow_queues(self) -> None:
        """Watch Queues."""
        self._hear(Reflector(self._client, QUEUES, optional=True, may_be_denied=True), self._changed)

    def follow_kueue(self, resource: Resource[KueueObject]) -> None:
        """Watch a kind of Kueue. Its objects count while `kueue_counts`."""
        found = Reflector(self._client, resource, optional=True, may_be_denied=True)
        self.kueue.append(found)
        self._hear(found, self._kueue_changed)

    def count_kueue(self, counts: bool) -> None:
        """Set whether Kueue's objects count."""
        if counts == self.kueue_counts:
            return
        self.kueue_counts = counts
        for reflector in self.kueue:
            for item in list(reflector.store):
                self._put(Changed(None, item) if counts else Changed(item, None))

    def _kueue_changed(self, old: KueueObject | None, new: KueueObject | None) -> None:
        if self.kueue_counts:
            self._put(Changed(old, new))

    def follow_users_policy(self, name: str, changed: Callable[[NameGuard | None], None]) -> None:
        """Watch the policy that keeps users from forging the submitter of a pod. ``changed`` gets the guard.
        Without the right to read the policy, namespaces are counted instead of users."""
        of: dict[str, Any] = {"field_selector": f"metadata.name={name}", "may_be_denied": True}
        policies, bindings = (
            Reflector(self._client, VALIDATING_POLICIES.of(NamePolicy), **of),
            Reflector(self._client, VALIDATING_POLICY_BINDINGS.of(NamePolicyBinding), **of),
        )

        def look(old: Any, new: Any) -> None:
            changed(name_guard(policies.store.get(name), bindings.store.get(name)))

        for each in (policies, bindings):
            self._hear(each, look)

    def _device_config(self, namespace: str, name: str) -> Reflector[Any]:
        return Reflector(
            self._client,
            CONFIG_MAPS,
            namespace=namespace,
            field_selector=f"metadata.name={name}",
            may_be_denied=True,
        )

    def _hear(self, reflector: Reflector[Any], changed: Callable[[Any, Any], None]) -> None:
        reflector.store.on_change(changed)
        self.all.append(reflector)
        self._handlers.append((reflector, changed))

    def objects(self) -> list[Object]:
        """All known objects, in the form of events."""
        objects: list[Object] = []
        put, self._put = self._put, lambda event: objects.append(cast(Changed, event).object)
        try:
            for reflector, changed in self._handlers:
                for item in list(reflector.store):
                    changed(None, item)
        finally:
            self._put = put
        return objects

    async def synced(self) -> None:
        """Wait until everything was listed once."""
        for reflector in self.all:
            await reflector.synced.wait()

    async def refresh(self) -> None:
        """Wait until all current objects are known, since a watch may be late or hang."""
        await asyncio.gather(*(reflector.refresh() for reflector in self.all))

    @property
    def cluster(self) -> str:
        """Identifies this cluster: the uid of a namespace that is never deleted."""
        namespace = self.namespaces.store.get("kube-system")
        return "" if namespace is None else str(namespace.metadata.uid)

    def _changed(self, old: Any, new: Any) -> None:
        if self._aliases:
            old, new = (by_one_name(each, self._scheduler, self._aliases) for each in (old, new))
        self._put(Changed(old, new))

    def _native(self, gangs: AnyGangs) -> Callable[[Any, Any], None]:
        def changed(old: PodGroup | Workload | None, new: PodGroup | Workload | None) -> None:
            """A Workload of 1.35 holds several groups, and some may go while it stays."""
            before = {group.name: group for group in gangs.groups(old)} if old is not None else {}
            for group in gangs.groups(new) if new is not None else ():
                self._put(Changed(before.pop(group.name, None), group))
            for group in before.values():
                self._put(Changed(group, None))

        return changed

    def _custom(self, adapter: CustomGroups) -> Callable[[Any, Any], None]:
        def changed(old: SigPodGroup | None, new: SigPodGroup | None) -> None:
            before = None if old is None else adapter.group(old)
            self._put(Changed(before, None if new is None else adapter.group(new)))

        return changed


_RETRY_SECONDS = 2.0  # between two tries to reach the API server
_MIN_POLL_SECONDS, _MAX_POLL_SECONDS = 5.0, 60.0  # between two checks for new APIs
_WANTED_SECONDS = 1.0  # between two checks for a kind that pods wait for
_MAX_WAIT_SECONDS = 10.0  # how long pods wait for a kind that the server does not serve


class ServerApis:
    """``changed`` is called with whether the server has PodGroups, once that is known and when it changes.
    ``given_up`` is called with owners from `want` that cannot be read."""

    def __init__(
        self,
        client: Client,
        watches: Watches,
        changed: Callable[[bool], None],
        *,
        given_up: Callable[[Collection[str]], None] = lambda owners: None,
        pauses: tuple[float, float] = (_MIN_POLL_SECONDS, _MAX_POLL_SECONDS),
        wanted_pause: float = _WANTED_SECONDS,
        longest_wait: float = _MAX_WAIT_SECONDS,
    ) -> None:
        self.gangs: AnyGangs = NoGangs("not asked yet")
        self.systems: frozenset[str] = frozenset()  # other systems whose PodGroups the server has
        self.kinds: frozenset[str] = frozenset()  # kinds of custom objects that are watched
        self.has_devices = False  # dynamic resource allocation
        self._client = client
        self._watches = watches
        self._changed = changed
        self._given_up = given_up
        self._pauses = pauses
        self._wanted_pause = wanted_pause
        self._longest_wait = longest_wait
        self._forbidden: frozenset[str] = frozenset()  # kinds that are served but may not be read
        self._wanted: dict[str, tuple[str, float]] = {}  # owners by identity: kind, and since when
        self._is_wanted = asyncio.Event()
        self._looked_at = 0.0
        self._served: list[str] = []
        self._followed: set[str] = set()  # API versions that are watched

    async def discover(self) -> None:
        """Find out which APIs exist. If the server is down, wait for it: a process that exits instead would
        be restarted after growing pauses, and lead late."""
        while True:
            try:
                await self._look()
                self.has_devices = "v1" in await versions_of(self._client, "resource.k8s.io")
                break
            except (Unreachable, ServerFault, TooManyRequests) as error:
                log.warning("waits for the API server", reason=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
        if isinstance(self.gangs, NoGangs):
            log.info("no native gangs", reason=self.gangs.reason)

    def want(self, owners: Mapping[str, str]) -> None:
        """Set the owners that pods wait for and whose kinds are not watched, by identity. Call it with all of
        them whenever they may have changed."""
        now = self._client.clock.monotonic()
        if owners.keys() - self._wanted.keys():
            self._is_wanted.set()
        self._wanted = {owner: self._wanted.get(owner, (kind, now)) for owner, kind in owners.items()}

    async def run(self) -> None:
        """Check regularly until cancelled, and watch new APIs."""
        backoff = Backoff(*self._pauses)
        pause = backoff.first
        async with asyncio.TaskGroup() as tasks:
            while True:
                if not await self._sleep(pause):
                    pause = backoff.longer(pause)
                before = len(self._watches.all)
                try:
                    await self._look()
                    self._judge()
                except KubeError as error:
                    log.debug("cannot ask which gangs there are", reason=str(error))
                for reflector in self._watches.all[before:]:
                    tasks.create_task(reflector.run())
                    pause = backoff.first

    async def _sleep(self, pause: float) -> bool:
        """Sleep until the next check. Returns whether pods wait for it. The checks are limited, because users
        may name kinds that do not exist."""
        clock = self._client.clock
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(min(pause, self._wanted_pause) if self._wanted else pause):
                await self._is_wanted.wait()
        if not self._wanted:
            return False
        await asyncio.sleep(max(0.0, self._looked_at + self._wanted_pause - clock.monotonic()))
        self._is_wanted.clear()
        return True

    def _judge(self) -> None:
        """Give up owners whose kinds are forbidden, or were not found in time."""
        lost = {
            owner: kind
            for owner, (kind, since) in self._wanted.items()
            if kind not in self.kinds
            and (kind in self._forbidden or self._looked_at - since >= self._longest_wait)
        }
        if lost:
            log.warning("cannot read owners", kinds=sorted(set(lost.values())), owners=len(lost))
            self._wanted = {owner: held for owner, held in self._wanted.items() if owner not in lost}
            self._given_up(lost)

    async def _look(self) -> None:
        self._looked_at = self._client.clock.monotonic()
        served = await versions_of(self._client, GROUP)
        if served != self._served or isinstance(self.gangs, NoGangs):
            self.gangs = await discover_gangs(self._client)
            self._served = served
        custom = await discover_custom(self._client)
        resource = self.gangs.resource
        if resource is not None and resource.api_version not in self._followed:
            self._followed.add(resource.api_version)
            self._watches.follow_native(self.gangs)
            log.info("follows PodGroups", api=resource.api_version)
        for groups in custom:
            api = groups.resource.api_version
            if api not in self._followed:
                self._followed.add(api)
                self._watches.follow_custom(groups)
                log.info("follows PodGroups", api=api)
        forbidden = set()
        for owners in await discover_operators(self._client):
            if owners.kind in self.kinds:
                continue
            readable = await may_read(self._client, owners)
            if readable is False:
                forbidden.add(owners.kind)
            if readable:
                self.kinds |= {owners.kind}
                self._watches.follow_owners(owners)
                log.info("follows owners", api=owners.api_version, kind=owners.kind)
        self._forbidden = frozenset(forbidden)
        if QUEUES.api_version not in self._followed and await has_resource(self._client, QUEUES):
            self._followed.add(QUEUES.api_version)
            self._watches.follow_queues()
            log.info("follows queues", api=QUEUES.api_version)
        systems = {system_of(groups.resource.group) for groups in custom}
        self.systems = frozenset(systems - {""})
        self._changed(resource is not None or "" in systems)


_FILE_POLL_SECONDS = 2.0
_MAX_FILE_BYTES = 1 << 20  # the maximum size of a ConfigMap


class DeviceFile:
    """``put`` is called with an event when the file has changed. A missing file declares nothing; a file that
    cannot be read for another reason changes nothing."""

    def __init__(self, path: str, put: Callable[[Event], None]) -> None:
        self._path = Path(path)
        self._put = put
        self.seen: ConfigMap | None = None  # the contents at the last event
        self._fault = ""

    async def run(self) -> None:
        """Read the file regularly: a mounted ConfigMap is replaced by a link, which a watch of the file does
        not see."""
        while True:
            await asyncio.sleep(_FILE_POLL_SECONDS)
            self.look()

    def look(self) -> None:
        """Read the file, and report changes."""
        try:
            current = self._read()
        except (OSError, UnicodeDecodeError) as error:
            if str(error) != self._fault:
                log.warning("devices stay as they were", file=str(self._path), reason=str(error))
            self._fault = str(error)
            return
        self._fault = ""
        old, self.seen = self.seen, current
        if old != current:
            self._put(Changed(old, current))

    def _read(self) -> ConfigMap | None:
        try:
            with self._path.open("rb") as file:
                text = file.read(_MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
        if len(text) > _MAX_FILE_BYTES:
            raise OSError(f"larger than {_MAX_FILE_BYTES} bytes")
        meta = ObjectMeta(name=str(self._path))
        return ConfigMap(metadata=meta, data={names.RESOURCES_KEY: text.decode()})


_POLL_SECONDS: Final = 10.0  # shorter than a Lease lasts
_LEASE: Final = "/".join(kueue.LEASE)


class KueueImport:
    """``run`` checks regularly. ``off`` says why the objects do not count now; empty if they do."""

    def __init__(self, client: Client, watches: Watches, *, poll: float | None = None) -> None:
        self.off = "not looked at yet"
        self._client = client
        self._watches = watches
        self._poll = _POLL_SECONDS if poll is None else poll
        self._followed: set[str] = set()  # kinds that are watched
        self._renewed: object = None  # the renew time at the last check
        self._noted: set[str] = set()  # notes that were logged

    async def look(self) -> None:
        """Check now. If the API server does not answer, nothing changes."""
        try:
            await self._follow()
            off = await self._why_off()
        except KubeError as error:
            log.debug("cannot look at Kueue's objects", reason=str(error))
            return
        if off != self.off:
            self.off = off
            if off:
                log.warning("Kueue's queues are not read", reason=off)
            else:
                log.info("reads Kueue's queues")
        self._watches.count_kueue(not off)
        self._tell()

    async def run(self) -> None:
        """Check regularly until cancelled, and watch new kinds."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                await asyncio.sleep(self._poll)
                before = len(self._watches.all)
                await self.look()
                for reflector in self._watches.all[before:]:
                    tasks.create_task(reflector.run())

    async def _follow(self) -> None:
        """Watch the kinds that the server has and that are not watched yet, in their newest version."""
        if len(self._followed) == len(KUEUE):
            return
        for version in kueue.VERSIONS:
            served = await resources_of(self._client, kueue.GROUP, version)
            for known in KUEUE:
                if known.kind not in self._followed and known.plural in served:
                    self._followed.add(known.kind)
                    namespaced = known.namespaced
                    self._watches.follow_kueue(
                        Resource(
                            kueue.GROUP, version, known.plural, known.kind, known.type, namespaced=namespaced
                        )
                    )

    async def _why_off(self) -> str:
        """Why the objects do not count; empty if they do."""
        namespace, name = kueue.LEASE
        try:
            lease = await self._client.get(LEASES, name, namespace=namespace)
        except Missing:
            self._renewed = None
            return ""
        except Forbidden:
            return f"the Lease {_LEASE} cannot be read, so Kueue may run: grant get on it"
        spec = lease.get("spec")
        renewed = spec.get("renewTime") if isinstance(spec, dict) else None
        # With a wrong clock a Lease looks old; if it is being renewed, it is held all the same.
        moved, self._renewed = self._renewed not in (None, renewed), renewed
        held = isinstance(spec, dict) and bool(spec.get("holderIdentity"))
        if (held and moved) or kueue.is_running(lease, self._client.clock.now()):
            return f"Kueue runs: the Lease {_LEASE} is fresh; scale its manager to 0"
        return ""

    def _tell(self) -> None:
        """Log once which parts of the objects have no effect here."""
        if self.off:
            return
        objects = [item for reflector in self._watches.kueue for item in reflector.store]
        for note in kueue.read(objects).notes:
            if str(note) not in self._noted and len(self._noted) < _MAX_NOTES:
                self._noted.add(str(note))
                log.warning("Kueue", object=note.of, note=note.text)


_MAX_NOTES: Final = 1000
