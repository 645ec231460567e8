"""Rights that were granted a moment ago: the server's authorizer follows roles by a watch of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from fluence.kube.client import Client
from fluence.kube.errors import Missing
from fluence.kube.resource import NAMESPACES
from tests.eventually import eventually

_REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


async def until_allowed(
    client: Client, user: str, rules: Iterable[Mapping[str, Any]], *, namespace: str = ""
) -> None:
    """Wait until a user may do all that some rules of a role allow, in one namespace or everywhere."""
    asked = [each for rule in rules for each in _attributes(rule, namespace)]

    async def refused() -> list[dict[str, Any]]:
        return [each for each in asked if not await _may(client, user, each)]

    await eventually(refused, [], what=f"{user} may do what its role says", pause_s=0.2)


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
