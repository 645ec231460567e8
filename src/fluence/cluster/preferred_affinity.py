"""Where pods would rather be, given who is there: preferred (anti)affinity and spread that forbids nothing.

A score over all nodes that changes as the gang sits, by kube-scheduler's rules and weights (InterPodAffinity,
PodTopologySpread with ScheduleAnyway). What pods that are there would prefer of one that comes is not asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log

import numpy as np

from fluence.cluster.columns import Column
from fluence.cluster.node_affinity import NodeRules
from fluence.cluster.pod_index import AffinityTerm, SpreadConstraint
from fluence.cluster.spread import SpreadScene, labelled, spreadings
from fluence.graph.graph import Ints
from fluence.model.pod import Pod

_WEIGHT = 2  # of both plugins in kube-scheduler's default profile

Weighted = tuple[AffinityTerm, int]  # negative: rather not


@dataclass(slots=True, eq=False)
class _Company:
    """One term: what each of its domains is worth."""

    column: Column
    weight: int
    worth: Ints  # by domain
    counted: list[bool]  # per kind of pod in the gang

    def texts(self, members: int, node: int, count: int) -> None:
        if self.counted[members] and self.column.of[node] >= 0:
            self.worth[self.column.of[node]] += self.weight * count


class PreferredAffinity:
    """What one kind of pod prefers, as its gang fills."""

    def __init__(
        self,
        terms: Sequence[Weighted],
        limits: Sequence[SpreadConstraint],
        pod: Pod,
        rules: NodeRules,
        scene: SpreadScene,
    ) -> None:
        self._company = [_company(term, weight, scene) for term, weight in terms]
        self._spread = spreadings(limits, pod, rules, scene)
        self._labelled = labelled(limits, scene.columns)
        labels_of = scene.neighbours.labels_of
        self.counts_self = any(each.counts_self for each in self._spread) or any(
            term.matches(pod, labels_of) for term, _ in terms
        )

    def score(self) -> Ints:
        """Higher is better."""
        found = np.zeros(len(self._labelled), np.int64)
        if self._company:
            worth = np.zeros_like(found)
            for each in self._company:
                worth += each.worth[each.column.of]
            least, most = int(worth.min()), int(worth.max())
            if most > least:
                found += _WEIGHT * (100 * (worth - least) // (most - least))
        if self._spread:
            load = np.zeros(len(found))
            for limit in self._spread:
                weight = log(int(limit.domains.sum()) + 2)  # many domains have few pods each
                load += limit.counts[limit.column.of] * weight + (limit.most - 1)
            whole = np.round(load).astype(np.int64)
            among = whole[self._labelled]
            least, most = int(among.min(initial=2**31)), int(among.max(initial=0))
            if most:
                found += _WEIGHT * np.where(self._labelled, 100 * (most + least - whole) // most, 0)
            else:
                found += _WEIGHT * 100 * self._labelled
        return found

    def texts(self, members: int, node: int, count: int) -> None:
        for each in self._company:
            each.texts(members, node, count)
        for limit in self._spread:
            limit.texts(members, node, count)


def _company(term: AffinityTerm, weight: int, scene: SpreadScene) -> _Company:
    column = scene.columns.label(term.topology_key)
    worth = np.zeros(len(column.codes) + 1, np.int64)
    np.add.at(worth, column.of, weight * scene.neighbours.counts(term, scene.without))
    worth[-1] = 0  # nodes without the label belong to no domain
    counted = [term.matches(other, scene.neighbours.labels_of) for other in scene.members]
    return _Company(column, weight, worth, counted)
