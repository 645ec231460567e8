"""Objects that the leader creates: the PodGroups of gangs, and the table of container variables that
admission reads.

Labels and owners decide what a gang is, with or without this PodGroup. The PodGroup is for `kubectl get
podgroups`, and for kube-scheduler: its pods are disrupted together, so none of them is preempted alone.

It is created once, when the size of the gang is known and before its first pod is bound. It is owned by the
top owners of the pods, or by pods without an owner, so the server deletes it with them. If the API allows it
(1.37), `minCount` follows the size of the gang. An existing PodGroup that is not marked as ours is not
changed.

Admission adds the variables to containers that request a device. The table is an object, because the
attributes follow `fluence-resources`, and because other programs rename their variables. It has a kind of its
own and is not a ConfigMap: API servers stop following ConfigMaps for policies when the last policy that reads
one is deleted, until they are restarted. The leader writes its own part by server-side apply, so additions of
a site stay. It watches the object, and restores it after changes and deletions.

The object also says whether pods get the PodGroup of their gang. The leader knows which PodGroups the server
has, and the rules of admission do not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from fluence import names
from fluence.act import conditions
from fluence.act.writers import CoalescingWriter, StatusWriter
from fluence.kube.client import Client
from fluence.kube.errors import AlreadyExists, Forbidden, KubeError, Missing
from fluence.kube.gangs import AnyGangs, PodGroups137
from fluence.kube.reflector import Reflector
from fluence.kube.resource import HAND_OFFS, Json, Resource
from fluence.model.external_resources import PART_OF, DeviceTree, HandOff, hand_off_variables
from fluence.model.owner import Group
from fluence.model.reason import Code
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.status.status import StatusReport

logger = logging.getLogger(__name__)

IN_FLIGHT = 2  # binds come first
MAX_OWNERS = 32
FIRST_S = 2.0  # seconds that the binds of a gang wait for its PodGroup
_UNSETTLED = (Code.GROUP_SETTLES, Code.OWNER_NOT_SEEN, Code.POD_GROUP_OR_SIZE_MISSING)


class GroupMaker:
    """Call ``make`` from the event loop. ``run`` creates PodGroups until cancelled. ``gangs`` is the server's
    API, once known."""

    def __init__(self, client: Client, status: StatusWriter, *, held: Callable[[], bool]) -> None:
        self.made = 0
        self.gangs: AnyGangs | None = None
        self._client = client
        self._status = status
        self._held = held
        self._may_resize = True
        self._creating: dict[tuple[str, str], asyncio.Task[Group | None]] = {}
        self._writer: CoalescingWriter[tuple[str, str], tuple[Gang, StatusReport | None, int]] = (
            CoalescingWriter(self._make, in_flight=IN_FLIGHT, namespace=lambda key, _: key[0])
        )

    def make(self, gang: Gang, report: StatusReport | None, now: int) -> None:
        """Create the PodGroup that lists a gang, if it does not exist, and write its status. If its size
        differs, it is changed."""
        if gang.listed_as is None or not is_sized(gang):
            return
        if gang.listing is None or (report is None and self._is_outdated(gang)):
            self._writer[gang.namespace, gang.listed_as] = (gang, report, now)

    def before_bind(self, gang: Gang | None) -> asyncio.Task[Group | None] | None:
        """The task to wait for before the first pod of a gang is bound; None if there is nothing to wait
        for."""
        if gang is None or gang.listed_as is None or gang.listing is not None or not is_sized(gang):
            return None
        if gang.placed or self._resource() is None:
            return None
        return self._create(gang, gang.listed_as)

    async def run(self) -> None:
        await self._writer.run()

    def _resource(self) -> Resource[Any] | None:
        return self.gangs.resource if self.gangs is not None else None

    def _is_outdated(self, gang: Gang) -> bool:
        """Whether the size in the PodGroup differs and may be changed."""
        is_mutable = isinstance(self.gangs, PodGroups137) and self._may_resize
        return is_mutable and gang.listing is not None and gang.listing.min_count != gang.minimum

    def _create(self, gang: Gang, name: str) -> asyncio.Task[Group | None]:
        """Create a PodGroup once: callers that ask again meanwhile get the same task."""
        key = gang.namespace, name
        task = self._creating.get(key)
        if task is None:
            task = self._creating[key] = asyncio.create_task(self._created(gang, name))
            task.add_done_callback(
                lambda _: asyncio.get_running_loop().call_later(FIRST_S, self._forget, key)
            )
        return task

    def _forget(self, key: tuple[str, str]) -> None:
        self._creating.pop(key, None)

    async def _created(self, gang: Gang, name: str) -> Group | None:
        gangs, resource = self.gangs, self._resource()
        if gangs is None or resource is None or not self._held():
            return None
        try:
            try:
                body = pod_group(gangs, gang, name)
                found = await self._client.create(resource, body, namespace=gang.namespace)
                self.made += 1
            except AlreadyExists:  # it was just created and its event has not arrived, or it is not ours
                found = await self._client.get(resource, name, namespace=gang.namespace)
        except KubeError as error:
            logger.warning("PodGroup %s/%s is not created: %s", gang.namespace, name, error)
            return None
        group = next(iter(gangs.groups(found)), None) if found is not None else None
        return group if group is not None and group.is_listing else None

    async def _make(self, key: tuple[str, str], order: tuple[Gang, StatusReport | None, int]) -> None:
        (namespace, name), (gang, report, now) = key, order
        resource = self._resource()
        if resource is None or not self._held():
            return
        if report is None:
            body: Json = {"spec": {"schedulingPolicy": {"gang": {"minCount": gang.minimum}}}}
            try:
                await self._client.patch(resource, name, body, namespace=namespace)
            except KubeError as error:
                logger.warning("PodGroup %s/%s keeps its size: %s", namespace, name, error)
                # Nothing depends on the size, and an installation may leave this right out.
                self._may_resize = self._may_resize and not isinstance(error, Forbidden)
            return
        group = await self._create(gang, name)
        patch = conditions.group_condition(group, report, now=now) if group is not None else None
        if patch is not None:
            self._status.write(resource, namespace, name, patch)


def is_sized(gang: Gang) -> bool:
    """Whether the size of a gang is settled."""
    return gang.fault is None and (gang.missing is None or gang.missing.code not in _UNSETTLED)


def pod_group(gangs: AnyGangs, gang: Gang, name: str) -> Json:
    """The PodGroup of a gang."""
    pods = (*gang.members, *gang.placed, *gang.gated)
    classes = {pod.spec.priority_class_name for pod in pods}
    group = Group(
        namespace=gang.namespace,
        name=name,
        min_count=gang.minimum,
        priority_class=classes.pop() if len(classes) == 1 else None,
        disrupt_together=True,
    )
    body = gangs.manifest(group)
    meta = body["metadata"]
    assert isinstance(meta, dict)
    meta["annotations"] = {names.MADE_FOR: gang.key}
    meta["ownerReferences"] = [
        {**msgspec.to_builtins(each), "controller": False} for each in gang.workloads[:MAX_OWNERS]
    ]
    return body


MANAGER: Final = "fluence-scheduler"
# Until the kind and the right to write it exist: admission may be installed at any time.
_RETRY_SECONDS: Final = 5.0


class HandOffWriter:
    """Call ``keep`` from the event loop at any time. ``run`` writes the object when it is new or differs on
    the server."""

    def __init__(self, client: Client, namespace: str) -> None:
        self.written = 0
        self.failed = 0
        self._client = client
        self._namespace = namespace
        self._tree: DeviceTree | None = None
        self._lists_gangs = False
        self._told = ""
        self._changed = asyncio.Event()

    def keep(self, tree: DeviceTree, *, lists_gangs: bool = False) -> None:
        """Use the table of these devices from now on. ``lists_gangs``: pods get the PodGroup of their
        gang."""
        if tree is not self._tree or lists_gangs != self._lists_gangs:
            self._tree, self._lists_gangs = tree, lists_gangs
            self._changed.set()

    def _seen(self, old: HandOff | None, new: HandOff | None) -> None:
        """Observe the object on the server, including our own writes."""
        if self._tree is None:
            return
        wanted = hand_off_variables(self._tree)
        lacks = new is None or any(new.variables.get(name) != key for name, key in wanted.items())
        if lacks or (new is not None and new.lists_gangs != self._lists_gangs):
            self._changed.set()

    async def run(self) -> None:
        # The watch runs only while the object exists, because it would log a missing kind.
        watch: asyncio.Task[None] | None = None
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), None if watch else _RETRY_SECONDS)
                self._changed.clear()
                is_written = self._tree is not None and await self.write(self._tree)
                if is_written and watch is None:
                    watch = asyncio.create_task(self._watch())
                elif not is_written and watch is not None:
                    watch.cancel()
                    watch = None
        finally:
            if watch is not None:
                watch.cancel()

    async def _watch(self) -> None:
        reflector: Reflector[HandOff] = Reflector(
            self._client,
            HAND_OFFS,
            namespace=self._namespace,
            field_selector=f"metadata.name={names.ADMISSION_PARAMETERS}",
            optional=True,
            may_be_denied=True,
        )
        reflector.store.on_change(self._seen)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(reflector.run())
            await reflector.synced.wait()
            # It may have been deleted between the write and the first list.
            self._seen(None, reflector.store.get(names.ADMISSION_PARAMETERS, self._namespace))

    async def write(self, tree: DeviceTree) -> bool:
        """Write the table. Returns whether the server accepted it. Writing an unchanged table does not change
        its version."""
        name = names.ADMISSION_PARAMETERS
        body: dict[str, object] = {
            "apiVersion": HAND_OFFS.api_version,
            "kind": HAND_OFFS.kind,
            "metadata": {
                "name": name,
                "namespace": self._namespace,
                "labels": PART_OF,
                "annotations": {names.LISTS_GANGS: str(self._lists_gangs).lower()},
            },
            "spec": {"variables": hand_off_variables(tree)},
        }
        try:
            await self._client.apply(HAND_OFFS.raw(), body, namespace=self._namespace, manager=MANAGER)
        except (Missing, Forbidden) as error:
            # The kind and the right to write it come with admission, which a site may leave out.
            lacks = "its kind is not there" if isinstance(error, Missing) else "this account may not write it"
            text = f"admission is not installed: containers are not told their backend (HandOff: {lacks})"
            self._tell(logging.INFO, text)
        except KubeError as error:
            where = f"handoff {self._namespace}/{name}"
            self._tell(logging.WARNING, f"containers are not told of new attributes: {where}: {error}")
        else:
            self._told = ""
            self.written += 1
            return True
        self.failed += 1
        return False

    def _tell(self, level: int, text: str) -> None:
        """Log a text once, not at each try."""
        if text != self._told:
            self._told = text
            logger.log(level, "%s", text)
