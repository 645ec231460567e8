"""More control planes: one that tests may break, and one without native gangs, as most clusters are."""

import os
from collections.abc import Iterator

import pytest

from fluence.kube.releases import DEFAULT, release
from fluence.sandbox.programs import find_programs
from fluence.sandbox.sandbox import Sandbox
from fluence.sandbox.testing import PREFIX, Kube, namespace_in

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
def own_control_plane() -> Iterator[Sandbox]:
    """A bare control plane of this worker's own; its parts may be killed."""
    yield from _sandbox("own", {})


@pytest.fixture
def own_sandbox(own_control_plane: Sandbox) -> Iterator[Kube]:
    """A namespace there of the test's own: what another test left behind is not in it."""
    with namespace_in(own_control_plane) as kube:
        yield kube


@pytest.fixture(scope="session")
def gateless_control_plane() -> Iterator[Sandbox]:
    """One whose gang gates are off: it serves no groups, and drops the pods' field without a word."""
    yield from _sandbox("gateless", dict.fromkeys(release(VERSION).gates, False))


@pytest.fixture
def gateless(gateless_control_plane: Sandbox) -> Iterator[Kube]:
    """A namespace there."""
    with namespace_in(gateless_control_plane) as kube:
        yield kube


def _sandbox(name: str, gates: dict[str, bool]) -> Iterator[Sandbox]:
    box = Sandbox(f"{PREFIX}{name}-{os.getpid()}")  # cleared away by the next run if this one is killed
    wanted = release(VERSION)
    programs = find_programs(wanted, report=lambda progress: None)
    box.up(programs, wanted, audit=False, gates=gates, owned=True)
    try:
        yield box
    finally:
        box.down()
