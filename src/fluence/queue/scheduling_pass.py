"""One pass of a policy over the queue, at one moment; it can be taken back until it is kept.

The queue makes one per cycle and hands it to the policy (`fluence.queue.policy`), which sees the jobs that
wait and may start them or reserve a start for them, and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from enum import Enum

from fluence.graph.graph import Ints
from fluence.queue.allocations import Allocation
from fluence.queue.job import FOREVER, JobRecord
from fluence.queue.pending import Pending
from fluence.queue.planner import Planner


class PromiseAtRisk(Exception):
    """Made anew, the plan would start a job later than promised."""


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
        planner: Planner,
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
        self.starts: list[tuple[JobRecord, Allocation]] = []
        self.begun: set[JobRecord] = set()  # jobs that started, or tasks of them: their promise is kept
        self.planned: dict[JobRecord, Allocation] = {}  # reservations made in this pass
        self.tries = 0
        self.current: JobRecord | None = None  # the job that is being tried, to name it if that fails
        self._pending = pending
        self._planner = planner
        self._blocked = blocked
        self._since = since  # records before this place have been tried already, and nothing came free
        self._end = len(pending) if depth is None else min(depth, len(pending))
        self._window = window
        self._keep = keep
        self._admit = admit
        self._check = check
        self.reserved = 0  # how many jobs hold a place in the plan
        # Of each queue and user: tasks started in this pass, and places in the plan. What is promised counts
        # against a user's limit, or the limit would break the promise.
        self.claims: Counter[tuple[str, str]] = Counter()

    def __iter__(self) -> Iterator[JobRecord]:
        """The jobs without a place in the plan, in order."""
        records, place = self._pending.records, 0
        while place < self._end:
            record = records[place]
            place += 1
            if record.reservation is None and record.waiting:
                yield record

    def start(self, record: JobRecord) -> bool:
        """Start a job now if that delays no reservation; an array may start in part."""
        clear = self._clear(record)
        if clear >= self._blocked[record.shape] or not self._admitted(record):
            return False
        while record.waiting:
            if self._start(record, clear) is None:
                self._planner.rule_out(record.shape, clear, self._blocked, self.now)
                return False
            if record.waiting and not self._admitted(record):
                return False
        return True

    def start_or_reserve(self, record: JobRecord) -> bool:
        """Start a job now, or hold the earliest start for it; says whether it started."""
        while record.waiting:
            if not self._admitted(record):
                return False
            self.tries += 1
            self.current = record
            held = self._planner.start_or_reserve(
                record.task(), record.job.request, self.now, record.limit, self._clear(record)
            )
            if held is None:
                return False  # what it needs is down; it holds nobody up
            if held.reserved:
                self._reserved(record, held)
                return False
            self._started(record, held)
        return True

    def backfill(self) -> None:
        """Start every job without a place in the plan that delays none of those with one, in order."""
        pending, place = self._pending, self._since
        while (place := pending.next_unblocked(place, self._end, self._blocked)) < self._end:
            record = pending.records[place]
            place += 1
            if record.reservation is None and record.waiting:
                self.start(record)

    # -- what the queue does before the policy ---------------------------------------------------------------

    def start_due(self, due: list[JobRecord]) -> None:
        """Start the jobs whose time has come."""
        for record in due:
            self._release(record)
            self._redeem(record)
        self._start_next_tasks(due)
        for record in due:
            if record.waiting and record.reservation is None:
                raise PromiseAtRisk(record.key)

    def compress(self) -> None:
        """Move every reservation ahead as far as the others allow, in order, and none back. Where the time of
        some has come they go first, and then the others in the order of the plan: all are late by as much."""
        reserved = [record for record in self._pending.records if record.reservation is not None]
        if any((record.reserved_at or 0) <= self.now for record in reserved):
            reserved.sort(key=lambda record: record.reserved_at or 0)
            for record in reserved:
                self._release(record)
            for record in reserved:
                self._redeem(record)
            self._start_next_tasks(reserved)
            return
        for record in reserved:
            self._move_ahead(record)

    # -- inside ----------------------------------------------------------------------------------------------

    def _redeem(self, record: JobRecord) -> None:
        """Start a job in the place that was held for it, or hold another. Others were planned behind it by
        its limit, so it need not be clear of them for longer, though nothing may end it."""
        if self._admitted(record) and self._start(record, record.limit) is not None:
            return
        self.start_or_reserve(record)

    def _start_next_tasks(self, records: list[JobRecord]) -> None:
        """The next task of an array, when all others have their places again."""
        for record in records:
            if record in self.begun and record.waiting:
                self.start_or_reserve(record)

    def _move_ahead(self, record: JobRecord) -> None:
        held = record.reservation
        assert held is not None
        if not self._planner.may_move(held, self.now):
            return
        mark, started = self._planner.mark(), len(self.starts)
        self._release(record)
        self.start_or_reserve(record)
        later = record.reserved_at is None or record.reserved_at > held.start
        if later and len(self.starts) == started:
            # A job that nothing ends finds no place in front of the others' any more, not even its own.
            self._planner.undo(mark)
            self.claim(record, int(record.reservation is None))
            record.reservation = held
            self.planned.pop(record, None)

    def _admitted(self, record: JobRecord) -> bool:
        if self._check is not None:
            self._check()
        return self._admit is None or self._admit(record, self.claims[record.owner])

    def _clear(self, record: JobRecord) -> int:
        """How long its resources must be free of promises: for ever, if nothing ends the job."""
        return record.limit if record.bounded or not self.reserved else FOREVER

    def _start(self, record: JobRecord, clear: int) -> Allocation | None:
        """Start the next task of a job now, if it fits."""
        self.tries += 1
        self.current = record
        held = self._planner.start(record.task(), record.job.request, self.now, record.limit, clear)
        if held is not None:
            self._started(record, held)
        return held

    def _started(self, record: JobRecord, held: Allocation) -> None:
        record.take()
        record.running[held.task] = held
        self.starts.append((record, held))
        self.begun.add(record)
        self.claims[record.owner] += 1

    def _reserved(self, record: JobRecord, held: Allocation) -> None:
        at = held.start
        if self._window is not None and at > self.now + self._window:
            self._planner.drop(held)
            return
        if self._keep and record.deadline is not None and at > record.deadline and record not in self.begun:
            raise PromiseAtRisk(record.key)
        record.reservation = held
        self.planned[record] = held
        self.claim(record, 1)

    def _release(self, record: JobRecord) -> None:
        assert record.reservation is not None
        self._planner.drop(record.reservation)
        record.reservation = None
        self.planned.pop(record, None)
        self.claim(record, -1)

    def claim(self, record: JobRecord, change: int) -> None:
        """A job takes a place in the plan, or gives it up."""
        self.reserved += change
        self.claims[record.owner] += change
