"""Why a request does not fit: the whole request held against the whole graph, level by level, in words.

Each level of the request is evaluated (`suppose.py`) under four suppositions:

    now      as things stand
    mended   as now, but nothing is down
    empty    nobody holds anything and nothing is down: what satisfiability asks
    bare     as empty, and without the constraint

A vertex that fits under one supposition and not under the next has found its cause. What lasts is named
first: a node without the gpu asked for lacks a gpu, be it busy or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fluence.graph.columns import NO_ROWS, Ints, Mask, Rows
from fluence.match.level_evaluation import (
    BUSY,
    CONSTRAINT,
    CONTRADICTION,
    DOWN,
    FIT,
    SHARED,
    TOO_SMALL,
    Codes,
    Evaluation,
    LevelNeed,
    LevelShape,
    Spans,
    Supposition,
    settled,
    summed,
)
from fluence.match.matcher import Matcher
from fluence.match.placement import Operation
from fluence.match.request import Need, Request
from fluence.match.window import EMPTY, Window
from fluence.model.jobspec import MAX_COUNT, Count, Jobspec

Verdict = Literal["fits", "wait", "never"]
# By code, from DOWN on.
_CAUSES = ("down", "constraint", "busy", "too_small", "shared", "unreachable", "contradiction")
_WORDS = {
    "down": "down",
    "constraint": "outside the constraint",
    "busy": "busy",
    "too_small": "too small",
    "shared": "shared with other jobs",
    "unreachable": "out of reach",
    "contradiction": "asked for in a way that nothing can meet",
}
_FARNESS = np.array([0, 3, 4, 1, 5, 2, 6, 7], float)  # by code: what is easier to hope for is nearer
_NAMED_JOBS = 5


@dataclass(frozen=True, slots=True)
class Level:
    """One resource of the request: the vertices it could mean, and what became of them.

    ``considered`` is the sum of ``fit`` and the seven causes. For a slot the vertices are the places where
    one can be built.
    """

    path: str  # in the request, such as "rack > node > slot > core"
    type: str
    wanted: str  # the count, per resource of the level above
    considered: int
    fit: int
    down: int = 0  # it, a vertex above it, or too much below it
    constraint: int = 0
    busy: int = 0  # jobs have it, or too much of what is below it
    too_small: int = 0  # even an empty graph has too little of it or below it
    shared: int = 0  # others use it too, and the request wants it exclusively
    unreachable: int = 0  # not where the request looks for it
    contradiction: int = 0  # the request itself rules it out
    units: int = 0  # what the vertices that fit amount to: free sizes, or slots
    lacks: tuple[tuple[str, int], ...] = ()  # of those too small: how many lack what
    is_short: bool = False  # top levels: there is less than the request needs
    hint: str | None = None  # a cure in the request

    @property
    def causes(self) -> dict[str, int]:
        """The causes that struck at least one vertex."""
        return {cause: count for cause in _CAUSES if (count := getattr(self, cause))}

    def lasts(self, verdict: Verdict) -> bool:
        """Whether the causes tell why a request never fits, if it never does."""
        return verdict != "never" or any(cause not in ("down", "busy", "shared") for cause in self.causes)

    def line(self) -> str:
        """In one line, such as ``node: 3 of 40 fit (4 wanted): 31 lack gpu, 6 down``."""
        what = "places fit" if self.type == "slot" else "fit"
        units = f", {self.units} in all" if self.units != self.fit else ""
        text = f"{self.path}: {self.fit} of {self.considered} {what}{units} ({self.wanted} wanted)"
        causes = [f"{count} {_WORDS[cause]}" for cause, count in self.causes.items() if cause != "too_small"]
        lacks = [f"{count} lack {what}" for what, count in self.lacks]
        small = self.too_small - sum(count for _, count in self.lacks)
        lacks += [f"{small} {_WORDS['too_small']}"] if small else []
        return f"{text}: {', '.join(lacks + causes)}" if lacks or causes else text


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether a request fits now, and if not, why, level by level."""

    levels: tuple[Level, ...]
    verdict: Verdict
    nearest: str  # the smallest statement of what is missing; empty when nothing is
    blocking: tuple[int, ...] = ()  # the jobs that hold what is missing
    earliest_end: int | None = None  # when the first of them ends; None: no job blocks, or all overrun
    exact: bool = True  # False: the verdict is the search's, and the levels are an approximation

    def summary(self) -> str:
        """One line for a person."""
        if self.verdict == "fits":
            return f"fits, but {self.nearest}" if self.nearest else "fits"
        lines = [level.line() for level in self.levels if level.is_short and level.lasts(self.verdict)]
        return f"{self.verdict}: {'; '.join(lines) or self.nearest}{self._until()}"

    def lines(self) -> list[str]:
        """All of it, for a person: the verdict, the levels, the cures."""
        lines = [f"{self.verdict}{': ' if self.nearest else ''}{self.nearest}"]
        if self.blocking:
            lines.append(f"held by {_jobs(self.blocking)}{self._until()}")
        for level in self.levels:
            lines.append(f"  {level.line()}")
            if level.hint is not None:
                lines.append(f"    {level.hint}")
        if not self.exact:
            lines.append("  the levels are an approximation; the verdict is exact")
        return lines

    def to_value(self) -> dict[str, Any]:
        """For JSON."""
        value = asdict(self)
        value["levels"] = [
            {**level, "lacks": dict(level["lacks"]), "causes": own.causes}
            for level, own in zip(value["levels"], self.levels, strict=True)
        ]
        for level in value["levels"]:
            for cause in _CAUSES:
                del level[cause]
        value["blocking"] = list(self.blocking)
        return value

    def _until(self) -> str:
        return f"; the first ends at {self.earliest_end}" if self.earliest_end is not None else ""


