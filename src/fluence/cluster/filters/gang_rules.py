"""The rules of a gang about other pods, combined: the open nodes for each kind of its pods, while they are
placed.

`requests` makes `InterPodFilters` for a gang with such rules, or if the anti-affinity of other pods matches
it. The placer begins an attempt and reports each pod that it places (`fluence.placer.placer.GangRules`). For
a start in the future, only pods that will still run count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Protocol

import numpy as np

from fluence.cluster.filters.interpod_affinity import (
    AffinityFilter,
    AffinityScore,
    affinity_order,
    separates_nodes,
)
from fluence.cluster.filters.ports import PortFilter
from fluence.cluster.filters.topology_spread import DefaultSpreadScore, SpreadFilter, SpreadScore
from fluence.cluster.pod_index import GangContext, PodShape
from fluence.graph.graph import Ints, Mask
from fluence.model.reason import Reason


class _Filter(Protocol):
    @property
    def one_at_a_time(self) -> bool: ...
    def open_nodes(self) -> Iterator[tuple[Reason, Mask]]: ...
    def masks(self) -> Iterator[Mask]: ...
    def assigned(self, members: int, node: int, count: int) -> None: ...


class InterPodFilters:
    """The rules of one gang about other pods."""

    def __init__(self, context: GangContext, leaving_by: Callable[[int], Collection[str]]) -> None:
        self.context = context
        self._leaving_by = leaving_by

    def begin(self, at: int) -> InterPodAttempt:
        return InterPodAttempt(replace(self.context, leaving=self._leaving_by(at)))

    def order(self, turns: list[int]) -> list[int]:
        return affinity_order(turns, self.context)

    def alone(self) -> InterPodFilters | None:
        """Rules that also limit a gang on empty nodes: equal pods with the same host port, or with
        anti-affinity to each other. Each node or domain can hold only one of them. With other rules, a
        failed search does not prove that the gang never fits: existing pods may help (a spread, an affinity),
        or the search may miss a placement (several kinds, several terms)."""
        if len(self.context.shapes) > 1:
            return None
        (shape,) = self.context.shapes
        anti, ports = shape.others.anti_affinity, shape.others.ports
        if len(anti) != 1 and not ports:
            return None
        others = replace(
            shape.others,
            affinity=(),
            anti_affinity=anti if len(anti) == 1 else (),
            spread=(),
            preferred_affinity=(),
            preferred_spread=(),
        )
        everybody = self.context.index.uids
        context = replace(
            self.context, shapes=[replace(shape, others=others)], leaving=everybody, siblings=()
        )
        return InterPodFilters(context, lambda at: everybody)


def once_per_node(shape: PodShape, context: GangContext) -> bool:
    """Whether two equal pods of this kind can never share a node."""
    return bool(shape.others.ports) or any(
        separates_nodes(term, shape, context) for term in shape.others.anti_affinity
    )


class InterPodAttempt:
    """One attempt to place the gang; see `fluence.placer.placer.Attempt`."""

    def __init__(self, context: GangContext) -> None:
        self._size = len(context.columns)
        self._filters = [list(_filters(number, context)) for number in range(len(context.shapes))]
        self._scores = [list(_scores(number, context)) for number in range(len(context.shapes))]

    def one_at_a_time(self, members: int) -> bool:
        return any(each.one_at_a_time for each in self._filters[members]) or any(
            each.counts_self for each in self._scores[members]
        )

    def open_nodes(self, members: int) -> Mask:
        mask = np.ones(self._size, np.bool_)
        for filter_ in self._filters[members]:
            for each in filter_.masks():
                mask &= each
        return mask

    def score(self, members: int) -> Ints | None:
        scores = [each.score() for each in self._scores[members]]
        return np.asarray(sum(scores)) if scores else None

    def required_free(self, members: int) -> None:
        """Always None: affinity is about domains, so no pod must follow another to its node."""

    def reasons(self, members: int) -> Iterator[tuple[Reason, Mask]]:
        """Each reason with the nodes that it leaves open, in the order of kube-scheduler's filters."""
        for each in self._filters[members]:
            yield from each.open_nodes()

    def assign(self, members: int, node: int, count: int) -> None:
        for filters in self._filters:
            for each in filters:
                each.assigned(members, node, count)
        for scores in self._scores:
            for score in scores:
                score.assigned(members, node, count)


def _filters(number: int, context: GangContext) -> Iterator[_Filter]:
    shape = context.shapes[number]
    if shape.others.ports:
        gang = [each.others.ports for each in context.shapes]
        yield PortFilter(shape.others.ports, gang, context.ports, context.leaving)
    if shape.others.spread:
        yield SpreadFilter(shape, context)
    yield AffinityFilter(number, context)


def _scores(number: int, context: GangContext) -> Iterator[AffinityScore | SpreadScore | DefaultSpreadScore]:
    shape = context.shapes[number]
    if shape.others.preferred_affinity:
        yield AffinityScore(shape, context)
    if shape.others.preferred_spread:
        yield SpreadScore(shape, context)
    siblings = context.siblings[number] if context.siblings else None
    if siblings is not None:
        yield DefaultSpreadScore(siblings, shape, context)
