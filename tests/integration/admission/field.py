"""Policies and webhooks for a few namespaces of the shared server, so that nobody else's pods meet them."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec

from fluence import names
from fluence.admission import users
from fluence.admission.certificates import WEBHOOK_CONFIGURATIONS, Renewal
from fluence.admission.manifests import (
    hand_off_definition,
    policies,
    refusing_policies,
    webhook_configuration,
)
from fluence.admission.scopes import AdmissionOptions, AdmissionScope, DoorMode, scopes
from fluence.admission.server import Webhook, WebhookPlace
from fluence.kube.client import Client
from fluence.kube.errors import ApiConflict, ApiError, Forbidden, Missing, ServerFault
from fluence.kube.gangs import CustomResource
from fluence.kube.resource import (
    DEPLOYMENTS,
    HAND_OFFS,
    JOBS,
    NAMESPACES,
    PODS,
    REPLICASETS,
    STATEFULSETS,
    Json,
    Resource,
)
from fluence.model.operators import OPERATORS
from tests.admission_objects import VARIABLES
from tests.eventually import eventually
from tests.integration.rights import until_account

RESOURCES: dict[str, Resource[Json]] = {
    **{each.kind: CustomResource(each, each.versions[0]).raw() for each in OPERATORS},
    **{each.kind: each.raw() for each in (PODS, JOBS, DEPLOYMENTS, REPLICASETS, STATEFULSETS)},
}
KEY = "admission-test"
# Labels that the server gives a Job's pods; and the Job itself, if one map is both its labels and theirs.
_OF_A_JOB = tuple(
    f"{before}{key}" for before in ("", "batch.kubernetes.io/") for key in ("job-name", "controller-uid")
)
_PLURALS = {
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
CLASSES: Resource[Json] = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", dict[str, object], namespaced=False
)


@dataclass(frozen=True)
class Field:
    """Namespaces: one where nothing is changed, and one each with and without doors for the other side."""

    run: str
    options: AdmissionOptions

    @property
    def plain(self) -> str:
        return f"{self.run}-plain"

    def namespace(self, held: bool) -> str:
        return f"{self.run}-held" if held else f"{self.run}-open"

    def scopes(self, kind: str, held: bool) -> list[AdmissionScope]:
        """All whose rules apply to a kind."""
        here = [each for each in scopes(self.options) if each.name.endswith("-held") == held]
        everywhere = [each for each in scopes(self.options) if each.name == users.NAME]
        return [each for each in (*here, *everywhere) if kind in each.kinds]

    def named(self, name: str) -> AdmissionScope:
        return next(each for each in scopes(self.options) if each.name == name)


@contextlib.asynccontextmanager
async def field(
    client: Client, *, own_scheduler: bool = False, lists_gangs: bool = False, **more: Any
) -> AsyncIterator[Field]:
    """The namespaces; pods name `fluence`, or a scheduler that nobody else runs. ``lists_gangs``: they get
    the PodGroup of their gang. ``more``: options."""
    run = f"adm-{uuid.uuid4().hex[:8]}"
    only = {"key": KEY, "operator": "In", "values": [run]}
    scheduler = run if own_scheduler else names.SCHEDULER
    options = AdmissionOptions(doors=DoorMode.NAMESPACES, selector=(only,), scheduler=scheduler, **more)
    found = Field(run, options)
    spaces = {found.plain: {}, found.namespace(False): {KEY: run}, found.namespace(True): {KEY: run}}
    spaces[found.namespace(True)][names.NAMESPACE_OPT_IN] = names.DOORS_ENABLED
    body: dict[str, Any] = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    body |= {"metadata": {"name": names.QUANTUM_CLASS}, "value": 1_000_000}
    with contextlib.suppress(ApiConflict):
        await client.create(CLASSES, body)
    for name, labels in spaces.items():
        await client.create(
            NAMESPACES,
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}},
        )
    for name in spaces:
        await until_account(client, name)
    await hand_off(client, found.plain, lists_gangs=lists_gangs)
    try:
        yield found
    finally:
        for name in spaces:
            await client.delete(NAMESPACES, name)


async def hand_off(client: Client, namespace: str, *, lists_gangs: bool) -> None:
    """Create the parameters of admission, and their kind."""
    await _kind(client)
    notes = {names.LISTS_GANGS: str(lists_gangs).lower()}
    meta = {"name": names.ADMISSION_PARAMETERS, "annotations": notes}
    kind = {"apiVersion": HAND_OFFS.api_version, "kind": HAND_OFFS.kind}
    body = {**kind, "metadata": meta, "spec": {"variables": VARIABLES}}
    await client.create(HAND_OFFS.raw(), body, namespace=namespace)


@contextlib.asynccontextmanager
async def policies_for(client: Client, at: Field) -> AsyncIterator[None]:
    """The policies, once the server applies them."""
    async with created(client, policies(at.options, namespace=at.plain, prefix=at.run)):
        await _effective(client, at)
        yield


@contextlib.asynccontextmanager
async def guard_for(client: Client, at: Field) -> AsyncIterator[None]:
    """The policies that refuse, without the rules."""
    async with created(client, refusing_policies(at.options, prefix=at.run)):
        yield


@contextlib.asynccontextmanager
async def created(client: Client, documents: list[Any]) -> AsyncIterator[None]:
    """These policies and bindings; whether the server applies them yet is to be seen."""
    made = []
    try:
        for each in documents:
            resource: Resource[Json] = Resource(
                "admissionregistration.k8s.io",
                "v1",
                _PLURALS[each["kind"]],
                each["kind"],
                dict[str, object],
                namespaced=False,
            )
            await client.create(resource, each)
            made.append((resource, each["metadata"]["name"]))
        yield
    finally:
        for resource, name in made:
            await client.delete(resource, name)


@contextlib.asynccontextmanager
async def webhook_for(
    client: Client, at: Field, *, renewal: Renewal | None = None, acting: Client | None = None
) -> AsyncIterator[Webhook]:
    """The webhook on loopback, once the server calls it; it acts as somebody else if that is said."""
    options = at.options
    place = WebhookPlace(("127.0.0.1", 0), at.run, ("127.0.0.1",), at.plain)
    hook = Webhook(acting or client, options, place, renewal or Renewal(check_s=0.1, first_s=0.0))
    async with hook.serving() as port, contextlib.AsyncExitStack() as hooks:
        url = {"url": f"https://127.0.0.1:{port}"}
        await client.create(WEBHOOK_CONFIGURATIONS, webhook_configuration(options, client=url, name=at.run))
        refusals = created(client, refusing_policies(options, prefix=at.run))
        try:
            await hooks.enter_async_context(refusals)
            await _effective(client, at)
            # A Service leads only to those that have read the parameters.
            await eventually(hook.unready, lambda why: "parameters" not in why)
            yield hook
        finally:
            await client.delete(WEBHOOK_CONFIGURATIONS, at.run)
            await gone(client, at)


async def attempt(client: Client, namespace: str, found: dict[str, Any]) -> tuple[str, Any]:
    """What the server would make of an object, or why it refuses it. A server that fails is asked again."""

    async def ask() -> tuple[str, Any]:
        try:
            made = await client.create(RESOURCES[found["kind"]], found, namespace=namespace, dry_run=True)
        except ServerFault:
            raise
        except ApiError as error:
            told = str(error).replace(namespace, "NAMESPACE")
            return "refused", re.sub(r'"[pw]-[a-z0-9]{5}"', '"GENERATED"', told)
        return "made", plainly(made)

    return await eventually(ask, what="the server judges it")


def plainly(made: Any) -> Any:
    """Without what is different each time."""
    meta = made["metadata"]
    uid = meta["uid"]
    for key in ("uid", "creationTimestamp", "resourceVersion", "managedFields", "namespace", "generation"):
        meta.pop(key, None)
    if "generateName" in meta:
        meta.pop("name", None)
    made.pop("status", None)
    return _without(made, uid)


def _without(value: Any, uid: str) -> Any:
    if isinstance(value, dict):
        return {key: _without(each, uid) for key, each in value.items() if key not in _OF_A_JOB}
    if isinstance(value, list):
        return [_without(each, uid) for each in value]
    return "UID" if value == uid else value


async def _kind(client: Client) -> None:
    """The kind of the parameters, once the server serves it."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    with contextlib.suppress(ApiConflict):
        await client.request("POST", path, body=msgspec.json.encode(hand_off_definition()))

    async def served() -> str:
        try:
            await client.list(HAND_OFFS)
        except Missing as error:
            return str(error)
        return ""

    await eventually(served, "", what="the kind is served")


