"""Which pods are on which node, and what they take there, whoever put them there.

A pod counts from the moment it is bound, assumed or nominated until its object is gone or it is terminal; a
terminating pod still counts. The sums are kept per node name, so that pods may be known before their node is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from fluence.model.pod import Pod
from fluence.model.resources import add_into, pod_requests

_MIRROR = "kubernetes.io/config.mirror"  # a static pod's shadow in the API


@dataclass(slots=True)
class PodEntry:
    """One pod that counts on a node."""

    pod: Pod
    node: str
    needs: Mapping[str, int]  # by vertex type
    bound: bool  # False: assumed or nominated
    assumed: bool = False  # we are about to bind it
    job: int | None = None  # the job whose seat it has; None: nobody's that we know

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid


@dataclass(slots=True)
class NodeLoad:
    """What the pods of one node that belong to no job of ours take together."""

    total: dict[str, int] = field(default_factory=dict)
    workloads: int = 0  # those that are not part of the node itself: see `is_resident`
    pods: dict[str, PodEntry] = field(default_factory=dict)  # all pods there, those of jobs included


class PodTable:
    """The pods that count, by uid and by node."""

    def __init__(self, types: Callable[[Mapping[str, int]], dict[str, int]]) -> None:
        self._types = types
        self.entries: dict[str, PodEntry] = {}
        self.loads: dict[str, NodeLoad] = {}
        self.watchers: list[Callable[[PodEntry, int], None]] = []  # told of each that comes (+1) or goes (-1)

    def __iter__(self) -> Iterator[PodEntry]:
        return iter(self.entries.values())

    def needs(self, pod: Pod, *, bound: bool) -> dict[str, int]:
        """What a pod takes of its node, by vertex type."""
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
        """A pod counts on a node from now on, and nowhere else."""
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
        """A pod counts no longer."""
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
    """Whether a pod is part of its node: of a DaemonSet, or static. A node with nothing else on it is a whole
    node."""
    owners = pod.metadata.owner_references or ()
    return _MIRROR in pod.annotations or any(each.kind == "DaemonSet" and each.controller for each in owners)


def place_of(pod: Pod) -> str | None:
    """The node that a pod is on, or for which it was nominated by its scheduler; None: none, or over."""
    if pod.is_terminal:
        return None
    return pod.spec.node_name or pod.status.nominated_node_name or None
