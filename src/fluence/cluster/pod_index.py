"""Who is where, as rules about other pods ask it: how many pods that a selector matches are on each node.

Each distinct selector that was asked for is kept, and follows the pods that come and go; so is every required
anti-affinity that a running pod has against others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np

from fluence.cluster.columns import NodeColumns
from fluence.cluster.pods import PodEntry, PodTable
from fluence.graph.graph import Ints, Mask
from fluence.model.meta import LabelSelector, Requirement, selector_matches
from fluence.model.pod import Pod, PodAffinityTerm, TopologySpreadConstraint, ports_clash

_encode = msgspec.json.Encoder(order="deterministic").encode
_KEPT = 512  # distinct selectors

Ports = frozenset[tuple[str, str, int]]


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
        """A term as it stands in a pod: without namespaces it means the pod's own."""
        namespaces = frozenset(term.namespaces or ())
        if not namespaces and term.namespace_selector is None:
            namespaces = frozenset((pod.metadata.namespace,))
        # The API server has done this for pods that passed it; to do it again changes nothing.
        selector = with_keys(term.label_selector, pod, term.match_label_keys, "In")
        selector = with_keys(selector, pod, term.mismatch_label_keys, "NotIn")
        key = _encode((term.topology_key, selector, sorted(namespaces), term.namespace_selector))
        return cls(key, term.topology_key, selector, namespaces, term.namespace_selector)

    def matches(self, pod: Pod, labels_of: Callable[[str], Mapping[str, str]]) -> bool:
        namespace = pod.metadata.namespace
        if namespace not in self.namespaces and not (
            self.namespace_selector is not None
            and selector_matches(self.namespace_selector, labels_of(namespace))
        ):
            return False
        return selector_matches(self.selector, pod.labels)


@dataclass(frozen=True, slots=True, eq=False)
class SpreadConstraint:
    """A topology spread constraint."""

    key: bytes
    constraint: TopologySpreadConstraint
    selector: LabelSelector | None
    namespace: str

    @classmethod
    def of(cls, constraint: TopologySpreadConstraint, pod: Pod) -> SpreadConstraint:
        selector = with_keys(constraint.label_selector, pod, constraint.match_label_keys, "In")
        return cls(_encode((selector, pod.metadata.namespace)), constraint, selector, pod.metadata.namespace)

    def matches(self, pod: Pod) -> bool:
        """A pod that is being deleted does not count."""
        return (
            pod.metadata.namespace == self.namespace
            and pod.metadata.deletion_timestamp is None
            and selector_matches(self.selector, pod.labels)
        )


def with_keys(
    selector: LabelSelector | None, pod: Pod, keys: list[str] | None, operator: str
) -> LabelSelector | None:
    """A selector that also asks for the pod's own values of some labels; those that it lacks are ignored."""
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


def affinity_terms(pod: Pod) -> tuple[AffinityTerm, ...]:
    affinity = pod.spec.affinity.pod_affinity if pod.spec.affinity else None
    return tuple(AffinityTerm.of(term, pod) for term in (affinity.required or ())) if affinity else ()


def anti_affinity_terms(pod: Pod) -> tuple[AffinityTerm, ...]:
    affinity = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity else None
    return tuple(AffinityTerm.of(term, pod) for term in (affinity.required or ())) if affinity else ()


def preferred_terms(pod: Pod) -> tuple[tuple[AffinityTerm, int], ...]:
    """What a pod would rather be near, with weights, and what it would rather not, with negative ones."""
    affinity = pod.spec.affinity
    if affinity is None:
        return ()
    return tuple(
        (AffinityTerm.of(each.pod_affinity_term, pod), sign * each.weight)
        for sign, side in ((1, affinity.pod_affinity), (-1, affinity.pod_anti_affinity))
        for each in (side.preferred if side is not None else None) or ()
    )


def spreads(pod: Pod, when: Literal["DoNotSchedule", "ScheduleAnyway"]) -> tuple[SpreadConstraint, ...]:
    limits = pod.spec.topology_spread_constraints or ()
    return tuple(SpreadConstraint.of(each, pod) for each in limits if each.when_unsatisfiable == when)


