"""Reading: what the server answers to whoever asks; a refusal is a value, and says what was not seen."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from fluence.doctor.seen import Seen
from fluence.kube.client import Client
from fluence.kube.errors import ApiError, Missing, Unauthorized
from fluence.kube.resource import Resource

T = TypeVar("T")


async def may(call: Awaitable[T]) -> T | ApiError:
    """An answer, or the refusal. Who is not known at all cannot look."""
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
    """All of a kind; where that is not allowed, those of some namespaces."""
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
