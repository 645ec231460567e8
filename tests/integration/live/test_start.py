"""Starting and stopping: a server that is not there yet, SIGTERM at every stage, a lease given back."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path

from fluence.sandbox.proxy import Proxy, Rule
from fluence.sandbox.testing import Kube
from tests.eventually import eventually
from tests.integration.live.replica import SOON_S, Replica, free_port, lease_of
from tests.integration.schedule.field import Field, field


@contextlib.asynccontextmanager
async def started(f: Field, folder: Path, proxy: Proxy) -> AsyncIterator[Replica]:
    replica = Replica(f, folder, proxy.access)
    try:
        await replica.start()
        yield replica
    finally:
        await replica.end()


async def ended(replica: Replica) -> int:
    assert replica.process is not None
    replica.signal(signal.SIGTERM)
    return await asyncio.wait_for(replica.process.wait(), SOON_S)


async def test_a_server_that_is_not_there_is_waited_for(kube: Kube, tmp_path: Path) -> None:
    """A process that ended would be started again after ever longer pauses (CrashLoopBackOff)."""
    proxy = Proxy(kube.access(), port=free_port())
    async with field(kube, 1) as f, started(f, tmp_path, proxy) as replica:
        await replica.says("waits for the API server")
        assert (await replica.ask("/healthz"))[0] == 200
        assert await replica.ask("/readyz") == (503, "the first lists are not complete\n")
        async with proxy:
            await replica.leads()
            await f.add(f.pod("p"))
            await f.until_bound(["p"])
            assert (await replica.ask("/readyz"))[0] == 200
            await replica.end()


async def test_sigterm_is_heard_before_there_is_a_server(kube: Kube, tmp_path: Path) -> None:
    async with field(kube, 1) as f, started(f, tmp_path, Proxy(kube.access(), port=free_port())) as replica:
        await replica.says("waits for the API server")
        assert await ended(replica) == 0


async def test_sigterm_is_heard_while_the_first_lists_are_read(kube: Kube, tmp_path: Path) -> None:
    slow = Rule(path="/api/v1/pods$", latency_s=60)
    async with (
        field(kube, 1) as f,
        Proxy(kube.access(), [slow]) as proxy,
        started(f, tmp_path, proxy) as hangs,
    ):
        await eventually(lambda: slow.seen, what="the first list is read", timeout_s=SOON_S)
        assert await ended(hangs) == 0


async def test_a_leader_gives_the_lease_back_and_one_that_waits_just_ends(kube: Kube, tmp_path: Path) -> None:
    async with (
        field(kube, 1) as f,
        Proxy(kube.access()) as proxy,
        started(f, tmp_path / "a", proxy) as leader,
    ):
        await leader.leads()
        async with started(f, tmp_path / "b", proxy) as other:
            await other.says("follows the cluster")
            assert await ended(other) == 0
            held = await lease_of(f)
            assert held is not None and held.spec.holder_identity
            assert await ended(leader) == 0
            given = await lease_of(f)
            assert given is not None and not given.spec.holder_identity
