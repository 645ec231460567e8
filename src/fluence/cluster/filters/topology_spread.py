"""Topology spread (PodTopologySpread): the number of counted pods in each domain, while a gang is placed.

Required constraints (DoNotSchedule) are filters, the others (ScheduleAnyway) a score with kube-scheduler's
weight. `gang_rules` uses both, for each kind of pod in a gang.

`DefaultSpreadScore` is for pods without constraints. By its system defaults, kube-scheduler gives these pods
two soft constraints: host names with a maxSkew of 3, zones with 5. They forbid nothing, so this is only a
score, with kube-scheduler's weight. Nodes without a zone are one zone; kube-scheduler prefers these nodes and
packs them first. `gang_rules` uses it for gangs that are spread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log

import numpy as np

from fluence.cluster.columns import Column, NodeColumns
from fluence.cluster.layout import ZONE
from fluence.cluster.pod_index import GangContext, PodShape, SiblingCount, SpreadConstraint
from fluence.graph.graph import Ints, Mask
from fluence.model.reason import Code, Reason

_WEIGHT = 2  # in kube-scheduler's default profile


@dataclass(slots=True, eq=False)
class SpreadCounts:
    """One constraint of one kind of pod."""

    column: Column
    unlabelled: tuple[Reason, Mask] | None  # the reason for nodes without the label, if there are any
    counts: Ints  # by domain
    domains: Mask  # that are counted
    included: Mask  # nodes that are counted
    max_skew: int
    min_domains: int | None
    counts_self: bool
    counted: list[bool]  # per kind of pod in the gang

    def open_nodes(self) -> Iterator[tuple[Reason, Mask]]:
        """The nodes in a domain, and the nodes on which one more pod keeps the skew."""
        if self.unlabelled is not None:
            yield self.unlabelled
        skew = self._skew()
        fits = skew <= self.max_skew
        would_be = int(skew[~fits & self.domains].min(initial=2**31))
        fits[-1] = True  # a node without the label belongs to no domain
        why = Reason.of(Code.TOPOLOGY_SPREAD, key=self.column.key, skew=would_be, most=self.max_skew)
        yield why, np.asarray(fits[self.column.of])

    def mask(self) -> Mask:
        """The open nodes without the reasons, because it is called for every placed pod."""
        fits = self._skew() <= self.max_skew
        fits[-1] = False
        return np.asarray(fits[self.column.of])

    def _skew(self) -> Ints:
        """By domain, the skew with one more pod."""
        least = int(self.counts[self.domains].min()) if self.domains.any() else 2**31
        if self.min_domains is not None and int(self.domains.sum()) < self.min_domains:
            least = 0
        return np.asarray(self.counts + int(self.counts_self) - least)

    def assigned(self, members: int, node: int, count: int) -> None:
        if self.counted[members] and self.included[node]:
            self.counts[self.column.of[node]] += count


class SpreadFilter:
    """The required constraints of one kind of pod."""

    def __init__(self, shape: PodShape, context: GangContext) -> None:
        self._limits = _counted(shape.others.spread, shape, context)
        self.one_at_a_time = any(each.counts_self for each in self._limits)

    def open_nodes(self) -> Iterator[tuple[Reason, Mask]]:
        for each in self._limits:
            yield from each.open_nodes()

    def masks(self) -> Iterator[Mask]:
        return (each.mask() for each in self._limits)

    def assigned(self, members: int, node: int, count: int) -> None:
        for each in self._limits:
            each.assigned(members, node, count)


class SpreadScore:
    """The soft constraints of one kind of pod."""

    def __init__(self, shape: PodShape, context: GangContext) -> None:
        limits = shape.others.preferred_spread
        self._limits = _counted(limits, shape, context)
        self._labelled = _labelled(limits, context.columns)
        self.counts_self = any(each.counts_self for each in self._limits)

    def score(self) -> Ints:
        """A higher score for nodes in domains with few such pods. Nodes without the labels have no score."""
        load = np.zeros(len(self._labelled))
        for limit in self._limits:
            weight = log(int(limit.domains.sum()) + 2)  # many domains have few pods each
            load += limit.counts[limit.column.of] * weight + (limit.max_skew - 1)
        whole = np.round(load).astype(np.int64)
        among = whole[self._labelled]
        least, most = int(among.min(initial=2**31)), int(among.max(initial=0))
        if not most:
            return _WEIGHT * 100 * self._labelled.astype(np.int64)
        return np.asarray(_WEIGHT * np.where(self._labelled, 100 * (most + least - whole) // most, 0))

    def assigned(self, members: int, node: int, count: int) -> None:
        for each in self._limits:
            each.assigned(members, node, count)


def _labelled(limits: Sequence[SpreadConstraint], columns: NodeColumns) -> Mask:
    """The nodes with all labels; only these are counted."""
    found = np.ones(len(columns), np.bool_)
    for each in limits:
        found &= columns.label(each.constraint.topology_key).present
    return found


def _counted(limits: Sequence[SpreadConstraint], shape: PodShape, context: GangContext) -> list[SpreadCounts]:
    if not limits:
        return []
    labelled = _labelled(limits, context.columns)
    found = []
    for each in limits:
        limit = each.constraint
        column = context.columns.label(limit.topology_key)
        included = labelled.copy()
        if limit.node_affinity_policy == "Honor":
            included &= context.node_filters.selected(shape.node)
        if limit.node_taints_policy == "Honor":
            included &= context.node_filters.tolerated(shape.node)
        counts = np.zeros(len(column.codes) + 1, np.int64)
        on = context.index.spread_over(each, context.leaving)
        np.add.at(counts, column.of[included], on[included])
        domains = np.zeros(len(counts), np.bool_)
        domains[column.of[included]] = True
        found.append(
            SpreadCounts(
                column,
                _unlabelled(column),
                counts,
                domains,
                included,
                limit.max_skew,
                limit.min_domains,
                each.matches(shape.pod),
                [each.matches(other.pod) for other in context.shapes],
            )
        )
    return found


def _unlabelled(column: Column) -> tuple[Reason, Mask] | None:
    present = column.present
    return None if present.all() else (Reason.of(Code.TOPOLOGY_LABEL_MISSING, key=column.key), present)


_HOST_SKEW, _ZONE_SKEW = 3, 5


class DefaultSpreadScore:
    """A score for nodes and zones with few siblings, while a gang is placed."""

    counts_self = True

    def __init__(self, siblings: SiblingCount, shape: PodShape, context: GangContext) -> None:
        selected = context.node_filters.selected(shape.node)
        self._on_node = siblings(context.leaving) * selected
        self._zone = context.columns.label(ZONE).of + 1  # 0: none
        zones = int(np.count_nonzero(np.bincount(self._zone[selected])))
        # Many domains have few pods each. A single zone makes no difference.
        self._host_weight = log(int(selected.sum()) + 2)
        self._zone_weight = log(zones + 2) if zones > 1 else None

    def score(self) -> Ints:
        """Higher is better."""
        load = self._on_node * self._host_weight + (_HOST_SKEW - 1)
        if self._zone_weight is not None:
            in_zone = np.bincount(self._zone, self._on_node)[self._zone]
            load += in_zone * self._zone_weight + (_ZONE_SKEW - 1)
        whole = np.round(load).astype(np.int64)
        least, most = int(whole.min(initial=2**31)), int(whole.max(initial=1))
        return np.asarray(_WEIGHT * (100 * (most + least - whole) // most))

    def assigned(self, members: int, node: int, count: int) -> None:
        self._on_node[node] += count
