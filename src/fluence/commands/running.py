"""Running: for commands that run until they are stopped, or must clean up: signals, the log, the first
fault."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator

from fluence import event_loop
from fluence.errors import FluenceError


def run_until_stopped(work: Callable[[], Awaitable[None]], *, log_level: str = "info") -> None:
    """Run until SIGTERM or Ctrl-C. A fault ends it with one line."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=log_level.upper())
    for noisy in ("asyncio", "aiohttp", "grpc"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        event_loop.run(lambda: _run(work))
    except* (FluenceError, OSError) as faults:
        raise _first(faults) from None


async def _run(work: Callable[[], Awaitable[None]]) -> None:
    task = asyncio.ensure_future(work())
    loop = asyncio.get_running_loop()
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    try:
        await task
    except asyncio.CancelledError:
        if not stopped:
            raise


def _first(faults: BaseExceptionGroup[Exception]) -> FluenceError:
    fault: BaseException = faults
    while isinstance(fault, BaseExceptionGroup):
        fault = fault.exceptions[0]
    return fault if isinstance(fault, FluenceError) else FluenceError(str(fault))


@contextlib.contextmanager
def cleans_up() -> Iterator[None]:
    """Let a closed terminal or a `kill` end the block like Ctrl-C, so that everything is cleaned up."""
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # set by nohup
            signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)
