"""A second control plane, for tests that break theirs."""

import asyncio
import os
from collections.abc import Iterator

import pytest

from fluence.kube.client import Client
from fluence.kube.resource import NAMESPACES
from fluence.sandbox.programs import find_programs
from fluence.sandbox.releases import DEFAULT, release
from fluence.sandbox.sandbox import Sandbox
from fluence.sandbox.testing import Kube

VERSION = os.environ.get("FLUENCE_TEST_VERSION", DEFAULT)


@pytest.fixture(scope="session")
def own_sandbox() -> Iterator[Kube]:
    """A bare control plane of this worker's own; its parts may be killed."""
    box = Sandbox(f"own-{os.getpid()}")
    wanted = release(VERSION)
    box.up(find_programs(wanted, report=lambda progress: None), wanted, audit=False, owned=True)

    async def namespace() -> None:
        async with Client(box.access()) as client:
            body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "own"}}
            await client.create(NAMESPACES, body)
            for _ in range(100):
                try:
                    await client.request("GET", "/api/v1/namespaces/own/serviceaccounts/default")
                    return
                except Exception:
                    await asyncio.sleep(0.1)

    try:
        asyncio.run(namespace())
        yield Kube(box, "own", VERSION)
    finally:
        box.down()
