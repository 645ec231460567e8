"""Pod index: the rules of a pod about other pods, and the number of pods on each node that match them.

The counts of recently used selectors are kept and updated with the pods, and so is every required
anti-affinity of pods on nodes. `filters.interpod_affinity` and `filters.topology_spread` use them.

Siblings are the pods of one ReplicaSet, StatefulSet or ReplicationController, or else the pods that the same
Services select. kube-scheduler spreads these by default. `filters.topology_spread` uses them. Controllers are
identified by their uid within a namespace: a forged uid only spreads the pods of its author.

`requests` makes the kinds of pods in a gang from these; `gang_rules` passes them to `ports`,
`interpod_affinity` and `topology_spread`.

They are computed once for a pod (`InterPodRules.of`). `pod_index` counts the pods that they match, and the
filters of each plugin decide.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, TypeAlias

import msgspec
import numpy as np
from cachetools import LRUCache

from fluence.cluster.columns import NodeColumns
from fluence.cluster.filters.node_rules import NodeFilters, NodeRules
from fluence.cluster.filters.ports import HostPorts
from fluence.cluster.pods import PodEntry, PodTable
from fluence.graph.graph import Ints
from fluence.model.meta import LabelSelector, Requirement, selector_matches
from fluence.model.pod import Pod, PodAffinityTerm, TopologySpreadConstraint

_encode = msgspec.json.Encoder(order="deterministic").encode

_MAX_CHARACTERS = 120  # characters of a selector that a reason shows

NamespaceLabels = Callable[[str], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class AffinityTerm:
    """A term of pod affinity or anti-affinity; equal terms have equal keys."""

    key: bytes
    topology_key: str
    selector: LabelSelector | None = field(compare=False)
    namespaces: frozenset[str] = field(compare=False)
    namespace_selector: LabelSelector | None = field(compare=False)

    @classmethod
    def of(cls, term: PodAffinityTerm, pod: Pod) -> AffinityTerm:
        """A term of a pod: without namespaces it selects the namespace of the pod."""
        namespaces = frozenset(term.namespaces or ())
        if not namespaces and term.namespace_selector is None:
            namespaces = frozenset((pod.metadata.namespace,))
        # The API server does this for pods that it admits; doing it again changes nothing.
        selector = _with_keys(term.label_selector, pod, term.match_label_keys, "In")
        selector = _with_keys(selector, pod, term.mismatch_label_keys, "NotIn")
        key = _encode((term.topology_key, selector, sorted(namespaces), term.namespace_selector))
        return cls(key, term.topology_key, selector, namespaces, term.namespace_selector)

    def matches(self, pod: Pod, labels_of: NamespaceLabels) -> bool:
        namespace = pod.metadata.namespace
        if namespace not in self.namespaces and not (
            self.namespace_selector is not None
            and selector_matches(self.namespace_selector, labels_of(namespace))
        ):
            return False
        return selector_matches(self.selector, pod.labels)


@dataclass(frozen=True, slots=True, eq=False)
class SpreadConstraint:
    """A topology spread constraint, with the labels of its own pod in the selector."""

    key: bytes  # equal for constraints that count the same pods
    constraint: TopologySpreadConstraint
    selector: LabelSelector | None
    namespace: str

    @classmethod
    def of(cls, constraint: TopologySpreadConstraint, pod: Pod) -> SpreadConstraint:
        selector = _with_keys(constraint.label_selector, pod, constraint.match_label_keys, "In")
        return cls(_encode((selector, pod.metadata.namespace)), constraint, selector, pod.metadata.namespace)

    def matches(self, pod: Pod) -> bool:
        """A pod that is being deleted does not count."""
        return (
            pod.metadata.namespace == self.namespace
            and pod.metadata.deletion_timestamp is None
            and selector_matches(self.selector, pod.labels)
        )

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for equal constraints."""
        limit = self.constraint
        return (
            self.key,
            limit.when_unsatisfiable,
            limit.topology_key,
            limit.max_skew,
            limit.min_domains,
            limit.node_affinity_policy,
            limit.node_taints_policy,
        )


