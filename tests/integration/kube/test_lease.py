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
from fluence.sandbox.proxy import Proxy, Rule
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.kube import candidate
from tests.unit.kube.serving import until

CANDIDATE = candidate.__file__
TERMS = candidate.TERMS
PATIENCE_S = 120.0  # for what is not measured


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


async def lease(client: Client, kube: Kube, name: str = "leader") -> Json:
    """What the lease says now."""
    spec = (await client.get(LEASES, name, namespace=kube.namespace))["spec"]
    assert isinstance(spec, dict)
    return spec


def at(time: object) -> float:
    return datetime.fromisoformat(str(time)).timestamp()


def stands(client: Client, kube: Kube, identity: str, terms: LeaseTerms | None = None) -> Elector:
    """For a lease of the test's own."""
    return Elector(
        client,
        name="l",
        namespace=kube.namespace,
        identity=identity,
        terms=terms or LeaseTerms(),
        annotations=candidate.NAMED,
    )


async def test_a_lease_is_given_back_on_the_way_out(kube: Kube) -> None:
    terms = LeaseTerms(duration_s=600, renew_s=400, retry_s=0.2)
    async with kube.client() as client, kube.client() as other:
        first = stands(client, kube, "a", terms)
        second = stands(other, kube, "b", terms)
        await first.stand()
        two = asyncio.create_task(second.stand())
        await eventually(lambda: second.last_error, lambda said: "held by a" in said)
        assert not second.held
        await first.release()
        assert not first.held
        await asyncio.wait_for(two, PATIENCE_S)  # not the ten minutes of the lease
        assert second.held


async def test_a_lease_is_not_renewed_for_the_dead(kube: Kube) -> None:
    async with kube.client() as client:
        terms = LeaseTerms(duration_s=600, renew_s=400, retry_s=0.2)
        elector = stands(client, kube, "a", terms)
        await elector.stand()
        assert await elector.keep(lambda: "it hangs") == "it hangs"
        assert not elector.held
        await elector.release()  # nothing is written any more: what was begun has its time to end
        assert (await lease(client, kube, "l"))["holderIdentity"] == "a"


async def test_without_permission_nobody_leads_and_the_reason_is_kept(kube: Kube) -> None:
    async with (
        Proxy(kube.access(), [Rule(path="leases", status=403)]) as proxy,
        Client(proxy.access) as client,
    ):
        elector = stands(client, kube, "a")
        assert not await elector._try(1.0)
        assert "403" in elector.last_error


async def test_a_lease_that_another_had_meanwhile_is_lost_although_it_is_free_again(kube: Kube) -> None:
    """The other took it and gave it back: a free lease must not be taken for ours, kept all the time."""
    terms = LeaseTerms(duration_s=600, renew_s=400, retry_s=0.3)
    async with kube.client() as client:
        elector = stands(client, kube, "a", terms)
        await elector.stand()
        held = await client.get(LEASES, "l", namespace=kube.namespace)
        held["spec"] = {**held["spec"], "holderIdentity": "", "leaseTransitions": 2}  # type: ignore[dict-item]
        await client.replace(LEASES, "l", held, namespace=kube.namespace)
        async with asyncio.timeout(PATIENCE_S):
            assert "another" in await elector.keep()
        assert not elector.held


async def test_a_lease_that_vanished_is_not_taken_before_its_holder_stops(kube: Kube) -> None:
    """Somebody deletes it; its holder has not noticed yet, and still writes."""
    terms = LeaseTerms(duration_s=600, renew_s=400, retry_s=0.2)
    async with kube.client() as client:
        first = stands(client, kube, "a", terms)
        second = stands(client, kube, "b", terms)
        await first.stand()
        assert not await second._try(1.0)
        await client.delete(LEASES, "l", namespace=kube.namespace)
        assert first.held
        assert not await second._try(1.0)
