"""Custom owners: the kinds of `model.operators` that a server has, and how their objects are read.

An object is reduced to the needed fields as soon as it is read, so that large objects are not kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from fluence.kube.errors import Forbidden, Missing
from fluence.kube.resource import ListMeta, Page, Resource, all_versions, resources_of
from fluence.model.operators import CLASSES, OPERATORS, CustomOwner, Operator, read_owner
from fluence.model.owner import Owner

if TYPE_CHECKING:
    from fluence.kube.client import Client


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
