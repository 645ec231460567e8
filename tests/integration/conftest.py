"""More control planes: one that tests may break, and one without native gangs, as most clusters are."""

import asyncio
import os
from collections.abc import Iterator

import pytest

from fluence.kube.client import Client
from fluence.sandbox.programs import find_programs
from fluence.sandbox.releases import DEFAULT, release
from fluence.sandbox.sandbox import Sandbox
from fluence.sandbox.testing import PREFIX, Kube
from tests.integration.rights import make_namespace

VERSION = os.environ.get("FLUENCE_TEST_VERSION", DEFAULT)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "only(release): what no other release of Kubernetes has")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def fits(item: pytest.Item) -> bool:
        only = item.get_closest_marker("only")
        return only is None or VERSION in only.args

    config.hook.pytest_deselected(items=[each for each in items if not fits(each)])
    items[:] = [each for each in items if fits(each)]


@pytest.fixture(scope="session")
def own_sandbox() -> Iterator[Kube]:
    """A bare control plane of this worker's own; its parts may be killed."""
    yield from _sandbox("own", {})


@pytest.fixture(scope="session")
def gateless() -> Iterator[Kube]:
    """One whose gang gates are off: it serves no groups, and drops the pods' field without a word."""
    yield from _sandbox("gateless", dict.fromkeys(release(VERSION).gates, False))


def _sandbox(name: str, gates: dict[str, bool]) -> Iterator[Kube]:
    box = Sandbox(f"{PREFIX}{name}-{os.getpid()}")  # cleared away by the next run if this one is killed
    wanted = release(VERSION)
    programs = find_programs(wanted, report=lambda progress: None)
    box.up(programs, wanted, audit=False, gates=gates, owned=True)

    async def namespace() -> None:
        async with Client(box.access()) as client:
            await make_namespace(client, name)

    try:
        asyncio.run(namespace())
        yield Kube(box, name, VERSION)
    finally:
        box.down()
