"""Node: the fields of a Kubernetes node that decide which pods it accepts, and these decisions."""

from __future__ import annotations

from collections.abc import Iterable

from fluence.model.meta import Condition, ObjectMeta, Wire, requirement_holds
from fluence.model.pod import NodeSelectorTerm, Pod, Toleration
from fluence.names import DEVICE_PREFIX
from fluence.units import MAX_AMOUNT, amount, parse_quantity


class Taint(Wire, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Wire, frozen=True):
    unschedulable: bool = False
    taints: list[Taint] | None = None


class NodeStatus(Wire, frozen=True):
    capacity: dict[str, str] | None = None
    allocatable: dict[str, str] | None = None
    conditions: list[Condition] | None = None
    declared_features: list[str] | None = None


class Node(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels or {}

    @property
    def is_ready(self) -> bool:
        return any(
            condition.type == "Ready" and condition.status == "True"
            for condition in self.status.conditions or ()
        )

    def allocatable(self) -> dict[str, int]:
        """What pods may use: milli-CPU, and whole units of other resources. Without allocatable, the capacity
        counts."""
        given = self.status.allocatable or self.status.capacity or {}
        return {name: amount(name, parse_quantity(text)) for name, text in given.items()}

    def offered_devices(self) -> dict[str, int]:
        """The external resources that the kubelet, or `fluence resources advertise`, advertises on the
        node."""
        given = self.status.allocatable or self.status.capacity or {}
        return {
            name: min(amount(name, parse_quantity(text)), MAX_AMOUNT)
            for name, text in given.items()
            if name.startswith(DEVICE_PREFIX)
        }


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Kubernetes' rule: an empty effect is every effect, an empty key with Exists is every key."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.operator in ("", "Equal") and toleration.value == taint.value


def untolerated(
    taints: Iterable[Taint], tolerations: Iterable[Toleration], effects: tuple[str, ...]
) -> Taint | None:
    """The first taint with one of these effects that is not tolerated."""
    tolerations = list(tolerations)
    for taint in taints:
        if taint.effect in effects and not any(tolerates(toleration, taint) for toleration in tolerations):
            return taint
    return None


def term_matches(term: NodeSelectorTerm, node: Node) -> bool:
    """Whether a term matches a node. An empty term matches no node; matchFields supports only
    metadata.name."""
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node.name}
    return all(
        requirement_holds(requirement, node.labels) for requirement in term.match_expressions or ()
    ) and all(requirement_holds(requirement, fields) for requirement in term.match_fields or ())


CORDONED = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
NOT_READY = Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")


def forbids(node: Node, pod: Pod) -> str | None:
    """Why the rules of the pod or the taints of the node exclude this node; None if they do not."""
    for key, value in (pod.spec.node_selector or {}).items():
        if node.labels.get(key) != value:
            return f"nodeSelector {key}={value} does not match"
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    if affinity and affinity.required is not None:
        terms = affinity.required.node_selector_terms or ()
        if not any(term_matches(term, node) for term in terms):
            return "required node affinity does not match"
    taint = untolerated(node.spec.taints or (), pod.spec.tolerations or (), ("NoSchedule", "NoExecute"))
    if taint is not None:
        shown = f"{taint.key}={taint.value}" if taint.value else taint.key
        return f"taint {shown}:{taint.effect} is not tolerated"
    return None
