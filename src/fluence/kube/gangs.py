"""Gangs: one adapter per native gang API, all into one ``Group`` (KEP-4671), and the custom owners of
operators.

none       no such API, or its gate is off     groups come from labels and owners alone
    v1alpha1   1.35   Workload with pod groups inside; pods say spec.workloadRef
    v1alpha2   1.36   PodGroup; pods say spec.schedulingGroup; disruptionMode is a word
    v1beta1    1.37   PodGroup; disruptionMode is an object, the template link has another name

The API changes with every release and is off by default. So the server is asked which APIs it has, and a dry
run shows whether pods keep the field: an API server whose gate is off drops it silently.

An object is reduced to the needed fields as soon as it is read, so that large objects are not kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from fluence.kube.errors import ApiError, Forbidden, Missing
from fluence.kube.resource import (
    PODS,
    Json,
    ListMeta,
    Page,
    Resource,
    all_versions,
    dropped_fields,
    resources_of,
    versions_of,
)
from fluence.model.meta import Condition, ObjectMeta, Wire
from fluence.model.operators import CLASSES, OPERATORS, CustomOwner, Operator, read_owner
from fluence.model.owner import Group, Owner, controller_of
from fluence.model.pod import Pod

if TYPE_CHECKING:
    from fluence.kube.client import Client


GROUP = "scheduling.k8s.io"


class _Gang(Wire, frozen=True):
    min_count: int = 1


class _Policy(Wire, frozen=True):
    """Exactly one of the two is set."""

    gang: _Gang | None = None
    basic: dict[str, object] | None = None


class _Topology(Wire, frozen=True):
    key: str = ""


class _Constraints(Wire, frozen=True):
    topology: list[_Topology] | None = None


class _Claim(Wire, frozen=True):
    name: str = ""


class _TemplateWorkload(Wire, frozen=True):
    workload_name: str = ""
    pod_group_template_name: str = ""


class _TemplateRef(Wire, frozen=True):
    workload: _TemplateWorkload | None = None


class _WorkloadRef(Wire, frozen=True):
    workload_name: str = ""
    template_name: str = ""


class _GroupSpec(Wire, frozen=True):
    scheduling_policy: _Policy = _Policy()
    # A word in 1.36 ("Pod", "PodGroup"), an object in 1.37 ({"single": {}}, {"all": {}}).
    disruption_mode: str | dict[str, object] | None = None
    priority: int | None = None
    priority_class_name: str | None = None
    preemption_policy: str | None = None
    scheduling_constraints: _Constraints | None = None
    resource_claims: list[_Claim] | None = None
    pod_group_template_ref: _TemplateRef | None = None  # 1.36
    workload_ref: _WorkloadRef | None = None  # 1.37


class _GroupStatus(Wire, frozen=True):
    conditions: list[Condition] | None = None


class PodGroup(Wire, frozen=True):
    """A native PodGroup of 1.36 or 1.37, as the server writes it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _GroupSpec = _GroupSpec()
    status: _GroupStatus = _GroupStatus()


class _InlineGroup(Wire, frozen=True):
    name: str = ""
    policy: _Policy = _Policy()


class _WorkloadSpec(Wire, frozen=True):
    pod_groups: list[_InlineGroup] | None = None


class Workload(Wire, frozen=True):
    """A native Workload of 1.35: its pod groups are inside."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _WorkloadSpec = _WorkloadSpec()


class NoGangs:
    """The server has no native gang API that we can use; ``reason`` says why."""

    version = "none"
    resource: Resource[PodGroup] | None = None
    condition: str | None = None

    def __init__(self, reason: str = "") -> None:
        self.reason = reason

    def groups(self, item: PodGroup | Workload) -> tuple[Group, ...]:
        """The groups that one object on the server declares."""
        return ()

    def group_of(self, pod: Pod) -> str | None:
        """The name of the Group that the pod belongs to."""
        return None

    def instance_of(self, pod: Pod) -> str | None:
        """The name of the one gang that must start together; in 1.35 a group has replicas, each a gang."""
        return None

    def pod_link(self, group: str) -> Json:
        """The part of a pod's spec that makes it a member."""
        return {}

    def manifest(self, group: Group) -> Json:
        """The object to create for this group."""
        raise ValueError(f"no native gang API: {self.reason}")


