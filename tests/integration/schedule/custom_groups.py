"""PodGroups of other systems, installed as custom resources for a test."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from fluence.kube.client import Client
from fluence.kube.errors import ApiError, Missing
from fluence.kube.resource import Json, Resource
from tests.eventually import eventually
from tests.integration.schedule.field import Field

CRDS: Resource[Json] = Resource(
    "apiextensions.k8s.io",
    "v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    dict,
    namespaced=False,
)


@contextlib.asynccontextmanager
async def installed(
    client: Client,
    resource: Resource[Any],
    discover: Callable[[Client], Awaitable[object]],
    *,
    spec: Json,
    annotations: dict[str, str] | None = None,
) -> AsyncIterator[None]:
    """As its project installs it, by its names and with the schema of its spec."""
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object", **spec}}}}
    name = f"{resource.plural}.{resource.group}"
    crd: Json = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name, "annotations": annotations or {}},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced",
            "names": {"plural": resource.plural, "singular": "podgroup", "kind": resource.kind},
            "versions": [{"name": resource.version, "served": True, "storage": True, "schema": schema}],
        },
    }
    await client.create(CRDS, crd)
    try:
        await eventually(lambda: discover(client), what="the kind is served")
        yield
    finally:
        await client.delete(CRDS, name)
        # A definition that is being deleted still serves: the next test would take it for its own.
        await eventually(lambda: _is_gone(client, resource), what="the kind is no longer served")


async def _is_gone(client: Client, resource: Resource[Any]) -> bool:
    try:
        await client.list(resource)
    except Missing:
        return True
    return False


async def add_group(f: Field, resource: Resource[Any], name: str, members: int) -> None:
    body: Json = {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name},
        "spec": {"minMember": members},
    }

    async def create() -> ApiError | None:
        try:
            await f.client.create(resource.raw(), body, namespace=f.namespace)
        except ApiError as error:  # a fresh custom resource is not served at once by all of the server
            return error
        return None

    await eventually(create, None, what=f"{resource.kind} {name} is taken", pause_s=0.2)
