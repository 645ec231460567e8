"""The rules of a pod about other pods: terms of (anti-)affinity, and topology spread constraints.

They are computed once for a pod (`InterPodRules.of`). `pod_index` counts the pods that they match, and the
filters of each plugin decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

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
