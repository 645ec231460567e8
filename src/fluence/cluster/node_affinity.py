"""A pod's rules about nodes, as one mask and one score over all of them.

nodeSelector, required node affinity, the affinity of its volumes, taints, cordons and readiness say where a
pod may run; preferred node affinity and PreferNoSchedule taints say where it would rather. Pods made from one
template share their rules, so the answer is kept by the distinct rule, until a node says something else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np

from fluence.cluster.columns import REFUSING, NodeColumns
from fluence.graph.graph import Ints, Mask
from fluence.model.node import CORDONED, NOT_READY, untolerated
from fluence.model.pod import NodeSelector, Pod, PreferredSchedulingTerm, Toleration

_encode = msgspec.json.Encoder(order="deterministic").encode
_KEPT = 4096  # distinct rules
# The weights of kube-scheduler's default profile.
_AFFINITY_WEIGHT = 2
_TAINT_WEIGHT = 3


@dataclass(frozen=True, slots=True, eq=False)
class NodeRules:
    """What a pod demands of a node; ``key`` is equal for equal rules."""

    key: bytes
    selector: dict[str, str]
    required: NodeSelector | None
    preferred: tuple[PreferredSchedulingTerm, ...]
    tolerations: tuple[Toleration, ...]
    volumes: tuple[tuple[str, NodeSelector], ...] = ()  # (what to say of other nodes, where it can be)

    @classmethod
    def of(cls, pod: Pod, volumes: tuple[tuple[str, NodeSelector], ...] = ()) -> NodeRules:
        spec = pod.spec
        affinity = spec.affinity.node_affinity if spec.affinity else None
        key = _encode((spec.node_selector, affinity, spec.tolerations, volumes))
        return cls(
            key,
            spec.node_selector or {},
            affinity.required if affinity else None,
            tuple(affinity.preferred or ()) if affinity else (),
            tuple(spec.tolerations or ()),
            volumes,
        )

    @property
    def braves_cordon(self) -> bool:
        return untolerated((CORDONED,), self.tolerations, REFUSING) is None

    @property
    def braves_not_ready(self) -> bool:
        return untolerated((NOT_READY,), self.tolerations, REFUSING) is None


class NodeFilters:
    """Masks and scores by distinct rule."""

    def __init__(self, columns: NodeColumns) -> None:
        self._columns = columns
        self._generation = -1
        self._masks: dict[bytes, Mask] = {}
        self._scores: dict[bytes, Ints | None] = {}
        self._chosen: dict[bytes, Mask] = {}

    def allowed(self, rules: NodeRules) -> Mask:
        """The nodes on which a pod with these rules may run."""
        self._refresh()
        found = self._masks.get(rules.key)
        if found is None:
            found = np.ones(len(self._columns), np.bool_)
            for _, open_ in self.steps(rules):
                found &= open_
            found.setflags(write=False)
            self._keep(self._masks, rules.key, found)
        return found

    def chosen(self, rules: NodeRules) -> Mask:
        """The nodes that the selector and the required affinity match; taints and state aside."""
        self._refresh()
        found = self._chosen.get(rules.key)
        if found is None:
            found = self._selected(rules) & self._affine(rules)
            self._keep(self._chosen, rules.key, found)
        return found

    def tolerated(self, rules: NodeRules) -> Mask:
        """The nodes without a taint that the pod does not tolerate."""
        return self._columns.tolerated(rules.tolerations)

    def score(self, rules: NodeRules) -> Ints | None:
        """Higher is better; None where all nodes are equal."""
        self._refresh()
        if rules.key not in self._scores:
            self._keep(self._scores, rules.key, self._score(rules))
        return self._scores[rules.key]

    def steps(self, rules: NodeRules) -> Iterator[tuple[str, Mask]]:
        """Each rule with the nodes that it leaves open, in the order of kube-scheduler's filters."""
        columns = self._columns
        if not rules.braves_cordon:
            yield "cordoned", columns.schedulable
        if not rules.braves_not_ready:
            yield "not ready", columns.ready
        yield "taint", columns.tolerated(rules.tolerations)
        if rules.selector:
            yield "nodeSelector", self._selected(rules)
        if rules.required is not None:
            yield "node affinity", self._affine(rules)
        for said, selector in rules.volumes:
            yield said, columns.selected(selector)

    def _selected(self, rules: NodeRules) -> Mask:
        mask = np.ones(len(self._columns), np.bool_)
        for key, value in rules.selector.items():
            mask &= self._columns.label(key).equals(value)
        return mask

    def _affine(self, rules: NodeRules) -> Mask:
        if rules.required is None:
            return np.ones(len(self._columns), np.bool_)
        return self._columns.selected(rules.required)

    def _score(self, rules: NodeRules) -> Ints | None:
        columns = self._columns
        wanted = np.zeros(len(columns), np.int64)
        for each in rules.preferred:
            # An empty preference matches every node and so says nothing.
            wanted += each.weight * columns.term(each.preference)
        feared = columns.dissuading(rules.tolerations)
        most_wanted, most_feared = int(wanted.max(initial=0)), int(feared.max(initial=0))
        if not most_wanted and not most_feared:
            return None
        score = np.zeros(len(columns), np.int64)
        if most_wanted:
            score += _AFFINITY_WEIGHT * (100 * wanted // most_wanted)
        if most_feared:
            score += _TAINT_WEIGHT * (100 - 100 * feared // most_feared)
        return score

    def _keep(self, kept: dict[bytes, Mask] | dict[bytes, Ints | None], key: bytes, value: object) -> None:
        if len(kept) >= _KEPT:
            kept.clear()
        kept[key] = value  # type: ignore[assignment]

    def _refresh(self) -> None:
        if self._generation != self._columns.generation:
            self._generation = self._columns.generation
            self._masks, self._scores, self._chosen = {}, {}, {}
