"""What a pod asks of its node alone, put together: one mask and one score over all nodes.

Pods made from one template share their rules, so the answer is kept by the distinct rule until a node says
something else. `requests` asks when it makes a gang, `diagnosis` when a gang finds no seats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np
from cachetools import LRUCache

from fluence.cluster.columns import NodeColumns
from fluence.cluster.filters import node_affinity, taints, unschedulable
from fluence.graph.graph import Ints, Mask
from fluence.model.pod import NodeSelector, Pod, PreferredSchedulingTerm, Toleration
from fluence.model.reason import Code, Reason

_encode = msgspec.json.Encoder(order="deterministic").encode
_KEPT = 1024  # distinct rules
_AFFINITY = Reason.of(Code.NODE_AFFINITY_MISMATCH)
_Column = TypeVar("_Column")

VolumeNodes = tuple[tuple[Reason, NodeSelector], ...]  # where volumes can be; why not on other nodes


@dataclass(frozen=True, slots=True, eq=False)
class NodeRules:
    """What a pod asks of its node; ``key`` is equal for equal rules."""

    key: bytes
    selector: dict[str, str]
    required: NodeSelector | None
    preferred: tuple[PreferredSchedulingTerm, ...]
    tolerations: tuple[Toleration, ...]
    volumes: VolumeNodes = ()

    @classmethod
    def of(cls, pod: Pod, volumes: VolumeNodes = ()) -> NodeRules:
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


class NodeFilters:
    """Masks and scores by distinct rule; the least recently asked for are forgotten."""

    def __init__(self, columns: NodeColumns) -> None:
        self._columns = columns
        self._generation = -1
        self._masks: LRUCache[bytes, Mask] = LRUCache(_KEPT)
        self._selected: LRUCache[bytes, Mask] = LRUCache(_KEPT)
        self._scores: LRUCache[bytes, Ints | None] = LRUCache(_KEPT)

    def allowed(self, rules: NodeRules) -> Mask:
        """The nodes on which a pod with these rules may run."""
        return self._known(self._masks, rules, self._allowed)

    def selected(self, rules: NodeRules) -> Mask:
        """The nodes that the selector and the required affinity match; taints and state aside."""
        return self._known(self._selected, rules, self._select)

    def tolerated(self, rules: NodeRules) -> Mask:
        """The nodes without a taint that the pod does not tolerate."""
        return taints.tolerated(self._columns, rules.tolerations)

    def score(self, rules: NodeRules) -> Ints | None:
        """Higher is better; None where all nodes are equal."""
        return self._known(self._scores, rules, self._score)

    def open_nodes(self, rules: NodeRules) -> Iterator[tuple[Reason, Mask]]:
        """Each reason with the nodes that it leaves open, in the order of kube-scheduler's filters."""
        columns = self._columns
        yield from unschedulable.open_nodes(columns, rules.tolerations)
        yield from taints.closed_nodes(columns, rules.tolerations)
        if rules.selector:
            labels = tuple(rules.selector.items())
            reason = Reason.of(Code.NODE_SELECTOR_MISMATCH, labels=labels)
            yield reason, node_affinity.with_labels(columns, rules.selector)
        if rules.required is not None:
            yield _AFFINITY, node_affinity.selected(columns, rules.required)
        for reason, selector in rules.volumes:
            yield reason, node_affinity.selected(columns, selector)

    def _allowed(self, rules: NodeRules) -> Mask:
        columns = self._columns
        mask = self.selected(rules) & taints.tolerated(columns, rules.tolerations)
        for _, each in unschedulable.open_nodes(columns, rules.tolerations):
            mask &= each
        for _, selector in rules.volumes:
            mask &= node_affinity.selected(columns, selector)
        mask.setflags(write=False)
        return mask

    def _select(self, rules: NodeRules) -> Mask:
        columns = self._columns
        return node_affinity.with_labels(columns, rules.selector) & node_affinity.selected(
            columns, rules.required
        )

    def _score(self, rules: NodeRules) -> Ints | None:
        found = [
            each
            for each in (
                node_affinity.score(self._columns, rules.preferred),
                taints.score(self._columns, rules.tolerations),
            )
            if each is not None
        ]
        return np.asarray(sum(found)) if found else None

    def _known(
        self, kept: LRUCache[bytes, _Column], rules: NodeRules, make: Callable[[NodeRules], _Column]
    ) -> _Column:
        if self._generation != self._columns.generation:
            self._generation = self._columns.generation
            for each in (self._masks, self._selected, self._scores):
                each.clear()
        try:
            return kept[rules.key]
        except KeyError:
            found = kept[rules.key] = make(rules)
            return found
