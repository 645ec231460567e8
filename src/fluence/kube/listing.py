"""A cluster as its API server lists it once: everything that the scheduler decides by. Nothing is written.

`list_cluster` reads all of it: nodes and pods must be readable; of the rest, what may not be read is left
out, and `notes` says so. `list_readable` reads what somebody may who has rights in one namespace, or to one
pod.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from fluence.kube.errors import ApiError, Forbidden, Missing
from fluence.kube.gangs import NoGangs, discover_custom, discover_gangs
from fluence.kube.resource import (
    CLAIMS,
    CONFIG_MAPS,
    CSI_NODES,
    NAMESPACES,
    NODES,
    OWNERS,
    PODS,
    STORAGE_CLASSES,
    VOLUMES,
    Resource,
)
from fluence.model.config_map import ConfigMap
from fluence.model.group import Group, system_of
from fluence.model.meta import KubeObject
from fluence.model.node import Node
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.model.volume import CsiNode, PersistentVolume, StorageClass, VolumeClaim
from fluence.names import RESOURCES_CONFIGMAP, RESOURCES_NAMESPACE

if TYPE_CHECKING:
    from fluence.kube.client import Client

T = TypeVar("T")

DEVICES = (RESOURCES_NAMESPACE, RESOURCES_CONFIGMAP)
_RUNS = "status.phase!=Succeeded,status.phase!=Failed"


@dataclass(slots=True)
class ClusterListing:
    """What there is in a cluster."""

    nodes: list[Node] = field(default_factory=list)
    pods: list[Pod] = field(default_factory=list)
    owners: list[Owner] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    namespaces: list[KubeObject] = field(default_factory=list)
    claims: list[VolumeClaim] = field(default_factory=list)
    volumes: list[PersistentVolume] = field(default_factory=list)
    classes: list[StorageClass] = field(default_factory=list)
    csi_nodes: list[CsiNode] = field(default_factory=list)
    devices: list[ConfigMap] = field(default_factory=list)
    """The ConfigMap that declares devices which belong to no node, if there is one."""
    native: bool = False
    """Whether the server has PodGroups."""
    systems: frozenset[str] = frozenset()
    """The other systems of which the server has PodGroups."""
    notes: list[str] = field(default_factory=list)
    """What could not be read, and why."""
    unseen: list[str] = field(default_factory=list)
    """What may not be read at all: nodes, pods, PodGroups, jobs, …"""
    elsewhere: list[str] = field(default_factory=list)
    """What may be read in one namespace only."""


async def list_cluster(client: Client, devices: tuple[str, str] | None = DEVICES) -> ClusterListing:
    """Read everything once. ``devices``: namespace and name of the ConfigMap that declares them."""
    found = ClusterListing()

    async def may(what: str, call: Awaitable[list[T]]) -> list[T]:
        try:
            return await call
        except ApiError as error:
            found.notes.append(f"{what} cannot be read: {error}")
            return []

    async def groups() -> list[Group]:
        listed = await list_groups(client)
        found.native, found.systems = listed.native, listed.systems
        return listed.groups

    async def items(resource: Resource[T]) -> list[T]:
        return (await client.list(resource)).items or []

    found.nodes, found.pods = await asyncio.gather(items(NODES), items(PODS))
    for owners in OWNERS:
        found.owners += await may(owners.plural, items(owners))
    found.groups = await may("PodGroups", groups())
    found.namespaces = await may("namespaces", items(NAMESPACES))
    found.classes = await may("storage classes", items(STORAGE_CLASSES))
    found.volumes = await may("volumes", items(VOLUMES))
    found.claims = await may("volume claims", items(CLAIMS))
    found.csi_nodes = await may("CSI nodes", items(CSI_NODES))
    found.devices = await may(f"ConfigMap {RESOURCES_CONFIGMAP}", list_devices(client, devices))
    return found


async def list_readable(
    client: Client, namespace: str, pod: str | None = None, devices: tuple[str, str] | None = DEVICES
) -> ClusterListing:
    """What may be read for an answer about one namespace, or one pod in it, which `get` is enough for. Pods
    of other namespaces that have ended are left out."""
    found = ClusterListing()

    async def everywhere(what: str, lists: Callable[[str | None], Awaitable[list[T]]]) -> list[T]:
        try:
            return await lists(None)
        except Forbidden:
            pass
        try:
            listed = await lists(namespace)
            found.elsewhere.append(what)
            return listed
        except Forbidden:
            found.unseen.append(what)
            return []

    async def once(resource: Resource[T]) -> list[T]:
        try:
            return (await client.list(resource)).items or []
        except Forbidden:
            found.unseen.append(resource.plural)
            return []

    def of(resource: Resource[T]) -> Callable[[str | None], Awaitable[list[T]]]:
        async def lists(where: str | None) -> list[T]:
            return (await client.list(resource, namespace=where)).items or []

        return lists

    async def groups(where: str | None) -> list[Group]:
        listed = await list_groups(client, namespace=where)
        found.native, found.systems = listed.native, listed.systems
        return listed.groups

    found.pods = await _readable_pods(client, namespace, pod, found)
    for owners in OWNERS:
        found.owners += await everywhere(owners.plural, of(owners))
    found.groups = await everywhere("PodGroups", groups)
    found.claims = await everywhere("volume claims", of(CLAIMS))
    found.nodes, found.namespaces = await asyncio.gather(once(NODES), once(NAMESPACES))
    found.classes, found.volumes, found.csi_nodes = await asyncio.gather(
        once(STORAGE_CLASSES), once(VOLUMES), once(CSI_NODES)
    )
    try:
        found.devices = await list_devices(client, devices)
    except Forbidden:
        found.unseen.append("devices")
    return found


async def list_devices(client: Client, devices: tuple[str, str] | None = DEVICES) -> list[ConfigMap]:
    """The ConfigMap that declares devices, if it is there."""
    if devices is None:
        return []
    try:
        return [await client.get(CONFIG_MAPS, devices[1], namespace=devices[0])]
    except Missing:
        return []


async def _readable_pods(client: Client, namespace: str, pod: str | None, found: ClusterListing) -> list[Pod]:
    try:
        own = (await client.list(PODS, namespace=namespace)).items or []
    except Forbidden:
        if pod is None:
            raise
        found.unseen.append("other pods")
        return [await client.get(PODS, pod, namespace=namespace)]
    try:
        others = await client.list(PODS, field_selector=f"{_RUNS},metadata.namespace!={namespace}")
    except Forbidden:
        found.unseen.append("pods of other namespaces")
        return own
    return own + (others.items or [])


@dataclass(frozen=True, slots=True)
class ListedGroups:
    """The PodGroups that there are, and of which kinds the server has any."""

    groups: list[Group]
    native: bool  # Kubernetes' own, or the coscheduling plugin's
    systems: frozenset[str]  # other systems


async def list_groups(client: Client, *, namespace: str | None = None) -> ListedGroups:
    """The PodGroups of all kinds, in one namespace or all."""
    found: list[Group] = []
    native = await discover_gangs(client, probe_namespace=None)
    if not isinstance(native, NoGangs):
        resource: Resource[Any] = native.resource
        for each in (await client.list(resource, namespace=namespace)).items or ():
            found.extend(native.groups(each))
    systems: set[str] = set()
    for custom in await discover_custom(client):
        page = await client.list(custom.resource, namespace=namespace)
        found.extend(custom.group(each) for each in page.items or ())
        systems.add(system_of(custom.resource.group))
    has = not isinstance(native, NoGangs) or "" in systems
    return ListedGroups(found, has, frozenset(systems - {""}))
