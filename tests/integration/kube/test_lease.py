"""Two processes and one lease on a real API server: stopped, killed, hung; never two holders."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from fluence.kube.client import Client
from fluence.kube.lease import Elector, Terms
from fluence.sandbox.faults import Rule
from fluence.sandbox.proxy import Proxy
from fluence.sandbox.testing import Kube
from tests.unit.kube.serving import until

CANDIDATE = Path(__file__).with_name("candidate.py")
DURATION_S = 3.0


class Race:
    def __init__(self, kube: Kube, folder: Path) -> None:
        self.kube = kube
        self.log = folder / "claims"
        self.log.touch()
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *, through: str | None = None) -> None:
        where = through or str(self.kube.sandbox.at.kubeconfig())
        command = [sys.executable, str(CANDIDATE), where, self.kube.namespace, name, str(self.log)]
        self.running[name] = subprocess.Popen(command)

    def signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self.running[name].pid, number)

    def claims(self) -> list[tuple[str, float, float]]:
        lines = [line.split() for line in self.log.read_text().splitlines()]
        return [(name, float(now), float(end)) for name, now, end in lines]

    def holder(self) -> str | None:
        claims = self.claims()
        return claims[-1][0] if claims else None

    def check(self) -> None:
        """A claim holds from when it was written to the end that its holder gave it: no two may overlap."""
        claims = self.claims()
        for index, (name, now, end) in enumerate(claims):
            for other, now2, end2 in claims[index + 1 :]:
                if other != name:
                    assert now2 >= end, (name, now, end, other, now2, end2)
                    break


@contextlib.asynccontextmanager
async def racing(kube: Kube, folder: Path) -> AsyncIterator[Race]:
    race = Race(kube, folder)
    try:
        yield race
    finally:
        for process in race.running.values():
            process.kill()
            process.wait()


async def test_a_stopped_holder_loses_the_lease_and_does_not_think_otherwise(
    kube: Kube, tmp_path: Path
) -> None:
    async with racing(kube, tmp_path) as race:
        race.start("a")
        await until(lambda: race.holder() == "a", timeout_s=20)
        race.start("b")
        await asyncio.sleep(1.5)
        loop = asyncio.get_running_loop()
        for stopped, other in (("a", "b"), ("b", "a")):
            assert race.holder() == stopped
            race.signal(stopped, signal.SIGSTOP)
            began = loop.time()
            await until(lambda other=other: race.holder() == other, timeout_s=20)
            # the duration, one retry with its jitter, and a busy machine's breath
            assert loop.time() - began < DURATION_S + 0.4 * 1.2 + 3.0
            race.signal(stopped, signal.SIGCONT)
            await asyncio.sleep(1.5)
            assert race.holder() == other
        race.check()


async def test_a_killed_holder_is_replaced_within_the_duration(kube: Kube, tmp_path: Path) -> None:
    async with racing(kube, tmp_path) as race:
        race.start("a")
        await until(lambda: race.holder() == "a", timeout_s=20)
        race.start("b")
        await asyncio.sleep(1.5)
        race.signal("a", signal.SIGKILL)
        await until(lambda: race.holder() == "b", timeout_s=DURATION_S + 4)
        race.check()


async def test_a_holder_whose_api_server_hangs_gives_up_in_time(kube: Kube, tmp_path: Path) -> None:
    async with racing(kube, tmp_path) as race, Proxy(kube.access()) as proxy:
        race.start("a", through=proxy.access.server)
        await until(lambda: race.holder() == "a", timeout_s=20)
        race.start("b")
        await asyncio.sleep(1.5)
        proxy.rules.append(Rule(path="leases", latency_s=60))  # for a alone
        await until(lambda: race.holder() == "b", timeout_s=DURATION_S + 4)
        race.check()
        proxy.rules.clear()
        await asyncio.sleep(1.5)
        assert race.holder() == "b"
        race.check()


async def test_a_lease_is_given_back_on_the_way_out(kube: Kube) -> None:
    terms = Terms(duration_s=30, renew_s=20, retry_s=0.2)

    async def forever() -> None:
        await asyncio.sleep(60)

    async with kube.client() as client, kube.client() as other:
        first = Elector(client, name="l", namespace=kube.namespace, identity="a", terms=terms)
        second = Elector(other, name="l", namespace=kube.namespace, identity="b", terms=terms)
        one = asyncio.create_task(first.run(forever))
        await until(lambda: first.held)
        two = asyncio.create_task(second.run(forever))
        await asyncio.sleep(1.0)
        assert not second.held
        assert "held by a" in second.last_error
        one.cancel()
        await asyncio.wait({one})
        assert not first.held
        await until(lambda: second.held, timeout_s=3)  # not the thirty seconds of the lease
        two.cancel()
        await asyncio.wait({two})


async def test_a_leader_that_fails_gives_the_lease_back_and_its_fault_is_seen(kube: Kube) -> None:
    async def fail() -> None:
        raise RuntimeError("boom")

    async with kube.client() as client:
        elector = Elector(client, name="l", namespace=kube.namespace, identity="a")
        try:
            await elector.run(fail)
        except RuntimeError as error:
            assert str(error) == "boom"
        else:
            raise AssertionError("the fault was swallowed")
        lease = await elector._read(5)
        assert lease is not None
        assert not lease.spec.holder_identity


async def test_without_permission_nobody_leads_and_the_reason_is_kept(kube: Kube) -> None:
    async with (
        Proxy(kube.access(), [Rule(path="leases", status=403)]) as proxy,
        Client(proxy.access) as client,
    ):
        elector = Elector(client, name="l", namespace=kube.namespace, identity="a")
        assert not await elector._try(1.0)
        assert "403" in elector.last_error
