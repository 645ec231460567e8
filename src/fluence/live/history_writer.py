"""HistoryWriter: writes the history behind the scheduler, in a thread of its own; nothing waits for it.

    cycle ──► put ──► backlog ──► HistoryStore ──► SQLite or PostgreSQL
              (returns at once)   (batches, one transaction each; tried again when they fail)

A database that is slow, full, locked or gone delays no cycle: entries gather in a bounded backlog, the log
says so once, and a metric for as long as it lasts. When it is back, the jobs that there are say again what
they are, those that ended unseen are closed as unknown, and a row in `gaps` says what is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import structlog

from fluence import messages
from fluence.clock import Clock
from fluence.live.history_backlog import HistoryBacklog
from fluence.live.loop_thread import LoopThread
from fluence.model.job_entry import JobEntry, PastRun
from fluence.store.history_store import HistoryStore, HistoryUnavailable
from fluence.store.queries import past_runs
from fluence.store.retention import Retention

log = structlog.get_logger("fluence.history")

_EVERY_S = 0.5  # between two looks at the backlog
_LONGEST_S = 30.0  # and between two tries while the database does not answer
_BATCH = 500  # entries in one transaction
_LAST_S = 2.0  # for what is left when it is to end
_PRUNE_S = 3600.0
_RUNS = 4000  # that are read back: more than a predictor remembers


class HistoryMetrics(Protocol):
    """What is counted; each may be called from any thread."""

    def history_written(self, count: int) -> None: ...

    def history_lost(self, count: int) -> None: ...

    def history_is(self, *, up: bool, backlog: int) -> None: ...


class HistoryWriter:
    """``learn`` gets the runs that were read back, ``call_roll`` asks for everything once more; both are
    called on the core's loop."""

    def __init__(
        self,
        store: Callable[[str], HistoryStore],
        clock: Clock,
        *,
        keep: Retention | None = None,
        most: int = 10_000,
        every_s: float = _EVERY_S,
    ) -> None:
        """``store`` opens the history, given the cluster's name."""
        self.backlog = HistoryBacklog(most)
        self.cluster = ""
        self.learn: Callable[[Sequence[PastRun]], None] = lambda runs: None
        self.call_roll: Callable[[], None] = lambda: None
        self.held: Callable[[], bool] = lambda: True
        self.metrics: HistoryMetrics | None = None
        self._open = store
        self._clock = clock
        self._keep = keep or Retention()
        self._every_s = every_s
        self._store: HistoryStore | None = None
        self._is_migrated = self._has_read = False
        self._down: tuple[int, str] | None = None  # since when, and why
        self._lost = 0  # entries that no gap tells of yet
        self._shed = False  # entries were let go that a roll call brings back
        self._pruned_at: float | None = None

    def put(self, entries: Iterable[JobEntry], roll: frozenset[int] | None, now: int) -> None:
        """What a cycle had to say; returns at once."""
        self.backlog.put(entries, roll, now)

    async def run(self) -> None:
        """Write until cancelled; then what is left, as far as that goes quickly."""
        here = asyncio.get_running_loop()
        async with LoopThread("history") as thread:
            await thread.run(self._turn(here))

    # -- in its thread ---------------------------------------------------------------------------------------

    async def _turn(self, core: asyncio.AbstractEventLoop) -> None:
        pause = self._every_s
        try:
            while True:
                pause = self._every_s if await self._try(core) else min(2 * pause, _LONGEST_S)
                await asyncio.sleep(pause)
        finally:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._flush(core), _LAST_S)
            await self._close()

    async def _try(self, core: asyncio.AbstractEventLoop) -> bool:
        """Write what there is; whether that went well."""
        if not self.held():
            return True  # another one leads, and writes
        try:
            await self._flush(core)
        except Exception as error:  # whatever it is, it must not end the scheduler
            await self._failed(error)
        else:
            self._worked(core)
        if self.metrics is not None:
            self.metrics.history_is(up=self._down is None, backlog=len(self.backlog))
        return self._down is None

    async def _flush(self, core: asyncio.AbstractEventLoop) -> None:
        store = await self._ready(core)
        while batch := self.backlog.take(_BATCH):
            try:
                await self._write(store, batch)
            except BaseException:
                self.backlog.put_back(batch)
                raise
        await self._tell_gap(store)
        await self._roll(store)
        await self._prune(store)

    async def _ready(self, core: asyncio.AbstractEventLoop) -> HistoryStore:
        if self._store is None:
            self._store = self._open(self.cluster)
        if self._is_migrated and self._store.is_gone:
            raise HistoryUnavailable(f"the history at {self._store.url} was deleted")
        if not self._is_migrated:
            found = await self._store.migrate()
            self._is_migrated = True
            log.info("history is kept", where=str(self._store.url), revision=found)
        if not self._has_read:
            runs = await past_runs(self._store, _RUNS)
            self._has_read = True
            core.call_soon_threadsafe(self.learn, runs)
        return self._store

    async def _write(self, store: HistoryStore, batch: list[JobEntry]) -> None:
        entries = [(entry, messages.texts(entry.reasons)) for entry in batch]
        try:
            await store.write(entries)
        except HistoryUnavailable as error:
            if not error.is_refusal:
                raise
            await self._one_by_one(store, entries)
        if self.metrics is not None:
            self.metrics.history_written(len(batch))

    async def _one_by_one(self, store: HistoryStore, entries: list[tuple[JobEntry, str]]) -> None:
        """One of them is what the database does not take: the others shall not suffer for it."""
        for entry, text in entries:
            try:
                await store.write([(entry, text)])
            except HistoryUnavailable as error:
                if not error.is_refusal:
                    raise
                log.error("not in the history", job=entry.key, reason=str(error))
                self.backlog.lose(1)

    async def _tell_gap(self, store: HistoryStore) -> None:
        self._take_losses()
        if self._lost:
            now = int(self._clock.now() * 1000)
            began, reason = self._down or (now, "entries that the database refused, or too many at once")
            await store.add_gap(began, now, self._lost, reason)
            self._lost = 0

    async def _roll(self, store: HistoryStore) -> None:
        roll = self.backlog.take_roll()
        if roll is None:
            return
        try:
            unseen = await store.call_roll(*roll)
        except BaseException:
            self.backlog.put_roll_back(roll)
            raise
        if unseen:
            log.info("jobs ended unseen", jobs=unseen)

    async def _prune(self, store: HistoryStore) -> None:
        now = self._clock.monotonic()
        if self._pruned_at is not None and now < self._pruned_at + _PRUNE_S:
            return
        self._pruned_at = now
        gone = await store.prune(self._keep, int(self._clock.now() * 1000))
        if gone.jobs:
            log.info("history is pruned", jobs=gone.jobs, events=gone.events)

    async def _failed(self, error: Exception) -> None:
        if self._down is None:
            self._down = (int(self._clock.now() * 1000), str(error))
            log.warning("history is not written", reason=str(error), backlog=len(self.backlog))
        self._is_migrated = False  # it may be another one, or empty, when it is back
        await self._close()

    def _worked(self, core: asyncio.AbstractEventLoop) -> None:
        if self._down is not None:
            log.info("history is written again", since=self._down[0])
        if self._down is not None or self._shed:
            self._down, self._shed = None, False
            core.call_soon_threadsafe(self.call_roll)

    def _take_losses(self) -> None:
        lost, shed = self.backlog.take_losses()
        self._lost += lost
        self._shed = self._shed or shed
        if lost and self.metrics is not None:
            self.metrics.history_lost(lost)

    async def _close(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(store.close(), _LAST_S)
