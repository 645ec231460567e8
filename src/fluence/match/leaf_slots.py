"""Slots made of leaves alone: the most common request by far, built without an object per leaf.

The walk asks for them at each vertex at which a slot of leaves can be built. Where the children of a vertex
look like those of a vertex that was met before, the slots are known already (`slot_cache.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from errno import EBUSY
from typing import TYPE_CHECKING

from fluence.match.candidates import MET, CandidateCount, CandidateGroup, Pool, Pools, best_first
from fluence.match.request import Need
from fluence.match.slot_cache import Built, Looks

if TYPE_CHECKING:
    from fluence.match.walk import Walk


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
        """What a slot is made of, by type, if that is leaves and nothing else."""
        found = self._leaves.get(slot)
        if found is None:
            found = self._leaves[slot] = leaf_needs(slot.below, alone=True)
        return found if len(found) == len(slot.below) else None

    def is_known(self, u: int, slot: Need) -> bool:
        """Whether such a slot was built at a vertex that looks like this one."""
        look = self._look(u)
        built = None if look is None else self._walk.slot_cache.find(slot, look[1])
        self._asked = (u, slot, built)  # it is built next, most often
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
        """The slots of a vertex whose children look like those of one that was met before, if they do."""
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
        """What the children of a vertex look like, where that says all."""
        if self._looked[0] != u:
            walk = self._walk
            plain = walk.allowed is None and not walk.load.is_weighed(u)
            self._looked = (u, walk.slot_cache.looks(u) if plain else None)
        return self._looked[1]

    def _slots(self, u: int, slot: Need, leaves: dict[int, Need], factor: int) -> list[list[int]]:
        found = self._find(u, leaves, shares=slot.most)
        sizes, own, ascending = self._sizes, self._scores, self._walk.policy.slot_ascending
        portions: list[list[list[int]]] = []  # per need, what each slot gets of it
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
        """The children that can be had, by type; they are wanted exclusively, so that there is all of a child
        or nothing."""
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
    """Whole vertices in portions that each reach the count; what is left over at the end is no portion."""
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
    """The needs that a vertex serves by itself; empty where the walk must look twice."""
    types = {need.type for need in needs}
    if len(types) != len(needs) or any(need.is_slot for need in needs):
        return {}
    return {n.type: n for n in needs if not n.below and not (alone and n.exclusive is False)}
