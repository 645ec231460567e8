"""Connections to a port that strangers can reach: who says nothing, or half, or does not read, is cut off."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from fluence.live.http_server import ListenerLimits, health_routes, serve

HOST = "127.0.0.1"
GET = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"
BRIEF = ListenerLimits(connections=4, request_s=0.4, idle_s=1.5, check_s=0.05, grace_s=0.2)
LARGE = 64 << 20
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@contextlib.asynccontextmanager
async def served(limits: ListenerLimits = BRIEF) -> AsyncIterator[int]:
    async def large(request: web.Request) -> web.Response:
        return web.Response(body=b"x" * LARGE)

    async def slow(request: web.Request) -> web.Response:
        await asyncio.sleep(0.8)
        return web.Response(text="slow\n")

    routes = [
        *health_routes(healthy=lambda: "", ready=lambda: ""),
        web.get("/large", large),
        web.get("/slow", slow),
    ]
    async with serve((HOST, 0), routes, limits=limits) as port:
        yield port


@contextlib.asynccontextmanager
async def connected(port: int, count: int = 1) -> AsyncIterator[list[Streams]]:
    made: list[Streams] = []
    try:
        for _ in range(count):
            made.append(await asyncio.open_connection(HOST, port))
        yield made
    finally:
        for _, writer in made:
            writer.transport.abort()
        await asyncio.sleep(0)


async def asked(streams: Streams, request: bytes = GET) -> bytes:
    streams[1].write(request)
    return await asyncio.wait_for(streams[0].readuntil(b"\n\r\n" if request != GET else b"ok\n"), 60)


async def cut_off_after(streams: Streams) -> float:
    began = time.monotonic()
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(streams[0].read(), 60) == b""
    return time.monotonic() - began


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HTTP/1.1\r\nHost:", b"POST /x HTTP/1.1\r\nContent-Length: 9\r\n"]
)
async def test_who_finishes_no_request_is_cut_off(sent: bytes) -> None:
    async with served() as port, connected(port) as (streams,):
        streams[1].write(sent)
        assert await cut_off_after(streams) < 30


async def test_a_head_that_comes_letter_by_letter_is_cut_off() -> None:
    async with served() as port, connected(port) as ((reader, writer),):
        began = time.monotonic()
        with contextlib.suppress(ConnectionError):
            for letter in b"GET / HTTP/1.1\r\nHost: " + b"a" * 1000:
                writer.write(bytes([letter]))
                await writer.drain()
                if reader.at_eof():
                    break
                await asyncio.sleep(0.05)
        assert time.monotonic() - began < 30


async def test_who_was_answered_may_be_idle_for_longer_and_not_for_ever() -> None:
    longer = dataclasses.replace(BRIEF, idle_s=4.0)
    async with served(longer) as port, connected(port) as (streams,):
        await asked(streams)
        await asyncio.sleep(0.8)
        await asked(streams)
        assert 1 < await cut_off_after(streams) < 30


async def test_an_answer_may_take_longer_than_a_head() -> None:
    async with served() as port, connected(port) as ((reader, writer),):
        writer.write(GET.replace(b"healthz", b"slow"))
        assert await asyncio.wait_for(reader.readuntil(b"slow\n"), 60)


async def test_who_does_not_read_its_answer_is_cut_off() -> None:
    async with served() as port, connected(port) as ((reader, writer),):
        writer.write(GET.replace(b"healthz", b"large"))
        await asyncio.sleep(0.1)
        transport = writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        await asyncio.sleep(1.5)
        transport.resume_reading()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(LARGE)


async def test_when_all_places_are_taken_a_newcomer_is_answered_and_those_who_never_asked_go() -> None:
    async with served(ListenerLimits(connections=4, grace_s=0.2)) as port, connected(port) as (known,):
        await asked(known)
        async with connected(port, 20) as silent, connected(port) as (newcomer,):
            assert b"200" in await asked(newcomer)
            assert b"200" in await asked(known), "who had been answered was dismissed"
            assert max(await asyncio.gather(*(cut_off_after(each) for each in silent[:17]))) < 30


async def test_while_everybody_is_being_answered_a_newcomer_waits_its_turn() -> None:
    async with served(ListenerLimits(connections=4)) as port, connected(port, 8) as busy:
        for _, writer in busy:
            writer.write(GET.replace(b"healthz", b"slow"))
        await asyncio.gather(*(asyncio.wait_for(each.readuntil(b"slow\n"), 60) for each, _ in busy))
