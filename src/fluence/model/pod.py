"""Pod: the fields of a Kubernetes pod that decide where and when it may run, its requests, and its budget.

A `PodDisruptionBudget` has the number of pods of a workload that may be disrupted now, as computed by the
disruption controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from fluence.model.meta import Condition, LabelSelector, ObjectMeta, Requirement, Wire, selector_matches
from fluence.names import DEVICE_PREFIX
from fluence.units import NANO, amount, parse_quantity

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})

# The longest names of the API, written once.
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


class ResourceRequirements(Wire, frozen=True):
    requests: dict[str, str] | None = None
    limits: dict[str, str] | None = None


class ContainerPort(Wire, frozen=True):
    container_port: int = 0
    host_port: int = 0
    host_ip: str = msgspec.field(default="", name="hostIP")
    protocol: str = "TCP"


class ObjectFieldSelector(Wire, frozen=True):
    field_path: str = ""


class EnvVarSource(Wire, frozen=True):
    field_ref: ObjectFieldSelector | None = None


class EnvVar(Wire, frozen=True):
    name: str = ""
    value_from: EnvVarSource | None = None


class Container(Wire, frozen=True):
    name: str = ""
    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    resources: ResourceRequirements = ResourceRequirements()
    ports: list[ContainerPort] | None = None
    restart_policy: str | None = None  # "Always" makes an init container a sidecar (KEP-753)
    env: list[EnvVar] | None = None

    def __post_init__(self) -> None:
        # Variables matter only for containers with a device. Those of all other containers would take more
        # memory than the rest of their pods.
        if self.env is not None and not self.asks_for_device:
            msgspec.structs.force_setattr(self, "env", None)

    @property
    def asks_for_device(self) -> bool:
        """Whether it requests an external resource."""
        return any(
            name.startswith(DEVICE_PREFIX)
            for amounts in (self.resources.requests, self.resources.limits)
            for name in amounts or ()
        )


class NodeSelectorTerm(Wire, frozen=True):
    match_expressions: list[Requirement] | None = None
    match_fields: list[Requirement] | None = None


class NodeSelector(Wire, frozen=True):
    node_selector_terms: list[NodeSelectorTerm] | None = None


class PreferredSchedulingTerm(Wire, frozen=True):
    weight: int = 1
    preference: NodeSelectorTerm = NodeSelectorTerm()


class NodeAffinity(Wire, frozen=True):
    required: NodeSelector | None = msgspec.field(default=None, name=_REQUIRED)
    preferred: list[PreferredSchedulingTerm] | None = msgspec.field(default=None, name=_PREFERRED)


class PodAffinityTerm(Wire, frozen=True):
    topology_key: str = ""
    label_selector: LabelSelector | None = None
    namespaces: list[str] | None = None
    namespace_selector: LabelSelector | None = None
    match_label_keys: list[str] | None = None
    mismatch_label_keys: list[str] | None = None


class WeightedPodAffinityTerm(Wire, frozen=True):
    weight: int = 1
    pod_affinity_term: PodAffinityTerm = PodAffinityTerm()


class PodAffinity(Wire, frozen=True):
    """Affinity or anti-affinity to pods."""

    required: list[PodAffinityTerm] | None = msgspec.field(default=None, name=_REQUIRED)
    preferred: list[WeightedPodAffinityTerm] | None = msgspec.field(default=None, name=_PREFERRED)


class Affinity(Wire, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: PodAffinity | None = None
    pod_anti_affinity: PodAffinity | None = None


class Toleration(Wire, frozen=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class TopologySpreadConstraint(Wire, frozen=True):
    max_skew: int = 1
    topology_key: str = ""
    when_unsatisfiable: str = "DoNotSchedule"
    label_selector: LabelSelector | None = None
    min_domains: int | None = None
    node_affinity_policy: str = "Honor"
    node_taints_policy: str = "Ignore"
    match_label_keys: list[str] | None = None


class SchedulingGate(Wire, frozen=True):
    name: str = ""


class SchedulingGroup(Wire, frozen=True):
    """The link to a native PodGroup, Kubernetes 1.36 and newer (KEP-4671)."""

    pod_group_name: str | None = None


class WorkloadReference(Wire, frozen=True):
    """The link to a native Workload, Kubernetes 1.35 only."""

    name: str = ""
    pod_group: str = ""
    pod_group_replica_key: str = ""


class ClaimVolumeSource(Wire, frozen=True):
    claim_name: str = ""


class PodVolume(Wire, frozen=True):
    """Only volumes that bind a pod to some nodes, which are claims, are decoded; of the others only the
    name."""

    name: str = ""
    persistent_volume_claim: ClaimVolumeSource | None = None
    ephemeral: dict[str, object] | None = None


class PodResourceClaim(Wire, frozen=True):
    name: str = ""
    resource_claim_name: str | None = None
    resource_claim_template_name: str | None = None


class PodSpec(Wire, frozen=True):
    node_name: str | None = None
    scheduler_name: str = ""
    service_account_name: str = ""
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    resources: ResourceRequirements | None = None  # pod-level (KEP-2837)
    overhead: dict[str, str] | None = None
    priority: int | None = None
    priority_class_name: str | None = None
    preemption_policy: str | None = None
    scheduling_gates: list[SchedulingGate] | None = None
    scheduling_group: SchedulingGroup | None = None
    workload_ref: WorkloadReference | None = None
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    topology_spread_constraints: list[TopologySpreadConstraint] | None = None
    volumes: list[PodVolume] | None = None
    resource_claims: list[PodResourceClaim] | None = None
    host_network: bool = False
    restart_policy: str | None = None
    active_deadline_seconds: int | None = None
    termination_grace_period_seconds: int | None = None
    runtime_class_name: str | None = None


class ContainerStatus(Wire, frozen=True):
    name: str = ""
    allocated_resources: dict[str, str] | None = None
    resources: ResourceRequirements | None = None


class PodStatus(Wire, frozen=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[Condition] | None = None
    nominated_node_name: str | None = None
    start_time: str | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    # Pod-level resize (KEP-5419)
    allocated_resources: dict[str, str] | None = None
    resources: ResourceRequirements | None = None


class Pod(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels or {}

    @property
    def annotations(self) -> dict[str, str]:
        return self.metadata.annotations or {}

    @property
    def is_terminal(self) -> bool:
        """Whether it has finished and uses nothing on its node. A terminating pod has not finished."""
        return self.status.phase in TERMINAL_PHASES

    @property
    def is_gated(self) -> bool:
        return bool(self.spec.scheduling_gates)

    def condition(self, kind: str) -> Condition | None:
        return next((condition for condition in self.status.conditions or () if condition.type == kind), None)

    @property
    def bound_at(self) -> datetime | None:
        """When it was bound, by the clock of the API server, in whole seconds like creation times."""
        scheduled = self.condition("PodScheduled")
        text = (
            scheduled.last_transition_time if scheduled is not None and scheduled.status == "True" else None
        )
        if not text:
            return None
        try:
            at = datetime.fromisoformat(text)
        except ValueError:
            return None
        return at if at.tzinfo is not None else None

    def host_ports(self) -> frozenset[tuple[str, str, int]]:
        """The (address, protocol, port) triples that this pod takes on its node."""
        # As kube-scheduler's NodePorts does: containers and sidecars, not plain init containers.
        sidecars = (
            container for container in self.spec.init_containers or () if container.restart_policy == "Always"
        )
        return frozenset(
            (port.host_ip or "0.0.0.0", port.protocol or "TCP", port.host_port)
            for container in (*(self.spec.containers or ()), *sidecars)
            for port in container.ports or ()
            if port.host_port
        )


def ports_clash(one: frozenset[tuple[str, str, int]], other: frozenset[tuple[str, str, int]]) -> bool:
    """Two sets of host ports clash where protocol and port agree and the addresses agree or one is the
    wildcard."""
    for address, protocol, port in one:
        for address2, protocol2, port2 in other:
            if (protocol, port) != (protocol2, port2):
                continue
            if address == address2 or "0.0.0.0" in (address, address2):
                return True
    return False


Nanos = dict[str, int]


def pod_requests(pod: Pod, *, bound: bool = False) -> dict[str, int]:
    """Milli-CPU, and whole units of every other resource, with ``pods: 1``. ``bound`` counts a running
    resize too."""
    totals = _nanos(pod, bound=bound)
    totals["pods"] = NANO
    return {name: amount(name, nanos) for name, nanos in totals.items() if nanos}


def add_into(total: dict[str, int], more: Mapping[str, int], *, sign: int = 1) -> None:
    """Add (or, with ``sign=-1``, take away) one set of amounts in place; zeros disappear."""
    for name, value in more.items():
        left = total.get(name, 0) + sign * value
        if left:
            total[name] = left
        else:
            total.pop(name, None)


def _nanos(pod: Pod, *, bound: bool) -> Nanos:
    statuses = _by_name(pod.status.container_statuses) if bound else {}
    init_statuses = _by_name(pod.status.init_container_statuses) if bound else {}
    infeasible = bound and _resize_is_infeasible(pod)

    totals: Nanos = {}
    for container in pod.spec.containers or ():
        _add(totals, _container(container, statuses.get(container.name), infeasible=infeasible))
    sidecars: Nanos = {}
    peak: Nanos = {}
    for container in pod.spec.init_containers or ():
        wants = _container(container, init_statuses.get(container.name), infeasible=infeasible)
        if container.restart_policy == "Always":
            _add(totals, wants)
            _add(sidecars, wants)
            _raise_to(peak, sidecars)
        else:
            _add(wants, sidecars)
            _raise_to(peak, wants)
    _raise_to(totals, peak)

    if pod.spec.resources is not None and pod.spec.resources.requests:
        for name, value in _parse(pod.spec.resources.requests).items():
            if _pod_level(name):
                totals[name] = value
        if bound:
            for status in (pod.status.allocated_resources, _requests(pod.status.resources)):
                _raise_to(totals, {name: value for name, value in _parse(status).items() if _pod_level(name)})
    _add(totals, _parse(pod.spec.overhead))
    return totals


def _container(container: Container, status: ContainerStatus | None, *, infeasible: bool) -> Nanos:
    asked = container.resources
    wants = _parse(asked.requests)
    # The API server copies a limit into a missing request, but manifests have not passed an API server.
    for name, text in (asked.limits or {}).items():
        wants.setdefault(name, parse_quantity(text))
    if status is None:
        return wants
    actual = _parse(_requests(status.resources))
    _raise_to(actual, _parse(status.allocated_resources))
    if infeasible and actual:
        return actual  # the node refused the resize permanently: only the actual resources count
    _raise_to(wants, actual)
    return wants


def _requests(resources: object) -> dict[str, str] | None:
    return getattr(resources, "requests", None)


def _resize_is_infeasible(pod: Pod) -> bool:
    pending = pod.condition("PodResizePending")
    return pending is not None and pending.reason == "Infeasible"


def _by_name(statuses: Iterable[ContainerStatus] | None) -> dict[str, ContainerStatus]:
    return {status.name: status for status in statuses or ()}


def _pod_level(name: str) -> bool:
    return name in ("cpu", "memory") or name.startswith("hugepages-")


def _parse(given: Mapping[str, str] | None) -> Nanos:
    return {name: parse_quantity(text) for name, text in given.items()} if given else {}


def _add(total: Nanos, more: Nanos) -> None:
    for name, value in more.items():
        total[name] = total.get(name, 0) + value


def _raise_to(total: Nanos, floor: Nanos) -> None:
    for name, value in floor.items():
        if value > total.get(name, 0):
            total[name] = value


class _BudgetSpec(Wire, frozen=True):
    selector: LabelSelector | None = None


class _BudgetStatus(Wire, frozen=True):
    disruptions_allowed: int = 0
    disrupted_pods: dict[str, str] | None = None  # pods whose disruption is counted already, by name


class PodDisruptionBudget(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _BudgetSpec = _BudgetSpec()
    status: _BudgetStatus = _BudgetStatus()

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def allowed(self) -> int:
        return max(0, self.status.disruptions_allowed)

    def counts(self, pod: Pod) -> bool:
        """Whether the disruption of a pod is charged to this budget. As for kube-scheduler, a pod without
        labels matches no budget, and one that is in ``disruptedPods`` was charged before."""
        if pod.metadata.namespace != self.metadata.namespace or not pod.labels:
            return False
        if pod.metadata.name in (self.status.disrupted_pods or {}):
            return False
        return selector_matches(self.spec.selector, pod.labels)