@dataclass(frozen=True, slots=True, eq=False)
class InterPodRules:
    """The rules of one pod about other pods."""

    affinity: tuple[AffinityTerm, ...]
    anti_affinity: tuple[AffinityTerm, ...]
    spread: tuple[SpreadConstraint, ...]
    ports: frozenset[tuple[str, str, int]]
    preferred_affinity: tuple[tuple[AffinityTerm, int], ...]  # with weights; negative: anti-affinity
    preferred_spread: tuple[SpreadConstraint, ...]
    key: tuple[object, ...]  # equal for equal rules

    @classmethod
    def of(cls, pod: Pod) -> InterPodRules:
        affinity, anti, preferred = affinity_terms(pod), anti_affinity_terms(pod), preferred_terms(pod)
        spread, even = spread_constraints(pod, "DoNotSchedule"), spread_constraints(pod, "ScheduleAnyway")
        ports = pod.host_ports()
        limits = tuple(each.identity for each in (*spread, *even))
        return cls(affinity, anti, spread, ports, preferred, even, (affinity, anti, limits, ports, preferred))

    @property
    def forbid(self) -> bool:
        """Whether other pods can close nodes to this pod."""
        return bool(self.affinity or self.anti_affinity or self.spread or self.ports)

    @property
    def prefer(self) -> bool:
        return bool(self.preferred_affinity or self.preferred_spread)

    @property
    def label_keys(self) -> set[str]:
        """The labels of other pods that these rules read."""
        selectors = [
            *(each.selector for each in (*self.affinity, *self.anti_affinity)),
            *(each.selector for each in (*self.spread, *self.preferred_spread)),
            *(each.selector for each, _ in self.preferred_affinity),
        ]
        return {key for selector in selectors for key in selector_keys(selector)}


def affinity_terms(pod: Pod) -> tuple[AffinityTerm, ...]:
    affinity = pod.spec.affinity.pod_affinity if pod.spec.affinity else None
    return tuple(AffinityTerm.of(term, pod) for term in (affinity.required or ())) if affinity else ()


def anti_affinity_terms(pod: Pod) -> tuple[AffinityTerm, ...]:
    affinity = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity else None
    return tuple(AffinityTerm.of(term, pod) for term in (affinity.required or ())) if affinity else ()


def preferred_terms(pod: Pod) -> tuple[tuple[AffinityTerm, int], ...]:
    """Preferred affinity with its weights, and preferred anti-affinity with negative ones."""
    affinity = pod.spec.affinity
    if affinity is None:
        return ()
    return tuple(
        (AffinityTerm.of(each.pod_affinity_term, pod), sign * each.weight)
        for sign, side in ((1, affinity.pod_affinity), (-1, affinity.pod_anti_affinity))
        for each in (side.preferred if side is not None else None) or ()
    )


def spread_constraints(
    pod: Pod, when: Literal["DoNotSchedule", "ScheduleAnyway"]
) -> tuple[SpreadConstraint, ...]:
    limits = pod.spec.topology_spread_constraints or ()
    return tuple(SpreadConstraint.of(each, pod) for each in limits if each.when_unsatisfiable == when)


def selector_keys(selector: LabelSelector | None) -> set[str]:
    """The labels that a selector reads."""
    if selector is None:
        return set()
    return {*(selector.match_labels or ()), *(each.key for each in selector.match_expressions or ())}


def selector_text(selector: LabelSelector | None) -> str:
    """A selector as kubectl writes it: `app=db,tier in (a,b)`."""
    if selector is None:
        return ""
    parts = [f"{key}={value}" for key, value in sorted((selector.match_labels or {}).items())]
    for each in selector.match_expressions or ():
        values = f"({','.join(each.values or ())})"
        parts.append(
            {"In": f"{each.key} in {values}", "NotIn": f"{each.key} notin {values}", "Exists": each.key}.get(
                each.operator, f"!{each.key}"
            )
        )
    return ",".join(parts)[:_MAX_CHARACTERS]


