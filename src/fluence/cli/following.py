"""Programs that follow something until they are told to stop: signals, the log, the first fault."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable

from fluence import event_loop
from fluence.errors import FluenceError


def run_until_stopped(work: Callable[[], Awaitable[None]], *, log_level: str = "info") -> None:
    """Run until SIGTERM or Ctrl-C; a fault ends it with one line."""
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
