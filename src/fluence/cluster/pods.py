"""Pods on nodes, including those of other schedulers, and the resources that they use.

A pod counts from the moment it is bound, assumed or nominated until it is deleted or terminal; a terminating
pod still counts. The sums are kept by node name, because pods may be known before their node.

`NodeUsage` counts pods outside of jobs: pods of other schedulers and of DaemonSets, static pods, and pods
that still run after their job was released. They are one record in the ledger per node. Events only mark a
node; its record is written once, with the next query.

Pools may be overcommitted: the free amount becomes negative. A device is a vertex. If another scheduler
places a pod on a node without free devices, the pod is counted on a vertex that another pod uses, or on none.
`DeviceOvercommit` remembers such jobs, so that each gets its own vertex as soon as one is free.
`ClusterGraph` is the only caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from fluence.cluster.layout import GraphLayout
from fluence.cluster.vertices import NodeVertices
from fluence.model.pod import Pod, add_into, pod_requests
from fluence.placer.gang_fit import GangFit
from fluence.placer.placer import PodPlacement

_MIRROR = "kubernetes.io/config.mirror"  # the mirror of a static pod in the API


@dataclass(slots=True)
class PodEntry:
    """One pod that counts on a node."""

    pod: Pod
    node: str
    needs: Mapping[str, int]  # by vertex type
    bound: bool  # False: assumed or nominated
    assumed: bool = False  # this scheduler is about to bind it
    job: int | None = None  # the job that placed it; None: no known job

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid


@dataclass(slots=True)
class NodeLoad:
    """The total use of the pods of one node that are outside of jobs."""

    total: dict[str, int] = field(default_factory=dict)
    workloads: int = 0  # pods that are not part of the node: see `is_resident`
    pods: dict[str, PodEntry] = field(default_factory=dict)  # all pods on the node, including those of jobs


class PodTable:
    """The pods that count, by uid and by node."""

    def __init__(self, types: Callable[[Mapping[str, int]], dict[str, int]]) -> None:
        self._types = types
        self.entries: dict[str, PodEntry] = {}
        self.loads: dict[str, NodeLoad] = {}
        self.watchers: list[Callable[[PodEntry, int], None]] = []  # called: +1 added, -1 removed

    def __iter__(self) -> Iterator[PodEntry]:
        return iter(self.entries.values())

    def needs(self, pod: Pod, *, bound: bool) -> dict[str, int]:
        """The use of a pod on its node, by vertex type."""
        return self._types(pod_requests(pod, bound=bound))

    def put(
        self,
        pod: Pod,
        node: str,
        *,
        bound: bool,
        assumed: bool = False,
        job: int | None = None,
        needs: Mapping[str, int] | None = None,
    ) -> PodEntry:
        """Count a pod on a node, and on no other."""
        self.drop(pod.metadata.uid)
        if needs is None:
            needs = self.needs(pod, bound=bound)
        entry = PodEntry(pod, node, needs, bound, assumed, job)
        self.entries[entry.uid] = entry
        load = self.loads.setdefault(node, NodeLoad())
        load.pods[entry.uid] = entry
        if job is None:
            add_into(load.total, entry.needs)
            load.workloads += not is_resident(pod)
        for tell in self.watchers:
            tell(entry, 1)
        return entry

    def drop(self, uid: str) -> PodEntry | None:
        """Stop counting a pod."""
        entry = self.entries.pop(uid, None)
        if entry is None:
            return None
        load = self.loads[entry.node]
        del load.pods[uid]
        if entry.job is None:
            add_into(load.total, entry.needs, sign=-1)
            load.workloads -= not is_resident(entry.pod)
        if not load.pods:
            del self.loads[entry.node]
        for tell in self.watchers:
            tell(entry, -1)
        return entry

    def on(self, node: str) -> list[PodEntry]:
        load = self.loads.get(node)
        return list(load.pods.values()) if load else []


def is_resident(pod: Pod) -> bool:
    """Whether a pod is part of its node: of a DaemonSet, or static. A node with only such pods counts as a
    whole free node."""
    controller = pod.metadata.controller_reference
    return _MIRROR in pod.annotations or (controller is not None and controller.kind == "DaemonSet")


def place_of(pod: Pod) -> str | None:
    """The node to which a pod is bound, or for which its scheduler nominated it; None: it has no node, or has
    ended."""
    if pod.is_terminal:
        return None
    return pod.spec.node_name or pod.status.nominated_node_name or None


class DeviceOvercommit:
    """The jobs on each node that share a device, or lack one."""

    def __init__(self, layout: GraphLayout, fit: GangFit) -> None:
        self._types = tuple(layout.devices.values())
        self._fit = fit
        self._jobs: dict[str, set[int]] = {}  # by node

    def __contains__(self, node: str) -> bool:
        return node in self._jobs

    def jobs(self, node: str) -> list[int]:
        return sorted(self._jobs.get(node, ()))

    def check(self, node: str, job: int) -> None:
        """A job was just recorded on a node: check whether it has its devices for itself."""
        holding = self._fit.jobs.get(job)
        short = False
        if holding is not None:
            free = self._fit.availability.at(self._fit.availability.now).free
            for seat in holding.placements.values():
                if seat.node == node:
                    asked = sum(seat.needs.get(type_, 0) for type_ in self._types)
                    short = short or asked > len(seat.devices) or any(free[row] < 0 for row in seat.devices)
        if short:
            self._jobs.setdefault(node, set()).add(job)
        else:
            self.clear(node, job)

    def clear(self, node: str, job: int) -> None:
        """A job has left a node."""
        if node in self._jobs:
            self._jobs[node].discard(job)
            if not self._jobs[node]:
                del self._jobs[node]

    def remove_node(self, node: str) -> None:
        self._jobs.pop(node, None)


_USAGE = -(1 << 40)  # jobs with this number or a lower one are such records


def is_usage(job: int) -> bool:
    """Whether a number in the ledger is the usage record of a node, not a job."""
    return job <= _USAGE


class NodeUsage:
    """The usage records, and which of them are out of date."""

    def __init__(
        self, pods: PodTable, vertices: NodeVertices, fit: GangFit, overcommit: DeviceOvercommit
    ) -> None:
        self._pods = pods
        self._vertices = vertices
        self._fit = fit
        self._overcommit = overcommit
        self._stale: set[str] = set()

    @property
    def is_stale(self) -> bool:
        return bool(self._stale)

    def mark(self, node: str) -> None:
        """A pod was added to or removed from a node, or the node has changed."""
        self._stale.add(node)

    def write(self) -> None:
        """Write the records of all marked nodes."""
        stale, self._stale = self._stale, set()
        for name in stale:
            self._write(name)

    def erase(self, node: str) -> None:
        job = self._number(node)
        if job in self._fit.jobs:
            self._fit.release(job)

    def _write(self, name: str) -> None:
        self.erase(name)
        load, job = self._pods.loads.get(name), self._number(name)
        if name not in self._vertices.nodes or load is None or not load.total:
            self._overcommit.clear(name, job)
            return
        seat = PodPlacement(name, name, dict(load.total))
        self._fit.hold(job, (seat,), start=0, uses_node=load.workloads > 0)
        self._overcommit.check(name, job)

    def _number(self, name: str) -> int:
        return _USAGE - self._vertices.rank(name)