class Workloads135:
    """v1alpha1: names are ``workload/podGroup``; with a replica key, each replica is a separate gang. A name
    without a slash is written as a workload with one group of that name."""

    version = "v1alpha1"
    condition: str | None = None
    reason = ""
    resource: Resource[Workload] = Resource(GROUP, "v1alpha1", "workloads", "Workload", Workload)

    def groups(self, item: PodGroup | Workload) -> tuple[Group, ...]:
        if not isinstance(item, Workload):
            return ()
        meta = item.metadata
        return tuple(
            Group(
                namespace=meta.namespace,
                name=f"{meta.name}/{template.name}",
                uid=meta.uid,
                min_count=template.policy.gang.min_count if template.policy.gang is not None else None,
                workload=meta.name,
                template=template.name,
                is_deleting=meta.deletion_timestamp is not None,
                created=meta.creation_timestamp,
                annotations=meta.annotations,
                source=f"{GROUP}/{self.version}",
            )
            for template in item.spec.pod_groups or ()
        )

    def group_of(self, pod: Pod) -> str | None:
        ref = pod.spec.workload_ref
        return f"{ref.name}/{ref.pod_group}" if ref is not None and ref.name else None

    def instance_of(self, pod: Pod) -> str | None:
        name, ref = self.group_of(pod), pod.spec.workload_ref
        if name is None or ref is None or not ref.pod_group_replica_key:
            return name
        return f"{name}/{ref.pod_group_replica_key}"

    def pod_link(self, group: str) -> Json:
        workload, _, name = group.partition("/")
        return {"workloadRef": {"name": workload, "podGroup": name or workload}}

    def manifest(self, group: Group) -> Json:
        workload, _, name = group.name.partition("/")
        return {
            "apiVersion": f"{GROUP}/{self.version}",
            "kind": "Workload",
            "metadata": {"name": workload, "namespace": group.namespace},
            "spec": {"podGroups": [{"name": name or workload, "policy": _policy(group)}]},
        }


class _PodGroups:
    """What 1.36 and 1.37 have in common."""

    version: str
    condition: str | None
    reason = ""
    resource: Resource[PodGroup]

    def groups(self, item: PodGroup | Workload) -> tuple[Group, ...]:
        if not isinstance(item, PodGroup):
            return ()
        meta, spec = item.metadata, item.spec
        topology = spec.scheduling_constraints.topology if spec.scheduling_constraints else None
        workload, template = self._template(spec)
        gang = spec.scheduling_policy.gang
        return (
            Group(
                namespace=meta.namespace,
                name=meta.name,
                uid=meta.uid,
                # NB a `basic` group is not a gang; 1.37 makes one for every Job
                min_count=gang.min_count if gang is not None else None,
                priority=spec.priority,
                priority_class=spec.priority_class_name,
                preemption_policy=spec.preemption_policy,
                disrupt_together=self._together(spec.disruption_mode),
                topology_key=topology[0].key if topology else None,
                workload=workload,
                template=template,
                controller=controller_of(meta),
                claims=tuple(claim.name for claim in spec.resource_claims or ()),
                is_scheduled=self._scheduled(item.status.conditions),
                conditions=tuple(item.status.conditions or ()),
                is_deleting=meta.deletion_timestamp is not None,
                created=meta.creation_timestamp,
                annotations=meta.annotations,
                source=f"{GROUP}/{self.version}",
            ),
        )

    def group_of(self, pod: Pod) -> str | None:
        link = pod.spec.scheduling_group
        return (link.pod_group_name or None) if link is not None else None

    def instance_of(self, pod: Pod) -> str | None:
        return self.group_of(pod)

    def pod_link(self, group: str) -> Json:
        return {"schedulingGroup": {"podGroupName": group}}

    def manifest(self, group: Group) -> Json:
        spec: Json = {"schedulingPolicy": _policy(group)}
        if group.disrupt_together:
            spec["disruptionMode"] = self._mode()
        if group.priority_class:
            spec["priorityClassName"] = group.priority_class
        if group.topology_key:
            spec["schedulingConstraints"] = {"topology": [{"key": group.topology_key}]}
        return {
            "apiVersion": f"{GROUP}/{self.version}",
            "kind": "PodGroup",
            "metadata": {"name": group.name, "namespace": group.namespace},
            "spec": spec,
        }

    def _scheduled(self, conditions: list[Condition] | None) -> bool | None:
        scheduled = next(
            (condition for condition in conditions or () if condition.type == self.condition), None
        )
        return None if scheduled is None else scheduled.status == "True"

    def _template(self, spec: _GroupSpec) -> tuple[str | None, str | None]:
        raise NotImplementedError

    def _together(self, mode: str | dict[str, object] | None) -> bool:
        # Either spelling is understood: an object may have been stored by another release.
        return mode == "PodGroup" or (isinstance(mode, dict) and "all" in mode)

    def _mode(self) -> object:
        raise NotImplementedError


