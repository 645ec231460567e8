"""Devices of dynamic resource allocation (KEP-4381): the offers of drivers and the requests of
ResourceClaims."""

from __future__ import annotations

import msgspec

from fluence.model.meta import ObjectMeta, Wire

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
