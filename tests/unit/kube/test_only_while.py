"""Writes that need a lease ask for it last of all, when everything else has been waited for."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web

from fluence.kube.client import Client
from fluence.kube.errors import NotHeld
from fluence.kube.events import Recorder, Ref
from fluence.kube.resource import PODS
from tests.unit.kube.serving import pod, serving


class Server:
    """Counts what comes."""

    def __init__(self, slow_s: float = 0.0) -> None:
        self.seen: list[str] = []
        self._slow_s = slow_s

    async def __call__(self, request: web.Request) -> web.Response:
        self.seen.append(request.method)
        await asyncio.sleep(self._slow_s)
        return web.json_response(pod("p"))


async def test_what_is_lost_while_a_write_waits_for_its_turn_stops_it() -> None:
    server, held = Server(), True
    async with serving(server) as access, Client(access, qps=2, burst=1) as client:
        guarded = client.only_while(lambda: held)
        await guarded.patch(PODS, "p", {}, namespace="ns")
        late = asyncio.create_task(guarded.patch(PODS, "p", {}, namespace="ns"))
        await asyncio.sleep(0.1)  # it waits for the rate limit
        held = False
        with pytest.raises(NotHeld, match=r"PATCH .*: not sent: the lease is not held"):
            await late
        assert server.seen == ["PATCH"]


async def test_what_is_lost_while_a_write_waits_for_a_connection_stops_it() -> None:
    """Between the look at the lease and the first byte the loop may turn, and the process be stopped."""
    server, held = Server(slow_s=0.3), True
    async with serving(server) as access, Client(access, connections=1) as client:
        guarded = client.only_while(lambda: held)
        calls = [asyncio.create_task(guarded.patch(PODS, "p", {}, namespace="ns")) for _ in range(2)]
        await asyncio.sleep(0.1)  # the second waits for the connection of the first
        held = False
        await calls[0]
        with pytest.raises(NotHeld, match=r"PATCH .*: not sent: the lease is not held"):
            await calls[1]
        assert server.seen == ["PATCH"]
        await client.get(PODS, "p", namespace="ns")  # the client goes on


async def test_reading_and_the_plain_client_need_no_lease() -> None:
    server = Server()
    async with serving(server) as access, Client(access) as client:
        guarded = client.only_while(lambda: False)
        await guarded.get(PODS, "p", namespace="ns")
        await client.patch(PODS, "p", {}, namespace="ns")
        assert server.seen == ["GET", "PATCH"]


async def test_events_are_not_written_without_the_lease(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    async with serving(server) as access, Client(access) as client:
        recorder = Recorder(client.only_while(lambda: False), controller="fluence", instance="a")
        recorder.record(Ref("Pod", "p", "ns", "", "v1"), reason="Waits", action="Scheduling", note="no room")
        await recorder.flush(1.0)
        assert (server.seen, recorder.dropped, recorder.written) == ([], 1, 0)
        assert not caplog.records