def _with_keys(
    selector: LabelSelector | None, pod: Pod, keys: list[str] | None, operator: str
) -> LabelSelector | None:
    """A selector that also requires the pod's own values of some labels; labels that the pod lacks are
    ignored."""
    more = [
        Requirement(key=key, operator=operator, values=[pod.labels[key]])
        for key in keys or ()
        if key in pod.labels
    ]
    if not more:
        return selector
    base = selector or LabelSelector()
    expressions = [*(base.match_expressions or ()), *more]
    return LabelSelector(match_labels=base.match_labels, match_expressions=expressions)


_MAX_SELECTORS = 512  # distinct selectors


class SelectorCount:
    """The matching pods, and their number on each node."""

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
        """The number of pods on each node, without those that will be gone."""
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
    """The pods on nodes, counted for rules about other pods."""

    def __init__(self, pods: PodTable, columns: NodeColumns) -> None:
        self._pods = pods
        self._columns = columns
        self._namespaces: dict[str, dict[str, str]] = {}
        # The most recently used last. A plain dict, because every pod updates all of them.
        self._counts: dict[object, SelectorCount] = {}
        # The required anti-affinity of pods on nodes ("existing" in kube-scheduler), and its pods.
        self._existing: dict[bytes, tuple[AffinityTerm, SelectorCount]] = {}
        self._terms_of: dict[str, tuple[AffinityTerm, ...]] = {}  # uid -> its terms
        pods.watchers.append(self._changed)

    # -- asking ----------------------------------------------------------------------------------------------

    def labels_of(self, namespace: str) -> Mapping[str, str]:
        """The labels of a namespace, which always include its name."""
        return {**self._namespaces.get(namespace, {}), "kubernetes.io/metadata.name": namespace}

    def set_namespace(self, name: str, labels: Mapping[str, str] | None) -> None:
        """Set the labels of a namespace; None: it is gone."""
        if (self._namespaces.get(name) or {}) != (labels or {}):
            self._counts.clear()  # terms may select namespaces
        if labels:
            self._namespaces[name] = dict(labels)
        else:
            self._namespaces.pop(name, None)

    @property
    def label_keys(self) -> set[str]:
        """The labels that the anti-affinity of pods on nodes reads."""
        return {key for term, _ in self._existing.values() for key in selector_keys(term.selector)}

    @property
    def has_anti_affinity(self) -> bool:
        """Whether a pod on a node has required anti-affinity."""
        return bool(self._existing)

    @property
    def uids(self) -> Collection[str]:
        """All pods on nodes."""
        return self._pods.entries.keys()

    def is_kept_away(self, pod: Pod) -> bool:
        """Whether the anti-affinity of a pod on a node matches this pod."""
        return any(term.matches(pod, self.labels_of) for term, _ in self._existing.values())

    def matching(self, term: AffinityTerm, leaving: Collection[str]) -> Ints:
        """The number of pods on each node that a term matches."""
        found = self._count(term.key, lambda pod: term.matches(pod, self.labels_of))
        return found.column(self._columns.position, leaving)

    def matching_all(self, terms: tuple[AffinityTerm, ...], leaving: Collection[str]) -> Ints:
        """The number of pods on each node that all terms match."""
        key = tuple(term.key for term in terms)
        found = self._count(key, lambda pod: all(term.matches(pod, self.labels_of) for term in terms))
        return found.column(self._columns.position, leaving)

    def spread_over(self, spread: SpreadConstraint, leaving: Collection[str]) -> Ints:
        """The number of pods on each node that a spread constraint counts."""
        found = self._count(("spread", spread.key), spread.matches)
        return found.column(self._columns.position, leaving)

    def anti_affinity_against(self, pod: Pod, leaving: Collection[str]) -> list[tuple[AffinityTerm, Ints]]:
        """The anti-affinity of pods on nodes that matches this pod, with their number on each node."""
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
            if len(self._counts) >= _MAX_SELECTORS:
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


