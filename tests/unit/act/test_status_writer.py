"""Words about one object are written one after the other: the last one said is the one that stays."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
from aiohttp import web

from fluence.act.writers import CoalescingWriter, StatusWriter
from fluence.kube.client import Client
from fluence.kube.resource import PODS
from tests.unit.kube.serving import serving, until


async def test_a_newer_word_waits_for_the_older_one_about_the_same_object() -> None:
    written: list[tuple[str, int]] = []
    begun, first = asyncio.Event(), asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        name, word = request.path.split("/")[-2], msgspec.json.decode(await request.read())["word"]
        if (name, word) == ("a", 1):
            begun.set()
            await first.wait()  # the slowest of all
        written.append((name, word))
        return web.json_response({})

    async with serving(handler) as access, Client(access) as client:
        writer = StatusWriter(client, held=lambda: True)
        task = asyncio.create_task(writer.run())
        try:
            writer.write(PODS, "ns", "a", {"word": 1})
            await begun.wait()
            for word in (2, 3):
                writer.write(PODS, "ns", "a", {"word": word})
            writer.write(PODS, "ns", "b", {"word": 1})
            await until(lambda: ("b", 1) in written)  # nobody else waits for it
            await asyncio.sleep(0.05)
            assert written == [("b", 1)]
            first.set()
            await until(lambda: ("a", 3) in written)
            assert written == [("b", 1), ("a", 1), ("a", 3)]
        finally:
            task.cancel()
            await asyncio.wait({task})


async def test_namespaces_take_turns() -> None:
    written: list[str] = []

    async def write(key: str, value: int) -> None:
        written.append(key)

    writer: CoalescingWriter[str, int] = CoalescingWriter(
        write, in_flight=1, namespace=lambda key, _: key.partition("/")[0]
    )
    for i in range(1000):
        writer[f"evil/{i}"] = i
    writer["good/0"], writer["good/1"] = 0, 1
    writer.drop("evil/1")
    running = asyncio.create_task(writer.run())
    try:
        async with asyncio.timeout(120):
            while len(writer):
                await asyncio.sleep(0)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    assert written[:4] == ["evil/0", "good/0", "evil/2", "good/1"]
    assert len(written) == 1001


async def test_a_write_that_fails_unexpectedly_stops_no_other() -> None:
    written: list[str] = []

    async def write(key: str, value: int) -> None:
        if value == 1:
            raise ZeroDivisionError("made by the test")
        written.append(key)

    writer: CoalescingWriter[str, int] = CoalescingWriter(write, in_flight=1)
    writer["evil"], writer["good"] = 1, 2
    running = asyncio.create_task(writer.run())
    try:
        async with asyncio.timeout(120):
            while not written:
                await asyncio.sleep(0)
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    assert written == ["good"]
