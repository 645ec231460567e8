"""The rules of a pod about its node, combined into one mask and one score over all nodes.

Pods from one template share their rules, so the results are cached per distinct rule until a node changes.
`requests` uses it when it compiles a gang, `diagnosis` when a gang does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np
from cachetools import LRUCache

from fluence.cluster.columns import NodeColumns
from fluence.cluster.filters import devices, node_affinity, taints
from fluence.cluster.filters.taints import open_nodes
from fluence.graph.graph import Ints, Mask
from fluence.model.external_resources import asked_by
from fluence.model.pod import NodeSelector, Pod, PreferredSchedulingTerm, Toleration
from fluence.model.reason import Code, Reason

_encode = msgspec.json.Encoder(order="deterministic").encode
_MAX_RULES = 1024  # distinct rules
_AFFINITY = Reason.of(Code.NODE_AFFINITY_MISMATCH)
_Column = TypeVar("_Column")

VolumeNodes = tuple[tuple[Reason, NodeSelector], ...]  # the nodes of each volume; the reason for others


@dataclass(frozen=True, slots=True, eq=False)
class NodeRules:
    """The rules of a pod about its node; ``key`` is equal for equal rules."""

    key: bytes
    selector: dict[str, str]
    required: NodeSelector | None
    preferred: tuple[PreferredSchedulingTerm, ...]
    tolerations: tuple[Toleration, ...]
    volumes: VolumeNodes = ()
    devices: tuple[tuple[str, int], ...] = ()  # external resources that the pod requests, by type

    @classmethod
    def of(cls, pod: Pod, volumes: VolumeNodes = ()) -> NodeRules:
        spec = pod.spec
        affinity = spec.affinity.node_affinity if spec.affinity else None
        asked = tuple(sorted(asked_by(pod).items()))
        key = _encode((spec.node_selector, affinity, spec.tolerations, volumes, asked))
        return cls(
            key,
            spec.node_selector or {},
            affinity.required if affinity else None,
            tuple(affinity.preferred or ()) if affinity else (),
            tuple(spec.tolerations or ()),
            volumes,
            asked,
        )


class NodeFilters:
    """Masks and scores by distinct rule; the least recently used are dropped."""

    def __init__(self, columns: NodeColumns) -> None:
        self._columns = columns
        self._generation = -1
        self._masks: LRUCache[bytes, Mask] = LRUCache(_MAX_RULES)
        self._selected: LRUCache[bytes, Mask] = LRUCache(_MAX_RULES)
        self._scores: LRUCache[bytes, Ints | None] = LRUCache(_MAX_RULES)

    def allowed(self, rules: NodeRules) -> Mask:
        """The nodes on which a pod with these rules may run."""
        return self._known(self._masks, rules, self._allowed)

    def selected(self, rules: NodeRules) -> Mask:
        """The nodes that the selector and the required affinity match, regardless of taints and state."""
        return self._known(self._selected, rules, self._select)

    def tolerated(self, rules: NodeRules) -> Mask:
        """The nodes without a taint that the pod does not tolerate."""
        return taints.tolerated(self._columns, rules.tolerations)

    def score(self, rules: NodeRules) -> Ints | None:
        """A score per node, higher is better; None if all nodes are equal."""
        return self._known(self._scores, rules, self._score)

    def open_nodes(self, rules: NodeRules) -> Iterator[tuple[Reason, Mask]]:
        """Each reason with the nodes that it leaves open, in the order of kube-scheduler's filters."""
        columns = self._columns
        yield from open_nodes(columns, rules.tolerations)
        yield from taints.closed_nodes(columns, rules.tolerations)
        if rules.selector:
            labels = tuple(rules.selector.items())
            reason = Reason.of(Code.NODE_SELECTOR_MISMATCH, labels=labels)
            yield reason, node_affinity.with_labels(columns, rules.selector)
        if rules.required is not None:
            yield _AFFINITY, node_affinity.selected(columns, rules.required)
        for reason, selector in rules.volumes:
            yield reason, node_affinity.selected(columns, selector)
        yield from devices.open_nodes(columns, rules.devices)

    def _allowed(self, rules: NodeRules) -> Mask:
        columns = self._columns
        mask = self.selected(rules) & taints.tolerated(columns, rules.tolerations)
        for _, each in open_nodes(columns, rules.tolerations):
            mask &= each
        for _, selector in rules.volumes:
            mask &= node_affinity.selected(columns, selector)
        for _, open_ in devices.open_nodes(columns, rules.devices):
            mask &= open_
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
