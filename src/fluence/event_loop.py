"""Event loops for programs: `run` is `asyncio.run` with interrupts that wait while a loop is made or closed.

Python raises an interrupt wherever the main thread happens to be. In the midst of making a loop, or of
closing one, that leaves half a loop and a coroutine that nobody awaits, and Python prints both. So a signal
that would raise is noted: it cancels the work, and is raised when the loop is closed. Who cannot wait for
that sends it again: the second one is raised at once.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import warnings
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, Self, TypeAlias, TypeVar

_T = TypeVar("_T")
_Handler: TypeAlias = Callable[[int, FrameType | None], Any]

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run(work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """Run what ``work`` makes in a loop of its own. It is called when interrupts wait already: a coroutine
    that is made before may never be awaited."""
    if threading.current_thread() is not threading.main_thread():  # where no signal is handled
        return asyncio.run(work())  # noqa: TID251
    with _Interrupts() as interrupts, asyncio.Runner() as runner:
        return runner.run(interrupts.cancelling(work))


class _Interrupts:
    """Signals with a handler of Python's, while a loop is made, runs and is closed. Those that end the
    process or are ignored stay as they are, and work may set handlers of its own."""

    def __init__(self) -> None:
        self._before: dict[int, _Handler] = {}
        self._noted: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None  # while it may be cancelled

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):
                self._before[number] = handler
                signal.signal(number, self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in reversed(self._before.items()):
            signal.signal(number, handler)
        if self._noted is not None:
            self._before[self._noted](self._noted, None)

    async def cancelling(self, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """Do the work; a signal cancels it."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            if self._noted is not None:
                raise asyncio.CancelledError
            return await work()
        finally:
            self._task = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        first, self._noted = self._noted is None, self._noted or number
        threading.excepthook = _leave_out_late_answers
        if self._loop is None:
            return  # it is being made: that takes a moment
        if not first:
            self._loop.set_exception_handler(lambda loop, context: None)
            warnings.simplefilter("ignore")  # what is torn apart now was never awaited
            self._before[number](number, frame)
        elif self._task is not None:
            # NB by the loop: it may be in the midst of something, or asleep
            self._loop.call_soon_threadsafe(self._task.cancel)


def _leave_out_late_answers(fault: threading.ExceptHookArgs) -> None:
    """A thread that was asked by work that is cancelled (a database's driver, say) answers to a loop that is
    closed: nobody needs to hear of that."""
    if not (isinstance(fault.exc_value, RuntimeError) and str(fault.exc_value) == "Event loop is closed"):
        threading.__excepthook__(fault)
