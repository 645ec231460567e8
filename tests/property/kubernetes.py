"""kube-scheduler's filters and some of its scores, written out plainly: a pod, a node, loops over all."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from fluence.model.meta import LabelSelector, Requirement, selector_matches
from fluence.model.node import Node, Taint, forbids, term_matches, untolerated
from fluence.model.pod import (
    Affinity,
    Pod,
    PodAffinityTerm,
    TopologySpreadConstraint,
    pod_requests,
    ports_clash,
)

NO = ("NoSchedule", "NoExecute")


@dataclass
class World:
    """Nodes by name, and pods with the node that they count on."""

    nodes: dict[str, Node]
    pods: dict[str, tuple[Pod, str]] = field(default_factory=dict)  # uid -> pod, node
    namespaces: dict[str, dict[str, str]] = field(default_factory=dict)

    def used(self, name: str) -> dict[str, int]:
        total: dict[str, int] = {}
        for pod, node in self.pods.values():
            if node == name:
                for resource, amount in pod_requests(pod, bound=pod.spec.node_name is not None).items():
                    total[resource] = total.get(resource, 0) + amount
        return total

    def feasible(self, pod: Pod, name: str) -> bool:
        node = self.nodes[name]
        tolerations = pod.spec.tolerations or ()
        for marked, key in ((node.spec.unschedulable, "unschedulable"), (not node.is_ready, "not-ready")):
            taint = Taint(key=f"node.kubernetes.io/{key}", effect="NoSchedule")
            if marked and untolerated((taint,), tolerations, NO) is not None:
                return False
        if forbids(node, pod) is not None:
            return False
        has, used = node.allocatable(), self.used(name)
        if any(used.get(r, 0) + n > has.get(r, 0) for r, n in pod_requests(pod).items()):
            return False
        if any(
            ports_clash(pod.host_ports(), other.host_ports())
            for other, at in self.pods.values()
            if at == name
        ):
            return False
        return self.affinity_allows(pod, node) and self.spread_allows(pod, node)

    # -- InterPodAffinity ------------------------------------------------------------------------------------

    def term_matches(self, term: PodAffinityTerm, owner: Pod, pod: Pod) -> bool:
        namespace = pod.metadata.namespace
        names = set(term.namespaces or ())
        if not names and term.namespace_selector is None:
            names = {owner.metadata.namespace}
        labels = {**self.namespaces.get(namespace, {}), "kubernetes.io/metadata.name": namespace}
        chosen = term.namespace_selector is not None and selector_matches(term.namespace_selector, labels)
        return (namespace in names or chosen) and selector_matches(term.label_selector, pod.labels)

    def same(self, key: str, one: Node, other: str) -> bool:
        return (
            other in self.nodes and key in one.labels and one.labels[key] == self.nodes[other].labels.get(key)
        )

    def affinity_allows(self, pod: Pod, node: Node) -> bool:
        for other, at in self.pods.values():
            for term in _anti(other):
                if self.term_matches(term, other, pod) and self.same(term.topology_key, node, at):
                    return False
        for term in _anti(pod):
            for other, at in self.pods.values():
                if self.term_matches(term, pod, other) and self.same(term.topology_key, node, at):
                    return False
        terms = _affinity(pod)
        if not terms:
            return True
        if any(term.topology_key not in node.labels for term in terms):
            return False
        company = [
            at
            for other, at in self.pods.values()
            if at in self.nodes and all(self.term_matches(term, pod, other) for term in terms)
        ]
        if all(any(self.same(term.topology_key, node, at) for at in company) for term in terms):
            return True
        counted = any(term.topology_key in self.nodes[at].labels for at in company for term in terms)
        return not counted and all(self.term_matches(term, pod, pod) for term in terms)

    # -- PodTopologySpread -----------------------------------------------------------------------------------

    def spread_counts(
        self, pod: Pod, limit: TopologySpreadConstraint, limits: list[TopologySpreadConstraint]
    ) -> dict[str, int]:
        """How many pods that the constraint counts each of its domains has."""
        selector = _selector(pod, limit)
        counts: dict[str, int] = {}
        for name, each in self.nodes.items():
            if any(other.topology_key not in each.labels for other in limits):
                continue
            if limit.node_affinity_policy == "Honor" and not _chosen(pod, each):
                continue
            taint = untolerated(each.spec.taints or (), pod.spec.tolerations or (), NO)
            if limit.node_taints_policy == "Honor" and taint is not None:
                continue
            value = each.labels[limit.topology_key]
            counts[value] = counts.get(value, 0) + sum(
                at == name
                and other.metadata.namespace == pod.metadata.namespace
                and other.metadata.deletion_timestamp is None
                and selector_matches(selector, other.labels)
                for other, at in self.pods.values()
            )
        return counts

    def spread_allows(self, pod: Pod, node: Node) -> bool:
        limits = _limits(pod, "DoNotSchedule")
        for limit in limits:
            if limit.topology_key not in node.labels:
                return False
            counts = self.spread_counts(pod, limit, limits)
            least = min(counts.values(), default=2**31)
            if limit.min_domains is not None and len(counts) < limit.min_domains:
                least = 0
            own = selector_matches(_selector(pod, limit), pod.labels)
            if counts.get(node.labels[limit.topology_key], 0) + own - least > limit.max_skew:
                return False
        return True

    # -- scores ----------------------------------------------------------------------------------------------

    def preference(self, pod: Pod) -> dict[str, int]:
        """The scores of InterPodAffinity and PodTopologySpread, normalised over all nodes, weighted."""
        worth = {name: self.company_worth(pod, node) for name, node in self.nodes.items()}
        least, most = min(worth.values()), max(worth.values())
        found = {
            name: 2 * (100 * (each - least) // (most - least)) if most > least else 0
            for name, each in worth.items()
        }
        limits = _limits(pod, "ScheduleAnyway")
        load: dict[str, float] = {
            name: 0.0
            for name, node in self.nodes.items()
            if limits and all(limit.topology_key in node.labels for limit in limits)
        }
        for limit in limits:
            counts = self.spread_counts(pod, limit, limits)
            for name in load:
                there = counts.get(self.nodes[name].labels[limit.topology_key], 0)
                load[name] += there * math.log(len(counts) + 2) + (limit.max_skew - 1)
        whole = {name: round(each) for name, each in load.items()}
        for name, each in whole.items():
            low, high = min(whole.values()), max(whole.values())
            found[name] += 2 * (100 * (high + low - each) // high if high else 100)
        return found

    def company_worth(self, pod: Pod, node: Node) -> int:
        affinity = pod.spec.affinity or Affinity()
        return sum(
            sign * each.weight
            for sign, side in ((1, affinity.pod_affinity), (-1, affinity.pod_anti_affinity))
            for each in (side.preferred if side else None) or ()
            for other, at in self.pods.values()
            if self.term_matches(each.pod_affinity_term, pod, other)
            and self.same(each.pod_affinity_term.topology_key, node, at)
        )


def _limits(pod: Pod, when: str) -> list[TopologySpreadConstraint]:
    limits = pod.spec.topology_spread_constraints or ()
    return [each for each in limits if each.when_unsatisfiable == when]


def _selector(pod: Pod, limit: TopologySpreadConstraint) -> LabelSelector | None:
    extra = [
        Requirement(key=key, operator="In", values=[pod.labels[key]])
        for key in limit.match_label_keys or ()
        if key in pod.labels
    ]
    if not extra:
        return limit.label_selector
    base = limit.label_selector or LabelSelector()
    expressions = [*(base.match_expressions or ()), *extra]
    return LabelSelector(match_labels=base.match_labels, match_expressions=expressions)


def _chosen(pod: Pod, node: Node) -> bool:
    if any(node.labels.get(key) != value for key, value in (pod.spec.node_selector or {}).items()):
        return False
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    if affinity is None or affinity.required is None:
        return True
    return any(term_matches(term, node) for term in affinity.required.node_selector_terms or ())


def _anti(pod: Pod) -> Iterable[PodAffinityTerm]:
    found = pod.spec.affinity.pod_anti_affinity if pod.spec.affinity else None
    return (found.required or ()) if found else ()


def _affinity(pod: Pod) -> list[PodAffinityTerm]:
    found = pod.spec.affinity.pod_affinity if pod.spec.affinity else None
    return list(found.required or ()) if found else []
