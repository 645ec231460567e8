"""Pod: the fields of a Kubernetes pod that decide where and when it may run."""

from __future__ import annotations

from datetime import datetime

import msgspec

from fluence.model.meta import Condition, LabelSelector, ObjectMeta, Requirement, Wire

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})

# The API's longest names, said once.
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


class Container(Wire, frozen=True):
    name: str = ""
    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    resources: ResourceRequirements = ResourceRequirements()
    ports: list[ContainerPort] | None = None
    restart_policy: str | None = None  # "Always" makes an init container a sidecar (KEP-753)


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
    """Only the volumes that tie a pod to some nodes: claims. The rest decodes to a name."""

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
        """Finished: it holds nothing on its node any more. A terminating pod is not finished."""
        return self.status.phase in TERMINAL_PHASES

    @property
    def is_gated(self) -> bool:
        return bool(self.spec.scheduling_gates)

    def condition(self, kind: str) -> Condition | None:
        return next((each for each in self.status.conditions or () if each.type == kind), None)

    @property
    def bound_at(self) -> datetime | None:
        """When it got its node, by the API server's clock, in whole seconds as creation times are."""
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
        sidecars = (each for each in self.spec.init_containers or () if each.restart_policy == "Always")
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
