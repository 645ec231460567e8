"""Policy, webhook and interpreter turn any object into the same one, on a real API server."""

import asyncio
import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from fluence.admission.interpreter import admit, as_read
from fluence.errors import InvalidInput
from fluence.kube.client import Client
from fluence.sandbox.sandbox import Sandbox
from tests.admission_objects import VARIABLES, pod, workload
from tests.integration.admission.field import Field, attempt, field, policies_for, webhook_for

pytestmark = pytest.mark.release
OBJECTS = int(os.environ.get("FLUENCE_ADMISSIONS", "0")) or 240
SEED = random.randrange(10**9) if "FLUENCE_ADMISSIONS" in os.environ else 7
AT_ONCE = 8


def expected(at: Field, found: dict[str, Any], held: bool) -> Any:
    kind, scope = found["kind"], at.scope(found["kind"], held)
    about: Any = {"kind": kind, "namespace": at.namespace(held), "variables": VARIABLES}
    made = admit(scope, as_read(found), **about)
    assert not admit(scope, made.object, **about).patch, "a second time must change nothing"
    return made.object


async def compare(client: Client, at: Field, number: int) -> str:
    """One object through the server as it is, as we expect it, and as the rules make it there."""
    rng = random.Random(f"{SEED}-{number}")
    found = pod(rng) if number % 3 else workload(rng)
    held = number % 2 == 0
    try:
        by_us = expected(at, found, held)
    except InvalidInput as error:
        return f"the interpreter says {error}: {found}"
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


async def all_agree(client: Client, at: Field) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> str:
        async with gate:
            return await compare(client, at, number)

    wrong = [each for each in await asyncio.gather(*map(one, range(OBJECTS))) if each]
    assert not wrong, f"{len(wrong)} of {OBJECTS} differ; the first:\n{wrong[0]}"


async def test_policies_make_what_the_interpreter_makes(sandbox: Sandbox) -> None:
    async with Client(sandbox.access()) as client, field(client) as at, policies_for(client, at):
        await all_agree(client, at)


async def test_the_webhook_makes_what_the_interpreter_makes(sandbox: Sandbox) -> None:
    async with Client(sandbox.access()) as client, field(client) as at, webhook_for(client, at) as hook:
        before = hook.reviews.answered
        await all_agree(client, at)
        assert hook.reviews.answered > before + OBJECTS / 4
