"""Why a request does not fit: the nearest miss, hints, and the whole request against the whole graph, as
text.

`fluence match --explain` and the queue use it for a request that must wait or can never start. It finds
whether the request fits now and whether it ever could, with the results of the matcher; the cause for each
vertex that does not serve (`level_evaluation.py`); hints and the nearest miss (`explain.py`); and the
jobs that hold what is missing.

The nearest miss is the smallest statement of what is missing, with the vertex that comes closest. A hint says
that a level is missing, that a slot is in the wrong place, or that a request contradicts itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fluence.graph.columns import NO_ROWS, Mask, Rows
from fluence.match.describe import CAUSES, WORDS, Explanation, Level, Verdict, count_text, job_names
from fluence.match.level_evaluation import (
    BUSY,
    CONSTRAINT,
    CONTRADICTION,
    DOWN,
    FIT,
    SHARED,
    TOO_SMALL,
    Evaluation,
    LevelNeed,
    Suppositions,
)
from fluence.match.matcher import Matcher
from fluence.match.request import EMPTY, Need, Operation, Request, Window
from fluence.model.jobspec import Jobspec

__all__ = ["Explanation", "Level", "explain"]


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


_APART = "every level has enough by itself, but no choice of vertices meets them all"


def explain(matcher: Matcher, request: Request | Jobspec, *, now: int = 0) -> Explanation:
    """Explain whether a request fits at a time, and if not, why; changes nothing."""
    request = request if isinstance(request, Request) else matcher.compile(request)
    matcher.refresh()
    window = Window(now, now + matcher.duration(request, now))
    return _Inquiry(matcher, request, window).explain()


class _Inquiry:
    """The explanation of one request at one time."""

    def __init__(self, matcher: Matcher, request: Request, window: Window) -> None:
        self.supposed = supposed = Suppositions(matcher, request, window)
        self.hints = Hints(supposed)
        self.nearest = NearestMiss(supposed, self.hints)
        self.matcher, self.request, self.window = matcher, request, window
        self.graph, self.tree, self.shape = supposed.graph, supposed.tree, supposed.shape
        self.now, self.empty, self.spans = supposed.now, supposed.empty, supposed.spans

    def explain(self) -> Explanation:
        exact = self._is_exact()
        verdict, obstacle = self._verdict(exact)
        judged = self.empty if verdict == "never" else self.now
        short = [level for level in self.shape.tops if judged.total(level) < level.least]
        if verdict == "fits":
            return Explanation(self._levels([]), verdict, self._nothing_held(), exact=exact)
        nearest = obstacle or (self.nearest.describe(short[0], judged) if short else _APART)
        levels = self._levels(short)
        if verdict == "never":
            return Explanation(levels, verdict, nearest, exact=exact)
        jobs = [self.spans.jobs[at] for at in self.spans.on(self._blocked(short))]
        ends = [job.end for job in jobs if job.end > self.window.start]
        blocking = tuple(sorted(job.id for job in jobs))
        return Explanation(levels, verdict, nearest, blocking, min(ends, default=None), exact)

    # -- the verdict ---

    def _is_exact(self) -> bool:
        """Whether the columns give exactly the result of the walk."""
        matcher, graph, policy = self.matcher, self.graph, self.matcher.policy
        if matcher.flexible or matcher.extensions or len(matcher.subsystems) > 1 or not self.tree.is_tree:
            return False
        if len(graph.vertices_of_type("slot")) or (matcher.search.scores[graph.alive] <= 0).any():
            return False
        if policy.node_centric:
            nodes = graph.vertices_of_type("node")
            if (graph.id[nodes] < -1).any() or (graph.uniq_id[nodes] < 0).any():
                return False
        if policy.stop_early and (self.now.is_uneven or self.empty.is_uneven):
            return False  # where the search stops decides which vertices its slots have
        return all(sum(own.need.is_slot for own in level.below) < 2 for level in self.shape.levels())

    def _verdict(self, exact: bool) -> tuple[Verdict, str]:
        """The verdict, and the check that stops the matcher before it searches, if any."""
        window, matcher, request = self.window, self.matcher, self.request
        obstacle = ""
        if window.start >= matcher.horizon:
            obstacle = f"the graph ends at {matcher.horizon}"
        elif self._has_too_few_nodes():
            wanted = request.minimum.get(matcher.search.node, 0)
            obstacle = f"node: {wanted} needed in all, and fewer count as up and free"
        if not obstacle and (self.now.fits if exact else self._searches(window)):
            return "fits", ""
        if self.empty.fits if exact else self._searches(EMPTY):
            return "wait", "" if exact and not self.now.fits else obstacle
        return "never", ""

    def _has_too_few_nodes(self) -> bool:
        start, duration = self.window.start, self.window.end - self.window.start
        return self.matcher.precheck.refuses(self.request, Operation.TRY, start, duration)

    def _searches(self, window: Window) -> bool:
        search = self.matcher.search
        visited = search.visited
        found = search.find(self.request, window)
        search.visited = visited
        return found.selection is not None

    def _nothing_held(self) -> str:
        """The text for a request that matches, but gives the job nothing."""

        def holds(level: LevelNeed) -> bool:
            need = level.need
            if need.is_slot:
                return level.above is None or bool(level.direct.any())
            alone = need.exclusive or (self.matcher.policy.node_exclusive and need.name == "node")
            return bool(alone) or any(holds(own) for own in level.below)

        if self.matcher.flexible or any(holds(level) for level in self.shape.tops):
            return ""
        if self.matcher.policy.node_exclusive:
            # The nodes on the path belong to the job even if the request does not name them.
            rows = np.concatenate([NO_ROWS, *(top.vertices for top in self.shape.tops)])
            while len(rows := self.tree.parent[rows[rows != self.tree.root]]):
                if self.matcher.search.node in self.graph.type[rows]:
                    return ""
        return "nothing would be held: ask for a slot right below a level, or for something exclusive"

    # -- the levels ---

    def _levels(self, short: list[LevelNeed]) -> tuple[Level, ...]:
        return tuple(self._level(level, level in short) for level in self.shape.levels())

    def _level(self, level: LevelNeed, is_short: bool) -> Level:
        cause = self.supposed.cause(level)
        counts = np.bincount(cause, minlength=8).tolist()
        astray = self.hints.astray(level)
        answer = self.now.answers[level]
        return Level(
            level.path,
            level.need.name,
            count_text(level.need.count),
            len(level.vertices) + len(astray),
            counts[FIT],
            down=counts[DOWN],
            constraint=counts[CONSTRAINT],
            busy=counts[BUSY],
            too_small=counts[TOO_SMALL],
            shared=counts[SHARED],
            unreachable=len(astray),
            contradiction=counts[CONTRADICTION],
            units=int(answer.units[answer.ok].sum()),
            lacks=self._lacks(level, np.flatnonzero(cause == TOO_SMALL)),
            is_short=is_short,
            hint=self.hints.hint(level, astray),
        )

    def _lacks(self, level: LevelNeed, small: npt.NDArray[np.intp]) -> tuple[tuple[str, int], ...]:
        """How many of the vertices that are too small lack which type; each is counted under the first type
        that it lacks."""
        found: dict[str, int] = {}
        left = np.zeros(len(level.vertices), np.bool_)
        left[small] = True
        left &= self.supposed.bare.answers[level].code == 0
        for name, have, least in self.supposed.below(level, self.supposed.bare):
            lack = left & (have < least)
            if lack.any():
                found[name] = found.get(name, 0) + int(lack.sum())
                left &= ~lack
        return tuple(found.items())

    # -- who is in the way ---

    def _blocked(self, short: list[LevelNeed]) -> Rows:
        """The vertices of short levels that jobs hold."""
        rows: list[Rows] = list(self.now.barred) if short else []

        def collect(level: LevelNeed, mask: Mask) -> None:
            own = self.now.answers[level].own
            rows.append(level.vertices[mask & ((own == BUSY) | (own == SHARED))])
            for child in level.below:
                collect(child, mask[child.owner])

        for level in short:
            cause = self.supposed.cause(level)
            partly = (cause == FIT) & level.need.is_slot  # a place may have room for more slots
            collect(level, (cause == BUSY) | (cause == SHARED) | partly)
        return np.concatenate([NO_ROWS, *rows])
