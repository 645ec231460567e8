"""One pass of a policy over the queue, at one moment; it can be taken back until it is kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum

from fluence.graph.graph import Ints
from fluence.queue.job import FOREVER, JobRecord
from fluence.queue.pending import Pending
from fluence.queue.planner import Planner


class PromiseAtRisk(Exception):
    """Made anew, the plan would start a job later than promised."""


class OverBudget(Exception):
    """A policy of a site took too long."""


class PassMode(Enum):
    """What becomes of the reservations there are."""

    EXTEND = "extend"  # they stand; nothing has changed that could improve them
    REBUILD = "rebuild"  # they are dropped, and all are placed anew, in order
    COMPRESS = "compress"  # each is moved ahead as far as the others allow


class SchedulingPass:
    """What a policy sees of the queue, and all that it may do."""

    def __init__(
        self,
        pending: Pending,
        space: Planner,
        now: int,
        mode: PassMode,
        blocked: Ints,
        *,
        since: int = 0,
        depth: int | None = None,
        window: int | None = None,
        keep: bool = True,
        admit: Callable[[JobRecord, int], bool] | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        self.now = now
        self.mode = mode
        self.starts: list[tuple[JobRecord, str]] = []
        self.begun: set[JobRecord] = set()  # jobs that started, or tasks of them: their promise is kept
        self.planned: dict[JobRecord, int] = {}  # reservations made in this turn
        self.tries = 0
        self._pending = pending
        self._space = space
        self._blocked = blocked
        self._since = since  # entries before this place have been tried already, and nothing came free
        self._end = len(pending) if depth is None else min(depth, len(pending))
        self._window = window
        self._keep = keep
        self._admit = admit
        self._check = check
        self.reserved = 0  # how many jobs hold a place in the plan
        # Of each queue and user: tasks started in this turn, and places in the plan. What is promised counts
        # against a user's limit, or the limit would break the promise.
        self.claims: Counter[tuple[str, str]] = Counter()

    def __iter__(self) -> Iterator[JobRecord]:
        """The jobs without a place in the plan, in order."""
        entries, place = self._pending.entries, 0
        while place < self._end:
            entry = entries[place]
            place += 1
            if entry.reserved_at is None and entry.waiting:
                yield entry

    def start(self, entry: JobRecord) -> bool:
        """Start a job now if that delays no reservation; an array may start in part."""
        clear = self._clear(entry)
        if clear >= self._blocked[entry.shape] or not self._admitted(entry):
            return False
        while entry.waiting:
            self.tries += 1
            task = entry.task()
            if not self._space.start(task, entry.job.request, self.now, entry.limit, clear):
                self._space.rule_out(entry.shape, clear, self._blocked, self.now)
                return False
            self._started(entry, task)
            if entry.waiting and not self._admitted(entry):
                return False
        return True

    def start_or_reserve(self, entry: JobRecord) -> bool:
        """Start a job now, or hold the earliest start for it; says whether it started."""
        while entry.waiting:
            if not self._admitted(entry):
                return False
            self.tries += 1
            task, clear = entry.task(), self._clear(entry)
            at = self._space.start_or_reserve(task, entry.job.request, self.now, entry.limit, clear)
            if at is None:
                return False  # what it needs is down; it holds nobody up
            if at > self.now:
                return self._reserved(entry, task, at)
            self._started(entry, task)
        return True

    def backfill(self) -> None:
        """Start every job without a place in the plan that delays none of those with one, in order."""
        pending, place = self._pending, self._since
        while (place := pending.next_unblocked(place, self._end, self._blocked)) < self._end:
            entry = pending.entries[place]
            place += 1
            if entry.reserved_at is None and entry.waiting:
                self.start(entry)

    # -- what the queue does before the policy ---------------------------------------------------------------

    def start_due(self, due: list[JobRecord]) -> None:
        """Start the jobs whose time has come."""
        for entry in due:
            self._release(entry)
            self._redeem(entry)
        self._go_on(due)
        for entry in due:
            if entry.waiting and entry.reserved_at is None:
                raise PromiseAtRisk(entry.key)

    def renew(self) -> None:
        """Move every reservation ahead as far as the others allow, in order, and none back. Where the time of
        some has come they go first, and then the others in the order of the plan: all are late by as much."""
        reserved = [entry for entry in self._pending.entries if entry.reserved_at is not None]
        if any((entry.reserved_at or 0) <= self.now for entry in reserved):
            reserved.sort(key=lambda entry: entry.reserved_at or 0)
            for entry in reserved:
                self._release(entry)
            for entry in reserved:
                self._redeem(entry)
            self._go_on(reserved)
            return
        for entry in reserved:
            self._move_ahead(entry)

    # -- inside ----------------------------------------------------------------------------------------------

    def _redeem(self, entry: JobRecord) -> None:
        """Start a job in the place that was held for it, or hold another. Others were planned behind it by
        its limit, so it need not be clear of them for longer, though nothing may end it."""
        if self._admitted(entry):
            task = entry.task()
            self.tries += 1
            if self._space.start(task, entry.job.request, self.now, entry.limit, entry.limit):
                self._started(entry, task)
                return
        self.start_or_reserve(entry)

    def _go_on(self, entries: list[JobRecord]) -> None:
        """The next task of an array, when all others have their places again."""
        for entry in entries:
            if entry in self.begun and entry.waiting:
                self.start_or_reserve(entry)

    def _move_ahead(self, entry: JobRecord) -> None:
        at, task = entry.reserved_at, entry.reserved_as
        assert at is not None
        if not self._space.may_move(task, self.now):
            return
        mark, started = self._space.mark(), len(self.starts)
        self._release(entry)
        self.start_or_reserve(entry)
        later = entry.reserved_at is None or entry.reserved_at > at
        if later and len(self.starts) == started:
            # A job that nothing ends finds no place in front of the others' any more, not even its own.
            self._space.undo(mark)
            self.claim(entry, int(entry.reserved_at is None))
            entry.reserved_at, entry.reserved_as = at, task
            self.planned.pop(entry, None)

    def _admitted(self, entry: JobRecord) -> bool:
        if self._check is not None:
            self._check()
        return self._admit is None or self._admit(entry, self.claims[entry.owner])

    def _clear(self, entry: JobRecord) -> int:
        """How long its resources must be free of promises: for ever, if nothing ends the job."""
        return entry.limit if entry.bounded or not self.reserved else FOREVER

    def _started(self, entry: JobRecord, task: str) -> None:
        entry.take()
        entry.running[task] = self.now
        self.starts.append((entry, task))
        self.begun.add(entry)
        self.claims[entry.owner] += 1

    def _reserved(self, entry: JobRecord, task: str, at: int) -> bool:
        if self._window is not None and at > self.now + self._window:
            self._space.drop(task)
            return False
        if self._keep and entry.deadline is not None and at > entry.deadline and entry not in self.begun:
            raise PromiseAtRisk(entry.key)
        entry.reserved_at, entry.reserved_as = at, task
        self.planned[entry] = at
        self.claim(entry, 1)
        return False

    def _release(self, entry: JobRecord) -> None:
        self._space.drop(entry.reserved_as)
        entry.reserved_at = None
        self.planned.pop(entry, None)
        self.claim(entry, -1)

    def claim(self, entry: JobRecord, change: int) -> None:
        """A job takes a place in the plan, or gives it up."""
        self.reserved += change
        self.claims[entry.owner] += change
