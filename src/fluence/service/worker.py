"""Worker: one thread that does the work of all calls in order, with one sync to disk for many of them.

Calls that arrive while the thread is busy are carried out together; their changes are written and synced
once, and then all of them are answered. So the disk limits the latency of a call but not the number of calls
per second.

Replies may be large, and clients may read them slowly. A call with a possibly large reply waits while the
unsent replies are at their limit; other calls overtake it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, Final, NamedTuple, TypeVar

from fluence.errors import FluenceError
from fluence.service.engine import Found, Match, PartReleased
from fluence.service.graphs import Graphs
from fluence.service.journal import JournalError

logger = logging.getLogger(__name__)

T = TypeVar("T")
_BATCH: Final = 256
_BATCH_BYTES: Final = 4 << 20  # a batch ends when its results exceed this

Work = Callable[[], Any]
Result = tuple[bool, Any]  # whether it succeeded, and what it returned or raised


class Replies:
    """The size of replies that are made but not sent yet."""

    def __init__(self, limit: int = 32 << 20) -> None:
        self._limit = limit
        self.bytes = 0
        self.wake: Callable[[], None] = lambda: None

    @property
    def has_room(self) -> bool:
        return self.bytes < self._limit


class Charge:
    """The size of the reply of one call, from when it is made until it is sent."""

    __slots__ = ("_bytes", "_replies")

    def __init__(self, replies: Replies) -> None:
        self._replies = replies
        self._bytes = 0

    @property
    def has_room(self) -> bool:
        return self._replies.has_room

    def add(self, count: int) -> None:
        self._bytes += count
        self._replies.bytes += count

    def release(self) -> None:
        if self._bytes:
            self._replies.bytes -= self._bytes
            self._bytes = 0
            self._replies.wake()


REPLY: ContextVar[Charge | None] = ContextVar("REPLY", default=None)  # of the call that is being answered


class _Item(NamedTuple):
    work: Work
    future: asyncio.Future[Any]
    charge: Charge | None


class Worker:
    """``await worker.do(work)`` while ``worker.run()`` runs."""

    def __init__(self, graphs: Graphs, *, changed: Callable[[set[str]], None]) -> None:
        self._graphs = graphs
        self._changed = changed  # called on the event loop with the names of graphs that changed
        self._waiting: list[_Item] = []
        self._wake = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "fluence-service")
        self._fault: BaseException | None = None

    async def do(self, work: Callable[[], T]) -> T:
        """Run the work on the thread. Returns or raises its result once its changes are on disk."""
        if self._fault is not None:
            raise self._fault
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Item(work, future, REPLY.get()))
        self._wake.set()
        try:
            return await future
        finally:
            del work, future  # an exception refers to this frame and would keep the request alive

    async def run(self) -> None:
        """Carry out calls until cancelled. Raises `JournalError` when changes cannot be stored any more."""
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            while batch := self._next_batch():
                try:
                    results = await asyncio.shield(
                        loop.run_in_executor(self._thread, self._carry_out, [item.work for item in batch])
                    )
                except JournalError as fault:
                    self._fail(batch, fault)
                    raise
                self._waiting[:0] = batch[len(results) :]  # the batch was cut
                for item, (succeeded, value) in zip(batch, results, strict=False):
                    if item.future.done():
                        continue
                    if succeeded:
                        if item.charge is not None:
                            item.charge.add(_weight(value))
                        item.future.set_result(value)
                    else:
                        item.future.set_exception(value)
                del batch, results
                touched = self._graphs.touched()
                if touched:
                    self._changed(touched)

    def wake(self) -> None:
        """A reply was sent, so other calls may continue."""
        self._wake.set()

    def close(self) -> None:
        """Wait for the current work, and do nothing more."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _next_batch(self) -> list[_Item]:
        """The oldest calls, without those whose clients are gone, and those that must wait for replies to be
        sent."""
        batch: list[_Item] = []
        rest: list[_Item] = []
        for item in self._waiting:
            if item.future.done():
                continue
            fits = len(batch) < _BATCH and (item.charge is None or item.charge.has_room)
            (batch if fits else rest).append(item)
        self._waiting = rest
        return batch

    def _carry_out(self, batch: list[Work]) -> list[Result]:
        """The result of each call; fewer if the results have become large."""
        results: list[Result] = []
        size = 0
        for work in batch:
            if size > _BATCH_BYTES:
                break
            try:
                value = work()
                results.append((True, value))
                size += _weight(value)
            except FluenceError as error:
                error.__context__ = None
                results.append((False, error.with_traceback(None)))
            except Exception as error:  # a bug must not end the service
                logger.exception("a call failed")
                results.append((False, error))
        self._graphs.commit()
        return results

    def _fail(self, batch: list[_Item], fault: JournalError) -> None:
        """Fail all calls: their changes are not on disk, so no call may report success."""
        self._fault = fault
        for item in (*batch, *self._waiting):
            if not item.future.done():
                item.future.set_exception(fault)
        self._waiting.clear()


def _weight(value: object) -> int:
    """The approximate size of a result in bytes; 0 if it is small."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Match):
        return len(value.allocation) + 64 * len(value.shares)
    if isinstance(value, Found):
        return len(value.text) + sum(map(len, value.paths))
    if isinstance(value, PartReleased):
        return sum(map(len, value.paths))
    if isinstance(value, (tuple, list)):
        return 64 * len(value) + sum(_weight(each) for each in value)
    return 0
