"""HistoryWriter: writes the history in a thread of its own, and nothing waits for it.

    cycle ──► put ──► backlog ──► HistoryStore ──► SQLite or PostgreSQL
              (returns at once)   (batches, one transaction each; tried again when they fail)

A database that is slow, full, locked or gone delays no cycle: entries collect in a bounded backlog, the log
says so once, and a metric shows it. When the database is back, all existing jobs are written again, jobs that
ended unseen are closed as unknown, and a row in `gaps` says what is missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import structlog

from fluence import messages
from fluence.backoff import Backoff
from fluence.clock import Clock
from fluence.live.threads import LoopThread
from fluence.model.job_state import JobEntry, PastRun
from fluence.store import HistoryUnavailable, Retention

if TYPE_CHECKING:
    from fluence.store.history_store import HistoryStore

log = structlog.get_logger("fluence.history")


class HistoryBacklog:
    """Entries to be written. Safe to use from two threads; the lock is only held for copies."""

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._runs: dict[int, list[JobEntry]] = {}  # by job; several if it ran again meanwhile
        self._jobs: dict[str, dict[int, None]] = {}  # by namespace
        self._count = 0
        self._lost = 0
        self._shed = False
        self._roll: tuple[frozenset[int], int] | None = None

    def __len__(self) -> int:
        return self._count

    def put(self, entries: Iterable[JobEntry], roll: frozenset[int] | None, now: int) -> None:
        """Add the entries of a cycle."""
        with self._lock:
            for entry in entries:
                self._add(entry)
            if roll is not None:
                self._roll = (roll, now)

    def take(self, most: int) -> list[JobEntry]:
        """Take up to ``most`` entries, oldest first."""
        taken: list[JobEntry] = []
        with self._lock:
            while self._runs and len(taken) < most:
                taken += self._remove(next(iter(self._runs)))
        return taken

    def put_back(self, entries: Iterable[JobEntry]) -> None:
        """Put back entries that could not be written. Newer entries of the same runs win."""
        with self._lock:
            newer, self._runs, self._jobs, self._count = self._runs, {}, {}, 0
            for entry in (*entries, *(run for runs in newer.values() for run in runs)):
                self._add(entry)

    def take_roll(self) -> tuple[frozenset[int], int] | None:
        """The jobs that existed at a resync, and its time; only once all earlier entries are taken."""
        with self._lock:
            if self._runs:
                return None
            roll, self._roll = self._roll, None
            return roll

    def put_roll_back(self, roll: tuple[frozenset[int], int]) -> None:
        with self._lock:
            self._roll = self._roll or roll

    def lose(self, count: int) -> None:
        """Count entries that the database will never accept."""
        with self._lock:
            self._lost += count

    def take_losses(self) -> tuple[int, bool]:
        """How many entries are lost, and whether a resync would restore others."""
        with self._lock:
            losses = self._lost, self._shed
            self._lost, self._shed = 0, False
            return losses

    def _add(self, entry: JobEntry) -> None:
        runs = self._runs.get(entry.job)
        if runs and runs[-1].started in (None, entry.started):
            if not entry.reasons:
                entry = replace(entry, reasons=runs[-1].reasons)
            runs[-1] = entry
            return
        if self._count >= self._most:
            self._shed_open()
        self._runs.setdefault(entry.job, []).append(entry)
        self._jobs.setdefault(entry.namespace, {})[entry.job] = None
        self._count += 1
        if self._count > self._most:
            self._push_out()

    def _remove(self, job: int) -> list[JobEntry]:
        runs = self._runs.pop(job)
        for namespace in {run.namespace for run in runs}:
            self._jobs[namespace].pop(job, None)
            if not self._jobs[namespace]:
                del self._jobs[namespace]
        self._count -= len(runs)
        return runs

    def _push_out(self) -> None:
        """Drop the newest job of the namespace with the most jobs."""
        largest = max(self._jobs.values(), key=len)
        self._lost += len(self._remove(next(reversed(largest))))

    def _shed_open(self) -> None:
        for job, runs in list(self._runs.items()):
            self._remove(job)
            for run in runs:
                if run.state.is_over:
                    self._runs.setdefault(job, []).append(run)
                    self._jobs.setdefault(run.namespace, {})[job] = None
                    self._count += 1
        self._shed = True


_POLL_SECONDS = 0.5  # between two checks of the backlog
_MAX_RETRY_SECONDS = 30.0  # between two tries while the database does not answer
_BATCH = 500  # entries in one transaction
_SHUTDOWN_SECONDS = 2.0  # for the last writes at shutdown
_PRUNE_S = 3600.0
RENEW_SECONDS = 600.0  # between two updates that the jobs of this cluster still exist
_RUNS = 4000  # past runs to read: more than a predictor remembers


class HistoryMetrics(Protocol):
    """The metrics of the history. They may be called from any thread."""

    def history_written(self, count: int) -> None: ...

    def history_lost(self, count: int) -> None: ...

    def history_is(self, *, up: bool, backlog: int) -> None: ...


class HistoryWriter:
    """``learn`` gets the past runs, and ``call_roll`` starts a resync. Both are called on the main loop."""

    def __init__(
        self,
        store: Callable[[str], HistoryStore],
        clock: Clock,
        *,
        keep: Retention | None = None,
        most: int = 10_000,
        every_s: float = _POLL_SECONDS,
    ) -> None:
        """``store`` opens the history for the name of a cluster."""
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
        self._lost = 0  # entries that no row in `gaps` covers yet
        self._shed = False  # entries were dropped that a resync restores
        self._pruned_at: float | None = None
        self._renewed_at: float | None = None
        self._cycle_at: int | None = None  # the time of the last cycle, ms

    def put(self, entries: Iterable[JobEntry], roll: frozenset[int] | None, now: int) -> None:
        """Add the entries of a cycle. Returns at once."""
        self._cycle_at = now
        self.backlog.put(entries, roll, now)

    async def run(self) -> None:
        """Write until cancelled; then write the rest, if that is quick."""
        here = asyncio.get_running_loop()
        async with LoopThread("history") as thread:
            await thread.run(self._turn(here))

    # -- in its thread ---------------------------------------------------------------------------------------

    async def _turn(self, core: asyncio.AbstractEventLoop) -> None:
        backoff = Backoff(self._every_s, _MAX_RETRY_SECONDS)
        pause = backoff.first
        try:
            while True:
                pause = backoff.first if await self._try(core) else backoff.longer(pause)
                await asyncio.sleep(pause)
        finally:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(self._flush(core), _SHUTDOWN_SECONDS)
            await self._close()

    async def _try(self, core: asyncio.AbstractEventLoop) -> bool:
        """Write the backlog. Returns whether that succeeded."""
        if not self.held():
            if self._store is not None:
                self._store.forget_written()
            return True  # another replica leads and writes
        try:
            await self._flush(core)
        except Exception as error:  # no error here may end the scheduler
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
        await self._renew(store)
        await self._prune(store)

    async def _ready(self, core: asyncio.AbstractEventLoop) -> HistoryStore:
        if self._store is None:
            self._store = self._open(self.cluster)
        if self._is_migrated and self._store.is_gone:
            raise HistoryUnavailable(f"the history at {self._store.url} was deleted")
        if not self._is_migrated:
            revision = await self._store.migrate()
            self._is_migrated = True
            log.info("history is kept", where=str(self._store.url), revision=revision)
        if not self._has_read:
            from fluence.store.queries import past_runs

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
        """Write entries one by one, so that one which the database refuses does not cost the others."""
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

    async def _renew(self, store: HistoryStore) -> None:
        """From time to time, record that the jobs of this cluster still exist. The time is that of the last
        cycle, so entries of later cycles replace it."""
        now, at = self._clock.monotonic(), self._cycle_at
        if at is None or (self._renewed_at is not None and now < self._renewed_at + RENEW_SECONDS):
            return
        self._renewed_at = now
        await store.renew(at)

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
        self._is_migrated = False  # it may be another database, or empty, when it is back
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
                await asyncio.wait_for(store.close(), _SHUTDOWN_SECONDS)
