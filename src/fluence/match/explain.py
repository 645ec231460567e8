"""Why a request does not fit: the whole request against the whole graph, level by level, as text.

`fluence match --explain` and the queue use it for a request that must wait or can never start. It finds
whether the request fits now and whether it ever could, with the results of the matcher; the cause for each
vertex that does not serve (`level_evaluation.py`); hints and the nearest miss (`nearest_miss.py`); and the
jobs that hold what is missing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fluence.graph.columns import NO_ROWS, Mask, Rows
from fluence.match.explanation import Explanation, Level, Verdict, count_text
from fluence.match.level_evaluation import (
    BUSY,
    CONSTRAINT,
    CONTRADICTION,
    DOWN,
    FIT,
    SHARED,
    TOO_SMALL,
    LevelNeed,
    Suppositions,
)
from fluence.match.matcher import Matcher
from fluence.match.nearest_miss import Hints, NearestMiss
from fluence.match.placement import EMPTY, Operation, Window
from fluence.match.request import Request
from fluence.model.jobspec import Jobspec

__all__ = ["Explanation", "Level", "explain"]

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