_SERVING = frozenset(("ReplicaSet", "StatefulSet", "ReplicationController"))
_MAX_LABEL_SETS = 4096  # whose Services are cached

SiblingCount: TypeAlias = Callable[[Collection[str]], Ints]
"""The number of siblings on each node, without pods that will be gone."""


class Siblings:
    """The pods on nodes by controller or Service."""

    def __init__(self, pods: PodTable, index: PodIndex, columns: NodeColumns) -> None:
        self._index = index
        self._columns = columns
        self._of_controller: dict[tuple[str, str], SelectorCount] = {}  # by namespace and uid
        self._services: dict[str, dict[str, Mapping[str, str]]] = {}  # namespace, name -> selector
        self._selectors: LRUCache[tuple[str, tuple[tuple[str, str], ...]], SpreadConstraint | None]
        self._selectors = LRUCache(_MAX_LABEL_SETS)
        pods.watchers.append(self._changed)

    def set_service(self, namespace: str, name: str, selector: Mapping[str, str] | None) -> None:
        """Set the selector of a Service; empty or None: it is gone, or selects no pods."""
        services = self._services.get(namespace, {})
        if services.get(name) == (selector or None):
            return
        if selector:
            self._services[namespace] = {**services, name: selector}
        elif len(services) > 1:
            del services[name]
        else:
            del self._services[namespace]
        self._selectors.clear()

    def of(self, pod: Pod) -> SiblingCount | None:
        """The siblings of a pod; None: it has no known controller or Service, or it belongs to a Job."""
        controller = pod.metadata.controller_reference
        if controller is not None and controller.kind in _SERVING:
            return partial(self._of_one_controller, (pod.metadata.namespace, controller.uid))
        if controller is not None and controller.kind == "Job":
            return None
        selector = self._selector(pod)
        return None if selector is None else partial(self._index.spread_over, selector)

    def _of_one_controller(self, key: tuple[str, str], leaving: Collection[str]) -> Ints:
        count = self._of_controller.get(key) or SelectorCount(_counts)
        return count.column(self._columns.position, leaving)

    def _selector(self, pod: Pod) -> SpreadConstraint | None:
        """The combined selector of all Services of a pod."""
        namespace, labels = pod.metadata.namespace, pod.labels
        services = self._services.get(namespace)
        if not services:
            return None
        key = (namespace, tuple(sorted(labels.items())))
        if key not in self._selectors:
            merged: dict[str, str] = {}
            for selector in services.values():
                if selector.items() <= labels.items():
                    merged.update(selector)
            limit = TopologySpreadConstraint(label_selector=LabelSelector(match_labels=merged))
            self._selectors[key] = SpreadConstraint.of(limit, pod) if merged else None
        return self._selectors[key]

    def _changed(self, entry: PodEntry, sign: int) -> None:
        meta = entry.pod.metadata
        controller = meta.controller_reference
        if controller is None or controller.kind not in _SERVING:
            return
        key = (meta.namespace, controller.uid)
        if sign > 0:
            self._of_controller.setdefault(key, SelectorCount(_counts)).add(entry)
        elif (count := self._of_controller.get(key)) is not None:
            count.discard(entry.uid)
            if not count.pods:
                del self._of_controller[key]


def _counts(pod: Pod) -> bool:
    """A pod that is being deleted does not count."""
    return pod.metadata.deletion_timestamp is None


@dataclass(frozen=True, slots=True, eq=False)
class PodShape:
    """One pod that represents all equal pods."""

    pod: Pod
    others: InterPodRules
    node: NodeRules


@dataclass(frozen=True, slots=True, eq=False)
class GangContext:
    """A gang, the nodes, and the pods on them."""

    shapes: Sequence[PodShape]  # one of each kind in the gang
    index: PodIndex
    ports: HostPorts
    columns: NodeColumns
    node_filters: NodeFilters
    leaving: Collection[str] = ()  # uids of pods that will have ended when the gang starts
    siblings: Sequence[SiblingCount | None] = ()  # of each kind that is spread by default; empty: none is