def explain(matcher: Matcher, request: Request | Jobspec, *, now: int = 0) -> Explanation:
    """Say whether a request fits at a time, and what stands in its way; changes nothing."""
    request = request if isinstance(request, Request) else matcher.compile(request)
    matcher.refresh()
    window = Window(now, now + matcher.duration(request, now))
    return _Inquiry(matcher, request, window).explain()


# -- the inquiry: from evaluations to words ------------------------------------------------------------------


class _Inquiry:
    """One request at one time, asked about from all sides."""

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

    def explain(self) -> Explanation:
        exact = self._is_exact()
        verdict, obstacle = self._verdict(exact)
        judged = self.empty if verdict == "never" else self.now
        short = [wish for wish in self.shape.tops if judged.total(wish) < wish.least]
        if verdict == "fits":
            return Explanation(self._levels([]), verdict, self._nothing_held(), exact=exact)
        nearest = obstacle or (self._nearest(short[0], judged) if short else _APART)
        levels = self._levels(short)
        if verdict == "never":
            return Explanation(levels, verdict, nearest, exact=exact)
        jobs = [self.spans.jobs[at] for at in self.spans.on(self._blocked(short))]
        ends = [job.end for job in jobs if job.end > self.window.start]
        blocking = tuple(sorted(job.id for job in jobs))
        return Explanation(levels, verdict, nearest, blocking, min(ends, default=None), exact)

    # -- the verdict ---

    def _is_exact(self) -> bool:
        """Whether the columns say all that the walk would find."""
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
            return False  # how far the search looks decides what its slots are made of
        return all(sum(own.need.is_slot for own in wish.below) < 2 for wish in self.shape.wishes())

    def _verdict(self, exact: bool) -> tuple[Verdict, str]:
        """The verdict, and what stops the matcher before it searches, if anything does."""
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
        return self.matcher.has_too_few_nodes(self.request, Operation.TRY, start=start, duration=duration)

    def _searches(self, window: Window) -> bool:
        search = self.matcher.search
        visited = search.visited
        found = search.find(self.request, window)
        search.visited = visited
        return found.selection is not None

    def _nothing_held(self) -> str:
        """What to say of a request that matches and leaves the job with nothing."""

        def holds(wish: LevelNeed) -> bool:
            need = wish.need
            if need.is_slot:
                return wish.above is None or bool(wish.direct.any())
            alone = need.exclusive or (self.matcher.policy.node_exclusive and need.name == "node")
            return bool(alone) or any(holds(own) for own in wish.below)

        if self.matcher.flexible or any(holds(wish) for wish in self.shape.tops):
            return ""
        if self.matcher.policy.node_exclusive:
            # The nodes on the way belong to the job, asked for or not.
            rows = np.concatenate([NO_ROWS, *(top.vertices for top in self.shape.tops)])
            while len(rows := self.tree.parent[rows[rows != self.tree.root]]):
                if self.matcher.search.node in self.graph.type[rows]:
                    return ""
        return "nothing would be held: ask for a slot right below a level, or for something exclusive"

    # -- the levels ---

    def _levels(self, short: list[LevelNeed]) -> tuple[Level, ...]:
        return tuple(self._level(wish, wish in short) for wish in self.shape.wishes())

    def _level(self, wish: LevelNeed, is_short: bool) -> Level:
        cause = self._cause(wish)
        counts = np.bincount(cause, minlength=8).tolist()
        astray = self._astray(wish)
        answer = self.now.answers[wish]
        return Level(
            wish.path,
            wish.need.name,
            _count(wish.need.count),
            len(wish.vertices) + len(astray),
            counts[FIT],
            down=counts[DOWN],
            constraint=counts[CONSTRAINT],
            busy=counts[BUSY],
            too_small=counts[TOO_SMALL],
            shared=counts[SHARED],
            unreachable=len(astray),
            contradiction=counts[CONTRADICTION],
            units=int(answer.units[answer.ok].sum()),
            lacks=self._lacks(wish, np.flatnonzero(cause == TOO_SMALL)),
            is_short=is_short,
            hint=self._hint(wish, astray),
        )

    def _cause(self, wish: LevelNeed) -> Codes:
        """Why each vertex of a wish does not serve; 0 if it does. What lasts comes first."""
        now, mended, empty, bare = (
            supposed.answers[wish] for supposed in (self.now, self.mended, self.empty, self.bare)
        )
        below = np.where(mended.ok, DOWN, BUSY)
        passing = np.where(now.code != 0, now.code, below)
        lasting = np.where(bare.code == CONTRADICTION, CONTRADICTION, TOO_SMALL)
        cause = np.where(bare.ok, np.where(empty.ok, passing, CONSTRAINT), lasting)
        return np.where(now.ok, FIT, cause).astype(np.int8)

    def _astray(self, wish: LevelNeed) -> Rows:
        """Vertices of the right type below the level above, but not where the walk looks for them."""
        graph, tree = self.graph, self.tree
        if wish.need.is_slot:
            if not wish.need.below:
                return NO_ROWS
            rows = np.flatnonzero(self.shape.holds(wish.need)).astype(np.int32)
        else:
            rows = graph.vertices_of_type(wish.need.type)
        astray = np.zeros(graph.rows, np.bool_)
        astray[rows[tree.pre[rows] >= 0]] = True
        astray[wish.vertices] = False
        above = _resource_above(wish)
        if above is not None and astray.any():
            edges = np.zeros(len(tree.order) + 1, np.int64)
            np.add.at(edges, tree.pre[above.vertices] + 1, 1)
            np.add.at(edges, tree.end[above.vertices], -1)
            astray[tree.order[np.cumsum(edges[:-1]) == 0]] = False
        return np.flatnonzero(astray).astype(np.int32)

    def _lacks(self, wish: LevelNeed, small: npt.NDArray[np.intp]) -> tuple[tuple[str, int], ...]:
        """Of the vertices that are too small: how many lack what, each counted at the first thing."""
        found: dict[str, int] = {}
        left = np.zeros(len(wish.vertices), np.bool_)
        left[small] = True
        left &= self.bare.answers[wish].code == 0
        for name, have, least in self._below(wish, self.bare):
            lack = left & (have < least)
            if lack.any():
                found[name] = found.get(name, 0) + int(lack.sum())
                left &= ~lack
        return tuple(found.items())

    def _below(self, wish: LevelNeed, state: Evaluation) -> Iterator[tuple[str, Ints, int]]:
        """What each vertex of a wish has of each thing it needs below: name, amounts, least."""
        answer = state.answers[wish]
        for child in wish.below:
            if child.need.is_slot and not wish.need.is_slot:
                sums = state.answers[child].sums
                for own in child.below:
                    have = summed(child.owner, sums[own.need.type], len(wish.vertices))
                    # Without a place for the slot, only what is not there at all is worth a word.
                    places = np.bincount(child.owner, minlength=len(wish.vertices))
                    there = self.shape.has_below(own.need.type)[wish.vertices]
                    have[(places == 0) & there] = MAX_COUNT
                    yield own.need.name, have, child.need.count.min * own.need.count.min
            yield child.need.name, answer.sums[child.need.type], child.least

    def _hint(self, wish: LevelNeed, astray: Rows) -> str | None:
        """What to change in the request."""
        need, above, over = wish.need, wish.above, _resource_above(wish)
        if (wrong := self._contradiction(wish)) is not None:
            return wrong
        if need.is_slot and need.below and not len(wish.vertices) and not len(astray):
            homes = "; ".join(self._home(own) for own in need.below)
            return f"nothing has all of a slot directly below it: {homes}"
        if not len(astray) or (above is not None and above.need.is_slot and not len(above.vertices)):
            return None  # nothing to say, or the slot has said it
        gap = self._gap(wish, int(astray[0]))
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

    def _contradiction(self, wish: LevelNeed) -> str | None:
        """In what the request contradicts itself at a wish."""
        need = wish.need
        peers = self.shape.tops if wish.above is None else wish.above.below
        if wish.alone and need.exclusive is False and not need.is_slot:
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

    def _gap(self, wish: LevelNeed, vertex: int) -> list[str]:
        """The types of vertices between a vertex that is out of reach and the level above it."""
        over = _resource_above(wish)
        stops = np.zeros(self.graph.rows, np.bool_)
        for own in self.shape.tops if over is None else (over,):
            stops[own.vertices] = True
        if over is None:
            found = next((above for above in self.tree.ancestors(vertex) if stops[above]), None)
            return [] if found is None else [self.graph.type_name(found)]
        names = [self.graph.type_name(vertex)] if wish.need.is_slot else []
        for above in self.tree.ancestors(vertex):
            if stops[above]:
                break
            names.append(self.graph.type_name(above))
        return list(dict.fromkeys(reversed(names)))

    # -- the nearest miss ---

    def _nearest(self, wish: LevelNeed, state: Evaluation) -> str:
        """What is missing at a top level, and the vertex that comes closest."""
        need, total = wish.need, state.total(wish)
        if not need.count.min:
            return f"{need.name}: a count of 0 is never met: leave it out or ask for 1"
        would = "would fit on an empty graph" if state is self.empty else "fit"
        text = f"{need.name}: {total} of the {need.count.min} needed {would}"
        at = self._closest(wish, state, range(len(wish.vertices)))
        if at is None:
            hint = self._hint(wish, self._astray(wish))
            return f"{text}; {hint or 'there are no more'}"
        return f"{text}; {self._name(wish, at)} is the nearest: {self._describe(wish, state, at)}"

    def _closest(self, wish: LevelNeed, state: Evaluation, among: Sequence[int] | range) -> int | None:
        """The position of the vertex that lacks least, of those that do not serve."""
        if not len(wish.vertices):
            return None
        answer = state.answers[wish]
        far = np.zeros(len(wish.vertices))
        slots = answer.units if wish.need.is_slot else np.zeros(len(far), np.int64)
        for _, have, least in self._below(wish, state):
            want = (slots + 1) * least
            far += np.clip(want - have, 0, want) / np.maximum(want, 1)
        far = np.where(answer.code != 0, 1000 + _FARNESS[answer.code], far)
        if state is self.now:
            hoped = self.empty.answers[wish]
            hopeless = hoped.units <= answer.units if wish.need.is_slot else ~hoped.ok
            far[hopeless] += 2000  # waiting will not help there
        # A place that has a slot may be the nearest to one more, but not in an empty graph.
        far[answer.ok & (not wish.need.is_slot or state is self.empty)] = np.inf
        mask = np.ones(len(far), np.bool_)
        mask[list(among)] = False
        far[mask] = np.inf
        best = int(np.argmin(far))
        return None if np.isinf(far[best]) else best

    def _describe(self, wish: LevelNeed, state: Evaluation, at: int) -> str:
        answer = state.answers[wish]
        if answer.code[at]:
            return self._barred(wish, state, at)
        slots = int(answer.units[at]) if wish.need.is_slot else 0
        worst: tuple[float, str, int, int] | None = None
        for name, have, least in self._below(wish, state):
            want, own = least * (slots + 1), int(have[at])
            missing = (want - own) / want if want else 0.0
            if name != "slot" and missing > 0 and (worst is None or missing > worst[0]):
                worst = missing, name, own, want
        if worst is None:
            return "its parts do not add up to one more slot, which takes whole vertices"
        _, name, own, want = worst
        free = "free " if state is self.now else ""
        return f"it has {own} of {want} {free}{name}{self._missing_parts(wish, state, at, name)}"

    def _missing_parts(self, wish: LevelNeed, state: Evaluation, at: int, name: str) -> str:
        """Who has the rest of what a vertex lacks, in brackets."""
        part, places = _part(wish, name, at)
        if part is None:
            return ""
        answer = state.answers[part]
        mine = np.flatnonzero(np.isin(part.owner, places) & ~answer.ok)
        if not len(mine):
            hint = self._hint(part, self._astray(part))
            if hint is None and part.above is not None and part.above is not wish:
                hint = self._hint(part.above, self._astray(part.above))
            return f" ({hint})" if hint is not None else ""
        size, own = self.graph.size[part.vertices[mine]], answer.code[mine]
        taken = (own == BUSY) | (own == SHARED)
        words: list[str] = []
        if taken.any():
            jobs = [self.spans.jobs[job].id for job in self.spans.on(part.vertices[mine[taken]])]
            words.append(f"{int(size[taken].sum())} held by {_jobs(jobs)}")
        for code in (DOWN, CONSTRAINT):
            if (own == code).any():
                words.append(f"{int(size[own == code].sum())} {_WORDS[_CAUSES[code - 1]]}")
        if not words and (closest := self._closest(part, state, mine.tolist())) is not None:
            words.append(f"{self._name(part, closest)}: {self._describe(part, state, closest)}")
        return f" ({', '.join(words)})" if words else ""

    def _barred(self, wish: LevelNeed, state: Evaluation, at: int) -> str:
        """What bars a vertex, or one above it."""
        vertex, code = int(wish.vertices[at]), int(state.answers[wish].code[at])
        if code == CONTRADICTION:
            return self._hint(wish, NO_ROWS) or _WORDS["contradiction"]
        on, above, place = vertex, wish, at
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
            return f"{who} {verb} {_jobs([job.id for job in jobs])}{until}{shared}"
        if code == CONSTRAINT and self.request.constraint is not None:
            return f"{who} does not meet the constraint ({self.request.constraint.describe()})"
        return f"{who} {'is down' if code == DOWN else 'has size 0'}"

    def _name(self, wish: LevelNeed, at: int) -> str:
        vertex = int(wish.vertices[at])
        if self.graph.type_name(vertex) == "node":
            return self.graph.name[vertex]
        return self.graph.path(vertex, self.matcher.subsystems[0]) or self.graph.name[vertex]

    # -- who is in the way ---

    def _blocked(self, short: list[LevelNeed]) -> Rows:
        """The vertices that jobs keep from the levels that are short."""
        rows: list[Rows] = list(self.now.barred) if short else []

        def collect(wish: LevelNeed, mask: Mask) -> None:
            own = self.now.answers[wish].own
            rows.append(wish.vertices[mask & ((own == BUSY) | (own == SHARED))])
            for child in wish.below:
                collect(child, mask[child.owner])

        for wish in short:
            cause = self._cause(wish)
            partly = (cause == FIT) & wish.need.is_slot  # a place may have room for more slots
            collect(wish, (cause == BUSY) | (cause == SHARED) | partly)
        return np.concatenate([NO_ROWS, *rows])


