"""How many pods that a selector matches are on each node.

Each distinct selector that was asked for lately is kept, and follows the pods that come and go; so is every
required anti-affinity that a pod on a node has against others. `filters.interpod_affinity` and
`filters.topology_spread` ask.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np

from fluence.cluster.columns import NodeColumns
from fluence.cluster.pod_terms import AffinityTerm, SpreadConstraint, anti_affinity_terms, selector_keys
from fluence.cluster.pods import PodEntry, PodTable
from fluence.graph.graph import Ints
from fluence.model.pod import Pod

_KEPT = 512  # distinct selectors


class SelectorCount:
    """The pods that something matches, and how many of them are on each node."""

    def __init__(self, matches: Callable[[Pod], bool]) -> None:
        self._matches = matches
        self.pods: dict[str, str] = {}  # uid -> node
        self.nodes: dict[str, int] = {}

    def add(self, entry: PodEntry) -> None:
        if self._matches(entry.pod):
            self.pods[entry.uid] = entry.node
            self.nodes[entry.node] = self.nodes.get(entry.node, 0) + 1

    def discard(self, uid: str) -> None:
        node = self.pods.pop(uid, None)
        if node is not None:
            self.nodes[node] -= 1
            if not self.nodes[node]:
                del self.nodes[node]

    def column(self, position: Mapping[str, int], leaving: Collection[str] = ()) -> Ints:
        """How many are on each node, without some pods that will be gone."""
        column = np.zeros(len(position), np.int64)
        for node, count in self.nodes.items():
            at = position.get(node)
            if at is not None:
                column[at] = count
        for uid in leaving:
            at = position.get(self.pods.get(uid, ""))
            if at is not None:
                column[at] -= 1
        return column


class PodIndex:
    """The pods on nodes, counted as rules about other pods ask."""

    def __init__(self, pods: PodTable, columns: NodeColumns) -> None:
        self._pods = pods
        self._columns = columns
        self._namespaces: dict[str, dict[str, str]] = {}
        # Those asked for last at the end. A plain dict: all of them are told of every pod.
        self._counts: dict[object, SelectorCount] = {}
        # The required anti-affinity of pods on nodes ("existing" in kube-scheduler), and who has it.
        self._existing: dict[bytes, tuple[AffinityTerm, SelectorCount]] = {}
        self._terms_of: dict[str, tuple[AffinityTerm, ...]] = {}  # uid -> its terms
        pods.watchers.append(self._changed)

    # -- asking ----------------------------------------------------------------------------------------------

    def labels_of(self, namespace: str) -> Mapping[str, str]:
        """The labels of a namespace; its name is always among them."""
        return {**self._namespaces.get(namespace, {}), "kubernetes.io/metadata.name": namespace}

    def set_namespace(self, name: str, labels: Mapping[str, str] | None) -> None:
        """The labels of a namespace; None: it is gone."""
        if (self._namespaces.get(name) or {}) != (labels or {}):
            self._counts.clear()  # terms may select namespaces
        if labels:
            self._namespaces[name] = dict(labels)
        else:
            self._namespaces.pop(name, None)

    @property
    def label_keys(self) -> set[str]:
        """The labels of pods that the anti-affinity of pods on nodes looks at."""
        return {key for term, _ in self._existing.values() for key in selector_keys(term.selector)}

    @property
    def has_anti_affinity(self) -> bool:
        """Whether some pod on a node keeps others away."""
        return bool(self._existing)

    @property
    def uids(self) -> Collection[str]:
        """All pods on nodes."""
        return self._pods.entries.keys()

    def is_kept_away(self, pod: Pod) -> bool:
        """Whether the anti-affinity of some pod on a node is against this one."""
        return any(term.matches(pod, self.labels_of) for term, _ in self._existing.values())

    def matching(self, term: AffinityTerm, leaving: Collection[str]) -> Ints:
        """On each node, the pods that a term matches."""
        found = self._count(term.key, lambda pod: term.matches(pod, self.labels_of))
        return found.column(self._columns.position, leaving)

    def matching_all(self, terms: tuple[AffinityTerm, ...], leaving: Collection[str]) -> Ints:
        """On each node, the pods that every one of some terms matches."""
        key = tuple(term.key for term in terms)
        found = self._count(key, lambda pod: all(term.matches(pod, self.labels_of) for term in terms))
        return found.column(self._columns.position, leaving)

    def spread_over(self, spread: SpreadConstraint, leaving: Collection[str]) -> Ints:
        """On each node, the pods that a spread constraint counts."""
        found = self._count(("spread", spread.key), spread.matches)
        return found.column(self._columns.position, leaving)

    def anti_affinity_against(self, pod: Pod, leaving: Collection[str]) -> list[tuple[AffinityTerm, Ints]]:
        """The anti-affinity of pods on nodes that is against this one, and on which nodes those are."""
        found = []
        for term, count in self._existing.values():
            if term.matches(pod, self.labels_of):
                column = count.column(self._columns.position, leaving)
                if column.any():
                    found.append((term, column))
        return found

    # -- following -------------------------------------------------------------------------------------------

    def _count(self, key: object, matches: Callable[[Pod], bool]) -> SelectorCount:
        found = self._counts.pop(key, None)
        if found is None:
            found = SelectorCount(matches)
            for entry in self._pods:
                found.add(entry)
            if len(self._counts) >= _KEPT:
                del self._counts[next(iter(self._counts))]
        self._counts[key] = found
        return found

    def _changed(self, entry: PodEntry, sign: int) -> None:
        uid = entry.uid
        if sign < 0:
            for count in self._counts.values():
                count.discard(uid)
            for term in self._terms_of.pop(uid, ()):
                _, count = self._existing[term.key]
                count.discard(uid)
                if not count.pods:
                    del self._existing[term.key]
            return
        for count in self._counts.values():
            count.add(entry)
        # One pod may state a term twice.
        terms = tuple({term.key: term for term in anti_affinity_terms(entry.pod)}.values())
        if terms:
            self._terms_of[uid] = terms
            for term in terms:
                self._existing.setdefault(term.key, (term, SelectorCount(_every)))[1].add(entry)


def _every(pod: Pod) -> bool:
    return True
