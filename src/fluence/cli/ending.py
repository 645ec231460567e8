"""Ending: a closed terminal or a `kill` ends a command as Ctrl-C does: it takes down what it began."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def cleans_up() -> Iterator[None]:
    """A closed terminal or a `kill` ends this as Ctrl-C does: with everything taken down."""
    before = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # NB nohup
            signal.signal(number, _end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)
