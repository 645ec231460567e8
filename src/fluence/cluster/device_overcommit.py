"""Devices that more pods use than there are: whose they are is decided again when somebody leaves.

Pools may be taken beyond what there is: free falls below 0 and rises again. A device is a vertex, and a pod
that was placed by others on a node without free ones is counted on a vertex that another has, or on none. Who
is counted so must be given a vertex of its own as soon as there is one. `ClusterGraph` asks whenever it has
recorded seats on a node, and when somebody leaves it.
"""

from __future__ import annotations

from fluence.cluster.layout import GraphLayout
from fluence.placer.gang_fit import GangFit


class DeviceOvercommit:
    """Which jobs on which nodes share a device, or lack one."""

    def __init__(self, layout: GraphLayout, seats: GangFit) -> None:
        self._types = tuple(layout.devices.values())
        self._seats = seats
        self._jobs: dict[str, set[int]] = {}  # by node

    def __contains__(self, node: str) -> bool:
        return node in self._jobs

    def jobs(self, node: str) -> list[int]:
        return sorted(self._jobs.get(node, ()))

    def check(self, node: str, job: int) -> None:
        """A job has just been recorded on a node: whether it has its devices to itself."""
        seating = self._seats.jobs.get(job)
        short = False
        if seating is not None:
            free = self._seats.availability.at(self._seats.availability.now).free
            for seat in seating.seats.values():
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