class SelectorCount:
    """The pods that something matches, and how many of them are on each node."""

    def __init__(self, matches: Callable[[Pod], bool]) -> None:
        self._matches = matches
        self.pods: dict[str, str] = {}  # uid -> node
        self.nodes: dict[str, int] = {}

    def add(self, entry: PodEntry) -> None:
        if self._matches(entry.pod):
            self.put(entry)

    def put(self, entry: PodEntry) -> None:
        self.pods[entry.uid] = entry.node
        self.nodes[entry.node] = self.nodes.get(entry.node, 0) + 1

    def discard(self, uid: str) -> None:
        node = self.pods.pop(uid, None)
        if node is not None:
            self.nodes[node] -= 1
            if not self.nodes[node]:
                del self.nodes[node]

    def column(self, position: Mapping[str, int], without: Collection[str] = ()) -> Ints:
        """How many are on each node, without some pods."""
        column = np.zeros(len(position), np.int64)
        for node, count in self.nodes.items():
            at = position.get(node)
            if at is not None:
                column[at] = count
        for uid in without:
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
        self._tallies: dict[object, SelectorCount] = {}
        self._against: dict[
            bytes, tuple[AffinityTerm, SelectorCount]
        ] = {}  # anti-affinity that pods on nodes have
        self._owners: dict[str, tuple[AffinityTerm, ...]] = {}
        self._ports: dict[str, dict[str, Ports]] = {}  # node -> uid -> host ports
        pods.watchers.append(self._told)

    # -- asking ----------------------------------------------------------------------------------------------

    def labels_of(self, namespace: str) -> Mapping[str, str]:
        """The labels of a namespace; its name is always among them."""
        return {**self._namespaces.get(namespace, {}), "kubernetes.io/metadata.name": namespace}

    def set_namespace(self, name: str, labels: Mapping[str, str]) -> None:
        if self._namespaces.get(name) != labels:
            self._namespaces[name] = dict(labels)
            self._tallies = {}

    @property
    def keys(self) -> set[str]:
        """The labels of pods that the anti-affinity of pods on nodes asks for."""
        return {key for term, _ in self._against.values() for key in selector_keys(term.selector)}

    @property
    def has_against(self) -> bool:
        """Whether some pod on a node keeps others away."""
        return bool(self._against)

    def is_meant(self, pod: Pod) -> bool:
        """Whether the anti-affinity of some pod on a node is against this one."""
        return any(term.matches(pod, self.labels_of) for term, _ in self._against.values())

    def counts(self, term: AffinityTerm, without: Collection[str]) -> Ints:
        """On each node, the pods that a term matches."""
        tally = self._tally(term.key, lambda pod: term.matches(pod, self.labels_of))
        return tally.column(self._columns.position, without)

    def counts_all(self, terms: tuple[AffinityTerm, ...], without: Collection[str]) -> Ints:
        """On each node, the pods that every one of some terms matches."""
        key = tuple(term.key for term in terms)
        tally = self._tally(key, lambda pod: all(term.matches(pod, self.labels_of) for term in terms))
        return tally.column(self._columns.position, without)

    def counts_spread(self, spread: SpreadConstraint, without: Collection[str]) -> Ints:
        return self._tally(("spread", spread.key), spread.matches).column(self._columns.position, without)

    def against(self, pod: Pod, without: Collection[str]) -> list[tuple[AffinityTerm, Ints]]:
        """The anti-affinity of others that means this pod, and on which nodes those are."""
        found = []
        for term, tally in self._against.values():
            if term.matches(pod, self.labels_of):
                column = tally.column(self._columns.position, without)
                if column.any():
                    found.append((term, column))
        return found

    def ports_free(self, ports: Ports, without: Collection[str]) -> Mask:
        """The nodes on which nobody has any of some host ports."""
        mask = np.ones(len(self._columns), np.bool_)
        for node, held in self._ports.items():
            at = self._columns.position.get(node)
            if at is not None and any(
                ports_clash(ports, theirs) for uid, theirs in held.items() if uid not in without
            ):
                mask[at] = False
        return mask

    # -- following -------------------------------------------------------------------------------------------

    def _tally(self, key: object, matches: Callable[[Pod], bool]) -> SelectorCount:
        found = self._tallies.get(key)
        if found is None:
            found = SelectorCount(matches)
            for entry in self._pods:
                found.add(entry)
            if len(self._tallies) >= _KEPT:
                self._tallies.clear()
            self._tallies[key] = found
        return found

    def _told(self, entry: PodEntry, sign: int) -> None:
        uid = entry.uid
        if sign < 0:
            for tally in self._tallies.values():
                tally.discard(uid)
            for term in self._owners.pop(uid, ()):
                _, tally = self._against[term.key]
                tally.discard(uid)
                if not tally.pods:
                    del self._against[term.key]
            held = self._ports.get(entry.node)
            if held is not None and held.pop(uid, None) is not None and not held:
                del self._ports[entry.node]
            return
        for tally in self._tallies.values():
            tally.add(entry)
        # One pod may state a term twice.
        terms = tuple({term.key: term for term in anti_affinity_terms(entry.pod)}.values())
        if terms:
            self._owners[uid] = terms
            for term in terms:
                self._against.setdefault(term.key, (term, SelectorCount(lambda pod: True)))[1].put(entry)
        ports = entry.pod.host_ports()
        if ports:
            self._ports.setdefault(entry.node, {})[uid] = ports


def selector_keys(selector: LabelSelector | None) -> set[str]:
    """The labels that a selector looks at."""
    if selector is None:
        return set()
    return {*(selector.match_labels or ()), *(each.key for each in selector.match_expressions or ())}
