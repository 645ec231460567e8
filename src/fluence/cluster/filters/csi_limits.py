"""Attached volumes per CSI driver and node, and their limits (NodeVolumeLimits).

The limits come from CSINode. A claim that several pods on a node mount is one volume. It counts from the time
when its first pod is placed there, for pods of any scheduler. `volumes` updates `CsiLimits` with the pods;
`volumes` uses `AttachRoom` while it places a gang.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from fluence.graph.graph import Ints, Mask
from fluence.model.claims import Key
from fluence.model.reason import Code, Reason

_NO_LIMIT = 2**31

Attachment = tuple[Key | None, str]  # a claim that several pods share, or None; its driver


class CsiLimits:
    """Counts per driver and node."""

    def __init__(self) -> None:
        self._limits: dict[str, Mapping[str, int]] = {}  # node -> driver -> most
        self._drivers: dict[Key, str] = {}
        self._nodes: dict[Key, set[str]] = {}
        self._counts: dict[str, dict[str, int]] = {}  # driver -> node -> volumes
        self.limited: set[str] = set()  # drivers with a limit somewhere

    def set_limits(self, node: str, limits: Mapping[str, int]) -> bool:
        """Set the limits of a node; returns whether they have changed."""
        if self._limits.get(node, {}) == limits:
            return False
        if limits:
            self._limits[node] = limits
        else:
            self._limits.pop(node, None)
        self.limited = {driver for each in self._limits.values() for driver in each}
        return True

    def set_driver(self, claim: Key, driver: str) -> None:
        """Set the CSI driver of the volume of a claim; empty: its volumes are not counted."""
        before = self._drivers.pop(claim, "")
        if driver:
            self._drivers[claim] = driver
        if before != driver:
            for node in self._nodes.get(claim, ()):
                self._count(before, node, -1)
                self._count(driver, node, 1)

    def attach(self, claim: Key, node: str) -> None:
        """A pod on a node mounts a claim."""
        nodes = self._nodes.setdefault(claim, set())
        if node not in nodes:
            nodes.add(node)
            self._count(self._drivers.get(claim, ""), node, 1)

    def detach(self, claim: Key, node: str) -> None:
        """No pod on a node mounts a claim any more."""
        nodes = self._nodes.get(claim, set())
        if node in nodes:
            nodes.discard(node)
            self._count(self._drivers.get(claim, ""), node, -1)
            if not nodes:
                del self._nodes[claim]

    def room(self, driver: str, position: Mapping[str, int]) -> Ints:
        """The number of volumes of a driver that can still be attached to each node."""
        free = np.full(len(position), _NO_LIMIT, np.int64)
        for node, limits in self._limits.items():
            if driver in limits and node in position:
                free[position[node]] = limits[driver]
        for node, count in self._counts.get(driver, {}).items():
            if node in position:
                free[position[node]] -= count
        return free

    def nodes(self, claim: Key) -> set[str]:
        """The nodes to which a claim is attached, or about to be."""
        return self._nodes.get(claim, set())

    def _count(self, driver: str, node: str, change: int) -> None:
        if driver:
            counts = self._counts.setdefault(driver, {})
            counts[node] = counts.get(node, 0) + change
            if not counts[node]:
                del counts[node]


class AttachRoom:
    """The number of volumes that can still be attached to each node, while a gang is placed."""

    def __init__(
        self, limits: CsiLimits, attachments: Collection[Attachment], position: Mapping[str, int]
    ) -> None:
        self._size = len(position)
        self._room = {driver: limits.room(driver, position) for _, driver in attachments}
        self._attached = {
            claim: {position[node] for node in limits.nodes(claim) if node in position}
            for claim, _ in attachments
            if claim is not None
        }

    def open_nodes(self, attachments: Sequence[Attachment]) -> Iterator[tuple[Reason, Mask]]:
        """For each driver, the nodes to which the volumes of one pod can be attached."""
        for driver in {driver for _, driver in attachments}:
            more = np.zeros(self._size, np.int64)
            for claim, its in attachments:
                if its == driver:
                    more += 1
                    if claim is not None:
                        more[list(self._attached[claim])] -= 1
            mask = (more == 0) | (self._room[driver] >= more)
            yield Reason.of(Code.ATTACH_LIMIT, driver=driver), mask

    def assign(self, attachments: Sequence[Attachment], node: int) -> None:
        for claim, driver in attachments:
            if claim is None or node not in self._attached[claim]:
                self._room[driver][node] -= 1
                if claim is not None:
                    self._attached[claim].add(node)
