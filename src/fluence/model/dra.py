"""Devices of dynamic resource allocation (KEP-4381): what drivers offer, and what claims ask for."""

from __future__ import annotations

import msgspec

from fluence.model.meta import ObjectMeta, Wire

MAX_KINDS = 16
"""Kinds of devices that the pods of one namespace may ask for at a time."""
TOO_MANY_KINDS = "dra/too-many-kinds"
"""What a pod asks for whose namespace asks for more kinds of devices than are counted; no node has it."""


class DeviceAttribute(Wire, frozen=True):
    string: str | None = None
    number: int | None = msgspec.field(default=None, name="int")
    flag: bool | None = msgspec.field(default=None, name="bool")
    version: str | None = None

    @property
    def value(self) -> object:
        given = (self.string, self.number, self.flag, self.version)
        return next((each for each in given if each is not None), None)


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
    exactly: ExactRequest | None = None  # None: the first that is there of several


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
