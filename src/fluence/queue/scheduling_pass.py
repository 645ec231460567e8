"""One pass of a policy over the queue, at one moment; it can be taken back until it is kept.

The queue makes one per cycle and hands it to the policy (`fluence.queue.policy`), which sees the jobs that
wait and may start them or reserve a start for them, and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum

from fluence.graph.graph import Ints
from fluence.queue.allocations import Allocation
from fluence.queue.budget import CycleBudget, Sweep, SweepProgress
from fluence.queue.job import FOREVER, Charge, JobRecord
from fluence.queue.pending import Pending
from fluence.queue.planner import Planner

PLACES = 256  # in the plan that one account can have, where a cycle has a budget
NEWCOMERS = 64  # jobs that are tried as they come, before those that a sweep has not come to
HOPELESS = 64  # jobs for which a pass looks through all times in vain; others are only tried now


class PromiseAtRisk(Exception):
    """Made anew, the plan would start a job later than promised."""


class OutOfTime(Exception):
    """The plan cannot be made anew as a whole within a cycle."""


class OtherOrder(Exception):
    """Those that were told of their start before a restart are to be placed in another order."""


class PassMode(Enum):
    """What becomes of the reservations there are."""

    EXTEND = "extend"  # they stand; nothing has changed that could improve them
    REBUILD = "rebuild"  # they are dropped, and all are placed anew, in order
    COMPRESS = "compress"  # each is moved ahead as far as the others allow
    AMEND = "amend"  # the same over several cycles: those that lost their place first


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
        budget: CycleBudget,
        progress: SweepProgress,
        resumes: bool = True,
        since: int = 0,
        depth: int | None = None,
        window: int | None = None,
        keep: bool = True,
        admit: Callable[[JobRecord, Mapping[Charge, int]], bool] | None = None,
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
        self._budget = budget
        self._progress = progress
        self._resumes = resumes and mode is not PassMode.REBUILD  # False: begin with the first
        self.is_cut = False  # there was no time for all
        self.resumed: list[JobRecord] = []  # were told of a start before a restart, and have had their turn
        self.resumed_late: list[JobRecord] = []  # those whose place is later than that
        self._looked_at = 0
        self._hopeless = 0
        # Of a plan that is made anew: those that had a place. Until they have one again, there is no end.
        self.owed: set[JobRecord] = set()
        self.reserved = 0  # how many jobs hold a place in the plan
        # Of each queue and user: tasks started in this pass, and places in the plan. What is promised counts
        # against a user's limit, or the limit would break the promise.
        self.claims: Counter[Charge] = Counter()
        self.places: Counter[str] = Counter()  # in the plan, by account

    def __iter__(self) -> Iterator[JobRecord]:
        """The jobs without a place in the plan, in order, as far as there is time."""
        place = self._first(Sweep.TRY) if self._resumes else 0
        while place < self._end:
            record = self._pending.records[place]
            place += 1
            if record.reservation is None and record.waiting:
                if self._is_late(record):
                    return
                yield record
                self.owed.discard(record)

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
            if self._budget.is_limited and not self._may_look_ahead(record):
                return self.start(record)
            self.tries += 1
            self.current = record
            held = self._planner.start_or_reserve(
                record.task(), record.job.request, self.now, record.limit, self._clear(record)
            )
            if held is None:
                self._hopeless += 1
                return False  # what it needs is down; it holds nobody up
            if held.reserved:
                self._reserved(record, held)
                return False
            self._started(record, held)
        return True

    def backfill(self) -> None:
        """Start every job without a place in the plan that delays none of those with one, in order."""
        pending, place = self._pending, max(self._since, self._first(Sweep.TRY))
        while (place := pending.next_unblocked(place, self._end, self._blocked)) < self._end:
            record = pending.records[place]
            place += 1
            if record.reservation is None and record.waiting:
                if self._is_late(record):
                    return
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

    def resume(self, records: Iterable[JobRecord]) -> None:
        """Give places to jobs that were told of their start before a restart, in this order."""
        for record in records:
            if self.resumed and self._budget.is_spent:
                self._progress.want(Sweep.TRY)
                self.is_cut = True
                return
            self.resumed.append(record)
            if record.waiting and record.reservation is None:
                # What cannot be kept is told: there is no better plan to go back to.
                deadline, record.deadline = record.deadline, None
                self.start_or_reserve(record)
                record.deadline = deadline
                at = record.reserved_at
                if record.waiting and deadline is not None and (at is None or at > deadline):
                    self.resumed_late.append(record)

    def compress(self) -> None:
        """Move every reservation ahead as far as the others allow, in order, and none back. Those whose time
        has come start first; where one of them cannot, all are late by as much, and the others get their
        places anew in the order of the plan."""
        reserved = [record for record in self._pending.records if record.reservation is not None]
        due = sorted(
            (record for record in reserved if (record.reserved_at or 0) <= self.now),
            key=lambda record: record.reserved_at or 0,
        )
        late = [record for record in due if not self._start_in_time(record)]
        later = [record for record in reserved if record.reservation is not None]
        if late:
            later.sort(key=lambda record: record.reserved_at or 0)
            for record in later:
                self._release(record)
            for record in (*late, *later):
                self._redeem(record)
        self._start_next_tasks([*due, *later])
        if not late:
            for record in later:
                self._move_ahead(record)

    # -- the same over several cycles ------------------------------------------------------------------------

    def amend(self, due: list[JobRecord]) -> list[JobRecord]:
        """Start the jobs whose time has come; give those that lost their place another; start whoever of the
        rest can start now. All others stay as they are. Returns those whose turn did not come."""
        left: list[JobRecord] = []
        for record in due:
            if self.tries and self._budget.is_spent:
                left.append(record)
                continue
            if not self._start_in_time(record):
                self.start_or_reserve(record)
        self._start_next_tasks(due)
        if self._progress.at(Sweep.REPAIR) is not None:
            displaced = set(self._planner.displaced())
            self._sweep(Sweep.REPAIR, lambda record: self._repair(record, displaced))
        self._sweep(Sweep.START, self._start_in_place)
        return left

    def _repair(self, record: JobRecord, displaced: set[Allocation]) -> None:
        if record.reservation in displaced:
            self._release(record)
            self.start_or_reserve(record)

    def start_newcomers(self, new: Sequence[JobRecord]) -> None:
        """Start those that came last and fit now, however many are in front of them whose turn has not come:
        a long queue must not keep the next user from an empty node."""
        for number, record in enumerate(new[:NEWCOMERS]):
            if number and self._budget.is_spent:
                return
            if record.reservation is None and record.waiting:
                self.start(record)

    def move_ahead(self) -> None:
        """Move reservations ahead, as many as there is time for."""
        self._sweep(Sweep.MOVE, self._move_ahead)

    def _sweep(self, sweep: Sweep, act: Callable[[JobRecord], None]) -> None:
        if self._progress.at(sweep) is None:
            return
        acted = False
        for record in self._pending.records[self._first(sweep) :]:
            if record.reservation is None or record.reservation.start <= self.now:
                continue
            if acted and self._budget.is_spent:
                self._progress.stop(sweep, record.order)
                return
            act(record)
            acted = True
        self._progress.end(sweep)

    def _start_in_place(self, record: JobRecord) -> None:
        """Start a job now, if that delays no reservation but its own."""
        held, clear = record.reservation, self._clear(record)
        assert held is not None
        if not self._planner.may_start(held, self.now, clear) or not self._admitted(record):
            return
        mark = self._planner.mark()
        self._release(record)
        if self._start(record, clear) is None:
            self._planner.undo(mark)
            record.reservation = held
            self.claim(record, 1)

    def _first(self, sweep: Sweep) -> int:
        at = self._progress.at(sweep)
        return 0 if at is None else self._pending.first(at)

    def _is_late(self, record: JobRecord) -> bool:
        """Whether there is no time for this job in this pass."""
        if self.owed:
            if self._budget.is_far_exceeded:
                raise OutOfTime
            return False
        if self._looked_at and self._budget.is_spent:
            self._progress.stop(Sweep.TRY, record.order)
            self.is_cut = True
        self._looked_at += 1  # NB each pass gets a step further, however slow the machine is
        return self.is_cut

    # -- inside ----------------------------------------------------------------------------------------------

    def _redeem(self, record: JobRecord) -> None:
        """Start a job in the place that was held for it, or hold another. Others were planned behind it by
        its limit, so it need not be clear of them for longer, though nothing may end it."""
        if self._admitted(record) and self._start(record, record.limit) is not None:
            return
        self.start_or_reserve(record)

    def _start_in_time(self, record: JobRecord) -> bool:
        """Start a job whose time has come while all others keep their places; False: it has none any more."""
        held = record.reservation
        assert held is not None
        self._release(record)
        # Others are planned behind it by the end that it had there. A cycle that comes late by a little makes
        # it end later by as much, which is within what ending a job may take.
        clear = max(1, held.end - self.now)
        return self._admitted(record) and self._start(record, clear) is not None

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

    def _claim(self, record: JobRecord, change: int) -> None:
        """A job is to start, or not after all: it counts against limits."""
        if self._admit is not None:
            for charge, amount in record.charges.items():
                self.claims[charge] += amount * change

    def _admitted(self, record: JobRecord) -> bool:
        if self._check is not None:
            self._check()
        return self._admit is None or self._admit(record, self.claims)

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
        self._claim(record, 1)

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

    def _may_look_ahead(self, record: JobRecord) -> bool:
        """Whether a pass with a budget looks for a later start of this job, if it cannot start now."""
        return self._hopeless < HOPELESS and self.places[record.job.account] < PLACES

    def claim(self, record: JobRecord, change: int) -> None:
        """A job takes a place in the plan, or gives it up."""
        self.reserved += change
        self.places[record.job.account] += change
        self._claim(record, change)
