"""Heartbeat: whether the core still comes round, asked from outside of it.

The core is one loop: cycles, watches, answers. While a cycle runs nothing else does, however long it takes;
so a loop that has not come round for ``limit_s`` hangs, in a cycle or elsewhere, and a restart may cure it.
"""

from __future__ import annotations

import asyncio

from fluence.clock import Clock

_EVERY_S = 1.0


class Heartbeat:
    """``run`` on the loop that is watched; ``hung`` from any thread."""

    def __init__(self, clock: Clock, *, limit_s: float) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self._last = clock.monotonic()

    async def run(self) -> None:
        while True:
            self._last = self._clock.monotonic()
            await asyncio.sleep(min(_EVERY_S, self._limit_s / 4))

    def hung(self) -> str:
        """What is wrong; empty: nothing. Names nothing that users have named: anybody may read it."""
        silent = self._clock.monotonic() - self._last
        if silent <= self._limit_s:
            return ""
        return f"the core hangs: it has not come round for {silent:.0f} s (stuck-after: {self._limit_s:g} s)"
