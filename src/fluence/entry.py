"""The programs' first steps and their last: Ctrl-C and closed streams, while nothing else can deal with them.

Loading takes a good part of a second. While modules load, and when the work is done, an interrupt ends the
process without a word, as it does any program that has no handler; in between it is a KeyboardInterrupt, and
the exit code is 130. A stream that is closed (`fluence … >&-`) is opened on nothing: otherwise the next file
would get its number. What Python loads before the first line of ours is out of reach.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # NB `typing` takes longer to load than all that is here
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from typing import NoReturn
else:
    # NB what `signal` is made of, and a part of Python itself: `signal` loads `enum` and makes names of
    # numbers, for milliseconds in which an interrupt is Python's still.
    import _signal as signal

INTERRUPTED = 130
_AGAIN_S = 0.01


def fluence() -> NoReturn:
    """The program `fluence`."""
    _start()
    from fluence.cli.commands import main

    _work(main)


def kubectl_fluence() -> NoReturn:
    """The program `kubectl-fluence`."""
    _start()
    from fluence.kubectl.commands import run

    _work(run)


def kubectl_complete() -> NoReturn:
    """The program `kubectl_complete-fluence`."""
    _start()
    from fluence.kubectl.complete import run

    _work(run)


class Loading:
    """``with Loading(): import …``: nothing has begun yet, so an interrupt ends the process.

    Python would print one that comes while it imports: it does not raise out of the import's own callbacks.
    """

    def __enter__(self) -> None:
        self._was_heard = _is_main_thread() and _end_at_once()

    def __exit__(self, *exc: object) -> None:
        if self._was_heard:
            _raise_in_work()


def _start() -> None:
    _end_at_once()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # how Python finds a stream that is closed
            mode = os.O_RDONLY if name == "stdin" else os.O_WRONLY
            opened = os.open(os.devnull, mode)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            stream = os.fdopen(number, "r" if name == "stdin" else "w", encoding="utf-8", closefd=False)
            setattr(sys, name, stream)


def _work(work: Callable[[], object]) -> NoReturn:
    """Do what a program is for, and end it: what comes after this line is Python's."""
    try:
        try:
            sys.unraisablehook = _repeat
            _raise_in_work()
            code = work()
        finally:
            _end_at_once()
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:  # a second one, while the first was being dealt with
        _end_at_once()
        code = INTERRUPTED
    raise SystemExit(code)


def _end_at_once() -> bool:
    """Let an interrupt end the process; whether it was a KeyboardInterrupt until now. One that is ignored (a
    shell's background job) or that somebody else handles stays as it is."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return True


def _raise_in_work() -> None:
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _repeat(lost: sys.UnraisableHookArgs) -> None:
    """An interrupt that came in a finalizer, or in a callback of an import, cannot be raised from there, and
    Python would print it and go on. It comes again in a moment, somewhere else."""
    number = _signal_of(lost.exc_value)
    if number is None:
        sys.__unraisablehook__(lost)
        return
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(number))
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)


def _signal_of(fault: BaseException | None) -> int | None:
    """The signal that was raised as this."""
    if isinstance(fault, KeyboardInterrupt):
        return signal.SIGINT
    if isinstance(fault, SystemExit):  # as a `kill` is, where there is something to take down
        return next((each for each in (signal.SIGTERM, signal.SIGHUP) if fault.code == 128 + each), None)
    return None


def _is_main_thread() -> bool:
    import threading

    return threading.current_thread() is threading.main_thread()
