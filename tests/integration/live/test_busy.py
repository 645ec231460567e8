"""A core that is busy keeps its lease and its health; one that hangs loses both, and its process ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from fluence.kube.lease import LeaseTerms
from fluence.live.threads import GRACE_S
from fluence.sandbox.proxy import Proxy
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.live.replica import SOON_S, Replica, lease_of, now
from tests.integration.schedule.field import Field, field

# Renewed in time also on a machine that is starved for some seconds.
TERMS = LeaseTerms(duration_s=6.0, renew_s=5.0, retry_s=0.4)
LONG_S = 2.5 * TERMS.duration_s


@contextlib.asynccontextmanager
async def replica(
    f: Field, folder: Path, *flags: str, lease: LeaseTerms | None = TERMS
) -> AsyncIterator[Replica]:
    async with Proxy(f.kube.access()) as proxy:
        found = Replica(f, folder, proxy.access, *flags, lease=lease)
        try:
            await found.start()
            await found.leads()
            yield found
        finally:
            await found.end()


async def test_a_cycle_longer_than_the_lease_loses_nothing_and_everything_answers(
    kube: Kube, tmp_path: Path
) -> None:
    async with field(kube, 1) as f, replica(f, tmp_path) as busy:
        before = await lease_of(f)
        busy.make_slow(LONG_S)
        await f.add(f.pod("p"))
        await busy.begun()
        answers = set()
        while busy.is_slow:
            answers |= {(path, (await busy.ask(path))[0]) for path in ("/healthz", "/readyz", "/metrics")}
            await asyncio.sleep(0.2)
        assert answers == {("/healthz", 200), ("/readyz", 200), ("/metrics", 200)}
        await f.until_bound(["p"])
        after = await lease_of(f)
        assert before is not None and after is not None
        assert after.spec.holder_identity == before.spec.holder_identity
        assert after.spec.lease_transitions == before.spec.lease_transitions
        assert after.spec.acquire_time == before.spec.acquire_time, "it was taken anew"
        assert busy.said.count("leads") == 1


async def test_a_leader_whose_cycle_hangs_says_so_is_not_renewed_and_ends(kube: Kube, tmp_path: Path) -> None:
    async with field(kube, 1) as f, replica(f, tmp_path, "--stuck-after", "3") as hung:
        hung.make_slow(600)
        await f.add(f.pod("somebodys-secret-name"))
        await hung.begun()
        began = now()
        said = await unhealthy(hung)
        assert "not come round" in said or "the lease is lost" in said
        assert "secret" not in said and f.namespace not in said
        assert hung.process is not None
        assert await asyncio.wait_for(hung.process.wait(), SOON_S) == 1
        took = now() - began
        assert took >= GRACE_S, "the core had no time to end by itself"
        last = await lease_of(f)
        assert last is not None and last.spec.holder_identity, "it was given back by a core that may wake up"
        assert "the lease is lost" in hung.said and "the core hangs" in hung.said
        # Started again, as a kubelet would: nobody needs to clear anything away.
        await hung.start()
        await hung.leads(2)
        await f.until_bound(["somebodys-secret-name"])


async def test_a_cycle_that_hangs_without_a_lease_fails_the_probe(kube: Kube, tmp_path: Path) -> None:
    async with field(kube, 1) as f, replica(f, tmp_path, "--stuck-after", "3", lease=None) as hung:
        assert await hung.ask("/healthz") == (200, "ok\n")
        hung.make_slow(600)
        await f.add(f.pod("p"))
        await hung.begun()
        assert (await unhealthy(hung)).startswith("the core hangs: it has not come round for ")
        assert (await hung.ask("/metrics"))[0] == 200
        assert hung.process is not None and hung.process.returncode is None, "its supervisor ends it"


async def unhealthy(replica: Replica) -> str:
    """What the probe says when it fails at last."""
    status, said = await eventually(
        lambda: replica.ask("/healthz"),
        lambda answer: answer[0] != 200,
        what="the probe fails",
        timeout_s=SOON_S,
    )
    assert status == 503
    return said
