"""Event loops for programs: `run` is `asyncio.run` with interrupts that wait while a loop is made or closed.

Python raises an interrupt wherever the main thread is. While a loop is being made or closed, that leaves half
a loop and a coroutine that is never awaited, and Python prints both. So a signal that would raise is noted:
it cancels the work, and is raised when the loop is closed. Sending it again raises it at once.
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
    """Run the coroutine of ``work`` in a loop of its own. ``work`` is called when interrupts already wait: a
    coroutine that is made before may never be awaited."""
    if threading.current_thread() is not threading.main_thread():  # no signal is handled there
        return asyncio.run(work())  # noqa: TID251
    with _Interrupts() as interrupts, asyncio.Runner() as runner:
        return runner.run(interrupts.cancelling(work))


class _Interrupts:
    """Handles signals that have a Python handler, while a loop is made, runs and is closed. Signals that end
    the process or are ignored stay as they are, and work may set its own handlers."""

    def __init__(self) -> None:
        self._before: dict[int, _Handler] = {}
        self._noted: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[Any] | None = None  # set while it may be cancelled

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
            return  # it is being made, which takes a moment
        if not first:
            self._loop.set_exception_handler(lambda loop, context: None)
            warnings.simplefilter("ignore")  # what is interrupted now was never awaited
            self._before[number](number, frame)
        elif self._task is not None:
            # through the loop, which may be busy or asleep
            self._loop.call_soon_threadsafe(self._task.cancel)


def _leave_out_late_answers(fault: threading.ExceptHookArgs) -> None:
    """Ignore a thread of cancelled work (a database driver, for example) that answers to a loop which is
    already closed."""
    if not (isinstance(fault.exc_value, RuntimeError) and str(fault.exc_value) == "Event loop is closed"):
        threading.__excepthook__(fault)
