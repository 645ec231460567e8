"""The first lines of an explanation: the nearest miss, and hints what to change in the request.

The nearest miss is the smallest statement of what is missing, with the vertex that comes closest. A hint says
that a level is missing, that a slot is in the wrong place, or that a request contradicts itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fluence.graph.columns import NO_ROWS, Rows
from fluence.match.explanation import CAUSES, WORDS, job_names
from fluence.match.level_evaluation import (
    BUSY,
    CONSTRAINT,
    CONTRADICTION,
    DOWN,
    SHARED,
    Evaluation,
    LevelNeed,
    Suppositions,
)
from fluence.match.request import Need


class Hints:
    """The hints on one request."""

    def __init__(self, supposed: Suppositions) -> None:
        self.graph, self.tree, self.shape = supposed.graph, supposed.tree, supposed.shape

    def hint(self, level: LevelNeed, astray: Rows) -> str | None:
        """What to change in the request."""
        need, above, over = level.need, level.above, _resource_above(level)
        if (wrong := self._contradiction(level)) is not None:
            return wrong
        if need.is_slot and need.below and not len(level.vertices) and not len(astray):
            homes = "; ".join(self._home(own) for own in need.below)
            return f"nothing has all of a slot directly below it: {homes}"
        if not len(astray) or (above is not None and above.need.is_slot and not len(above.vertices)):
            return None  # no hint, or the slot has given it
        gap = self._gap(level, int(astray[0]))
        if not gap:
            return None
        if over is None:
            return f"{need.name} is below {gap[0]}, which is asked for beside it: ask for it inside"
        levels = " > ".join(gap)
        if need.is_slot:
            return (
                f"a slot fits below {levels}: name what is between {over.need.name} and slot, or start there"
            )
        cure = f"name the level{'s'[: len(gap) > 1]} {levels}, or put the slot on top"
        return f"{need.name} is below {levels}, not directly below {over.need.name}: {cure}"

    def _contradiction(self, level: LevelNeed) -> str | None:
        """How the request contradicts itself at a level."""
        need = level.need
        peers = self.shape.tops if level.above is None else level.above.below
        if level.alone and need.exclusive is False and not need.is_slot:
            return "exclusive: false contradicts what it is inside of: leave it out, or move it outside"
        if sum(peer.need.type == need.type for peer in peers) > 1:
            return f"one level asks for {need.name} twice: make it one, or nest them"
        if len(peers) > 1 and any(peer.need.is_slot for peer in peers):
            return (
                "a slot must be alone at its level: put the others into it, or give each a level of its own"
            )
        return None

    def _home(self, need: Need) -> str:
        parents = self.tree.parent[self.graph.vertices_of_type(need.type)]
        codes = np.unique(self.graph.type[parents[parents >= 0]]).tolist()
        homes = " or ".join(self.graph.types.words[code] for code in codes)
        return f"{need.name} is below {homes}" if homes else f"there is no {need.name}"

    def _gap(self, level: LevelNeed, vertex: int) -> list[str]:
        """The types of vertices between a vertex that is out of reach and the level above it."""
        over = _resource_above(level)
        stops = np.zeros(self.graph.rows, np.bool_)
        for own in self.shape.tops if over is None else (over,):
            stops[own.vertices] = True
        if over is None:
            found = next((above for above in self.tree.ancestors(vertex) if stops[above]), None)
            return [] if found is None else [self.graph.type_name(found)]
        names = [self.graph.type_name(vertex)] if level.need.is_slot else []
        for above in self.tree.ancestors(vertex):
            if stops[above]:
                break
            names.append(self.graph.type_name(above))
        return list(dict.fromkeys(reversed(names)))

    def astray(self, level: LevelNeed) -> Rows:
        """Vertices of the right type below the level above, but not where the walk looks for them."""
        graph, tree = self.graph, self.tree
        if level.need.is_slot:
            if not level.need.below:
                return NO_ROWS
            rows = np.flatnonzero(self.shape.holds(level.need)).astype(np.int32)
        else:
            rows = graph.vertices_of_type(level.need.type)
        astray = np.zeros(graph.rows, np.bool_)
        astray[rows[tree.pre[rows] >= 0]] = True
        astray[level.vertices] = False
        above = _resource_above(level)
        if above is not None and astray.any():
            edges = np.zeros(len(tree.order) + 1, np.int64)
            np.add.at(edges, tree.pre[above.vertices] + 1, 1)
            np.add.at(edges, tree.end[above.vertices], -1)
            astray[tree.order[np.cumsum(edges[:-1]) == 0]] = False
        return np.flatnonzero(astray).astype(np.int32)


def _resource_above(level: LevelNeed) -> LevelNeed | None:
    """The nearest level above that is not a slot."""
    above = level.above
    while above is not None and above.need.is_slot:
        above = above.above
    return above


_FARNESS = np.array([0, 3, 4, 1, 5, 2, 6, 7], float)  # by code: causes that may pass soon are nearer


class NearestMiss:
    """What one request lacks."""

    def __init__(self, supposed: Suppositions, hints: Hints) -> None:
        self.supposed, self.hints = supposed, hints
        self.graph, self.tree, self.spans = supposed.graph, supposed.tree, supposed.spans

    def describe(self, level: LevelNeed, state: Evaluation) -> str:
        """What is missing at a top level, and the vertex that comes closest."""
        need, total = level.need, state.total(level)
        if not need.count.min:
            return f"{need.name}: a count of 0 is never met: leave it out or ask for 1"
        would = "would fit on an empty graph" if state is self.supposed.empty else "fit"
        text = f"{need.name}: {total} of the {need.count.min} needed {would}"
        at = self._closest(level, state, range(len(level.vertices)))
        if at is None:
            hint = self.hints.hint(level, self.hints.astray(level))
            return f"{text}; {hint or 'there are no more'}"
        return f"{text}; {self._name(level, at)} is the nearest: {self._describe(level, state, at)}"

    def _closest(self, level: LevelNeed, state: Evaluation, among: Sequence[int] | range) -> int | None:
        """The position of the vertex that lacks least, among those that do not serve."""
        if not len(level.vertices):
            return None
        answer = state.answers[level]
        far = np.zeros(len(level.vertices))
        slots = answer.units if level.need.is_slot else np.zeros(len(far), np.int64)
        for _, have, least in self.supposed.below(level, state):
            want = (slots + 1) * least
            far += np.clip(want - have, 0, want) / np.maximum(want, 1)
        far = np.where(answer.code != 0, 1000 + _FARNESS[answer.code], far)
        if state is self.supposed.now:
            hoped = self.supposed.empty.answers[level]
            hopeless = hoped.units <= answer.units if level.need.is_slot else ~hoped.ok
            far[hopeless] += 2000  # waiting will not help there
        # A place that has a slot may be the closest to having one more, but not in an empty graph.
        far[answer.ok & (not level.need.is_slot or state is self.supposed.empty)] = np.inf
        mask = np.ones(len(far), np.bool_)
        mask[list(among)] = False
        far[mask] = np.inf
        best = int(np.argmin(far))
        return None if np.isinf(far[best]) else best

    def _describe(self, level: LevelNeed, state: Evaluation, at: int) -> str:
        answer = state.answers[level]
        if answer.code[at]:
            return self._barred(level, state, at)
        slots = int(answer.units[at]) if level.need.is_slot else 0
        worst: tuple[float, str, int, int] | None = None
        for name, have, least in self.supposed.below(level, state):
            want, own = least * (slots + 1), int(have[at])
            missing = (want - own) / want if want else 0.0
            if name != "slot" and missing > 0 and (worst is None or missing > worst[0]):
                worst = missing, name, own, want
        if worst is None:
            return "its parts do not add up to one more slot, which takes whole vertices"
        _, name, own, want = worst
        free = "free " if state is self.supposed.now else ""
        return f"it has {own} of {want} {free}{name}{self._missing_parts(level, state, at, name)}"

    def _missing_parts(self, level: LevelNeed, state: Evaluation, at: int, name: str) -> str:
        """Why the rest of what a vertex lacks is not available, in parentheses: jobs, vertices that are down,
        the constraint."""
        part, places = _part(level, name, at)
        if part is None:
            return ""
        answer = state.answers[part]
        mine = np.flatnonzero(np.isin(part.owner, places) & ~answer.ok)
        if not len(mine):
            hint = self.hints.hint(part, self.hints.astray(part))
            if hint is None and part.above is not None and part.above is not level:
                hint = self.hints.hint(part.above, self.hints.astray(part.above))
            return f" ({hint})" if hint is not None else ""
        size, own = self.graph.size[part.vertices[mine]], answer.code[mine]
        taken = (own == BUSY) | (own == SHARED)
        words: list[str] = []
        if taken.any():
            jobs = [self.spans.jobs[job].id for job in self.spans.on(part.vertices[mine[taken]])]
            words.append(f"{int(size[taken].sum())} held by {job_names(jobs)}")
        for code in (DOWN, CONSTRAINT):
            if (own == code).any():
                words.append(f"{int(size[own == code].sum())} {WORDS[CAUSES[code - 1]]}")
        if not words and (closest := self._closest(part, state, mine.tolist())) is not None:
            words.append(f"{self._name(part, closest)}: {self._describe(part, state, closest)}")
        return f" ({', '.join(words)})" if words else ""

    def _barred(self, level: LevelNeed, state: Evaluation, at: int) -> str:
        """What excludes a vertex, or one above it."""
        vertex, code = int(level.vertices[at]), int(state.answers[level].code[at])
        if code == CONTRADICTION:
            return self.hints.hint(level, NO_ROWS) or WORDS["contradiction"]
        on, above, place = vertex, level, at
        while True:  # the highest one counts
            if state.answers[above].own[place] == code:
                on = int(above.vertices[place])
            if above.above is None:
                break
            above, place = above.above, int(above.owner[place])
        for over in self.tree.ancestors(int(above.vertices[place])):
            if int(state.given.check(np.array([over], np.int32), alone=False)[0]) == code:
                on = over
        who = "it" if on == vertex else self.graph.name[on]
        if code in (BUSY, SHARED):
            jobs = [self.spans.jobs[job] for job in self.spans.on([on])]
            until = f" until {max(job.end for job in jobs)}" if jobs else ""
            shared = ", and the request wants it exclusively" if code == SHARED else ""
            verb = "is used by" if code == SHARED else "is held by"
            return f"{who} {verb} {job_names([job.id for job in jobs])}{until}{shared}"
        if code == CONSTRAINT and self.supposed.request.constraint is not None:
            return f"{who} does not meet the constraint ({self.supposed.request.constraint.describe()})"
        return f"{who} {'is down' if code == DOWN else 'has size 0'}"

    def _name(self, level: LevelNeed, at: int) -> str:
        vertex = int(level.vertices[at])
        if self.graph.type_name(vertex) == "node":
            return self.graph.name[vertex]
        return self.graph.path(vertex, self.supposed.matcher.subsystems[0]) or self.graph.name[vertex]


def _part(level: LevelNeed, name: str, at: int) -> tuple[LevelNeed | None, npt.NDArray[np.intp] | list[int]]:
    """The level with a name below another, through slots, and the positions of its vertices there."""
    for child in level.below:
        if child.need.name == name:
            return child, [at]
        if child.need.is_slot:
            for own in child.below:
                if own.need.name == name:
                    return own, np.flatnonzero(child.owner == at)
    return None, []
