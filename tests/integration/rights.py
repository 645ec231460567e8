"""Rights: the chart's own account and roles, and waiting for what was granted a moment ago.

The server's authorizer follows roles by a watch of its own."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from fluence import names
from fluence.kube.client import Client
from fluence.kube.errors import Missing
from fluence.kube.resource import NAMESPACES, Resource
from tests.eventually import eventually

RBAC = Path(__file__).parents[2] / "deploy" / "scheduler" / "rbac.yaml"
_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


async def until_allowed(
    client: Client, user: str, rules: Iterable[Mapping[str, Any]], *, namespace: str = ""
) -> None:
    """Wait until a user may do all that some rules of a role allow, in one namespace or everywhere."""
    asked = [each for rule in rules for each in _attributes(rule, namespace)]

    async def refused() -> list[dict[str, Any]]:
        return [each for each in asked if not await _may(client, user, each)]

    await eventually(refused, [], what=f"{user} may do what its role says", pause_s=0.2)


async def let_edit(client: Client, user: str, namespace: str) -> None:
    """Give a user the role `edit` in a namespace, and wait until it may make pods there."""
    group = "rbac.authorization.k8s.io"
    binding: dict[str, Any] = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": user},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }
    await client.create(resource_of(binding), binding, namespace=namespace)
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["create"]}
    await until_allowed(client, user, [rule], namespace=namespace)


_PLURALS = {
    "Namespace": ("namespaces", False),
    "CustomResourceDefinition": ("customresourcedefinitions", False),
    "ServiceAccount": ("serviceaccounts", True),
    "ClusterRole": ("clusterroles", False),
    "ClusterRoleBinding": ("clusterrolebindings", False),
    "Role": ("roles", True),
    "RoleBinding": ("rolebindings", True),
    "ConfigMap": ("configmaps", True),
    "Deployment": ("deployments", True),
    "PodDisruptionBudget": ("poddisruptionbudgets", True),
    "PriorityClass": ("priorityclasses", False),
    "MutatingAdmissionPolicy": ("mutatingadmissionpolicies", False),
    "MutatingAdmissionPolicyBinding": ("mutatingadmissionpolicybindings", False),
    "ValidatingAdmissionPolicy": ("validatingadmissionpolicies", False),
    "ValidatingAdmissionPolicyBinding": ("validatingadmissionpolicybindings", False),
    "Service": ("services", True),
    "APIService": ("apiservices", False),
}


def resource_of(body: dict[str, Any]) -> Resource[dict[str, Any]]:
    group, _, version = body["apiVersion"].rpartition("/")
    plural, namespaced = _PLURALS[body["kind"]]
    return Resource(group, version, plural, body["kind"], dict[str, Any], namespaced=namespaced)


def chart_rules(name: str, namespace: str, lease: str = "fluence") -> Iterator[dict[str, Any]]:
    """The chart's own account and roles, under a name and in a namespace of the test, for a lease."""
    text = RBAC.read_text().replace("fluence-scheduler", name)
    text = text.replace("resourceNames: [fluence]", f"resourceNames: [{lease}]")
    for old in (names.INSTALLED_IN, names.RESOURCES_NAMESPACE):
        text = text.replace(old, namespace)
    yield from yaml.safe_load_all(text)


@contextlib.asynccontextmanager
async def chart_account(
    client: Client, name: str, namespace: str, *, lease: str = "fluence"
) -> AsyncIterator[str]:
    """An account with the chart's own roles while the block runs, and no others; gives the user's name."""
    bodies, user = list(chart_rules(name, namespace, lease)), f"system:serviceaccount:{namespace}:{name}"
    for body in bodies:
        space = body["metadata"].get("namespace")
        await client.apply(resource_of(body), body, namespace=space, manager="test")
    try:
        for body in bodies:
            if body["kind"] in ("Role", "ClusterRole") and "metrics" not in body["metadata"]["name"]:
                space = body["metadata"].get("namespace", "")
                await until_allowed(client, user, body["rules"], namespace=space)
        yield user
    finally:
        for body in bodies:
            if not (resource := resource_of(body)).namespaced:
                await client.delete(resource, body["metadata"]["name"])


async def make_namespace(client: Client, name: str) -> None:
    """A namespace in which pods can be made: they are refused until its account is there."""
    await client.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    await until_account(client, name)


async def until_account(client: Client, namespace: str) -> None:
    async def account() -> str:
        try:
            await client.request("GET", f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
        except Missing as error:
            return str(error)
        return ""

    await eventually(account, "", what=f"the account of namespace {namespace}")


def _attributes(rule: Mapping[str, Any], namespace: str) -> Iterator[dict[str, Any]]:
    for verb in rule["verbs"]:
        for path in rule.get("nonResourceURLs") or ():
            yield {"nonResourceAttributes": {"path": path, "verb": verb}}
        for group in rule.get("apiGroups") or ():
            for resource in rule.get("resources") or ():
                plural, _, part = resource.partition("/")
                names = {"group": group, "resource": plural, "subresource": part, "verb": verb}
                for name in rule.get("resourceNames") or ("",):
                    yield {"resourceAttributes": {**names, "namespace": namespace, "name": name}}


async def _may(client: Client, user: str, attributes: dict[str, Any]) -> bool:
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview"}
    spec = {"user": user, **attributes}
    answer = await client.request("POST", _REVIEWS, body=msgspec.json.encode({**body, "spec": spec}))
    return bool(msgspec.json.decode(answer)["status"]["allowed"])
