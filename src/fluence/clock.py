"""Clock: the only source of time. It is passed in, so that tests and the simulator control it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks: one for timestamps, one for durations."""

    def now(self) -> float:
        """Seconds since 1970. It may jump, so it is written into objects and never subtracted."""

    def monotonic(self) -> float:
        """Seconds that only grow, even while the process is stopped or the machine sleeps."""


class SystemClock:
    """The clock of the machine."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        # CLOCK_MONOTONIC stops while a machine is suspended, but a lease does not. CLOCK_BOOTTIME continues.
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()  # pragma: no cover - other systems than Linux


class ManualClock:
    """A clock that moves only by `advance` and `jump`."""

    def __init__(self, now: float = 1_800_000_000.0, monotonic: float = 1_000.0) -> None:
        self._now = now
        self._monotonic = monotonic

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        if seconds < 0:
            raise ValueError("time does not go back; use jump() for the wall clock")
        self._now += seconds
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back, as NTP or an administrator does. The monotonic clock is not
        affected."""
        self._now += seconds
