"""Resource: where a kind of object lives on the server and its type, and which ones a server serves."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from fluence.errors import InvalidInput
from fluence.kube.errors import Missing
from fluence.model import kueue
from fluence.model.claims import (
    CsiNode,
    DeviceClass,
    PersistentVolume,
    ResourceClaimTemplate,
    ResourceSlice,
    StorageClass,
    VolumeClaim,
)
from fluence.model.external_resources import HandOff
from fluence.model.kueue import KueueObject
from fluence.model.meta import ConfigMap, KubeObject, PriorityClass, Service
from fluence.model.node import Node
from fluence.model.owner import Deployment, Job, ReplicaSet, StatefulSet
from fluence.model.pod import Pod, PodDisruptionBudget
from fluence.model.queue_documents import QueueObject

if TYPE_CHECKING:
    from fluence.kube.client import Client


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
        """The same resource as plain JSON, for a caller that needs a field that is not in the struct."""
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
SERVICES = Resource("", "v1", "services", "Service", Service)
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
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", PodDisruptionBudget)
DEVICES: tuple[Resource[Any], ...] = (RESOURCE_SLICES, DEVICE_CLASSES, CLAIM_TEMPLATES)
"""Dynamic resource allocation, where the server has it."""
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap", ConfigMap)
QUEUES = Resource("fluence.flux-framework.org", "v1alpha1", "queues", "Queue", QueueObject, namespaced=False)
KUEUE: tuple[Resource[KueueObject], ...] = tuple(
    Resource(kueue.GROUP, kueue.VERSIONS[0], shape.plural, shape.__name__, shape, namespaced=shape.namespaced)
    for shape in kueue.KINDS
)
VALIDATING_POLICIES: Resource[Json] = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicies",
    "ValidatingAdmissionPolicy",
    dict[str, object],
    namespaced=False,
)
VALIDATING_POLICY_BINDINGS: Resource[Json] = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "validatingadmissionpolicybindings",
    "ValidatingAdmissionPolicyBinding",
    dict[str, object],
    namespaced=False,
)
HAND_OFFS = Resource("fluence.flux-framework.org", "v1alpha1", "handoffs", "HandOff", HandOff)
LEASES: Resource[Json] = Resource("coordination.k8s.io", "v1", "leases", "Lease", dict[str, object])
EVENTS: Resource[Json] = Resource("events.k8s.io", "v1", "events", "Event", dict[str, object])


class ServerVersion(msgspec.Struct, frozen=True, rename="camel"):
    """``/version``: major and minor may carry a vendor's ``+``."""

    git_version: str = ""
    major: str = ""
    minor: str = ""

    @property
    def release(self) -> tuple[int, int]:
        """(1, 36); from the git version where a vendor wrote something else into the numbers."""
        parts = self.git_version.lstrip("v").split(".")
        try:
            return int(self.major.rstrip("+")), int(self.minor.rstrip("+"))
        except ValueError:
            return int(parts[0]), int(parts[1])


class _GroupVersion(msgspec.Struct, frozen=True):
    version: str = ""


class _Group(msgspec.Struct, frozen=True):
    name: str = ""
    versions: list[_GroupVersion] | None = None


class _Groups(msgspec.Struct, frozen=True):
    groups: list[_Group] | None = None


class ApiResource(msgspec.Struct, frozen=True):
    """One line of a group version's resources; subresources are named ``pods/binding``."""

    name: str
    kind: str = ""
    namespaced: bool = False
    verbs: list[str] | None = None


class _ResourceList(msgspec.Struct, frozen=True):
    resources: list[ApiResource] | None = None


async def server_version(client: Client) -> ServerVersion:
    return msgspec.json.decode(await client.request("GET", "/version"), type=ServerVersion)


async def versions_of(client: Client, group: str) -> list[str]:
    """The versions of a group that the server serves, its favourite first; none if it has no such group."""
    try:
        answer = await client.request("GET", f"/apis/{group}")
    except Missing:
        return []
    return [served.version for served in msgspec.json.decode(answer, type=_Group).versions or ()]


async def all_versions(client: Client) -> dict[str, list[str]]:
    """The versions of every group that the server serves."""
    found = msgspec.json.decode(await client.request("GET", "/apis"), type=_Groups)
    return {each.name: [one.version for one in each.versions or ()] for each in found.groups or ()}


async def resources_of(client: Client, group: str, version: str) -> dict[str, ApiResource]:
    """The resources of a group version by name; none if it is not served."""
    path = f"/apis/{group}/{version}" if group else f"/api/{version}"
    try:
        answer = await client.request("GET", path)
    except Missing:
        return {}
    return {
        resource.name: resource
        for resource in msgspec.json.decode(answer, type=_ResourceList).resources or ()
    }


async def has_resource(client: Client, resource: Resource[Any]) -> bool:
    """Whether the server has a kind, in its version."""
    return resource.plural in await resources_of(client, resource.group, resource.version)


class _Schema(msgspec.Struct, frozen=True):
    properties: dict[str, _Schema] = {}  # msgspec copies it
    kinds: list[dict[str, str]] = msgspec.field(default=[], name="x-kubernetes-group-version-kind")


class _Schemas(msgspec.Struct, frozen=True):
    schemas: dict[str, _Schema] = {}


class _OpenApi(msgspec.Struct, frozen=True):
    components: _Schemas = _Schemas()


async def status_fields(client: Client, resource: Resource[Any]) -> frozenset[str]:
    """The fields of a custom resource's status that the server keeps: it drops all others."""
    answer = await client.request("GET", f"/openapi/v3/apis/{resource.group}/{resource.version}")
    for schema in msgspec.json.decode(answer, type=_OpenApi).components.schemas.values():
        if any(kind.get("kind") == resource.kind for kind in schema.kinds):
            return frozenset(schema.properties.get("status", _Schema()).properties)
    return frozenset()


def dropped_fields(sent: object, got: object, path: str = "") -> Iterator[str]:
    """The paths that were sent but are missing in the answer: fields behind a feature gate that is off.

    The server may set defaults, normalise or add values; only missing paths count. It drops such fields
    silently, so the answer must be checked.
    """
    if isinstance(sent, dict):
        if not isinstance(got, dict):
            if sent:
                yield path or "."
            return
        for name, value in sent.items():
            where = f"{path}.{name}" if path else str(name)
            if name not in got:
                if value not in (None, {}, [], "", 0, False):  # absent is how the API writes these
                    yield where
            else:
                yield from dropped_fields(value, got[name], where)
    elif isinstance(sent, list):
        if not isinstance(got, list):
            if sent:
                yield path
            return
        for index, value in enumerate(sent):
            if index >= len(got):
                yield f"{path}[{index}]"
            else:
                yield from dropped_fields(value, got[index], f"{path}[{index}]")
