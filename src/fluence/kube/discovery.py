"""Discovery: which release the server is, which APIs and fields it serves, and which it silently dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from fluence.kube.errors import Missing
from fluence.kube.resource import Json, Resource

if TYPE_CHECKING:
    from fluence.kube.client import Client


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
    return [each.version for each in msgspec.json.decode(answer, type=_Group).versions or ()]


async def resources_of(client: Client, group: str, version: str) -> dict[str, ApiResource]:
    """The resources of a group version by name; none if it is not served."""
    path = f"/apis/{group}/{version}" if group else f"/api/{version}"
    try:
        answer = await client.request("GET", path)
    except Missing:
        return {}
    return {each.name: each for each in msgspec.json.decode(answer, type=_ResourceList).resources or ()}


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
        if any(each.get("kind") == resource.kind for each in schema.kinds):
            return frozenset(schema.properties.get("status", _Schema()).properties)
    return frozenset()


async def create_noticing(
    client: Client, resource: Resource[Any], body: Json, *, namespace: str | None = None
) -> tuple[Json, list[str]]:
    """Create an object and say which of its fields the server dropped: their feature gates are off there."""
    got = await client.create(resource.raw(), body, namespace=namespace)
    return got, list(dropped_fields(body, got))


def dropped_fields(sent: object, got: object, path: str = "") -> Iterator[str]:
    """The paths that were sent and did not come back: fields behind a feature gate that is off.

    Values may be defaulted, canonicalised or added to by the server; only what is gone counts. A server
    drops such fields without a word, so what was written has to be read.
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
