"""The plan: all reservations, and the scheduling passes that change them.

The queue runs one pass per cycle through `Plan.run`. If the policy would break a promise, or site code fails,
the pass is undone and repeated in another mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fluence.graph.graph import Ints
from fluence.model.job_state import JobState
from fluence.model.reason import Code, Reason
from fluence.queue import policy as policies
from fluence.queue.allocations import Allocation
from fluence.queue.job import JobRecord
from fluence.queue.pending import DueTimes, Pending
from fluence.queue.planner import Planner
from fluence.queue.policy import PluginGuard, QueuePolicy
from fluence.queue.rules import RuleBook
from fluence.queue.scheduling_pass import (
    CycleBudget,
    OtherOrder,
    OutOfTime,
    PassMode,
    PromiseAtRisk,
    SchedulingPass,
    Sweep,
    SweepProgress,
)

_MAX_REORDERS = 6  # tries to order the jobs promised before a restart so that none is late
_FEW_LATE = 32  # if more jobs are late, another order will not help
_UNBLOCKED = np.iinfo(np.int64).max

Reservations = dict[JobRecord, Allocation | None]


class JobFault(Exception):
    """The planner failed while it tried a job; the cause is chained."""

    def __init__(self, job: str) -> None:
        super().__init__(f"job {job} cannot be planned")
        self.job = job


@dataclass(frozen=True, slots=True)
class News:
    """What has happened since the last pass."""

    due: list[JobRecord]  # their reserved start has come
    jobs: Sequence[JobRecord]  # new ones
    since: int  # the place in the queue of the first of them
    freed: bool  # something came free, as planned or not
    lost: bool  # resources are gone that the plan needs
    rebuild: bool  # the reservations may be wrong, or could be better


class Plan:
    """The reservations of one queue."""

    def __init__(
        self,
        pending: Pending,
        policy: QueuePolicy,
        rules: RuleBook,
        guard: PluginGuard,
        budget: CycleBudget,
        *,
        depth: int | None,
        window: int | None,
        replan: bool,
    ) -> None:
        self.reserved: set[JobRecord] = set()
        self.progress = SweepProgress()
        self._budget = budget
        self._resumed: dict[JobRecord, None] = {}  # promised before a restart, not yet planned
        self._reorders = 0  # tries to find an order for them
        self._pending = pending
        self._policy = policy
        self._rules = rules
        self._guard = guard
        self._depth = depth
        self._window = window
        self._replan = replan
        self._due = DueTimes(lambda at, record: record.reserved_at == at and record.waiting > 0)
        self._blocked: Ints = np.full(16, _UNBLOCKED, np.int64)  # per shape: the shortest limit that failed

    # -- reservations ----------------------------------------------------------------------------------------

    def reservations(self) -> Reservations:
        return {record: record.reservation for record in self.reserved}

    def adopt(self, record: JobRecord, held: Allocation) -> None:
        """Take over a reservation that the planner already has."""
        record.reservation = held
        self.reserved.add(record)
        self._note_due(record, held)

    def resume(self, record: JobRecord) -> None:
        """A job was promised a start before a restart: it is planned before jobs without a promise."""
        record.deadline = record.no_later_than
        self._resumed[record] = None

    def withdraw(self, record: JobRecord, planner: Planner) -> bool:
        """Give up the reservation of a job that leaves the queue; returns whether it had one."""
        self._resumed.pop(record, None)
        if record.reservation is None:
            return False
        planner.drop(record.reservation)
        record.reservation = None
        self.reserved.discard(record)
        return True

    def next_start(self) -> int | None:
        """The start of the next reservation."""
        return self._due.next()

    def take_due(self, now: int) -> list[JobRecord]:
        """The jobs whose reserved start has come, in the queue's order."""
        found = set()
        while (record := self._due.pop(now)) is not None:
            found.add(record)
        return sorted(found, key=lambda record: record.order)

    def slip(self, due: list[JobRecord], now: int) -> bool:
        """If a cycle runs late, move all deadlines by the same amount. Otherwise the jobs that are due would
        be put behind those planned after them."""
        late = _lateness(due, now)
        for record in self.reserved if late else ():
            if record.deadline is not None:
                record.deadline += late
        return bool(late)

    # -- shapes ----------------------------------------------------------------------------------------------

    def make_room(self, shape: int) -> None:
        """A job of this shape was submitted."""
        if shape >= len(self._blocked):
            grown = np.full(2 * shape + 2, _UNBLOCKED, np.int64)
            grown[: len(self._blocked)] = self._blocked
            self._blocked = grown

    def start_anew(self, shapes: int) -> None:
        """The planner was replaced: drop all reservations, and expect other shapes."""
        for record in self.reserved:
            record.reservation = None
        self.reserved.clear()
        self._blocked = np.full(max(16, 2 * shapes), _UNBLOCKED, np.int64)

    # -- passes ----------------------------------------------------------------------------------------------

    def run(self, planner: Planner, now: int, news: News) -> SchedulingPass:
        """Run the policy. A pass that fails or would break a promise is undone. A plan that is too large to
        be rebuilt in one cycle is amended instead."""
        self._budget.begin()
        goes_on = self.progress.at(Sweep.TRY) is not None
        mode, slips = self._mode(news, now), _lateness(news.due, now) > 0
        since = 0 if news.rebuild or news.freed or news.due or goes_on else news.since
        before, mark, chosen = self.reservations(), planner.mark(), self._policy
        keep = not news.lost and not self._replan
        while True:
            if mode is PassMode.REBUILD and slips:
                slips = not self.slip(news.due, now)
            made = self._make(planner, now, mode, since, keep and mode is PassMode.REBUILD, chosen)
            try:
                self._begin(made, planner, before, news.due)
                if self._resumed:
                    self._resume(made)
                if goes_on and chosen.promise != "order" and not made.owed and not made.is_cut:
                    made.start_newcomers(news.jobs)
                if not made.is_cut:
                    chosen.run(made)
                if mode is PassMode.REBUILD and keep and any(map(_is_broken, before.keys() - made.begun)):
                    raise PromiseAtRisk
                self._end(made, mode)
                return made
            except PromiseAtRisk:
                mode = PassMode.REBUILD if mode is PassMode.EXTEND else PassMode.COMPRESS
                if not self._budget.allows(2 * len(before)) or self._budget.is_spent:
                    mode = PassMode.AMEND
            except OutOfTime:
                mode = PassMode.AMEND
            except OtherOrder:
                pass
            except Exception as fault:
                if chosen.built_in:
                    self._undo(made, planner, mark, before)  # the caller can remove the job and continue
                    for record in news.due:
                        self._note_due(record, record.reservation)
                    if made.current is None:
                        raise
                    raise JobFault(made.current.key) from fault
                self._guard.note(f"queue policy {chosen.name}", fault)
                chosen, mode = policies.BUILT_IN["easy"], PassMode.REBUILD
            self._budget.learn(made.tries)
            self._undo(made, planner, mark, before)
            mark, since = planner.mark(), 0

    def _resume(self, made: SchedulingPass) -> None:
        """Plan the jobs that were promised a start before a restart, in the order of these starts.

        If the earlier plan had the jobs at these times, each gets its old place or an earlier one, because
        all jobs planned before it were in that plan too. In the order of the queue, a job that moves ahead
        might take what another job needs. Some jobs had moved ahead after their promise was made. If a job
        would be late because of that, it is tried before the jobs that are in its way, while there is
        time."""
        if self._reorders == 0:
            self._resumed = dict.fromkeys(
                sorted(self._resumed, key=lambda each: (each.deadline or 0, each.order))
            )
        made.resume(self._resumed)
        if made.is_cut and made.owed:
            raise OutOfTime  # jobs that had reservations must keep them
        few = 0 < len(made.resumed_late) <= _FEW_LATE
        if few and not made.is_cut and self._reorders < _MAX_REORDERS and not self._budget.is_spent:
            self._reorders += 1
            order = _reordered(list(self._resumed), made.resumed_late)
            if self._reorders == _MAX_REORDERS:  # no such order was found: use that of the queue
                order.sort(key=lambda each: each.order)
            self._resumed = dict.fromkeys(order)
            raise OtherOrder
        if not made.is_cut:
            self._reorders = 0

    def _mode(self, news: News, now: int) -> PassMode:
        """The mode of the pass; also requests the sweeps that are needed."""
        if news.rebuild or news.freed:
            self._blocked.fill(_UNBLOCKED)
        if news.rebuild or news.freed or news.due or news.since < len(self._pending):
            self.progress.want(Sweep.TRY)
        if self._budget.is_limited and news.rebuild:
            self.progress.want(Sweep.START, Sweep.MOVE, *([Sweep.REPAIR] if news.lost else ()))
        if news.rebuild or _lateness(news.due, now):
            fits = self._budget.allows(2 * len(self.reserved))
            return PassMode.REBUILD if fits else PassMode.AMEND
        return PassMode.AMEND if self.progress.is_amending else PassMode.EXTEND

    def _end(self, made: SchedulingPass, mode: PassMode) -> None:
        """Note which sweeps are done, and use the remaining time to move reservations ahead."""
        for record in made.resumed:
            self._resumed.pop(record, None)
        if not made.is_cut:
            self.progress.end(Sweep.TRY)
        if mode in (PassMode.REBUILD, PassMode.COMPRESS):
            # All reservations are as early as possible.
            self.progress.done(Sweep.REPAIR, Sweep.START, Sweep.MOVE)
        else:
            made.move_ahead()
        self._budget.learn(made.tries)

    def keep(self, done: SchedulingPass, before: Reservations, now: int) -> None:
        """Store the reservations of a pass."""
        for record, held in done.planned.items():
            if record.reservation is not held or not record.waiting:
                continue
            was = before.get(record)
            if was is None or was.start != held.start:
                self._note_due(record, held)
            if record.deadline is None or (done.mode is PassMode.AMEND and held.start > record.deadline):
                record.deadline = held.start
            if record.state is JobState.PENDING:
                record.move(JobState.RESERVED, now, Reason.of(Code.PLANNED))
        for record in before:
            if record.reservation is None and record.state is JobState.RESERVED:
                record.move(JobState.PENDING, now, Reason.of(Code.UNPLANNED))
        self.reserved = {
            record for record in (*before, *done.planned) if record.reservation is not None and record.waiting
        }
        self._due.tidy()

    def _make(
        self, planner: Planner, now: int, mode: PassMode, since: int, keep: bool, chosen: QueuePolicy
    ) -> SchedulingPass:
        limited = self._rules.limits_users
        made = SchedulingPass(
            self._pending,
            planner,
            now,
            mode,
            self._blocked,
            budget=self._budget,
            progress=self.progress,
            resumes=chosen.promise != "order",
            since=since,
            depth=self._depth,
            window=self._window,
            keep=keep,
            admit=self._rules.admits if limited else None,
            check=None if chosen.built_in else self._guard.deadline(),
        )
        made.reserved = len(self.reserved)
        made.places.update(record.job.account for record in self.reserved)
        if limited:
            for record in self.reserved:
                made.claims.update(record.charges)
        return made

    def _begin(
        self, made: SchedulingPass, planner: Planner, before: Reservations, due: list[JobRecord]
    ) -> None:
        """Treat the existing reservations by the mode of the pass, before the policy runs."""
        if made.mode is PassMode.REBUILD:
            planner.drop_all()
            for record in before:
                record.reservation = None
            made.reserved = 0
            made.claims.clear()
            made.places.clear()
            made.owed.update(before)
        elif made.mode is PassMode.COMPRESS:
            made.compress()
        elif made.mode is PassMode.AMEND:
            for record in made.amend(due):
                self._note_due(record, record.reservation)
        else:
            made.start_due(due)

    def _undo(self, made: SchedulingPass, planner: Planner, mark: object, before: Reservations) -> None:
        planner.undo(mark)
        for record, held in reversed(made.starts):
            record.put_back(held.task)
            del record.running[held.task]
        for record in made.planned:
            record.reservation = None
        for record, reservation in before.items():
            record.reservation = reservation
        self._blocked.fill(_UNBLOCKED)

    def _note_due(self, record: JobRecord, held: Allocation | None) -> None:
        if held is not None:
            self._due.add(held.start, record)


def _is_broken(record: JobRecord) -> bool:
    """Whether a job that had a reservation has none now, or one after its deadline."""
    if not record.waiting or record.deadline is None:
        return False
    return record.reserved_at is None or record.reserved_at > record.deadline


def _reordered(order: list[JobRecord], late: list[JobRecord]) -> list[JobRecord]:
    """The order with each late job moved before the first job whose reservation overlaps its promised
    time."""
    for record in late:
        place, told = order.index(record), record.deadline or 0
        ahead = ((at, each.reservation) for at, each in enumerate(order[:place]))
        in_the_way = (
            at
            for at, held in ahead
            if held is not None and held.start < told + record.limit and told < held.end
        )
        order.insert(next(in_the_way, 0), order.pop(place))
    return order


def _lateness(due: list[JobRecord], now: int) -> int:
    """How long ago the first of some reserved starts was."""
    return max((now - record.reserved_at for record in due if record.reserved_at is not None), default=0)
