"""Policy, webhook and Python rules turn any object into the same one, on a real API server."""

import asyncio
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fluence.admission.review import admit, as_read
from fluence.errors import InvalidInput
from fluence.kube.client import Client
from fluence.sandbox.sandbox import Sandbox
from tests.admission_objects import VARIABLES, pod, workload
from tests.integration.admission.field import Field, attempt, field, policies_for, webhook_for

pytestmark = pytest.mark.release
OBJECTS = int(os.environ.get("FLUENCE_ADMISSIONS", "0")) or 240
SEED = random.randrange(10**9) if "FLUENCE_ADMISSIONS" in os.environ else 7
AT_ONCE = 8
USER = "kubernetes-admin"  # of the sandbox


def expected(at: Field, found: dict[str, Any], held: bool) -> Any:
    kind = found["kind"]
    about: Any = {"kind": kind, "namespace": at.namespace(held), "variables": VARIABLES, "user": USER}
    about["lists_gangs"] = True
    made = as_read(found)
    for each in at.scopes(kind, held):
        made = admit(each, made, **about).object
        assert not admit(each, made, **about).patch, "a second time must change nothing"
    return made


def pod_or_workload(rng: random.Random, number: int) -> dict[str, Any]:
    return pod(rng) if number % 3 else workload(rng)


async def compare(client: Client, at: Field, number: int, found: dict[str, Any]) -> str:
    """One object through the server as it is, as we expect it, and as the rules make it there."""
    held = number % 2 == 0
    try:
        by_us = expected(at, found, held)
    except InvalidInput as error:
        return f"the Python rules say {error}: {found}"
    ours, theirs = await asyncio.gather(
        attempt(client, at.plain, by_us), attempt(client, at.namespace(held), found)
    )
    if ours == theirs:
        return ""
    if ours[0] == theirs[0] == "made":
        ours, theirs = ours[1], theirs[1]
    return f"object {number} of seed {SEED}: {found}\n{list(differences(ours, theirs))}"


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            yield from differences(one.get(key), other.get(key), f"{path}/{key}")
    elif one != other:
        yield f"{path}: expected {one!r}, got {other!r}"


async def all_agree(
    client: Client, at: Field, make: Callable[[random.Random, int], dict[str, Any]], objects: int = OBJECTS
) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> str:
        async with gate:
            rng = random.Random(f"{SEED}-{number}")
            return await compare(client, at, number, make(rng, number))

    wrong = [each for each in await asyncio.gather(*map(one, range(objects))) if each]
    assert not wrong, f"{len(wrong)} of {objects} differ; the first:\n{wrong[0]}"


async def test_policies_make_what_the_python_rules_make(sandbox: Sandbox) -> None:
    async with (
        Client(sandbox.access()) as client,
        field(client, users=True, lists_gangs=True) as at,
        policies_for(client, at),
    ):
        await all_agree(client, at, pod_or_workload)


async def test_the_webhook_makes_what_the_python_rules_make(sandbox: Sandbox) -> None:
    async with (
        Client(sandbox.access()) as client,
        field(client, users=True, lists_gangs=True) as at,
        webhook_for(client, at) as hook,
    ):
        before = hook.reviews.answered
        await all_agree(client, at, pod_or_workload)
        assert hook.reviews.answered > before + OBJECTS / 4
