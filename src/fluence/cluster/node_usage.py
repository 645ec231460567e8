"""What pods of no job of ours take of each node: one record in the ledger per node.

These are the pods of other schedulers, of DaemonSets, static ones, and our own that run on after their job
was released. Events only mark a node; the record is written anew, once, when something is asked.
`ClusterGraph` is the only caller.
"""

from __future__ import annotations

from fluence.cluster.device_overcommit import DeviceOvercommit
from fluence.cluster.pods import PodTable
from fluence.cluster.vertices import NodeVertices
from fluence.placer.gang import Seat
from fluence.placer.gang_fit import GangFit

_USAGE = -(1 << 40)  # jobs of this number and below are such records


def is_usage(job: int) -> bool:
    """Whether a number in the ledger stands for the pods of a node, not for a job."""
    return job <= _USAGE


class NodeUsage:
    """The records, and which of them are out of date."""

    def __init__(
        self, pods: PodTable, vertices: NodeVertices, seats: GangFit, overcommit: DeviceOvercommit
    ) -> None:
        self._pods = pods
        self._vertices = vertices
        self._seats = seats
        self._overcommit = overcommit
        self._stale: set[str] = set()

    @property
    def is_stale(self) -> bool:
        return bool(self._stale)

    def mark(self, node: str) -> None:
        """A pod has come to a node, or gone; or the node has changed."""
        self._stale.add(node)

    def write(self) -> None:
        """Write the records of all nodes that were marked."""
        stale, self._stale = self._stale, set()
        for name in stale:
            self._write(name)

    def erase(self, node: str) -> None:
        job = self._number(node)
        if job in self._seats.jobs:
            self._seats.release(job)

    def _write(self, name: str) -> None:
        self.erase(name)
        load, job = self._pods.loads.get(name), self._number(name)
        if name not in self._vertices.nodes or load is None or not load.total:
            self._overcommit.clear(name, job)
            return
        seat = Seat(name, name, dict(load.total))
        self._seats.hold(job, (seat,), start=0, uses_node=load.workloads > 0)
        self._overcommit.check(name, job)

    def _number(self, name: str) -> int:
        return _USAGE - self._vertices.rank(name)
