"""A request under four suppositions, from which `explain` sees why each vertex does not serve.

::

    now      as things stand
    mended   as now, but nothing is down
    empty    nobody holds anything and nothing is down: what satisfiability asks
    bare     as empty, and without the constraint

A vertex that fits under one supposition and not under the next has found its cause. What lasts is named
first: a node without the gpu asked for lacks a gpu, be it busy or not.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fluence.graph.columns import Ints, Mask
from fluence.match.level_evaluation import (
    BUSY,
    CONSTRAINT,
    CONTRADICTION,
    DOWN,
    FIT,
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
from fluence.match.request import Request
from fluence.match.window import Window
from fluence.model.jobspec import MAX_COUNT


class Suppositions:
    """One request at one time, evaluated under each of them."""

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
        """Why each vertex of a level does not serve; 0 if it does. What lasts comes first."""
        now, mended, empty, bare = (
            supposed.answers[level] for supposed in (self.now, self.mended, self.empty, self.bare)
        )
        below = np.where(mended.ok, DOWN, BUSY)
        passing = np.where(now.code != 0, now.code, below)
        lasting = np.where(bare.code == CONTRADICTION, CONTRADICTION, TOO_SMALL)
        cause = np.where(bare.ok, np.where(empty.ok, passing, CONSTRAINT), lasting)
        return np.where(now.ok, FIT, cause).astype(np.int8)

    def below(self, level: LevelNeed, state: Evaluation) -> Iterator[tuple[str, Ints, int]]:
        """What each vertex of a level has of each thing it needs below: name, amounts, least."""
        answer = state.answers[level]
        for child in level.below:
            if child.need.is_slot and not level.need.is_slot:
                sums = state.answers[child].sums
                for own in child.below:
                    have = summed(child.owner, sums[own.need.type], len(level.vertices))
                    # Without a place for the slot, only what is not there at all is worth a word.
                    places = np.bincount(child.owner, minlength=len(level.vertices))
                    there = self.shape.has_below(own.need.type)[level.vertices]
                    have[(places == 0) & there] = MAX_COUNT
                    yield own.need.name, have, child.need.count.min * own.need.count.min
            yield child.need.name, answer.sums[child.need.type], child.least
