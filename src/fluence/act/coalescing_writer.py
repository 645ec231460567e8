"""CoalescingWriter: one write per object at a time, and the latest value counts.

`StatusWriter` and `VolumeBinder` write through it. What comes while an older value for the same object waits
replaces it; while one is being written it waits, since the server may carry out two at once in any order. A
write that fails unexpectedly is logged, and the others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

logger = logging.getLogger(__name__)


class CoalescingWriter(Generic[K, V]):
    """``writer[key] = value`` from the loop; ``run`` has each written until cancelled, a few at once."""

    def __init__(self, write: Callable[[K, V], Awaitable[None]], *, in_flight: int) -> None:
        self._write = write
        self._in_flight = in_flight
        self._waiting: dict[K, V] = {}
        self._writing: set[K] = set()
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """How many are not written yet."""
        return len(self._waiting) + len(self._writing)

    def __setitem__(self, key: K, value: V) -> None:
        self._waiting[key] = value
        self._wake.set()

    def get(self, key: K) -> V | None:
        """What waits to be written of an object; None: nothing, or it is being written."""
        return self._waiting.get(key)

    def drop(self, key: K) -> None:
        self._waiting.pop(key, None)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._in_flight):
                tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            key = next((each for each in self._waiting if each not in self._writing), None)
            if key is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            value = self._waiting.pop(key)
            self._writing.add(key)
            try:
                await self._write(key, value)
            except Exception:
                logger.exception("%s: what was to be written is lost", key)
            finally:
                self._writing.discard(key)
            if key in self._waiting:
                self._wake.set()
