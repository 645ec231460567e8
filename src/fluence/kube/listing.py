"""A cluster that is listed once: all objects that the scheduler uses. Nothing is written.

`list_cluster` reads everything: nodes and pods must be readable; other objects are left out without the right
to read them, and `notes` lists them. `list_readable` reads what a user with rights in one namespace, or to
one pod, may read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from fluence.kube.errors import ApiError, Forbidden, Missing
from fluence.kube.gangs import NoGangs, discover_custom, discover_gangs, discover_operators, may_read
from fluence.kube.resource import (
    BUDGETS,
    CLAIMS,
    CONFIG_MAPS,
    CSI_NODES,
    KUEUE,
    LEASES,
    NAMESPACES,
    NODES,
    OWNERS,
    PODS,
    PRIORITY_CLASSES,
    QUEUES,
    STORAGE_CLASSES,
    VOLUMES,
    Resource,
)
from fluence.model import kueue
from fluence.model.claims import CsiNode, PersistentVolume, StorageClass, VolumeClaim
from fluence.model.grant import by_one_name
from fluence.model.kueue import KueueObject
from fluence.model.meta import ConfigMap, KubeObject, PriorityClass
from fluence.model.node import Node
from fluence.model.owner import Group, Owner, system_of
from fluence.model.pod import Pod, PodDisruptionBudget
from fluence.model.queue_documents import QueueObject
from fluence.names import RESOURCES_CONFIGMAP, RESOURCES_NAMESPACE

if TYPE_CHECKING:
    from fluence.kube.client import Client

T = TypeVar("T")

DEVICES = (RESOURCES_NAMESPACE, RESOURCES_CONFIGMAP)
_RUNS = "status.phase!=Succeeded,status.phase!=Failed"


@dataclass(slots=True)
class ClusterListing:
    """The objects of a cluster."""

    nodes: list[Node] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)
    owners: list[Owner] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    namespaces: list[KubeObject] = field(default_factory=list)
    claims: list[VolumeClaim] = field(default_factory=list)
    volumes: list[PersistentVolume] = field(default_factory=list)
    classes: list[StorageClass] = field(default_factory=list)
    priorities: list[PriorityClass] = field(default_factory=list)
    """The PriorityClasses, for the templates of held Jobs."""
    budgets: list[PodDisruptionBudget] = field(default_factory=list)
    queues: list[QueueObject] = field(default_factory=list)
    kueue: list[KueueObject] = field(default_factory=list)
    """Of Kueue, if they count."""
    csi_nodes: list[CsiNode] = field(default_factory=list)
    devices: list[ConfigMap] = field(default_factory=list)
    """The ConfigMap that declares external resources, if it exists."""
    native: bool = False
    """Whether the server has PodGroups."""
    gang_api: str = ""
    """The version of the native gang API; empty: the server has none."""
    systems: frozenset[str] = frozenset()
    """The other systems whose PodGroups the server has."""
    kinds: frozenset[str] = frozenset()
    """The kinds of operators' custom objects that it has, and that may be read."""
    notes: list[str] = field(default_factory=list)
    """The objects that could not be read, and why."""
    unseen: list[str] = field(default_factory=list)
    """The kinds that may not be read at all: nodes, pods, PodGroups, jobs, …"""
    elsewhere: list[str] = field(default_factory=list)
    """The kinds that may be read in one namespace only."""

    def name_once(self, scheduler: str, aliases: Collection[str]) -> None:
        """Replace aliases of a scheduler in pods and owners by its first name, as the scheduler does."""
        if aliases:
            self.pods = [by_one_name(pod, scheduler, aliases) for pod in self.pods]
            self.owners = [by_one_name(owner, scheduler, aliases) for owner in self.owners]


async def list_cluster(client: Client, devices: tuple[str, str] | None = DEVICES) -> ClusterListing:
    """Read everything once. ``devices``: namespace and name of the ConfigMap that declares them."""
    listing = ClusterListing()

    async def may(what: str, call: Awaitable[list[T]]) -> list[T]:
        try:
            return await call
        except ApiError as error:
            listing.notes.append(f"{what} cannot be read: {error}")
            return []

    async def groups() -> list[Group]:
        listed = await list_groups(client)
        listing.native, listing.systems = listed.native, listed.systems
        listing.gang_api = listed.api
        return listed.groups

    async def items(resource: Resource[T]) -> list[T]:
        return (await client.list(resource)).items or []

    listing.nodes, listing.pods = await asyncio.gather(items(NODES), items(PODS))
    for owners in OWNERS:
        listing.owners += await may(owners.plural, items(owners))
    for custom in await discover_operators(client):
        if await may_read(client, custom):
            listing.kinds |= {custom.kind}
            listing.owners += await may(custom.plural, items(custom))
        else:
            listing.notes.append(f"{custom.plural} cannot be read: their pods are looked at one by one")
    listing.budgets = await may("PodDisruptionBudgets", items(BUDGETS))
    listing.queues = await list_queues(client)
    listing.groups = await may("PodGroups", groups())
    listing.namespaces = await may("namespaces", items(NAMESPACES))
    listing.classes = await may("storage classes", items(STORAGE_CLASSES))
    listing.priorities = await may("priority classes", items(PRIORITY_CLASSES))
    listing.volumes = await may("volumes", items(VOLUMES))
    listing.claims = await may("volume claims", items(CLAIMS))
    listing.csi_nodes = await may("CSI nodes", items(CSI_NODES))
    listing.devices = await may(f"ConfigMap {RESOURCES_CONFIGMAP}", list_devices(client, devices))
    return listing


