"""Claims: the volumes and the devices (KEP-4381) that pods claim, with the fields that decide where a pod can
run.
"""

from __future__ import annotations

import msgspec

from fluence.model.meta import LabelSelector, ObjectMeta, Requirement, Wire
from fluence.model.pod import NodeSelector, NodeSelectorTerm, ResourceRequirements
from fluence.units import parse_quantity

SELECTED_NODE = "volume.kubernetes.io/selected-node"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
NO_PROVISIONER = "kubernetes.io/no-provisioner"

Key = tuple[str, str]  # namespace, name


class _ClaimSpec(Wire, frozen=True):
    volume_name: str | None = None
    storage_class_name: str | None = None
    access_modes: list[str] | None = None
    volume_mode: str | None = None
    selector: LabelSelector | None = None
    resources: ResourceRequirements = ResourceRequirements()


class _ClaimStatus(Wire, frozen=True):
    phase: str = ""


class VolumeClaim(Wire, frozen=True):
    """A PersistentVolumeClaim."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _ClaimSpec = _ClaimSpec()
    status: _ClaimStatus = _ClaimStatus()

    @property
    def key(self) -> Key:
        return self.metadata.namespace, self.metadata.name

    @property
    def size(self) -> int:
        """The requested storage in nanobytes, the unit in which quantities compare exactly."""
        return parse_quantity((self.spec.resources.requests or {}).get("storage", "0"))

    @property
    def selected_node(self) -> str | None:
        """The node that a scheduler chose for it."""
        return (self.metadata.annotations or {}).get(SELECTED_NODE) or None

    @property
    def owner(self) -> str | None:
        """The uid of the object that created it and deletes it."""
        controller = self.metadata.controller_reference
        return None if controller is None else controller.uid


class _Affinity(Wire, frozen=True):
    required: NodeSelector | None = None


class _ClaimRef(Wire, frozen=True):
    namespace: str = ""
    name: str = ""
    uid: str = ""


class _Csi(Wire, frozen=True):
    driver: str = ""
    volume_handle: str = ""


class _VolumeSpec(Wire, frozen=True):
    node_affinity: _Affinity | None = None
    storage_class_name: str | None = None
    access_modes: list[str] | None = None
    volume_mode: str | None = None
    capacity: dict[str, str] | None = None
    claim_ref: _ClaimRef | None = None
    csi: _Csi | None = None


class _VolumeStatus(Wire, frozen=True):
    phase: str = ""


class PersistentVolume(Wire, frozen=True):
    """A PersistentVolume."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _VolumeSpec = _VolumeSpec()
    status: _VolumeStatus = _VolumeStatus()

    @property
    def nodes(self) -> NodeSelector | None:
        """The nodes that can reach it; None: all."""
        return self.spec.node_affinity.required if self.spec.node_affinity is not None else None

    @property
    def size(self) -> int:
        return parse_quantity((self.spec.capacity or {}).get("storage", "0"))

    def is_meant_for(self, claim: VolumeClaim) -> bool:
        """Whether it is reserved for this claim; without a uid, for any claim with this name."""
        ref = self.spec.claim_ref
        return (
            ref is not None and (ref.namespace, ref.name) == claim.key and ref.uid in ("", claim.metadata.uid)
        )


class _TopologyRequirement(Wire, frozen=True):
    key: str
    values: list[str] | None = None


class _TopologyTerm(Wire, frozen=True):
    match_label_expressions: list[_TopologyRequirement] | None = None


class _CsiAllocatable(Wire, frozen=True):
    count: int | None = None


class _CsiDriver(Wire, frozen=True):
    name: str = ""
    allocatable: _CsiAllocatable | None = None


class _CsiNodeSpec(Wire, frozen=True):
    drivers: list[_CsiDriver] | None = None


class CsiNode(Wire, frozen=True):
    """The storage drivers of a node; it has the node's name."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _CsiNodeSpec = _CsiNodeSpec()

    @property
    def limits(self) -> dict[str, int]:
        """The number of volumes of each driver that can be attached; a driver without a number has no
        limit."""
        return {
            driver.name: driver.allocatable.count
            for driver in self.spec.drivers or ()
            if driver.allocatable is not None and driver.allocatable.count is not None
        }


class StorageClass(Wire, frozen=True):
    """How volumes of one class are provisioned."""

    metadata: ObjectMeta = ObjectMeta()
    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: list[_TopologyTerm] | None = None

    @property
    def waits(self) -> bool:
        """Whether its claims are bound only when their first pod has a node."""
        return self.volume_binding_mode == "WaitForFirstConsumer"

    @property
    def provisions(self) -> bool:
        """Whether volumes are provisioned on demand."""
        return self.provisioner not in ("", NO_PROVISIONER)

    @property
    def nodes(self) -> NodeSelector | None:
        """The nodes on which volumes can be provisioned; None: all."""
        if not self.allowed_topologies:
            return None
        terms = [
            NodeSelectorTerm(
                match_expressions=[
                    Requirement(key=expression.key, operator="In", values=expression.values)
                    for expression in term.match_label_expressions or ()
                ]
            )
            for term in self.allowed_topologies
        ]
        return NodeSelector(node_selector_terms=terms)


RESOURCE_PREFIX = "dra/"
"""Devices of a class are counted as a resource: this, and the name of the class."""
MAX_KINDS = 16
"""The number of kinds of devices that the pods of one namespace may request at a time."""
TOO_MANY_KINDS = f"{RESOURCE_PREFIX}too-many-kinds"
"""The resource that replaces the request of a pod if its namespace requests too many kinds of devices; no
node has it."""


class DeviceAttribute(Wire, frozen=True):
    string: str | None = None
    number: int | None = msgspec.field(default=None, name="int")
    flag: bool | None = msgspec.field(default=None, name="bool")
    version: str | None = None

    @property
    def value(self) -> object:
        given = (self.string, self.number, self.flag, self.version)
        return next((value for value in given if value is not None), None)


class SliceDevice(Wire, frozen=True):
    name: str = ""
    attributes: dict[str, DeviceAttribute] | None = None
    node_name: str | None = None
    allow_multiple_allocations: bool = False
    consumes_counters: list[dict[str, object]] | None = None
    taints: list[dict[str, object]] | None = None


class DevicePool(Wire, frozen=True):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 1


class SliceSpec(Wire, frozen=True):
    driver: str = ""
    node_name: str | None = None  # None: devices that belong to no node, or to several
    pool: DevicePool = DevicePool()
    devices: list[SliceDevice] | None = None


class ResourceSlice(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: SliceSpec = SliceSpec()


class CelSelector(Wire, frozen=True):
    expression: str = ""


class DeviceSelector(Wire, frozen=True):
    cel: CelSelector | None = None


class DeviceClassSpec(Wire, frozen=True):
    selectors: list[DeviceSelector] | None = None


class DeviceClass(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceClassSpec = DeviceClassSpec()


class ExactRequest(Wire, frozen=True):
    device_class_name: str = ""
    selectors: list[DeviceSelector] | None = None
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool | None = None
    capacity: dict[str, object] | None = None


class ClaimRequest(Wire, frozen=True):
    name: str = ""
    exactly: ExactRequest | None = None  # None: the first available of several


class DeviceClaim(Wire, frozen=True):
    requests: list[ClaimRequest] | None = None
    constraints: list[dict[str, object]] | None = None


class ResourceClaimSpec(Wire, frozen=True):
    devices: DeviceClaim = DeviceClaim()


class _TemplateSpec(Wire, frozen=True):
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(Wire, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _TemplateSpec = _TemplateSpec()
