"""Kueue's objects count while Kueue does not run, and only then; its Lease is looked at again and again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from fluence.clock import ManualClock
from fluence.kube.client import Client
from fluence.live.watches import KueueImport, Watches
from fluence.model.kueue import KueueObject
from fluence.schedule.events import Changed, Event
from fluence.units import rfc3339
from tests.unit.kube.serving import bookmark, event, serving, status, stream

LEASE = "/apis/coordination.k8s.io/v1/namespaces/kueue-system/leases/c1f6bfd2.kueue.x-k8s.io"


class Server:
    """Has one ClusterQueue, and perhaps the Lease of a manager."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.denied = self.down = False
        self.versions = ["v1beta1", "v1beta2"]
        self.asked: list[str] = []
        self.wrote: list[str] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        if request.method != "GET":
            self.wrote.append(request.path)
        if self.down:
            return status(503, "ServiceUnavailable")
        if request.path == LEASE:
            if self.denied:
                return status(403, "Forbidden")
            found = {"metadata": {"name": "l"}, "spec": self.lease}
            return status(404, "NotFound") if self.lease is None else web.json_response(found)
        parts = request.path.strip("/").split("/")
        if parts[:2] != ["apis", "kueue.x-k8s.io"] or parts[2] not in self.versions:
            return status(404, "NotFound")
        if len(parts) == 3:
            return web.json_response({"resources": [{"name": "clusterqueues", "kind": "ClusterQueue"}]})
        self.asked.append("/".join(parts[2:]))
        item = {"metadata": {"name": "cq", "uid": "u", "resourceVersion": "1"}, "spec": {"lost": 1}}
        return await stream(request, event("ADDED", item), bookmark("2", ends_list=True))


class World:
    def __init__(self, server: Server, client: Client, clock: ManualClock) -> None:
        self.server = server
        self.clock = clock
        self.there: set[str] = set()  # objects that count
        self.watches = Watches(client, self.put)
        self.kueue = KueueImport(client, self.watches, poll=0.02)

    def put(self, found: Event) -> None:
        assert isinstance(found, Changed)
        assert isinstance(found.object, KueueObject)
        (self.there.discard if found.new is None else self.there.add)(found.object.key)

    def renew(self) -> None:
        now = rfc3339(int(self.clock.now() * 1_000_000), "microseconds")
        self.server.lease = {"holderIdentity": "kueue-1", "leaseDurationSeconds": 15, "renewTime": now}

    async def until(self, done: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not done():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def world(server: Server) -> AsyncIterator[World]:
    clock = ManualClock()
    async with serving(server) as access, Client(access, clock=clock) as client:
        made = World(server, client, clock)
        await made.kueue.look()
        tasks = [asyncio.create_task(each.run()) for each in made.watches.all]
        tasks.append(asyncio.create_task(made.kueue.run()))
        try:
            yield made
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_objects_count_without_kueue_and_are_only_read() -> None:
    server = Server()
    async with world(server) as found:
        await found.until(lambda: found.there == {"cq"})
        assert found.kueue.off == ""
    assert set(server.asked) == {"v1beta2/clusterqueues"}
    assert server.wrote == []


async def test_the_version_that_there_is() -> None:
    server = Server()
    server.versions = ["v1beta1"]
    async with world(server) as found:
        await found.until(lambda: found.there == {"cq"})
    assert set(server.asked) == {"v1beta1/clusterqueues"}


async def test_nothing_counts_while_kueue_runs() -> None:
    """It starts, and is scaled to 0 again: its Lease stays, and is not renewed."""
    server = Server()
    async with world(server) as found:
        await found.until(lambda: found.there == {"cq"})
        found.renew()
        await found.until(lambda: found.there == set())
        assert "Kueue runs" in found.kueue.off
        found.clock.advance(60)
        await found.until(lambda: found.there == {"cq"})


async def test_a_lease_that_moves_is_held_whatever_the_clocks_say() -> None:
    server = Server()
    async with world(server) as found:
        await found.until(lambda: found.there == {"cq"})
        found.renew()
        found.clock.advance(3600)
        await found.until(lambda: found.kueue._renewed is not None)
        assert server.lease is not None
        server.lease = {**server.lease, "renewTime": "2020-01-01T00:00:00Z"}
        await found.until(lambda: "Kueue runs" in found.kueue.off)


async def test_a_lease_that_cannot_be_read_may_be_held() -> None:
    server = Server()
    server.denied = True
    async with world(server) as found:
        assert "cannot be read" in found.kueue.off
        await asyncio.sleep(0.1)
        assert found.there == set()
        server.denied = False
        await found.until(lambda: found.there == {"cq"})


async def test_a_server_that_does_not_answer_changes_nothing() -> None:
    server = Server()
    async with world(server) as found:
        await found.until(lambda: found.there == {"cq"})
        server.down = True
        await asyncio.sleep(0.1)
        assert found.there == {"cq"}
