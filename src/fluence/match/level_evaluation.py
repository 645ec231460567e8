"""Why each candidate vertex of a request serves or does not serve, in columns, now or under other conditions.

The matcher stops when a search fails; here every vertex is evaluated. `LevelShape` finds the vertices of each
level of the request, from the shape of the graph alone. An `Evaluation` then goes through the levels from the
bottom up under a `Supposition` (allocations, vertices that are down, the constraint), with a few array
operations per level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fluence.graph.columns import NO_ROWS, Ints, Mask, Rows, Tree
from fluence.graph.graph import ResourceGraph
from fluence.match.candidates import CandidateGroup, arranged
from fluence.match.index import effective
from fluence.match.matcher import Matcher
from fluence.match.request import Need, Request, Window
from fluence.model.jobspec import MAX_COUNT


class Suppositions:
    """One request at one time, evaluated under each supposition."""

    def __init__(self, matcher: Matcher, request: Request, window: Window) -> None:
        graph = matcher.graph
        self.matcher, self.request, self.window, self.graph = matcher, request, window, graph
        self.tree = matcher.tree.shape()
        needs = settled(request.needs) if matcher.flexible else request.needs
        self.shape = shape = LevelShape(graph, self.tree, needs)
        self.spans = spans = Spans(matcher, window)
        allowed = matcher.search.allowed_by(request.constraint)
        size = graph.size

        def suppose(up: Mask | None, allowed: Mask | None, spans: Spans | None) -> Evaluation:
            return Evaluation(shape, Supposition(size, up, allowed, spans), matcher)

        self.now = suppose(graph.up, allowed, spans)
        self.empty = suppose(None, allowed, None)
        self.mended = self.now if graph.up.all() else suppose(None, allowed, spans)
        self.bare = self.empty if allowed is None else suppose(None, None, None)

    def cause(self, level: LevelNeed) -> Codes:
        """Why each vertex of a level does not serve; 0 if it does. Permanent causes come first."""
        now, mended, empty, bare = (
            supposed.answers[level] for supposed in (self.now, self.mended, self.empty, self.bare)
        )
        below = np.where(mended.ok, DOWN, BUSY)
        passing = np.where(now.code != 0, now.code, below)
        lasting = np.where(bare.code == CONTRADICTION, CONTRADICTION, TOO_SMALL)
        cause = np.where(bare.ok, np.where(empty.ok, passing, CONSTRAINT), lasting)
        return np.where(now.ok, FIT, cause).astype(np.int8)

    def below(self, level: LevelNeed, state: Evaluation) -> Iterator[tuple[str, Ints, int]]:
        """What each vertex of a level has of each need below it: name, amounts, minimum."""
        answer = state.answers[level]
        for child in level.below:
            if child.need.is_slot and not level.need.is_slot:
                sums = state.answers[child].sums
                for own in child.below:
                    have = summed(child.owner, sums[own.need.type], len(level.vertices))
                    # If no place can hold the slot, report only types that are missing completely.
                    places = np.bincount(child.owner, minlength=len(level.vertices))
                    there = self.shape.has_below(own.need.type)[level.vertices]
                    have[(places == 0) & there] = MAX_COUNT
                    yield own.need.name, have, child.need.count.min * own.need.count.min
            yield child.need.name, answer.sums[child.need.type], child.least


Codes: TypeAlias = npt.NDArray[np.int8]

# The results for a vertex.
FIT, DOWN, CONSTRAINT, BUSY, TOO_SMALL, SHARED, UNREACHABLE, CONTRADICTION = range(8)


# -- the shape: which vertices each level of a request speaks of ---------------------------------------------


@dataclass(eq=False, slots=True)
class LevelNeed:
    """A need of the request and, from the shape of the graph alone, the vertices that could serve it.

    The vertices of a slot are its places: vertices with all its types below them. Most often a place is the
    vertex that serves the need above (``direct``); the walk also looks one level further down.
    """

    need: Need
    path: str
    above: LevelNeed | None
    alone: bool  # inside an exclusive need
    below: list[LevelNeed] = field(default_factory=list)
    vertices: Rows = field(default_factory=lambda: NO_ROWS)
    owner: Rows = field(default_factory=lambda: NO_ROWS)  # by position: its parent in ``above``
    broken: Mask = field(default_factory=lambda: np.empty(0, np.bool_))  # the request contradicts itself
    direct: Mask = field(default_factory=lambda: np.empty(0, np.bool_))

    def add(self, vertices: Rows, owner: Rows, *, broken: bool = False, direct: bool = False) -> None:
        count = len(vertices)
        self.vertices = np.concatenate((self.vertices, vertices))
        self.owner = np.concatenate((self.owner, owner.astype(np.int32)))
        self.broken = np.concatenate((self.broken, np.full(count, broken)))
        self.direct = np.concatenate((self.direct, np.full(count, direct)))

    @property
    def least(self) -> int:
        """The minimum amount; a count of 0 is never satisfied."""
        return self.need.count.min or MAX_COUNT + 1

    def all(self) -> Iterator[LevelNeed]:
        yield self
        for level in self.below:
            yield from level.all()


class LevelShape:
    """The levels of a request, filled by following the walk through a graph where every vertex passes."""

    def __init__(self, graph: ResourceGraph, tree: Tree, needs: Sequence[Need]) -> None:
        self.graph, self.tree = graph, tree
        self._above_type: dict[int, Mask] = {}
        self.tops = [_level_need(need, None, alone=False) for need in needs]
        self.passed: list[Rows] = []  # level by level: the vertices above all needs
        rows = np.array([tree.root], np.int32)
        while len(rows):
            rest = self._offer(self.tops, rows, np.zeros(len(rows), np.int32))
            self.passed.append(rows[rest])
            rows, _ = self.children(rows[rest])
        for level in self.tops:
            self._descend(level)

    def levels(self) -> Iterator[LevelNeed]:
        for top in self.tops:
            yield from top.all()

    def children(self, vertices: Rows) -> tuple[Rows, Rows]:
        """The children of some vertices, and the position of the parent of each."""
        start = self.tree.child_start
        width = start[vertices + 1] - start[vertices]
        at = np.repeat(np.arange(len(vertices), dtype=np.int32), width)
        first = np.repeat(start[vertices] - (np.cumsum(width) - width), width)
        return self.tree.child[first + np.arange(len(at))], at

    def has_below(self, type_: int) -> Mask:
        """Which vertices have a direct child of a type in any subsystem, as in the walk."""
        found = self._above_type.get(type_)
        if found is None:
            graph = self.graph
            found = np.zeros(graph.rows, np.bool_)
            rows = graph.vertices_of_type(type_)
            for tree in graph.trees.values():
                above = tree.parent[rows]
                found[above[above >= 0]] = True
                for vertex, links in tree.links.items():
                    found[vertex] |= any(graph.type[child] == type_ for _, child in links)
            self._above_type[type_] = found
        return found

    def holds(self, slot: Need) -> Mask:
        """The vertices at which a slot can be built."""
        held = np.ones(self.graph.rows, np.bool_)
        for need in slot.below:
            held &= self.has_below(need.type)
        return held

    def _offer(self, levels: list[LevelNeed], vertices: Rows, owner: Rows) -> Mask:
        """Assign each vertex to the level that it serves; returns a mask of the vertices that serve none."""
        types = self.graph.type[vertices]
        slots = [level for level in levels if level.need.is_slot]
        plain = [level for level in levels if not level.need.is_slot]
        taken = np.zeros(len(vertices), np.bool_)
        for level in plain:
            mine = types == level.need.type
            twice = sum(other.need.type == level.need.type for other in plain) > 1
            level.add(vertices[mine], owner[mine], broken=twice or bool(slots))
            taken |= mine
        if len(slots) > 1:
            taken[:] = True
        elif slots:
            mine = ~taken & self.holds(slots[0].need)[vertices]
            slots[0].add(vertices[mine], owner[mine])
            taken |= mine
        return ~taken

    def _descend(self, level: LevelNeed) -> None:
        rest = np.flatnonzero(~level.broken).astype(np.int32)
        if level.need.slot is not None and not level.need.is_slot:
            here = self.holds(level.need.slot)[level.vertices[rest]]
            slot = next(own for own in level.below if own.need is level.need.slot)
            slot.add(level.vertices[rest[here]], rest[here], direct=True)
            rest = rest[~here]
        if level.below:
            found, at = self.children(level.vertices[rest])
            self._offer(level.below, found, rest[at])
        for own in level.below:
            self._descend(own)


def _level_need(need: Need, above: LevelNeed | None, *, alone: bool) -> LevelNeed:
    level = LevelNeed(need, need.name if above is None else f"{above.path} > {need.name}", above, alone)
    inside = alone or need.is_slot or need.exclusive is True
    level.below = [_level_need(child, level, alone=inside) for child in need.below]
    return level


def settled(needs: Sequence[Need]) -> tuple[Need, ...]:
    """The needs without slots that are alternatives to each other."""
    several = sum(need.is_slot for need in needs) > 1
    kept: list[Need] = []
    for need in needs:
        if need.name == "xor_slot" or (several and need.is_slot):
            continue
        below = settled(need.below)
        kept.append(replace(need, below=below, slot=next((n for n in reversed(below) if n.is_slot), None)))
    return tuple(kept)


# -- evaluation under a supposition --------------------------------------------------------------------------


class Spans:
    """The spans of the jobs in columns, and their effect in a window."""

    def __init__(self, matcher: Matcher, window: Window) -> None:
        ledger = matcher.ledger
        self.jobs = list(ledger.jobs.values())
        rows = np.concatenate([NO_ROWS, *(job.spans for job in self.jobs)])
        lengths = [len(job.spans) for job in self.jobs]
        self.job = np.repeat(np.arange(len(self.jobs)), lengths)
        self.vertex = ledger.vertex[rows]
        self.start = np.repeat(np.array([job.start for job in self.jobs], np.int64), lengths)
        self.end = np.repeat(np.array([job.end for job in self.jobs], np.int64), lengths)
        alone = ledger.exclusive[rows]
        amount = ledger.needs[rows]
        meets = (self.start < window.end) & (self.end > window.start)
        overruns = alone & ~np.repeat(np.array([job.reserved for job in self.jobs], np.bool_), lengths)
        self.strong = (alone & meets) | overruns  # excludes all other jobs
        self.any = meets | overruns
        size = matcher.graph.size
        self.touched = np.zeros(len(size), np.bool_)
        self.touched[self.vertex[self.any]] = True
        self.held = np.zeros(len(size), np.bool_)
        self.held[self.vertex[self.strong]] = True
        takes = meets & alone & (amount != 0)
        self.free = size - self._most(takes, amount, len(size))

    def _most(self, takes: Mask, amount: Ints, rows: int) -> Ints:
        """Per vertex: the largest amount that is taken at any time."""
        most = np.zeros(rows, np.int64)
        most[self.vertex[takes]] = amount[takes]
        several = takes & (np.bincount(self.vertex[takes], minlength=rows) > 1)[self.vertex]
        vertex = np.tile(self.vertex[several], 2)
        time = np.concatenate((self.start[several], self.end[several]))
        change = np.concatenate((amount[several], -amount[several]))
        by = np.lexsort((change, time, vertex))
        # Everything that is taken of a vertex is also given back, so one running sum works for all vertices.
        np.maximum.at(most, vertex[by], np.cumsum(change[by]))
        return most

    def on(self, rows: Rows | Sequence[int]) -> list[int]:
        """The jobs (by position) that keep a request from these vertices."""
        wanted = np.zeros(len(self.held), np.bool_)
        wanted[rows] = True
        hit = wanted[self.vertex] & (self.strong | (self.any & ~self.held[self.vertex]))
        return np.unique(self.job[hit]).tolist()  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Supposition:
    """The conditions under which a request is evaluated: the real ones, or others."""

    size: Ints
    up: Mask | None = None
    allowed: Mask | None = None
    spans: Spans | None = None

    @property
    def free(self) -> Ints:
        return self.size if self.spans is None else self.spans.free

    def check(self, vertices: Rows, *, alone: bool) -> Codes:
        """What excludes each vertex by itself."""
        code = np.zeros(len(vertices), np.int8)
        if self.spans is not None:
            if alone:
                code[self.spans.touched[vertices]] = SHARED
                code[self.spans.held[vertices]] = BUSY
            code[self.spans.free[vertices] == 0] = BUSY
        code[self.size[vertices] == 0] = TOO_SMALL
        if self.allowed is not None:
            code[~self.allowed[vertices]] = CONSTRAINT
        if self.up is not None:
            code[~self.up[vertices]] = DOWN
        return code


@dataclass(frozen=True, slots=True)
class LevelAnswer:
    """The result for the vertices of one level."""

    own: Codes  # what excludes a vertex by itself
    code: Codes  # by itself or by a vertex above it
    ok: Mask
    units: Ints  # the amount of each: its free size, or the slots that can be built
    sums: dict[int, Ints]  # by type: the amount that each has of its needs below


class Evaluation:
    """All levels under one supposition."""

    def __init__(self, shape: LevelShape, given: Supposition, matcher: Matcher) -> None:
        self.shape, self.given = shape, given
        self._policy, self._scores = matcher.policy, matcher.search.scores
        self.is_uneven = False  # slots were built from vertices of unequal size: their order decided
        self.answers: dict[LevelNeed, LevelAnswer] = {}
        parent = shape.tree.parent
        above = np.zeros(shape.graph.rows + 1, np.int8)  # the last entry means "none"
        self.barred: list[Rows] = []
        for rows in shape.passed:
            own = given.check(rows, alone=False)
            self.barred.append(rows[(own == BUSY) & (above[parent[rows]] == 0)])
            above[rows] = np.where(above[parent[rows]] != 0, above[parent[rows]], own)
        for level in shape.tops:
            self._answer(level, above[parent[level.vertices]])

    def total(self, level: LevelNeed) -> int:
        """How much of the type of a top level reaches the root."""
        same = (own for own in self.shape.tops if own.need.type == level.need.type)
        return sum(int(self.answers[own].units[self.answers[own].ok].sum()) for own in same)

    @property
    def fits(self) -> bool:
        return all(self.total(level) >= level.least for level in self.shape.tops)

    def _answer(self, level: LevelNeed, inherited: Codes) -> None:
        need = level.need
        own = self.given.check(
            level.vertices, alone=not need.is_slot and (level.alone or bool(need.exclusive))
        )
        if level.alone and need.exclusive is False and not need.is_slot:
            own[(own != DOWN) & (own != CONSTRAINT)] = CONTRADICTION
        own[level.broken] = CONTRADICTION
        own[level.direct] = FIT  # a place that serves the need above was checked there
        code = np.where(inherited != 0, inherited, own).astype(np.int8)
        sums: dict[int, Ints] = {}
        for child in level.below:
            self._answer(child, code[child.owner])
            answer = self.answers[child]
            given = np.where(answer.ok, answer.units, 0)
            found = summed(child.owner, given, len(level.vertices))
            sums[child.need.type] = sums.get(child.need.type, 0) + found
        ok = code == 0
        if need.is_slot:
            units = self._slots(level, sums)
            ok &= units > 0
        else:
            units = self.given.free[level.vertices]
            for child in level.below:
                ok &= sums[child.need.type] >= child.least
        self.answers[level] = LevelAnswer(own, code, ok, units, sums)

    def _slots(self, slot: LevelNeed, sums: dict[int, Ints]) -> Ints:
        """How many slots can be built at each place, from whole vertices."""
        places = len(slot.vertices)
        if not slot.below or any(child.need.is_slot for child in slot.below):
            return np.zeros(places, np.int64)
        slots = np.full(places, MAX_COUNT, np.int64)
        for child in slot.below:
            answer, have = self.answers[child], sums[child.need.type]
            counts = effective(child.need.count, have)
            ok = answer.ok
            pieces = np.bincount(child.owner[ok], minlength=places)
            largest = np.zeros(places, np.int64)
            np.maximum.at(largest, child.owner[ok], answer.units[ok])
            per_slot = -(-counts // np.maximum(largest, 1))
            built = np.where(counts > 0, pieces // np.maximum(per_slot, 1), 0)
            uneven = np.flatnonzero((largest * pieces != have) & (counts > 0))
            if len(uneven):
                self.is_uneven = True
                built[uneven] = self._bundles(child, uneven, counts[uneven])
            slots = np.minimum(slots, built)
        return slots

    def _bundles(self, level: LevelNeed, places: Ints, counts: Ints) -> list[int]:
        """Slots from vertices of unequal size, filled one after the other in the order of the policy."""
        answer = self.answers[level]
        mine = np.flatnonzero(answer.ok)
        by_place = mine[np.argsort(level.owner[mine], kind="stable")]
        owners = level.owner[by_place]
        low, high = np.searchsorted(owners, places), np.searchsorted(owners, places, side="right")
        built: list[int] = []
        for first, last, count in zip(low.tolist(), high.tolist(), counts.tolist(), strict=True):
            at = by_place[first:last]
            scores = self._scores[level.vertices[at]].tolist()
            pairs = zip(scores, answer.units[at].tolist(), strict=True)
            groups = [CandidateGroup(score, units, []) for score, units in pairs]
            filled = filling = 0
            for group in arranged(groups, ascending=self._policy.slot_ascending):
                filling += group.count
                if filling >= count:
                    filled, filling = filled + 1, 0
            built.append(filled)
        return built


def summed(owner: Rows, amounts: Ints, length: int) -> Ints:
    """Amounts per owner, as integers, because a float cannot count many bytes exactly."""
    sums = np.zeros(length, np.int64)
    np.add.at(sums, owner, amounts)
    return sums
