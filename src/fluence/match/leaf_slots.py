"""Slots that contain only leaves: the most common request, built without an object per leaf.

The walk uses it at each vertex at which a slot of leaves can be built. Most nodes are copies of each other.
If the columns of a vertex's children equal those of an earlier vertex byte by byte, the slots are known from
there, shifted by some rows (`SlotCache`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from errno import EBUSY
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from cachetools import FIFOCache

from fluence.graph.columns import Ints, Tree, scalars
from fluence.graph.graph import ResourceGraph
from fluence.graph.ledger import Ledger
from fluence.match.candidates import MET, CandidateCount, CandidateGroup, Pool, Pools, best_first
from fluence.match.request import Need

if TYPE_CHECKING:
    from fluence.match.walk import Walk

_MANY = 4096  # pairs of a slot and the columns of children
Looks: TypeAlias = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Built:
    """The slots that a search built from the children of one vertex."""

    slots: list[list[int]]  # the children in each, counted from the first child
    visited: int  # children that the search visited
    obstacle: int  # the obstacle that it met there


class SlotCache:
    """The known slots by the columns of the children, in one tree under one policy."""

    def __init__(self, graph: ResourceGraph, tree: Tree, ledger: Ledger, scores: Ints) -> None:
        self._graph = graph
        self._kinds: dict[int, frozenset[int]] = {}
        self._sets: dict[frozenset[int], frozenset[int]] = {}  # equal sets share one object
        # The columns do not show other subsystems, or vertices without a score.
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
        """The first child and the columns of all children; None if one is down, held or not in a row with the
        others."""
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


class LeafSlots:
    """The slots of leaves that one walk builds."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._types, self._sizes, self._up, self._scores = walk.types, walk.sizes, walk.ups, walk.scores
        self._slot = walk.graph.types.code("slot")
        self._leaves: dict[Need, dict[int, Need]] = {}
        self._looked: tuple[int, tuple[int, Looks] | None] = (-1, None)
        self._asked: tuple[int, Need | None, Built | None] = (-1, None, None)

    def leaves(self, slot: Need) -> dict[int, Need] | None:
        """The needs of a slot by type, if all of them are leaves; else None."""
        found = self._leaves.get(slot)
        if found is None:
            found = self._leaves[slot] = leaf_needs(slot.below, alone=True)
        return found if len(found) == len(slot.below) else None

    def is_known(self, u: int, slot: Need) -> bool:
        """Whether such a slot was built at a vertex with equal children."""
        look = self._look(u)
        built = None if look is None else self._walk.slot_cache.find(slot, look[1])
        self._asked = (u, slot, built)  # usually `build` is called next
        return built is not None

    def build(self, u: int, slot: Need, leaves: dict[int, Need], pools: Pools, factor: int) -> None:
        """Add the slots that can be built below a vertex to the candidates."""
        sizes, own = self._sizes, self._scores
        slots = self._known_slots(u, slot, leaves)
        if slots is None:
            slots = self._slots(u, slot, leaves, factor)
        for vertices in slots:
            score = MET + sum([own[vertex] for vertex in vertices]) + factor * len(vertices)
            pool = pools.setdefault((self._walk.dom, self._slot), Pool())
            pool.add(CandidateGroup(score, 1, [(vertex, sizes[vertex], True, u) for vertex in vertices]))

    def _known_slots(self, u: int, slot: Need, leaves: dict[int, Need]) -> list[list[int]] | None:
        """The slots of a vertex, if its children equal those of an earlier vertex."""
        look = self._look(u)
        if look is None or any(need.label for need in slot.below):
            return None
        walk = self._walk
        first, looks = look
        at, asked, built = self._asked
        if at != u or asked is not slot:
            built = walk.slot_cache.find(slot, looks)
        if built is None:
            visited, obstacle, walk.obstacle = walk.visited, walk.obstacle, 0
            slots = self._slots(u, slot, leaves, 0)
            places = [[vertex - first for vertex in vertices] for vertices in slots]
            built = walk.slot_cache.remember(
                slot, looks, Built(places, walk.visited - visited, walk.obstacle)
            )
            walk.visited, walk.obstacle = visited, obstacle
        walk.visited += built.visited
        walk.obstacle = built.obstacle or walk.obstacle
        return [[first + place for place in places] for places in built.slots]

    def _look(self, u: int) -> tuple[int, Looks] | None:
        """The columns of the children of a vertex, if nothing else affects its slots."""
        if self._looked[0] != u:
            walk = self._walk
            plain = walk.allowed is None and not walk.load.is_weighed(u)
            self._looked = (u, walk.slot_cache.looks(u) if plain else None)
        return self._looked[1]

    def _slots(self, u: int, slot: Need, leaves: dict[int, Need], factor: int) -> list[list[int]]:
        found = self._find(u, leaves, shares=slot.most)
        sizes, own, ascending = self._sizes, self._scores, self._walk.policy.slot_ascending
        portions: list[list[list[int]]] = []  # per need, the vertices of each slot
        for need in slot.below:
            vertices = found[need.type]
            scores = [own[vertex] + factor for vertex in vertices]
            qualified = sum([sizes[v] for v, score in zip(vertices, scores, strict=True) if score > 0])
            if qualified:
                vertices = best_first(vertices, scores, ascending=ascending)
            portions.append(_portions(vertices, need.count.effective(qualified), sizes))
        # The scarcest type decides how many slots there are.
        return [[vertex for part in parts for vertex in part] for parts in zip(*portions, strict=False)]

    def _find(self, u: int, leaves: dict[int, Need], *, shares: int) -> dict[int, list[int]]:
        """The available children, by type. They are needed exclusively, so a child is available completely or
        not at all."""
        walk = self._walk
        stops, empty, healthy = walk.policy.stop_early, walk.window.empty, walk.window.healthy
        types, sizes, up, heads = self._types, self._sizes, self._up, walk.ledger.heads
        free = walk.allowed is None
        found: dict[int, list[int]] = {type_: [] for type_ in leaves}
        tallies = {type_: CandidateCount(need.most) for type_, need in leaves.items()}
        missing = dict(leaves)
        visited = 0
        for child in walk.load.children(walk.tree, u) if stops else walk.tree.children(u):
            type_ = types[child]
            need = missing.get(type_)
            if need is None:
                if type_ not in leaves:
                    walk.obstacle = EBUSY
                continue
            visited += 1
            size = sizes[child]
            had = free and size and (up[child] or healthy) and (empty or heads[child] < 0)
            if not (had or walk.passes(child, type_, (need,), True)):
                continue
            if need.label:
                walk.labels[child] = need.label
            found[type_].append(child)
            if stops and tallies[type_].add_one(size) >= shares:
                del missing[type_]
                if not missing:
                    break
        walk.visited += visited
        return found


def _portions(vertices: list[int], count: int, sizes: Sequence[int]) -> list[list[int]]:
    """Whole vertices in portions that each reach the count; an incomplete rest is dropped."""
    portions: list[list[int]] = []
    portion: list[int] = []
    filling = 0
    for vertex in vertices if count else ():
        portion.append(vertex)
        filling += sizes[vertex]
        if filling >= count:
            portions.append(portion)
            portion, filling = [], 0
    return portions


def leaf_needs(needs: tuple[Need, ...], *, alone: bool) -> dict[int, Need]:
    """The needs that a leaf can serve by itself; empty if only the walk can decide."""
    types = {need.type for need in needs}
    if len(types) != len(needs) or any(need.is_slot for need in needs):
        return {}
    return {n.type: n for n in needs if not n.below and not (alone and n.exclusive is False)}
