"""Seconds that something took, without those in which this thread wanted a processor and had none: a machine
that is starved does not fail a test of what blocks."""

from __future__ import annotations

import time
from pathlib import Path

_SCHEDSTAT = Path("/proc/thread-self/schedstat")  # ns on a processor, ns in its queue, turns


def now() -> float:
    """A clock that stands still while this thread is in the queue of a processor."""
    return time.perf_counter() - _queued_s()


def _queued_s() -> float:
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0
