"""Pod affinity and anti-affinity (InterPodAffinity), while a gang is placed: each placed pod counts for the
next.

Counts are kept per *domain*, the nodes with one value of a topology label, so placing a pod costs a few
additions. Required terms, of the pod itself and of pods on nodes that match it, are a filter. Preferred terms
are a score with kube-scheduler's weight. Preferences of existing pods about the new pod are not considered.
`gang_rules` uses both, for each kind of pod in a gang.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fluence.cluster.columns import Column
from fluence.cluster.pod_index import AffinityTerm, GangContext, PodShape, selector_text
from fluence.graph.graph import Ints, Mask
from fluence.model.reason import Code, Reason

_WEIGHT = 2  # in kube-scheduler's default profile


@dataclass(slots=True, eq=False)
class _Domains:
    """The domains of one topology label that contain some pods, as required or as forbidden."""

    reason: Reason  # for the nodes that they close
    column: Column
    marked: Mask  # by domain; the last entry, for nodes without the label, is never marked
    counted: list[bool]  # per kind of pod in the gang: whether it marks its domain

    def assigned(self, members: int, node: int) -> None:
        if self.counted[members] and self.column.of[node] >= 0:
            self.marked[self.column.of[node]] = True

    @property
    def nodes(self) -> Mask:
        """The nodes of marked domains."""
        return self.marked[self.column.of]


class AffinityFilter:
    """The nodes that required terms leave open to one kind of pod."""

    def __init__(self, number: int, context: GangContext) -> None:
        shape = context.shapes[number]
        self._affinity = _affinity(shape, context)
        # The first of several pods with affinity to each other may be placed anywhere.
        self._may_be_first = (
            bool(self._affinity)
            and not any(each.marked.any() for each in self._affinity)
            and self._affinity[0].counted[number]
        )
        self._anti = _anti(shape, context)
        self._against = _against(shape, context)
        self._one_at_a_time = any(
            each.counted[number] and not separates_nodes(term, shape, context)
            for term, each in zip(shape.others.anti_affinity, self._anti, strict=True)
        )

    @property
    def one_at_a_time(self) -> bool:
        return self._may_be_first or self._one_at_a_time

    def open_nodes(self) -> Iterator[tuple[Reason, Mask]]:
        for each in self._affinity:
            yield each.reason, each.column.present if self._may_be_first else each.nodes
        for each in (*self._anti, *self._against):
            yield each.reason, ~each.nodes

    def masks(self) -> Iterator[Mask]:
        return (mask for _, mask in self.open_nodes())

    def assigned(self, members: int, node: int, count: int) -> None:
        if self._affinity and self._affinity[0].counted[members]:
            self._may_be_first = False
        for each in (*self._affinity, *self._anti, *self._against):
            each.assigned(members, node)


def _affinity(shape: PodShape, context: GangContext) -> list[_Domains]:
    """The domains that satisfy each term; only pods that match all terms count."""
    terms = shape.others.affinity
    if not terms:
        return []
    labels_of = context.index.labels_of
    counts = context.index.matching_all(terms, context.leaving)
    counted = [all(term.matches(other.pod, labels_of) for term in terms) for other in context.shapes]
    return [_domains(Code.POD_AFFINITY, term, counts, counted, context) for term in terms]


def _anti(shape: PodShape, context: GangContext) -> list[_Domains]:
    """The terms of the pod itself: domains with matching pods are closed."""
    found = []
    for term in shape.others.anti_affinity:
        counts = context.index.matching(term, context.leaving)
        counted = [term.matches(other.pod, context.index.labels_of) for other in context.shapes]
        found.append(_domains(Code.POD_ANTI_AFFINITY, term, counts, counted, context))
    return found


def _against(shape: PodShape, context: GangContext) -> list[_Domains]:
    """The terms of other pods that match this pod: of pods on nodes, and of placed pods of its gang."""
    code = Code.EXISTING_ANTI_AFFINITY
    kinds = len(context.shapes)
    found = []
    for term, counts in context.index.anti_affinity_against(shape.pod, context.leaving):
        found.append(_domains(code, term, counts, [False] * kinds, context))
    for number, other in enumerate(context.shapes):
        for term in other.others.anti_affinity:
            if term.matches(shape.pod, context.index.labels_of):
                counted = [each == number for each in range(kinds)]
                nobody = np.zeros(len(context.columns), np.int64)
                found.append(_domains(code, term, nobody, counted, context))
    return found


def separates_nodes(term: AffinityTerm, shape: PodShape, context: GangContext) -> bool:
    """Whether a term of anti-affinity means only that pods of this kind are on different nodes."""
    column = context.columns.label(term.topology_key)
    return (
        term.matches(shape.pod, context.index.labels_of) and bool(column.present.all()) and column.is_unique
    )


def affinity_order(turns: list[int], context: GangContext) -> list[int]:
    """Kinds of pods with affinity come after the kinds that their affinity matches."""
    labels_of = context.index.labels_of
    done: list[int] = []
    left = list(turns)
    while left:
        for turn in left:
            terms = context.shapes[turn].others.affinity
            waits = terms and any(
                other != turn and all(term.matches(context.shapes[other].pod, labels_of) for term in terms)
                for other in left
            )
            if not waits:
                break
        else:
            turn = left[0]  # they match each other: start with one of them
        done.append(turn)
        left.remove(turn)
    return done


@dataclass(slots=True, eq=False)
class _Weighted:
    """One preferred term, with the value of each of its domains."""

    column: Column
    weight: int  # negative: anti-affinity
    worth: Ints  # by domain
    counted: list[bool]  # per kind of pod in the gang

    def assigned(self, members: int, node: int, count: int) -> None:
        if self.counted[members] and self.column.of[node] >= 0:
            self.worth[self.column.of[node]] += self.weight * count


class AffinityScore:
    """The preferred affinity of one kind of pod, while its gang is placed."""

    def __init__(self, shape: PodShape, context: GangContext) -> None:
        terms = shape.others.preferred_affinity
        self._size = len(context.columns)
        self._terms = [_weighted(term, weight, context) for term, weight in terms]
        self.counts_self = any(term.matches(shape.pod, context.index.labels_of) for term, _ in terms)

    def score(self) -> Ints:
        """Higher is better."""
        worth = np.zeros(self._size, np.int64)
        for each in self._terms:
            worth += each.worth[each.column.of]
        least, most = (int(worth.min()), int(worth.max())) if len(worth) else (0, 0)
        if most == least:
            return np.zeros(self._size, np.int64)
        return _WEIGHT * (100 * (worth - least) // (most - least))

    def assigned(self, members: int, node: int, count: int) -> None:
        for each in self._terms:
            each.assigned(members, node, count)


def _weighted(term: AffinityTerm, weight: int, context: GangContext) -> _Weighted:
    column = context.columns.label(term.topology_key)
    worth = np.zeros(len(column.codes) + 1, np.int64)
    np.add.at(worth, column.of, weight * context.index.matching(term, context.leaving))
    worth[-1] = 0  # nodes without the label belong to no domain
    counted = [term.matches(other.pod, context.index.labels_of) for other in context.shapes]
    return _Weighted(column, weight, worth, counted)


def _domains(
    code: Code, term: AffinityTerm, counts: Ints, counted: list[bool], context: GangContext
) -> _Domains:
    """The domains of a term that contain counted pods."""
    column = context.columns.label(term.topology_key)
    marked = np.zeros(len(column.codes) + 1, np.bool_)
    marked[column.of[counts > 0]] = True
    marked[-1] = False
    if code is Code.EXISTING_ANTI_AFFINITY:  # of another user's pod: its selector is not shown
        reason = Reason.of(code, key=column.key)
    else:
        reason = Reason.of(code, key=column.key, selector=selector_text(term.selector))
    return _Domains(reason, column, marked, counted)