class PodGroups136(_PodGroups):
    """v1alpha2."""

    version = "v1alpha2"
    condition = "PodGroupScheduled"
    resource = Resource(GROUP, "v1alpha2", "podgroups", "PodGroup", PodGroup)

    def _template(self, spec: _GroupSpec) -> tuple[str | None, str | None]:
        ref = spec.pod_group_template_ref
        if ref is None or ref.workload is None:
            return None, None
        return ref.workload.workload_name, ref.workload.pod_group_template_name

    def _mode(self) -> object:
        return "PodGroup"


class PodGroups137(_PodGroups):
    """v1beta1; the condition is terminal: once True, it never changes."""

    version = "v1beta1"
    condition = "PodGroupInitiallyScheduled"
    resource = Resource(GROUP, "v1beta1", "podgroups", "PodGroup", PodGroup)

    def _template(self, spec: _GroupSpec) -> tuple[str | None, str | None]:
        ref = spec.workload_ref
        return (ref.workload_name, ref.template_name) if ref is not None else (None, None)

    def _mode(self) -> object:
        return {"all": {}}


class _SigSpec(Wire, frozen=True):
    min_member: int | None = None


class SigPodGroup(Wire, frozen=True):
    """The PodGroup of the coscheduling plugin, a custom resource; the first Fluence created these. Volcano
    and KAI have their own PodGroups, in which this field has the same name."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _SigSpec = _SigSpec()


class CustomGroups:
    """PodGroups that are custom resources: read beside the native API; their status belongs to their own
    controllers."""

    resource: Resource[SigPodGroup]

    def group(self, item: SigPodGroup) -> Group:
        meta = item.metadata
        return Group(
            namespace=meta.namespace,
            name=meta.name,
            uid=meta.uid,
            min_count=max(1, item.spec.min_member or 1),
            is_deleting=meta.deletion_timestamp is not None,
            created=meta.creation_timestamp,
            annotations=meta.annotations,
            source=self.resource.api_version,
        )


class Coscheduling(CustomGroups):
    """Of the coscheduling plugin."""

    resource = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup", SigPodGroup)


class Volcano(CustomGroups):
    """Of Volcano."""

    resource = Resource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup", SigPodGroup)


class Kai(CustomGroups):
    """Of the KAI scheduler."""

    resource = Resource("scheduling.run.ai", "v2alpha2", "podgroups", "PodGroup", SigPodGroup)


Native = Workloads135 | PodGroups136 | PodGroups137
AnyGangs = NoGangs | Native

# Newest first: a server in the middle of an upgrade may serve two.
ADAPTERS: tuple[Workloads135 | PodGroups136 | PodGroups137, ...] = (
    PodGroups137(),
    PodGroups136(),
    Workloads135(),
)


def _policy(group: Group) -> Json:
    return {"gang": {"minCount": group.min_count}} if group.min_count is not None else {"basic": {}}


def lists_gangs(version: str, mode: str) -> bool:
    """Whether gangs get PodGroups on a server with this version of the API, by the setting `pod-groups`.
    Objects of an alpha API must be deleted before an upgrade, so `auto` leaves them to the administrator."""
    if version in ("", NoGangs.version, Workloads135.version) or mode == "never":
        return False
    return mode == "always" or "alpha" not in version


async def discover_gangs(client: Client, *, probe_namespace: str | None = "default") -> AnyGangs:
    """The adapter for this server. With ``probe_namespace`` a dry run shows whether pods keep the link."""
    served = await versions_of(client, GROUP)
    for adapter in ADAPTERS:
        if adapter.version not in served:
            continue
        if adapter.resource.plural not in await resources_of(client, GROUP, adapter.version):
            continue
        if probe_namespace is not None:
            lost = await probe(client, adapter, namespace=probe_namespace)
            if lost:
                return NoGangs(
                    f"{GROUP}/{adapter.version} is served, but pods lose {', '.join(lost)}: "
                    "set the feature gate GenericWorkload on kube-apiserver"
                )
        return adapter
    listed = ", ".join(served) or "none"
    return NoGangs(f"the server serves no {GROUP} version with gangs (there: {listed})")


async def discover_coscheduling(client: Client) -> CustomGroups | None:
    """The adapter for the coscheduling plugin's PodGroups, if that custom resource is installed."""
    coscheduling = Coscheduling()
    return coscheduling if await _is_served(client, coscheduling.resource) else None