_APART = "every level has enough by itself, but no choice of vertices meets them all"


def _resource_above(wish: LevelNeed) -> LevelNeed | None:
    """The wish for vertices, not for a slot, that a wish is inside of."""
    above = wish.above
    while above is not None and above.need.is_slot:
        above = above.above
    return above


def _part(wish: LevelNeed, name: str, at: int) -> tuple[LevelNeed | None, npt.NDArray[np.intp] | list[int]]:
    """The wish below another that has a name, slots passed through, and the positions that own it there."""
    for child in wish.below:
        if child.need.name == name:
            return child, [at]
        if child.need.is_slot:
            for own in child.below:
                if own.need.name == name:
                    return own, np.flatnonzero(child.owner == at)
    return None, []


def _count(count: Count) -> str:
    """A count as RFC 14 writes it in short: 4, 4+, 2-8, 2-16:2:*."""
    if count.is_fixed:
        return str(count.min)
    text = f"{count.min}+" if count.max == MAX_COUNT else f"{count.min}-{count.max}"
    if (count.operator, count.operand) == ("+", 1):
        return text
    return f"{text}:{count.operand}" + ("" if count.operator == "+" else f":{count.operator}")


def _jobs(ids: Sequence[int]) -> str:
    named = ", ".join(str(job) for job in sorted(ids)[:_NAMED_JOBS])
    more = f" and {len(ids) - _NAMED_JOBS} more" if len(ids) > _NAMED_JOBS else ""
    return f"job{'' if len(ids) == 1 else 's'} {named}{more}"