async def list_readable(
    client: Client, namespace: str, pod: str | None = None, devices: tuple[str, str] | None = DEVICES
) -> ClusterListing:
    """Read what is allowed, for an answer about one namespace, or about one pod in it, for which `get` is
    enough. Ended pods of other namespaces are left out."""
    listing = ClusterListing()

    async def everywhere(what: str, lists: Callable[[str | None], Awaitable[list[T]]]) -> list[T]:
        try:
            return await lists(None)
        except Forbidden:
            pass
        try:
            listed = await lists(namespace)
            listing.elsewhere.append(what)
            return listed
        except Forbidden:
            listing.unseen.append(what)
            return []

    async def once(resource: Resource[T]) -> list[T]:
        try:
            return (await client.list(resource)).items or []
        except Forbidden:
            listing.unseen.append(resource.plural)
            return []

    def of(resource: Resource[T]) -> Callable[[str | None], Awaitable[list[T]]]:
        async def lists(where: str | None) -> list[T]:
            return (await client.list(resource, namespace=where)).items or []

        return lists

    async def groups(where: str | None) -> list[Group]:
        listed = await list_groups(client, namespace=where)
        listing.native, listing.systems = listed.native, listed.systems
        listing.gang_api = listed.api
        return listed.groups

    listing.pods = await _readable_pods(client, namespace, pod, listing)
    for owners in OWNERS:
        listing.owners += await everywhere(owners.plural, of(owners))
    for custom in await discover_operators(client):
        listing.owners += await everywhere(custom.plural, of(custom))
        if custom.plural not in listing.unseen:
            listing.kinds |= {custom.kind}
    with contextlib.suppress(Forbidden):  # without them, only what preemption would do is less sure
        listing.budgets = (await client.list(BUDGETS)).items or []
    listing.queues = await list_queues(client)
    listing.groups = await everywhere("PodGroups", groups)
    listing.claims = await everywhere("volume claims", of(CLAIMS))
    listing.nodes, listing.namespaces = await asyncio.gather(once(NODES), once(NAMESPACES))
    listing.classes, listing.volumes, listing.csi_nodes = await asyncio.gather(
        once(STORAGE_CLASSES), once(VOLUMES), once(CSI_NODES)
    )
    listing.priorities = await once(PRIORITY_CLASSES)
    try:
        listing.devices = await list_devices(client, devices)
    except Forbidden:
        listing.unseen.append("devices")
    return listing


async def list_queues(client: Client) -> list[QueueObject]:
    """The Queues, if the server has them. Without the right to read them, quotas are unknown, and the
    conditions on pods are more reliable."""
    try:
        return (await client.list(QUEUES)).items or []
    except (Missing, Forbidden):
        return []


async def list_kueue(client: Client) -> list[KueueObject]:
    """Kueue's objects, of the kinds that the server has and that may be read; none while Kueue runs."""
    with contextlib.suppress(Missing, Forbidden):
        lease = await client.get(LEASES, kueue.LEASE[1], namespace=kueue.LEASE[0])
        if kueue.is_running(lease, client.clock.now()):
            return []
    return await list_all_kueue(client)


async def list_all_kueue(client: Client) -> list[KueueObject]:
    """The same, whether Kueue runs or not."""
    found: dict[str, list[KueueObject]] = {}
    for version in kueue.VERSIONS:
        for known in KUEUE:
            if known.kind in found:
                continue
            namespaced = known.namespaced
            resource = Resource(
                kueue.GROUP, version, known.plural, known.kind, known.type, namespaced=namespaced
            )
            with contextlib.suppress(Missing, Forbidden):
                found[known.kind] = (await client.list(resource)).items or []
    return [item for items in found.values() for item in items]


async def list_devices(client: Client, devices: tuple[str, str] | None = DEVICES) -> list[ConfigMap]:
    """The ConfigMap that declares external resources, if the server has it."""
    if devices is None:
        return []
    try:
        return [await client.get(CONFIG_MAPS, devices[1], namespace=devices[0])]
    except Missing:
        return []


async def _readable_pods(
    client: Client, namespace: str, pod: str | None, listing: ClusterListing
) -> list[Pod]:
    try:
        own = (await client.list(PODS, namespace=namespace)).items or []
    except Forbidden:
        if pod is None:
            raise
        listing.unseen.append("other pods")
        return [await client.get(PODS, pod, namespace=namespace)]
    try:
        others = await client.list(PODS, field_selector=f"{_RUNS},metadata.namespace!={namespace}")
    except Forbidden:
        listing.unseen.append("pods of other namespaces")
        return own
    return own + (others.items or [])


@dataclass(frozen=True, slots=True)
class ListedGroups:
    """The existing PodGroups, and the kinds of PodGroups that the server has."""

    groups: list[Group]
    native: bool  # Kubernetes' own, or the coscheduling plugin's
    systems: frozenset[str]  # other systems
    api: str = ""  # the version of Kubernetes' own API


async def list_groups(client: Client, *, namespace: str | None = None) -> ListedGroups:
    """The PodGroups of all kinds, in one namespace or all."""
    groups: list[Group] = []
    native = await discover_gangs(client, probe_namespace=None)
    if not isinstance(native, NoGangs):
        resource: Resource[Any] = native.resource
        for group in (await client.list(resource, namespace=namespace)).items or ():
            groups.extend(native.groups(group))
    systems: set[str] = set()
    for custom in await discover_custom(client):
        page = await client.list(custom.resource, namespace=namespace)
        groups.extend(custom.group(group) for group in page.items or ())
        systems.add(system_of(custom.resource.group))
    has = not isinstance(native, NoGangs) or "" in systems
    api = "" if isinstance(native, NoGangs) else native.version
    return ListedGroups(groups, has, frozenset(systems - {""}), api)