async def discover_custom(client: Client) -> list[CustomGroups]:
    """The adapters for all PodGroups that are installed as custom resources."""
    known: tuple[CustomGroups, ...] = (Coscheduling(), Volcano(), Kai())
    return [api for api in known if await _is_served(client, api.resource)]


async def _is_served(client: Client, where: Resource[SigPodGroup]) -> bool:
    if where.version not in await versions_of(client, where.group):
        return False
    return where.plural in await resources_of(client, where.group, where.version)


async def probe(client: Client, adapter: Native, *, namespace: str) -> list[str] | None:
    """The fields that this server drops from a pod in a group; nothing is created. None: we lack the right to
    check."""
    link = adapter.pod_link(
        "fluence-probe/fluence-probe" if adapter.version == "v1alpha1" else "fluence-probe"
    )
    spec: Json = {
        "schedulerName": "fluence-probe",
        "automountServiceAccountToken": False,
        "containers": [{"name": "probe", "image": "probe"}],
        **link,
    }
    pod: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "fluence-probe"}, "spec": spec}
    try:
        got = await client.create(PODS.raw(), pod, namespace=namespace, dry_run=True)
    except ApiError:
        return None
    return [path for path in dropped_fields(pod, got) if path.split(".")[1:2] and path.split(".")[1] in link]


class _Objects(msgspec.Struct, frozen=True):
    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


class _ObjectDecoder:
    """Stands for a decoder of msgspec's."""

    def __init__(self, operator: Operator, version: str) -> None:
        self._operator = operator
        self._version = version

    def decode(self, content: bytes) -> CustomOwner:
        return read_owner(self._operator, content, self._version)


class _PageDecoder(_ObjectDecoder):
    def decode(self, content: bytes) -> Any:
        page = msgspec.json.decode(content, type=_Objects)
        return Page(page.metadata, [super(_PageDecoder, self).decode(each) for each in page.items or ()])


class CustomResource(Resource[Owner]):
    """Where the objects of an operator are, in a version that the server has."""

    def __init__(self, operator: Operator, version: str) -> None:
        shape = CLASSES[operator.key]
        super().__init__(operator.group, version, operator.plural, operator.kind, shape)
        self.operator = operator
        self.__dict__["decoder"] = _ObjectDecoder(operator, version)
        self.__dict__["page_decoder"] = _PageDecoder(operator, version)


def resource_of(owner: CustomOwner) -> CustomResource:
    """Where an object of an operator is written, in the version that it was read from."""
    return CustomResource(owner.operator, owner.version or owner.operator.versions[0])


async def discover_operators(client: Client) -> list[CustomResource]:
    """The kinds of custom owners that the server has."""
    served = await all_versions(client)
    found = []
    for operator in OPERATORS:
        version = next((each for each in operator.versions if each in served.get(operator.group, ())), None)
        if version is None:
            continue
        if operator.plural in await resources_of(client, operator.group, version):
            found.append(CustomResource(operator, version))
    return found


async def may_read(client: Client, resource: Resource[Any]) -> bool | None:
    """Whether this account may list a kind everywhere; None: the server does not have it, or not yet."""
    try:
        await client.request("GET", resource.path(), params={"limit": "1"})
    except Forbidden:
        return False
    except Missing:
        return None
    return True
