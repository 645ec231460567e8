"""Two processes and one lease on a real API server: stopped, killed, hung, their clocks set: never two
holders, and a new one within the lease duration.

Nothing here is measured with the test's own clock. A claim is what a holder wrote down: when it acted, and
until when it may, on the monotonic clock that all processes of a machine share. The end less ``renew_s`` is
when its last renewal began.
"""

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path

from fluence.kube.client import Client
from fluence.kube.lease import Elector, LeaseTerms
from fluence.kube.resource import LEASES, Json
from fluence.sandbox.faults import Rule
from fluence.sandbox.proxy import Proxy
from fluence.sandbox.testing import Kube
from tests.integration.kube import candidate
from tests.unit.kube.serving import until

CANDIDATE = candidate.__file__
TERMS = candidate.TERMS
PATIENCE_S = 60.0  # for what is not measured


class Race:
    def __init__(self, kube: Kube, folder: Path) -> None:
        self.kube = kube
        self.log = folder / "claims"
        self.log.touch()
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *, through: str | None = None, clock: str = "right") -> None:
        where = through or str(self.kube.sandbox.at.kubeconfig())
        command = [sys.executable, CANDIDATE, where, self.kube.namespace, name, str(self.log), clock]
        self.running[name] = subprocess.Popen(command)

    def signal(self, name: str, number: signal.Signals) -> None:
        os.kill(self.running[name].pid, number)

    def claims(self) -> list[tuple[str, float, float]]:
        """In the order of time: a process may be stopped between looking at its clock and writing."""
        lines = [line.split() for line in self.log.read_text().splitlines()]
        claims = [(name, float(now), float(end)) for name, now, end in lines]
        return sorted(claims, key=lambda claim: claim[1])

    def holder(self) -> str | None:
        claims = self.claims()
        return claims[-1][0] if claims else None

    async def until_held_by(self, name: str) -> None:
        await until(lambda: self.holder() == name, timeout_s=PATIENCE_S)

    async def until_standing(self, name: str) -> None:
        """It has seen who holds the lease."""
        await until(self.log.with_name(f"{name}.stands").exists, timeout_s=PATIENCE_S)

    def check(self, *, takeovers: int) -> None:
        """No two claims overlap, and who comes next acts within the duration of the last renewal."""
        claims = self.claims()
        changes = [(before, after) for before, after in itertools.pairwise(claims) if before[0] != after[0]]
        assert len(changes) == takeovers, changes
        for (_, _, end), (_, now, _) in changes:
            renewed = end - TERMS.renew_s
            assert end <= now <= renewed + TERMS.duration_s, (renewed, end, now)


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
        race.start("a", clock="jumping")
        await race.until_held_by("a")
        race.start("b", clock="jumping")
        await race.until_standing("b")
        for stopped, other in (("a", "b"), ("b", "a")):
            assert race.holder() == stopped
            race.signal(stopped, signal.SIGSTOP)
            await race.until_held_by(other)
            race.signal(stopped, signal.SIGCONT)
            await asyncio.sleep(1.5)  # it wakes up, and may not claim anything
            assert race.holder() == other
        race.check(takeovers=2)


async def test_a_killed_holder_is_replaced_within_the_duration(kube: Kube, tmp_path: Path) -> None:
    async with racing(kube, tmp_path) as race, kube.client() as client:
        race.start("a")
        await race.until_held_by("a")
        race.start("b")
        await race.until_standing("b")
        race.signal("a", signal.SIGKILL)
        race.running["a"].wait()  # so this is its last renewal
        left = await lease(client, kube)
        await race.until_held_by("b")
        race.check(takeovers=1)
        # The same from the API: the times that the two wrote into the lease.
        taken = await lease(client, kube)
        assert (left["holderIdentity"], taken["holderIdentity"]) == ("a", "b")
        assert taken["leaseTransitions"] == 1
        waited = at(taken["acquireTime"]) - at(left["renewTime"])
        assert TERMS.renew_s < waited < float(str(taken["leaseDurationSeconds"]))


async def test_a_holder_whose_api_server_hangs_gives_up_in_time(kube: Kube, tmp_path: Path) -> None:
    async with racing(kube, tmp_path) as race, Proxy(kube.access()) as proxy:
        race.start("a", through=proxy.access.server)
        await race.until_held_by("a")
        race.start("b")
        await race.until_standing("b")
        proxy.rules.append(Rule(path="leases", latency_s=60))  # for a alone
        await race.until_held_by("b")
        race.check(takeovers=1)
        proxy.rules.clear()
        await asyncio.sleep(1.5)
        assert race.holder() == "b"
        race.check(takeovers=1)


async def lease(client: Client, kube: Kube) -> Json:
    """What the lease says now."""
    spec = (await client.get(LEASES, "leader", namespace=kube.namespace))["spec"]
    assert isinstance(spec, dict)
    return spec


def at(time: object) -> float:
    return datetime.fromisoformat(str(time)).timestamp()


async def test_a_lease_is_given_back_on_the_way_out(kube: Kube) -> None:
    terms = LeaseTerms(duration_s=30, renew_s=20, retry_s=0.2)

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