def _probe(at: Field) -> dict[str, Any]:
    container = {"name": "c", "image": "x", "resources": {"limits": {f"{names.DEVICE_PREFIX}qpu": "1"}}}
    spec = {"schedulerName": at.options.scheduler, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "probe"}, "spec": spec}


async def is_effective(client: Client, at: Field, held: bool = False) -> bool:
    made = await client.create(RESOURCES["Pod"], _probe(at), namespace=at.namespace(held), dry_run=True)
    spec: Any = made["spec"]
    return "env" in spec["containers"][0] and ("schedulingGates" in spec or not held)


async def _effective(client: Client, at: Field) -> None:
    for held in (False, True):
        where = at.namespace(held)
        await eventually(
            lambda held=held: is_effective(client, at, held),  # type: ignore[misc]
            what=f"pods are changed in {where}",
        )
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "probe"}}
    body = {**job, "spec": {"template": {"spec": {**_probe(at)["spec"], "restartPolicy": "Never"}}}}

    async def suspended() -> Any:
        made: Any = await client.create(RESOURCES["Job"], body, namespace=at.namespace(True), dry_run=True)
        return made["spec"]["suspend"]

    await eventually(suspended, what=f"Jobs are suspended in {at.namespace(True)}")
    if at.options.users:
        await eventually(lambda: is_named(client, at), what=f"objects are named in {at.namespace(False)}")


async def is_named(client: Client, at: Field) -> bool:
    """Whether admission writes who submitted an object, and refuses to let it be changed."""
    made: Any = await client.create(RESOURCES["Pod"], _probe(at), namespace=at.namespace(False))
    patched = {"metadata": {"annotations": {names.SUBMITTED_BY: "nobody"}}}
    try:
        after: Any = await client.patch(RESOURCES["Pod"], "probe", patched, namespace=at.namespace(False))
    except Forbidden:
        after = made
    finally:
        await client.delete(RESOURCES["Pod"], "probe", namespace=at.namespace(False))
    found, kept = (each["metadata"].get("annotations", {}).get(names.SUBMITTED_BY) for each in (made, after))
    return bool(found) and kept == found


async def gone(client: Client, at: Field) -> None:
    """Wait until the server changes nothing any more."""
    for held in (False, True):
        await eventually(
            lambda held=held: is_effective(client, at, held),  # type: ignore[misc]
            False,
            what="nothing is changed",
        )
