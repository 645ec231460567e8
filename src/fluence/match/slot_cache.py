"""Vertices whose children look alike: the slots that one of them gives, all of them give.

The nodes of a cluster are mostly copies of one another. While the children of a vertex are up and nobody
holds any of them, the slots that can be built from them follow from a few columns. Where these are the same,
row by row, the slots are the same too, only some rows further on. The walk keeps them here (`leaf_slots.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from cachetools import FIFOCache

from fluence.graph.columns import Ints, scalars
from fluence.graph.graph import ResourceGraph
from fluence.graph.ledger import Ledger
from fluence.graph.tree import Tree
from fluence.match.request import Need

_MANY = 4096  # kinds of slots and looks
Looks: TypeAlias = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Built:
    """The slots that a search built from the children of one vertex."""

    slots: list[list[int]]  # the children in each, counted from the first child
    visited: int  # children that the search looked at
    obstacle: int  # and what it met there


class SlotCache:
    """What is known of vertices by the looks of their children, in one tree under one policy."""

    def __init__(self, graph: ResourceGraph, tree: Tree, ledger: Ledger, scores: Ints) -> None:
        self._graph = graph
        self._kinds: dict[int, frozenset[int]] = {}
        self._sets: dict[frozenset[int], frozenset[int]] = {}  # equal ones are one object: there are few
        # What lies in another subsystem or scores nothing does not show in the columns.
        self._shows = tree.is_tree and len(graph.trees) == 1 and bool((scores[tree.order] > 0).all())
        self._start, self._child, self._uniq = scalars(tree.child_start), tree.child, graph.uniq_id
        self._up, self._heads = scalars(graph.up), ledger.heads
        self._columns = [scalars(column) for column in (graph.type, graph.size, scores)]
        self._in_a_row: dict[int, bytes] = {}
        self._known: FIFOCache[tuple[Need, Looks], Built] = FIFOCache(_MANY)

    def child_types(self, vertex: int) -> frozenset[int]:
        """The types of the children of a vertex, in all subsystems."""
        found = self._kinds.get(vertex)
        if found is None:
            trees = self._graph.trees.values()
            types = scalars(self._graph.type)
            found = frozenset([types[child] for tree in trees for child in tree.shape().children(vertex)])
            self._kinds[vertex] = found = self._sets.setdefault(found, found)
        return found

    def looks(self, vertex: int) -> tuple[int, Looks] | None:
        """The first child and what all of them look like; None where one is down, held or out of line."""
        low, high = self._start[vertex], self._start[vertex + 1]
        count = high - low
        if not (count and self._shows):
            return None
        children = self._child[low:high]
        first = int(children[0])
        if bytes(self._up[first : first + count]) != b"\1" * count:
            return None
        if bytes(self._heads[first : first + count]) != b"\xff" * (4 * count):  # each -1: no span
            return None
        line = self._in_a_row.get(count)
        if line is None:
            line = self._in_a_row[count] = np.arange(count, dtype=np.int32).tobytes()
        if (children - first).tobytes() != line:
            return None
        uniq = self._uniq[first : first + count]
        return first, (
            (uniq - uniq[0]).tobytes(),
            *[bytes(column[first : first + count]) for column in self._columns],
        )

    def find(self, slot: Need, looks: Looks) -> Built | None:
        try:
            return self._known[slot, looks]
        except KeyError:
            return None

    def remember(self, slot: Need, looks: Looks, built: Built) -> Built:
        self._known[slot, looks] = built
        return built
