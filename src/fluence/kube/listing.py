"""A cluster as its API server lists it once: everything that the scheduler decides by. Nothing is written.

Nodes and pods must be readable; of the rest, what may not be read is left out, and `notes` says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from fluence.kube.errors import ApiError
from fluence.kube.gangs import NoGangs, discover_coscheduling, discover_gangs
from fluence.kube.resource import (
    CLAIMS,
    CSI_NODES,
    NAMESPACES,
    NODES,
    OWNERS,
    PODS,
    STORAGE_CLASSES,
    VOLUMES,
    Resource,
)
from fluence.model.group import Group
from fluence.model.meta import KubeObject
from fluence.model.node import Node
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.model.volume import CsiNode, PersistentVolume, StorageClass, VolumeClaim

if TYPE_CHECKING:
    from fluence.kube.client import Client

T = TypeVar("T")


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
    native: bool = False
    """Whether the server has PodGroups."""
    notes: list[str] = field(default_factory=list)
    """What could not be read, and why."""


async def list_cluster(client: Client) -> ClusterListing:
    """Read everything once."""
    found = ClusterListing()

    async def may(what: str, call: Awaitable[list[T]]) -> list[T]:
        try:
            return await call
        except ApiError as error:
            found.notes.append(f"{what} cannot be read: {error}")
            return []

    async def groups() -> list[Group]:
        found.native, listed = await list_groups(client)
        return listed

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
    return found


async def list_groups(client: Client, *, namespace: str | None = None) -> tuple[bool, list[Group]]:
    """The PodGroups of all kinds, in one namespace or all, and whether the server has any kind."""
    found: list[Group] = []
    native = await discover_gangs(client, probe_namespace=None)
    if not isinstance(native, NoGangs):
        resource: Resource[Any] = native.resource
        for each in (await client.list(resource, namespace=namespace)).items or ():
            found.extend(native.groups(each))
    older = await discover_coscheduling(client)
    if older is not None:
        page = await client.list(older.resource, namespace=namespace)
        found.extend(older.group(each) for each in page.items or ())
    return not isinstance(native, NoGangs) or older is not None, found
