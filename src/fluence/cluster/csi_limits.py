"""Attachments: how many volumes of each CSI driver a node has, and how many it may have.

The limits are those of CSINode. A claim that several pods of a node mount is one volume, and it counts from
when its first pod has a seat there; who mounts it, and by whose scheduler, does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fluence.graph.graph import Ints
from fluence.model.volume import Key

_ANY = 2**31


class CsiLimits:
    """Counts per driver and node."""

    def __init__(self) -> None:
        self._limits: dict[str, Mapping[str, int]] = {}  # node -> driver -> most
        self._drivers: dict[Key, str] = {}
        self._nodes: dict[Key, set[str]] = {}
        self._counts: dict[str, dict[str, int]] = {}  # driver -> node -> volumes
        self.limited: set[str] = set()  # drivers with a limit somewhere

    def set_limits(self, node: str, limits: Mapping[str, int]) -> bool:
        """Whether something changed."""
        if self._limits.get(node, {}) == limits:
            return False
        self._limits[node] = limits
        self.limited = {driver for each in self._limits.values() for driver in each}
        return True

    def set_driver(self, claim: Key, driver: str) -> None:
        """Who makes the volume of a claim; empty: nobody whose volumes are counted."""
        before = self._drivers.pop(claim, "")
        if driver:
            self._drivers[claim] = driver
        if before != driver:
            for node in self._nodes.get(claim, ()):
                self._count(before, node, -1)
                self._count(driver, node, 1)

    def put(self, claim: Key, node: str) -> None:
        """Some pod on a node mounts a claim."""
        nodes = self._nodes.setdefault(claim, set())
        if node not in nodes:
            nodes.add(node)
            self._count(self._drivers.get(claim, ""), node, 1)

    def take(self, claim: Key, node: str) -> None:
        """No pod on a node mounts a claim any more."""
        nodes = self._nodes.get(claim, set())
        if node in nodes:
            nodes.discard(node)
            self._count(self._drivers.get(claim, ""), node, -1)
            if not nodes:
                del self._nodes[claim]

    def room(self, driver: str, position: Mapping[str, int]) -> Ints:
        """How many more volumes of a driver each node takes."""
        free = np.full(len(position), _ANY, np.int64)
        for node, limits in self._limits.items():
            if driver in limits and node in position:
                free[position[node]] = limits[driver]
        for node, count in self._counts.get(driver, {}).items():
            if node in position:
                free[position[node]] -= count
        return free

    def nodes(self, claim: Key) -> set[str]:
        """Where a claim is attached, or about to be."""
        return self._nodes.get(claim, set())

    def _count(self, driver: str, node: str, change: int) -> None:
        if driver:
            counts = self._counts.setdefault(driver, {})
            counts[node] = counts.get(node, 0) + change
            if not counts[node]:
                del counts[node]
