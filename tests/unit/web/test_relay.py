"""A listener that hands connections on: what is said on them is between both ends."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import aiohttp
from aiohttp import web

from fluence.live.http_server import ListenerLimits, self_signed, serve

LIMITS = ListenerLimits(connections=4, request_s=2.0)


def saying(text: str) -> list[web.RouteDef]:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(text=text)

    return [web.get("/", handle)]


def test_a_connection_goes_to_the_leader_with_its_tls_while_there_is_one() -> None:
    leader: tuple[str, int] | None = None

    async def elsewhere() -> tuple[str, int] | None:
        return leader

    async def work() -> None:
        nonlocal leader
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        async with serve(
            ("127.0.0.1", 0), saying("follower"), tls=self_signed(), limits=LIMITS, elsewhere=elsewhere
        ) as port:

            async def ask() -> str:
                async with (
                    aiohttp.ClientSession() as session,
                    session.get(f"https://127.0.0.1:{port}/", ssl=trusting) as answer,
                ):
                    return await answer.text()

            assert await ask() == "follower"
            async with serve(("127.0.0.1", 0), saying("leader"), tls=self_signed()) as there:
                leader = ("127.0.0.1", there)
                for _ in range(3 * LIMITS.connections):  # each place is free again
                    assert await ask() == "leader"
            await _fails(ask)
            leader = None
            assert await ask() == "follower"

    asyncio.run(work())


async def _fails(ask: Callable[[], Awaitable[str]]) -> None:
    try:
        await ask()
    except (aiohttp.ClientError, OSError):
        return
    raise AssertionError("nothing listens there")
