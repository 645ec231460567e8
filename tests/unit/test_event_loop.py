"""Interrupts wait while an event loop is made or closed; a program prints nothing of them."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from fluence import event_loop
from fluence.commands.running import cleans_up

# A program that interrupts itself; what it is at that moment is put for the dots.
PROGRAM = """
import asyncio, os, signal, socket
from fluence import event_loop

def interrupt():
    os.kill(os.getpid(), signal.SIGINT)

async def work():
    await asyncio.sleep(0)
{}
try:
    event_loop.run(work)
except KeyboardInterrupt:
    print("interrupted")
"""
MAKING = """
pair = socket.socketpair
def made():  # the loop's last part but one, and its finalizer needs it
    interrupt()
    return pair()
socket.socketpair = made
"""
CLOSING = """
close = asyncio.BaseEventLoop.close
def closed(self):
    interrupt()
    close(self)
asyncio.BaseEventLoop.close = closed
"""
MAKING_THE_COROUTINE = """
begin = work
def work():
    made = begin()
    interrupt()
    return made
"""
WITH_A_THREAD = """
import threading
closed = threading.Event()

async def work():
    loop = asyncio.get_running_loop()
    def answer():
        closed.wait(60)
        loop.call_soon_threadsafe(print, "answered")
    threading.Thread(target=answer).start()
    interrupt()
    await asyncio.sleep(60)

close = asyncio.BaseEventLoop.close
def close_and_tell(self):
    close(self)
    closed.set()
asyncio.BaseEventLoop.close = close_and_tell
"""
TWICE = """
async def work():
    try:
        interrupt()
        await asyncio.sleep(60)
    finally:
        asyncio.create_task(asyncio.sleep(60))
        begun = asyncio.sleep(60)
        interrupt()
        await begun
"""


@pytest.mark.parametrize("moment", [MAKING, CLOSING, MAKING_THE_COROUTINE, WITH_A_THREAD, TWICE])
def test_an_interrupt_is_raised_and_nothing_is_printed(moment: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(moment)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n", "", 0)


@pytest.fixture(autouse=True)
def own_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left out after an interrupt is left out until a program ends: not here."""
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)


@pytest.fixture
def heard() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_work_that_is_interrupted_takes_down_what_it_has_begun(heard: None) -> None:
    told: list[str] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)  # what it needs for that goes on
            told.append("taken down")

    with pytest.raises(KeyboardInterrupt):
        event_loop.run(work)
    assert told == ["taken down"]


def test_an_interrupt_at_the_very_end_is_not_lost(heard: None) -> None:
    async def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        event_loop.run(work)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_kill_cancels_work_that_cleans_up(number: signal.Signals) -> None:
    async def work() -> None:
        os.kill(os.getpid(), number)
        await asyncio.sleep(60)

    before = signal.signal(number, signal.SIG_DFL)  # under nohup it is ignored, and stays so
    try:
        with pytest.raises(SystemExit) as ended, cleans_up():
            event_loop.run(work)
    finally:
        signal.signal(number, before)
    assert ended.value.code == 128 + number


def test_work_may_handle_interrupts_itself(heard: None) -> None:
    async def work() -> str:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.wait_for(stop.wait(), 60)
        return "told to stop"

    assert event_loop.run(work) == "told to stop"


def test_what_work_answers_and_raises_comes_out(heard: None) -> None:
    async def answers() -> int:
        return 7

    async def fails() -> None:
        raise ValueError("odd")

    assert event_loop.run(answers) == 7
    with pytest.raises(ValueError, match="odd"):
        event_loop.run(fails)
