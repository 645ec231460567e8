"""A loop in a thread of its own goes on while this one is busy, and is gone with its block."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator

import pytest

from fluence.live.threads import LoopThread


async def name() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


async def test_work_runs_there_and_answers_here() -> None:
    async with LoopThread("beside") as thread:
        assert await thread.run(name()) == "beside"
    assert "beside" not in {each.name for each in threading.enumerate()}


async def test_it_goes_on_while_this_loop_is_busy() -> None:
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.01)

    async with LoopThread("beside") as thread:
        task = asyncio.create_task(thread.run(turn()))
        await asyncio.sleep(0.05)
        before, end = turns, time.monotonic() + 0.5
        while time.monotonic() < end:  # as a cycle does: without a sleep, which would give way
            pass
        assert turns > before + 5
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()


async def test_a_fault_there_is_a_fault_here() -> None:
    async def fail() -> None:
        raise ValueError("there")

    async with LoopThread("beside") as thread:
        with pytest.raises(ValueError, match="there"):
            await thread.run(fail())
        assert await thread.run(name()) == "beside"


async def test_a_cancel_is_waited_for() -> None:
    ended = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            ended.append("work")

    async with LoopThread("beside") as thread:
        task = asyncio.create_task(thread.run(work()))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait({task})
        assert ended == ["work"]


async def test_what_was_entered_is_left_there_in_reverse() -> None:
    said = []

    @contextlib.asynccontextmanager
    async def context(what: str) -> AsyncIterator[str]:
        said.append(f"in {what} {await name()}")
        yield what
        said.append(f"out {what} {await name()}")

    async with LoopThread("beside") as thread:
        assert await thread.enter(context("a")) == "a"
        await thread.enter(context("b"))
    assert said == ["in a beside", "in b beside", "out b beside", "out a beside"]
