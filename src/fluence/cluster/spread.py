"""Topology spread: how many pods that a constraint counts each of its domains has, as a gang fills."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from fluence.cluster.columns import Column, NodeColumns
from fluence.cluster.node_affinity import NodeFilters, NodeRules
from fluence.cluster.pod_index import PodIndex, SpreadConstraint
from fluence.graph.graph import Ints, Mask
from fluence.model.pod import Pod


@dataclass(frozen=True, slots=True, eq=False)
class SpreadScene:
    """What a gang finds: the nodes, who is on them, and who of the gang itself comes."""

    neighbours: PodIndex
    columns: NodeColumns
    book: NodeFilters
    members: Sequence[Pod]  # one of each kind
    without: Collection[str]  # uids of pods that will be gone


@dataclass(slots=True, eq=False)
class SpreadState:
    """One constraint of one kind of pod."""

    column: Column
    counts: Ints  # by domain
    domains: Mask  # that take part
    included: Mask  # nodes that take part
    most: int
    least_domains: int | None
    counts_self: bool
    counted: list[bool]  # per kind of pod in the gang

    def open(self) -> Mask:
        """The nodes on which one more keeps the skew."""
        least = int(self.counts[self.domains].min()) if self.domains.any() else 2**31
        if self.least_domains is not None and int(self.domains.sum()) < self.least_domains:
            least = 0
        fits = self.counts + int(self.counts_self) - least <= self.most
        fits[-1] = False  # a node without the label belongs to no domain
        return np.asarray(fits[self.column.of])

    def texts(self, members: int, node: int, count: int) -> None:
        if self.counted[members] and self.included[node]:
            self.counts[self.column.of[node]] += count


def labelled(limits: Sequence[SpreadConstraint], columns: NodeColumns) -> Mask:
    """Only nodes with all the labels take part."""
    found = np.ones(len(columns), np.bool_)
    for each in limits:
        found &= columns.label(each.constraint.topology_key).present
    return found


def spreadings(
    limits: Sequence[SpreadConstraint], pod: Pod, rules: NodeRules, scene: SpreadScene
) -> list[SpreadState]:
    """The constraints of one kind of pod, counted."""
    if not limits:
        return []
    there = labelled(limits, scene.columns)
    found = []
    for each in limits:
        limit = each.constraint
        column = scene.columns.label(limit.topology_key)
        included = there.copy()
        if limit.node_affinity_policy == "Honor":
            included &= scene.book.chosen(rules)
        if limit.node_taints_policy == "Honor":
            included &= scene.book.tolerated(rules)
        counts = np.zeros(len(column.codes) + 1, np.int64)
        on = scene.neighbours.counts_spread(each, scene.without)
        np.add.at(counts, column.of[included], on[included])
        domains = np.zeros(len(counts), np.bool_)
        domains[column.of[included]] = True
        found.append(
            SpreadState(
                column,
                counts,
                domains,
                included,
                limit.max_skew,
                limit.min_domains,
                each.matches(pod),
                [each.matches(other) for other in scene.members],
            )
        )
    return found
