"""The device plugin against a kubelet's side of the API on a real socket."""

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from fluence.clock import ManualClock
from fluence.deviceplugin import v1beta1_pb2 as api
from fluence.deviceplugin.plugins import DevicePlugins, TypePlugin, socket_name
from fluence.model.external_resources import DeviceTree, parse
from tests.unit.deviceplugin.kubelet import PeerKubelet

QPU, QUBIT, LICENCE = (f"fluxion.flux-framework.org/{each}" for each in ("qpu", "qubit", "licence"))
BOTH = parse("resources: [{type: qpu, name: sv1, with: [{type: qubit, count: 34}]}]")
ONE = parse("resources: [{type: qpu, name: sv1}]")


class Site:
    """A kubelet, our plugins, and a document that a test changes."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.kubelet = PeerKubelet(folder)
        self.plugins = DevicePlugins(folder, capacity=1000, look_s=0.02, clock=self.clock)
        self.documents: asyncio.Queue[DeviceTree] = asyncio.Queue()

    async def trees(self) -> AsyncIterator[DeviceTree]:
        while True:
            yield await self.documents.get()

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(120):
            while not holds():
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def site(folder: Path) -> AsyncIterator[Site]:
    found = Site(folder)
    run = asyncio.create_task(found.plugins.run(found.trees()))
    try:
        yield found
    finally:
        run.cancel()
        await asyncio.wait({run})
        await found.kubelet.stop()


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as found:  # NB pytest's own are too deep for a socket's path
        yield Path(found)


async def _types_of_every_level(folder: Path) -> None:
    async with site(folder) as on:
        await on.kubelet.start()
        on.documents.put_nowait(BOTH)
        await on.until(lambda: on.kubelet.offers == {QPU: 1000, QUBIT: 1000})
        assert {each.version for each in on.kubelet.requests} == {"v1beta1"}
        assert on.plugins.registered == [QPU, QUBIT]
        ids = dict(on.kubelet.lists)[QPU]
        assert len(set(ids)) == 1000


def test_every_type_at_every_level_is_offered_a_thousand_times(folder: Path) -> None:
    asyncio.run(_types_of_every_level(folder))


async def _come_and_go(folder: Path) -> None:
    async with site(folder) as on:
        await on.kubelet.start()
        on.documents.put_nowait(ONE)
        await on.until(lambda: on.kubelet.offers == {QPU: 1000})
        on.documents.put_nowait(BOTH)
        await on.until(lambda: on.kubelet.offers == {QPU: 1000, QUBIT: 1000})
        on.documents.put_nowait(ONE)
        await on.until(lambda: on.kubelet.offers == {QPU: 1000, QUBIT: 0})
        assert on.kubelet.lists[-1] == (QUBIT, [])  # told by a list, not by the plugin's end
        await on.until(lambda: not (folder / socket_name(QUBIT)).exists())
        assert len([each for each in on.kubelet.requests if each.resource_name == QPU]) == 1
        on.documents.put_nowait(DeviceTree())
        await on.until(lambda: on.kubelet.offers == {QPU: 0, QUBIT: 0})
        assert [each.name for each in folder.iterdir()] == ["kubelet.sock"]


def test_types_come_and_go_without_a_restart(folder: Path) -> None:
    asyncio.run(_come_and_go(folder))


async def _restarts(folder: Path) -> None:
    async with site(folder) as on:
        on.documents.put_nowait(BOTH)  # before there is a kubelet
        await asyncio.sleep(0.1)
        await on.kubelet.start()
        await on.until(lambda: on.kubelet.offers == {QPU: 1000, QUBIT: 1000})
        for _ in range(3):
            await on.kubelet.stop()
            await asyncio.sleep(0.1)
            await on.kubelet.start()  # removes our sockets, as the kubelet does
            assert on.kubelet.offers == {}
            await on.until(lambda: on.kubelet.offers == {QPU: 1000, QUBIT: 1000})


def test_a_kubelet_that_comes_late_or_restarts_gets_everything_again(folder: Path) -> None:
    asyncio.run(_restarts(folder))


async def _socket_lost(folder: Path) -> None:
    async with site(folder) as on:
        await on.kubelet.start()
        on.documents.put_nowait(ONE)
        await on.until(lambda: on.kubelet.offers == {QPU: 1000})
        (folder / socket_name(QPU)).unlink()
        await on.until(lambda: len(on.kubelet.requests) == 2 and (folder / socket_name(QPU)).is_socket())
        await on.until(lambda: on.kubelet.offers == {QPU: 1000})


def test_a_socket_that_somebody_removed_is_made_again(folder: Path) -> None:
    asyncio.run(_socket_lost(folder))


async def _refused(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with site(folder) as on:
        on.kubelet.refuse = "no such thing"
        await on.kubelet.start()
        on.documents.put_nowait(ONE)
        await on.until(lambda: "no such thing" in caplog.text)
        on.kubelet.refuse = ""
        await asyncio.sleep(0.1)
        assert not on.kubelet.requests  # a pause comes first
        on.clock.advance(2.0)
        await on.until(lambda: on.kubelet.offers == {QPU: 1000})


def test_a_refused_registration_is_told_and_tried_again(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        asyncio.run(_refused(folder, caplog))
    assert caplog.text.count("no such thing") == 1


async def _deaf(folder: Path) -> None:
    async with site(folder) as on:
        on.kubelet.deaf = True
        await on.kubelet.start()
        on.documents.put_nowait(ONE)
        await on.until(lambda: len(on.kubelet.requests) == 1)
        await asyncio.sleep(0.1)
        assert len(on.kubelet.requests) == 1
        on.kubelet.deaf = False
        on.clock.advance(11.0)
        await on.until(lambda: on.kubelet.offers == {QPU: 1000})
        on.clock.advance(11.0)
        await asyncio.sleep(0.1)
        assert len(on.kubelet.requests) == 2  # one that listens is left alone


def test_a_kubelet_that_does_not_listen_is_told_again(folder: Path) -> None:
    asyncio.run(_deaf(folder))


async def _allocation(folder: Path) -> api.AllocateResponse:
    kubelet, plugin = PeerKubelet(folder), TypePlugin(QPU, 3, folder)
    try:
        await kubelet.start()
        await plugin.serve()
        await plugin.register()
        return await kubelet.allocate(plugin.path.name, [["qpu-0"], ["qpu-1", "qpu-2"]])
    finally:
        await plugin.close()
        await kubelet.stop()


def test_an_allocation_gives_each_container_nothing(folder: Path) -> None:
    answer = asyncio.run(_allocation(folder))
    assert len(answer.container_responses) == 2
    # Unknown fields would show here too: mounts, devices, environment.
    assert all(each.SerializeToString() == b"" for each in answer.container_responses)


async def _long_path(folder: Path) -> None:
    await TypePlugin(QPU, 1, folder / ("x" * 90)).serve()


def test_a_path_that_no_socket_can_have_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(OSError, match="107 bytes"):
        asyncio.run(_long_path(folder))


def test_types_that_look_alike_have_sockets_of_their_own() -> None:
    names = {socket_name(f"fluxion.flux-framework.org/{each}") for each in ("a.b", "a-b", "A-b", "a_b")}
    assert len(names) == 4
    longest = socket_name("fluxion.flux-framework.org/" + "x" * 63)
    assert len("/var/lib/kubelet/device-plugins/" + longest) <= 107
