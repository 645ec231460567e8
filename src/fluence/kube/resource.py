"""Resource: where a kind of object lives on the server, and the type that its JSON decodes to."""

from __future__ import annotations

from functools import cached_property
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from fluence.errors import InvalidInput
from fluence.model.config_map import ConfigMap
from fluence.model.dra import DeviceClass, ResourceClaimTemplate, ResourceSlice
from fluence.model.hand_off import HandOff
from fluence.model.meta import KubeObject
from fluence.model.node import Node
from fluence.model.owner import Deployment, Job, ReplicaSet, StatefulSet
from fluence.model.pod import Pod
from fluence.model.priority import PriorityClass
from fluence.model.volume import CsiNode, PersistentVolume, StorageClass, VolumeClaim

T = TypeVar("T")
Json = dict[str, object]


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int | None = None


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list. ``items`` is null for an empty list of some custom resources."""

    metadata: ListMeta = ListMeta()
    items: list[T] | None = None


class Resource(Generic[T]):
    """``Resource("batch", "v1", "jobs", "Job", KubeObject)``; the core group is the empty string."""

    def __init__(
        self, group: str, version: str, plural: str, kind: str, shape: type[T], *, namespaced: bool = True
    ) -> None:
        self.group = group
        self.version = version
        self.plural = plural
        self.kind = kind
        self.type = shape
        self.namespaced = namespaced

    def __repr__(self) -> str:
        return f"Resource({self.name})"

    @property
    def name(self) -> str:
        """``pods``, ``jobs.batch``: what kubectl calls it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def raw(self) -> Resource[Json]:
        """The same resource as plain JSON, for a caller who needs a field that the struct leaves out."""
        return self.of(dict[str, object])

    def of(self, shape: type[Any]) -> Resource[Any]:
        return Resource(self.group, self.version, self.plural, self.kind, shape, namespaced=self.namespaced)

    @cached_property
    def decoder(self) -> msgspec.json.Decoder[T]:
        return msgspec.json.Decoder(self.type)

    @cached_property
    def page_decoder(self) -> msgspec.json.Decoder[Page[T]]:
        return msgspec.json.Decoder(Page[self.type])  # type: ignore[name-defined]

    def path(self, name: str | None = None, *, namespace: str | None = None, subresource: str = "") -> str:
        """The URL's path: of the collection, of one object, or of its subresource."""
        if name is not None and not name:
            # NB an empty name would turn "delete this pod" into "delete all pods"
            raise InvalidInput(f"{self.name}: the object's name is empty")
        base = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        if self.namespaced and namespace:
            base += f"/namespaces/{quote(namespace, safe='')}"
        elif self.namespaced and name is not None:
            raise InvalidInput(f"{self.name} {name!r}: a namespace is needed")
        base += f"/{self.plural}"
        if name is not None:
            base += f"/{quote(name, safe='')}"
        return f"{base}/{subresource}" if subresource else base


PODS = Resource("", "v1", "pods", "Pod", Pod)
NODES = Resource("", "v1", "nodes", "Node", Node, namespaced=False)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", KubeObject, namespaced=False)
JOBS = Resource("batch", "v1", "jobs", "Job", Job)
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment", Deployment)
REPLICASETS = Resource("apps", "v1", "replicasets", "ReplicaSet", ReplicaSet)
STATEFULSETS = Resource("apps", "v1", "statefulsets", "StatefulSet", StatefulSet)
OWNERS: tuple[Resource[Any], ...] = (JOBS, DEPLOYMENTS, REPLICASETS, STATEFULSETS)
"""What makes pods that the scheduler follows."""
CLAIMS = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", VolumeClaim)
VOLUMES = Resource("", "v1", "persistentvolumes", "PersistentVolume", PersistentVolume, namespaced=False)
STORAGE_CLASSES = Resource(
    "storage.k8s.io", "v1", "storageclasses", "StorageClass", StorageClass, namespaced=False
)
CSI_NODES = Resource("storage.k8s.io", "v1", "csinodes", "CSINode", CsiNode, namespaced=False)
RESOURCE_SLICES = Resource(
    "resource.k8s.io", "v1", "resourceslices", "ResourceSlice", ResourceSlice, namespaced=False
)
DEVICE_CLASSES = Resource(
    "resource.k8s.io", "v1", "deviceclasses", "DeviceClass", DeviceClass, namespaced=False
)
CLAIM_TEMPLATES = Resource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", ResourceClaimTemplate
)
PRIORITY_CLASSES = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", PriorityClass, namespaced=False
)
DEVICES: tuple[Resource[Any], ...] = (RESOURCE_SLICES, DEVICE_CLASSES, CLAIM_TEMPLATES)
"""Dynamic resource allocation, where the server has it."""
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", ConfigMap)
HAND_OFFS = Resource("fluence.flux-framework.org", "v1alpha1", "handoffs", "HandOff", HandOff)
LEASES: Resource[Json] = Resource("coordination.k8s.io", "v1", "leases", "Lease", dict[str, object])
EVENTS: Resource[Json] = Resource("events.k8s.io", "v1", "events", "Event", dict[str, object])
