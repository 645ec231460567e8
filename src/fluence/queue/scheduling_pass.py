"""One pass of a policy over the queue, within the time that a cycle may plan. It can be undone.

The queue makes one pass per cycle and gives it to the policy (`fluence.queue.policy`). Through it the policy
sees the waiting jobs, and can start them or reserve a start for them, but nothing else.

Rebuilding a plan of thousands of reservations takes seconds. The live scheduler must send binds and handle
events meanwhile, so a cycle plans for a limited time, and the next one continues from there. Without a timer
there is no limit, and decisions depend on the input alone, as in the simulator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from fluence.graph.graph import Ints
from fluence.queue.allocations import Allocation
from fluence.queue.job import FOREVER, Charge, JobRecord, Order
from fluence.queue.pending import Pending
from fluence.queue.planner import Planner

_FIRST: Order = (-(1 << 62), 0, 0, 0, 0)
_WEIGHT = 0.2  # of the last pass in the estimated cost of a try


class Sweep(Enum):
    """A task that goes through the queue from front to back, over several cycles if necessary."""

    TRY = "try"  # jobs without a reservation
    REPAIR = "repair"  # jobs with a reservation whose resources are gone
    START = "start"  # jobs with a reservation that may be able to start now
    MOVE = "move"  # jobs with a reservation that may be able to move ahead


@dataclass(slots=True)
class SweepProgress:
    """The position of each sweep. If a sweep is requested again while it runs, it restarts only after it has
    reached the end. Otherwise jobs at the back of the queue would never get their turn."""

    _at: dict[Sweep, Order] = field(default_factory=dict)
    _again: set[Sweep] = field(default_factory=set)

    def want(self, *sweeps: Sweep) -> None:
        for sweep in sweeps:
            if self._at.setdefault(sweep, _FIRST) != _FIRST:
                self._again.add(sweep)

    def at(self, sweep: Sweep) -> Order | None:
        """Where the sweep continues; None: it was not requested."""
        return self._at.get(sweep)

    def stop(self, sweep: Sweep, before: Order) -> None:
        """The budget was spent before the job with this order."""
        self._at[sweep] = before

    def end(self, sweep: Sweep) -> None:
        """The sweep has reached the end of the queue."""
        self._at.pop(sweep, None)
        if sweep in self._again:
            self._again.discard(sweep)
            self._at[sweep] = _FIRST

    def done(self, *sweeps: Sweep) -> None:
        """These sweeps are not needed any more: another pass has done their work."""
        for sweep in sweeps:
            self._at.pop(sweep, None)
            self._again.discard(sweep)

    @property
    def is_amending(self) -> bool:
        """Whether a sweep over reservations is under way."""
        return any(sweep is not Sweep.TRY for sweep in self._at)

    def __bool__(self) -> bool:
        """Whether a sweep is under way."""
        return bool(self._at)


class CycleBudget:
    """``seconds`` per cycle for planning, measured by a timer; without either, there is no limit."""

    def __init__(self, seconds: float | None, timer: Callable[[], float] | None) -> None:
        self._seconds = seconds or 0.0
        self._timer = None if seconds is None else timer
        self._began = 0.0
        self._per_try = 0.0

    def begin(self) -> None:
        if self._timer is not None:
            self._began = self._timer()

    @property
    def is_limited(self) -> bool:
        return self._timer is not None

    @property
    def is_spent(self) -> bool:
        return self._timer is not None and self._timer() - self._began >= self._seconds

    @property
    def is_far_exceeded(self) -> bool:
        """Whether the budget is exceeded so far that even a rebuild must stop."""
        return self._timer is not None and self._timer() - self._began >= 2 * self._seconds

    def allows(self, tries: int) -> bool:
        """Whether this number of tries probably fits into the budget."""
        return self._timer is None or tries * self._per_try <= self._seconds

    def learn(self, tries: int) -> None:
        """Learn the cost of a try from the tries since `begin`."""
        if self._timer is not None and tries:
            cost = (self._timer() - self._began) / tries
            self._per_try += _WEIGHT * (cost - self._per_try) if self._per_try else cost


PLACES = 256  # reservations that one account can have, if cycles have a budget
NEWCOMERS = 64  # new jobs that are tried before those that a sweep has not reached
HOPELESS = 64  # jobs per pass for which all start times fail; after that, only a start now is tried


class PromiseAtRisk(Exception):
    """The new plan would start a job later than promised."""


class OutOfTime(Exception):
    """The whole plan cannot be rebuilt within one cycle."""


class OtherOrder(Exception):
    """The jobs that were promised a start before a restart must be planned in another order."""


class PassMode(Enum):
    """How a pass treats the existing reservations."""

    EXTEND = "extend"  # keep them; nothing has changed that could improve them
    REBUILD = "rebuild"  # drop them and plan all jobs again, in order
    COMPRESS = "compress"  # move each ahead if the others allow it
    AMEND = "amend"  # the same over several cycles, first those that lost their resources


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
        self.begun: set[JobRecord] = set()  # jobs with a task that started: their promise is kept
        self.planned: dict[JobRecord, Allocation] = {}  # reservations made in this pass
        self.tries = 0
        self.current: JobRecord | None = None  # the job that is being tried, to name it in faults
        self._pending = pending
        self._planner = planner
        self._blocked = blocked
        self._since = since  # records before this place were tried, and nothing came free since
        self._end = len(pending) if depth is None else min(depth, len(pending))
        self._window = window
        self._keep = keep
        self._admit = admit
        self._check = check
        self._quotas = planner.allocations.quotas
        self._budget = budget
        self._progress = progress
        self._resumes = resumes and mode is not PassMode.REBUILD  # False: begin at the front
        self.is_cut = False  # the budget was spent before all jobs were tried
        self.resumed: list[JobRecord] = []  # promised before a restart, and tried in this pass
        self.resumed_late: list[JobRecord] = []  # those that are later than promised
        self._looked_at = 0
        self._hopeless = 0
        # When the plan is rebuilt: jobs that had a reservation. The pass does not stop before they have one.
        self.owed: set[JobRecord] = set()
        self.reserved = 0  # the number of jobs with a reservation
        # By queue and user: tasks started in this pass, and reservations. Reservations count against the
        # limits of a user, or the limit would break the promise.
        self.claims: Counter[Charge] = Counter()
        self.places: Counter[str] = Counter()  # reservations by account

    def __iter__(self) -> Iterator[JobRecord]:
        """The jobs without a reservation, in order, until the budget is spent."""
        place = self._first(Sweep.TRY) if self._resumes else 0
        while place < self._end:
            record = self._pending.records[place]
            place += 1
            if record.reservation is None and record.waiting:
                if self._quotas is not None and self._quotas.is_stopped(record.key):
                    self.owed.discard(record)
                    continue  # no other job waits for it
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
            if not self._has_quota(record, clear):
                return False  # other jobs of this shape may have quota
            if self._start(record, clear) is None:
                self._planner.rule_out(record.shape, clear, self._blocked, self.now)
                return False
            if record.waiting and not self._admitted(record):
                return False
        return True

    def start_or_reserve(self, record: JobRecord) -> bool:
        """Start a job now, or reserve its earliest start; returns whether it started."""
        while record.waiting:
            if not self._admitted(record):
                return False
            if self._budget.is_limited and not self._may_look_ahead(record):
                return self.start(record)
            self.tries += 1
            self.current = record
            held = self._hold(record, self.now) if self._quotas is None else self._hold_in_quota(record)
            if held is None:
                return False
            if held.reserved:
                self._reserved(record, held)
                return False
            self._started(record, held)
        return True

    def backfill(self) -> None:
        """Start every job without a reservation that delays no reservation, in order."""
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
        """Start the jobs whose reserved start has come."""
        for record in due:
            self._release(record)
            self._redeem(record)
        self._start_next_tasks(due)
        for record in due:
            if record.waiting and record.reservation is None:
                raise PromiseAtRisk(record.key)

    def resume(self, records: Iterable[JobRecord]) -> None:
        """Plan jobs that were promised a start before a restart, in this order."""
        for record in records:
            if self.resumed and self._budget.is_spent:
                self._progress.want(Sweep.TRY)
                self.is_cut = True
                return
            self.resumed.append(record)
            if record.waiting and record.reservation is None:
                # A late job does not undo the pass, because there is no better plan to go back to.
                deadline, record.deadline = record.deadline, None
                self.start_or_reserve(record)
                record.deadline = deadline
                at = record.reserved_at
                if record.waiting and deadline is not None and (at is None or at > deadline):
                    self.resumed_late.append(record)

    def compress(self) -> None:
        """Move every reservation ahead if the others allow it, in order, and none back. Jobs whose time has
        come start first. If one of them cannot start, the whole plan is late, and the other jobs are planned
        again in the order of the plan."""
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
        """Start the jobs whose time has come, replace reservations whose resources are gone, and start other
        jobs with a reservation if they can start now. The rest stay. Returns the due jobs that there was no
        time for."""
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
        """Start new jobs that fit now, even if the sweep has not reached all jobs in front of them: a long
        queue must not keep the next user from an empty node."""
        for number, record in enumerate(new[:NEWCOMERS]):
            if number and self._budget.is_spent:
                return
            if record.reservation is None and record.waiting:
                self.start(record)

    def move_ahead(self) -> None:
        """Move reservations ahead until the budget is spent."""
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
        if not self._has_quota(record, clear) or self._start(record, clear) is None:
            self._planner.undo(mark)
            record.reservation = held
            self.claim(record, 1)

    def _first(self, sweep: Sweep) -> int:
        at = self._progress.at(sweep)
        return 0 if at is None else self._pending.first(at)

    def _is_late(self, record: JobRecord) -> bool:
        """Whether the budget is spent before this job."""
        if self.owed:
            if self._budget.is_far_exceeded:
                raise OutOfTime
            return False
        if self._looked_at and self._budget.is_spent:
            self._progress.stop(Sweep.TRY, record.order)
            self.is_cut = True
        self._looked_at += 1  # NB each pass tries at least one job, even on a slow machine
        return self.is_cut

    # -- inside ----------------------------------------------------------------------------------------------

    def _redeem(self, record: JobRecord) -> None:
        """Start a job in the place that was reserved for it, or reserve another. Other jobs are planned after
        its limit, so its resources need not be free for longer, even if nothing enforces the limit."""
        fits = self._admitted(record) and self._has_quota(record, record.limit)
        if fits and self._start(record, record.limit) is not None:
            return
        self.start_or_reserve(record)

    def _start_in_time(self, record: JobRecord) -> bool:
        """Start a job whose time has come while all others keep their reservations; False: it no longer
        fits."""
        held = record.reservation
        assert held is not None
        self._release(record)
        # Other jobs are planned after the end that it had in the plan. If the cycle is a little late, the job
        # ends as much later, which is within the time that ending a job may take.
        clear = max(1, held.end - self.now)
        fits = self._admitted(record) and self._has_quota(record, clear)
        return fits and self._start(record, clear) is not None

    def _start_next_tasks(self, records: list[JobRecord]) -> None:
        """Start or reserve the next task of an array, after all other jobs have their reservations again."""
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
            # A job without a limit finds no place before the reservations of others, not even its old one.
            self._planner.undo(mark)
            self.claim(record, int(record.reservation is None))
            record.reservation = held
            self.planned.pop(record, None)

    def _claim(self, record: JobRecord, change: int) -> None:
        """Count a job against limits, or take it back."""
        if self._admit is not None:
            for charge, amount in record.charges.items():
                self.claims[charge] += amount * change

    def _admitted(self, record: JobRecord) -> bool:
        if self._check is not None:
            self._check()
        return self._admit is None or self._admit(record, self.claims)

    def _has_quota(self, record: JobRecord, clear: int) -> bool:
        """Whether the limits of its queue and of the queues above it allow the job now."""
        return self._quotas is None or self._quotas.fits(record.key, self.now, clear)

    def _hold(self, record: JobRecord, begin: int) -> Allocation | None:
        """Start a job now, or reserve its earliest start from ``begin`` on. None: its resources are down, and
        it delays no other job."""
        held = self._planner.start_or_reserve(
            record.task(), record.job.request, self.now, record.limit, self._clear(record), begin
        )
        self._hopeless += held is None
        return held

    def _hold_in_quota(self, record: JobRecord) -> Allocation | None:
        """The same at the first time that all limits allow too: resources and limits are asked in turn until
        both agree."""
        quotas, clear, begin = self._quotas, self._clear(record), self.now
        assert quotas is not None
        while (at := quotas.earliest(record.key, begin, clear)) is not None:
            held = self._hold(record, at)
            if held is None or held.start == at or quotas.allows(held, clear):
                return held
            begin = held.start
            self._planner.drop(held)
        return None

    def _clear(self, record: JobRecord) -> int:
        """How long its resources must be free of reservations: forever, if the job has no limit."""
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
        """Whether a pass with a budget searches for a later start of this job, if it cannot start now."""
        return self._hopeless < HOPELESS and self.places[record.job.account] < PLACES

    def claim(self, record: JobRecord, change: int) -> None:
        """Count a reservation that a job gets or gives up."""
        self.reserved += change
        self.places[record.job.account] += change
        self._claim(record, change)
