"""Startup: the first and last steps of a program, for Ctrl-C and closed streams before other code can handle
them.

Loading takes a good part of a second. While modules load, and after the work, an interrupt ends the process
silently, like any program without a handler. In between it is a KeyboardInterrupt, and the exit code is 130.
A closed stream (`fluence … >&-`) is opened on /dev/null: otherwise the next file would get its number. What
Python loads before our first line is out of reach.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # `typing` takes longer to load than everything here
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import NoReturn
else:
    # `_signal` is built into Python. `signal` loads `enum` and makes names of numbers, which takes
    # milliseconds in which an interrupt would still be Python's.
    import _signal as signal

INTERRUPTED = 130
_AGAIN_S = 0.01


class Loading:
    """``with Loading(): import …``: nothing has started yet, so an interrupt ends the process.

    Python would print an interrupt during an import, because it cannot be raised from the import's own
    callbacks.
    """

    def __enter__(self) -> None:
        self._was_heard = _is_main_thread() and _end_at_once()

    def __exit__(self, *exc: object) -> None:
        if self._was_heard:
            _raise_in_work()


def start() -> None:
    _end_at_once()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # how Python represents a closed stream
            mode = os.O_RDONLY if name == "stdin" else os.O_WRONLY
            opened = os.open(os.devnull, mode)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            stream = os.fdopen(number, "r" if name == "stdin" else "w", encoding="utf-8", closefd=False)
            setattr(sys, name, stream)


def run(work: Callable[[], object]) -> NoReturn:
    """Do the work of a program, and end it. Only Python's own shutdown follows."""
    try:
        try:
            sys.unraisablehook = _repeat
            _raise_in_work()
            code = work()
        finally:
            _end_at_once()
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:  # a second one while the first was being handled
        _end_at_once()
        code = INTERRUPTED
    raise SystemExit(code)


def _end_at_once() -> bool:
    """Let an interrupt end the process. Returns whether it was a KeyboardInterrupt until now. An interrupt
    that is ignored (in a shell's background job) or has another handler stays as it is."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return True


def _raise_in_work() -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _repeat(lost: sys.UnraisableHookArgs) -> None:
    """Repeat an interrupt that came in a finalizer or in a callback of an import. It cannot be raised from
    there, and Python would only print it. It comes again in a moment, somewhere else."""
    number = _signal_of(lost.exc_value)
    if number is None:
        sys.__unraisablehook__(lost)
        return
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(number))
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)


def _signal_of(fault: BaseException | None) -> int | None:
    """The signal that raised this."""
    if isinstance(fault, KeyboardInterrupt):
        return signal.SIGINT
    if isinstance(fault, SystemExit):  # a `kill`, if there is something to clean up
        return next(
            (number for number in (signal.SIGTERM, signal.SIGHUP) if fault.code == 128 + number), None
        )
    return None


def _is_main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()
