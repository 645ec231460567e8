"""CoalescingWriter: one write per object at a time, and the latest value counts.

`StatusWriter` and `VolumeBinder` write through it. What comes while an older value for the same object waits
replaces it; while one is being written it waits, since the server may carry out two at once in any order. A
write that fails unexpectedly is logged, and the others go on. Namespaces take turns: thousands of writes for
one of them delay those for another by one write each.
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

    def __init__(
        self,
        write: Callable[[K, V], Awaitable[None]],
        *,
        in_flight: int,
        namespace: Callable[[K, V], str] = lambda key, value: "",
    ) -> None:
        self._write = write
        self._in_flight = in_flight
        self._namespace = namespace
        self._waiting: dict[K, V] = {}
        self._turns: dict[str, dict[K, None]] = {}  # what waits, by namespace; the next first
        self._writing: set[K] = set()
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        """How many are not written yet."""
        return len(self._waiting) + len(self._writing)

    def __setitem__(self, key: K, value: V) -> None:
        if key not in self._waiting:
            self._turns.setdefault(self._namespace(key, value), {})[key] = None
        self._waiting[key] = value
        self._wake.set()

    def get(self, key: K) -> V | None:
        """What waits to be written of an object; None: nothing, or it is being written."""
        return self._waiting.get(key)

    def drop(self, key: K) -> None:
        if key in self._waiting:
            self._take(key)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._in_flight):
                tasks.create_task(self._work())

    def _next(self) -> K | None:
        """The next object that can be written, of the first namespace that has one; that one goes to the
        end."""
        for namespace, keys in self._turns.items():
            key = next((each for each in keys if each not in self._writing), None)
            if key is not None:
                self._turns[namespace] = self._turns.pop(namespace)
                return key
        return None

    def _take(self, key: K) -> V:
        value = self._waiting.pop(key)
        namespace = self._namespace(key, value)
        del self._turns[namespace][key]
        if not self._turns[namespace]:
            del self._turns[namespace]
        return value

    async def _work(self) -> None:
        while True:
            key = self._next()
            if key is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            value = self._take(key)
            self._writing.add(key)
            try:
                await self._write(key, value)
            except Exception:
                logger.exception("%s: what was to be written is lost", key)
            finally:
                self._writing.discard(key)
            if key in self._waiting:
                self._wake.set()
