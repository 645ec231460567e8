"""Look at admission: which policies and webhooks change new pods, what they read, and whether a pod that
requests a device gets its variables.

The test pod is a dry run. The server applies new policies and variables after a moment, so the dry run is
repeated for a few seconds if a policy or webhook should have changed the pod.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from typing import Any, Final, TypeVar

import msgspec

from fluence import names
from fluence.cluster.layout import DEFAULT
from fluence.controller.flux_job import FLUX_JOBS, FluxJobStatus
from fluence.doctor.facts import (
    AdmissionFacts,
    Backing,
    ClusterFacts,
    Declared,
    Hook,
    Refusal,
    Seen,
    Space,
    Table,
    Trial,
)
from fluence.doctor.installations import (
    count_ready,
    read_backing,
    read_binding,
    read_hooks,
    read_policy,
)
from fluence.doctor.refusals import gives_queues, read_refusal
from fluence.kube.client import Client
from fluence.kube.errors import ApiError, Missing, Unauthorized
from fluence.kube.resource import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    HAND_OFFS,
    NAMESPACES,
    PODS,
    VALIDATING_POLICIES,
    VALIDATING_POLICY_BINDINGS,
    Json,
    Resource,
    resources_of,
    status_fields,
)
from fluence.model import external_resources
from fluence.model.external_resources import BASE, hand_off_variables
from fluence.schedule.settings import SchedulerSettings

_GROUP: Final = "admissionregistration.k8s.io"
_TRY_S: Final = 5.0
_KINDS: Final = {
    "mutatingadmissionpolicies": "MutatingAdmissionPolicy",
    "mutatingadmissionpolicybindings": "MutatingAdmissionPolicyBinding",
    "mutatingwebhookconfigurations": "MutatingWebhookConfiguration",
}
_SERVICES: Final[Resource[Json]] = Resource("", "v1", "services", "Service", dict[str, object])
_CLUSTER_ROLES: Final[Resource[Json]] = Resource(
    "rbac.authorization.k8s.io", "v1", "clusterroles", "ClusterRole", dict[str, object], namespaced=False
)
_SLICES: Final[Resource[Json]] = Resource(
    "discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", dict[str, object]
)


async def look_at_admission(client: Client, facts: ClusterFacts, namespace: str | None) -> AdmissionFacts:
    """All facts of admission. The test pod is created in ``namespace``, and only the labels of that one are
    read."""
    policies, bindings, configurations = [await _all(client, plural) for plural in _KINDS]
    ours = tuple(each for found in policies.items if (each := read_policy(found)) is not None)
    known = {each.name for each in ours}
    bound = (each for each in map(read_binding, bindings.items) if each.policy in known)
    hooks = tuple(hook for found in configurations.items for hook in read_hooks(found))
    backings = await _backings(client, hooks)
    found = AdmissionFacts(
        has_policies=await _serves(client, _GROUP, "v1", "mutatingadmissionpolicies"),
        has_hand_offs=await _serves(client, HAND_OFFS.group, HAND_OFFS.version, HAND_OFFS.plural),
        has_flux_jobs=await _serves(client, FLUX_JOBS.group, FLUX_JOBS.version, FLUX_JOBS.plural),
        dropped=await _dropped(client),
        policies=Seen(ours, policies.unseen),
        bindings=Seen(tuple(bound), bindings.unseen),
        hooks=Seen(hooks, configurations.unseen),
        backings=backings,
        spaces=await _spaces(client, namespace),
        declared=await _declared(client, facts),
        refusals=await _refusals(client),
        queue_roles=await _queue_roles(client),
    )
    read = {each.parameters for each in found.bindings.items if each.parameters}
    read |= {each.parameters for each in backings.items if each.parameters}
    where = namespace or client.access.namespace or "default"
    tables = await _tables(client, read | set(facts.parameters))
    wanted = bool(found.hand_over(facts.scheduler_name))
    trial = await _tried(client, facts.scheduler_name, where, wanted=wanted)
    return replace(found, tables=tables, trial=trial)


async def _serves(client: Client, group: str, version: str, plural: str) -> bool | None:
    got = await may(resources_of(client, group, version))
    return None if isinstance(got, ApiError) else plural in got


async def _dropped(client: Client) -> tuple[str, ...]:
    """The fields of a FluxJob's status that the installed CRD, of another version or of fluxqueue, does not
    have."""
    got = await may(status_fields(client, FLUX_JOBS))
    written = msgspec.structs.fields(FluxJobStatus)
    return () if isinstance(got, ApiError) else tuple(sorted({x.encode_name for x in written} - got))


async def _all(client: Client, plural: str) -> Seen[dict[str, Any]]:
    resource: Resource[Json] = Resource(
        _GROUP, "v1", plural, _KINDS[plural], dict[str, object], namespaced=False
    )
    got = await may(client.list(resource))
    if isinstance(got, Missing):  # a server that does not know the kind has no such objects
        return Seen()
    return Seen((), refusal(plural, got)) if isinstance(got, ApiError) else Seen(tuple(got.items or ()))


async def _refusals(client: Client) -> Seen[Refusal]:
    """The policies that refuse, with their bindings."""
    policies = await may(client.list(VALIDATING_POLICIES))
    bindings = await may(client.list(VALIDATING_POLICY_BINDINGS))
    if isinstance(policies, ApiError):
        return Seen((), refusal("validatingadmissionpolicies", policies))
    if isinstance(bindings, ApiError):
        return Seen((), refusal("validatingadmissionpolicybindings", bindings))
    bound = list(bindings.items or ())
    read = (read_refusal(each, bound) for each in policies.items or ())
    return Seen(tuple(each for each in read if each is not None))


async def _queue_roles(client: Client) -> Seen[str]:
    """The ClusterRoles that give the right to use queues."""
    got = await may(client.list(_CLUSTER_ROLES))
    if isinstance(got, ApiError):
        return Seen((), refusal("clusterroles", got))
    found: Any = [each for each in got.items or () if gives_queues(each)]
    return Seen(tuple(sorted(str(each["metadata"]["name"]) for each in found)))


async def _backings(client: Client, hooks: Iterable[Hook]) -> Seen[Backing]:
    """The Deployment and the endpoints behind each Service."""
    items: list[Backing] = []
    unseen = ""
    for key in sorted({each.service for each in hooks if each.service}):
        namespace, _, name = key.partition("/")
        service = await may(client.get(_SERVICES, name, namespace=namespace))
        if isinstance(service, Missing):
            items.append(Backing(key, exists=False))
            continue
        select = f"kubernetes.io/service-name={name}"
        slices = await may(client.list(_SLICES, namespace=namespace, label_selector=select))
        if isinstance(service, ApiError):
            unseen = refusal(f"the Service {key}", service)
        elif isinstance(slices, ApiError):
            unseen = refusal(f"the endpoints of the Service {key}", slices)
        else:
            deployments = await may(client.list(DEPLOYMENTS.raw(), namespace=namespace))
            there = () if isinstance(deployments, ApiError) else deployments.items or ()
            items.append(read_backing(service, count_ready(slices.items or ()), tuple(there)))
    return Seen(tuple(items), unseen)


async def _spaces(client: Client, namespace: str | None) -> Seen[Space]:
    if namespace is not None:
        one = await may(client.get(NAMESPACES, namespace))
        if isinstance(one, ApiError):
            return Seen((), refusal(f"the namespace {namespace}", one))
        return Seen((Space(namespace, one.metadata.labels or {}),))
    got = await may(client.list(NAMESPACES))
    if isinstance(got, ApiError):
        return Seen((), refusal("namespaces", got))
    there = [Space(each.metadata.name, each.metadata.labels or {}) for each in got.items or ()]
    return Seen(tuple(sorted(there, key=lambda each: each.name)))


async def _tables(client: Client, wanted: set[str]) -> Seen[Table]:
    """The HandOffs. If they may not be listed, only those that admission or the scheduler uses."""
    got = await may(client.list(HAND_OFFS))
    if not isinstance(got, ApiError):
        there = [each for each in got.items or () if each.metadata.name == names.ADMISSION_PARAMETERS]
        items = [
            Table(f"{each.metadata.namespace}/{each.metadata.name}", each.variables, each.lists_gangs)
            for each in there
        ]
        return Seen(tuple(items))
    if isinstance(got, Missing):
        return Seen()
    found: list[Table] = []
    for key in sorted(wanted):
        namespace, _, name = key.partition("/")
        one = await may(client.get(HAND_OFFS, name, namespace=namespace))
        if not isinstance(one, ApiError):
            found.append(Table(key, one.variables, one.lists_gangs))
    return Seen(tuple(found), refusal("HandOffs", got))


async def _declared(client: Client, facts: ClusterFacts) -> Declared:
    """The devices of this scheduler, by the settings of its Deployment or by the defaults."""
    own = facts.own[0].devices_at if facts.own else SchedulerSettings().resources_configmap
    if own is None:
        return Declared(
            unseen="devices are declared in a file of the scheduler's, or its settings are hidden"
        )
    if not own:
        return Declared(variables=BASE)
    namespace, _, name = own.partition("/")
    got = await may(client.get(CONFIG_MAPS, name, namespace=namespace))
    if isinstance(got, Missing):
        return Declared(own, variables=BASE)
    if isinstance(got, ApiError):
        return Declared(own, unseen=refusal(f"the ConfigMap {own}", got))
    try:
        document = external_resources.document_of(got.data)
        tree = external_resources.parse(document, source=own, own_types=DEFAULT.own_types)
    except external_resources.InvalidResources as error:
        return Declared(own, fault=str(error))
    return Declared(own, tree.types, hand_off_variables(tree))


async def _tried(client: Client, scheduler: str, namespace: str, *, wanted: bool) -> Trial:
    """What the server makes of a pod of a group that requests a device. Nothing is stored."""
    device = {"limits": {f"{names.DEVICE_PREFIX}qpu": "1"}}
    container = {
        "name": "probe",
        "image": "probe",
        "resources": device,
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    spec = {
        "schedulerName": scheduler,
        "automountServiceAccountToken": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    meta = {"name": "fluence-probe", "labels": {names.GROUP_LABEL: "fluence-probe"}}
    pod: Json = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
    until = time.monotonic() + _TRY_S
    while True:
        got = await may(client.create(PODS.raw(), pod, namespace=namespace, dry_run=True))
        if isinstance(got, ApiError):
            said = " ".join(got.status.message.split()) or got.reason
            return Trial(namespace, unseen=f"a dry run of a pod in {namespace} is refused: {said}")
        made: Any = got
        told = tuple(each["name"] for each in made["spec"]["containers"][0].get("env") or ())
        if "FLUXION_BACKEND" in told or not wanted or time.monotonic() >= until:
            notes = made["metadata"].get("annotations") or {}
            return Trial(
                namespace,
                told,
                is_listed="schedulingGroup" in made["spec"],
                submitter=str(notes.get(names.SUBMITTED_BY, "")),
            )
        await asyncio.sleep(1.0)


T = TypeVar("T")


async def may(call: Awaitable[T]) -> T | ApiError:
    """The answer, or the refusal. Unauthorized is raised, because then nothing can be read."""
    try:
        return await call
    except Unauthorized:
        raise
    except ApiError as error:
        return error


def refusal(what: str, error: ApiError) -> str:
    said = " ".join(error.status.message.split()) or error.reason
    return f"{what} cannot be read: {said}"


async def everywhere(client: Client, resource: Resource[T], what: str, instead: set[str]) -> Seen[T]:
    """All objects of a kind. If that is not allowed, those of some namespaces."""
    got = await may(client.list(resource))
    if not isinstance(got, ApiError):
        return Seen(tuple(got.items or ()))
    if isinstance(got, Missing):
        return Seen()
    items: list[T] = []
    for namespace in sorted(filter(None, instead)):
        items += (await within(client, resource, what, namespace)).items
    return Seen(tuple(items), refusal(what, got))


async def within(client: Client, resource: Resource[T], what: str, namespace: str) -> Seen[T]:
    got = await may(client.list(resource, namespace=namespace))
    if isinstance(got, ApiError):
        return Seen((), refusal(what, got))
    return Seen(tuple(got.items or ()))
