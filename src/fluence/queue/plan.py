"""The plan: the reservations there are, and how a scheduling pass makes, keeps or undoes them.

The queue runs one pass per cycle through `Plan.run`. What the policy did is undone, and tried in another
mode, where it would break a promise or where site code failed.
"""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from fluence.graph.graph import Ints
from fluence.model.reason import Code, Reason
from fluence.queue import policy as policies
from fluence.queue.allocations import Allocation
from fluence.queue.guard import PluginGuard
from fluence.queue.job import JobRecord, Phase
from fluence.queue.pending import Pending
from fluence.queue.planner import Planner
from fluence.queue.policy import QueuePolicy
from fluence.queue.rules import RuleBook
from fluence.queue.scheduling_pass import PassMode, PromiseAtRisk, SchedulingPass

_UNBLOCKED = np.iinfo(np.int64).max

Reservations = dict[JobRecord, Allocation | None]


class JobFault(Exception):
    """The planner failed while it tried a job; the cause is chained."""

    def __init__(self, job: str) -> None:
        super().__init__(f"job {job} cannot be planned")
        self.job = job


class Plan:
    """The reservations of one queue."""

    def __init__(
        self,
        pending: Pending,
        policy: QueuePolicy,
        rules: RuleBook,
        guard: PluginGuard,
        *,
        depth: int | None,
        window: int | None,
        replan: bool,
    ) -> None:
        self.reserved: set[JobRecord] = set()
        self._pending = pending
        self._policy = policy
        self._rules = rules
        self._guard = guard
        self._depth = depth
        self._window = window
        self._replan = replan
        self._due: list[tuple[int, int, JobRecord]] = []  # a heap of reserved starts; some are out of date
        self._blocked: Ints = np.full(16, _UNBLOCKED, np.int64)  # per shape: the shortest limit that failed

    # -- reservations ----------------------------------------------------------------------------------------

    def reservations(self) -> Reservations:
        return {record: record.reservation for record in self.reserved}

    def adopt(self, record: JobRecord, held: Allocation) -> None:
        """Take over a place in the plan that the planner knows."""
        record.reservation = held
        self.reserved.add(record)
        self._note_due(record, held)

    def withdraw(self, record: JobRecord, planner: Planner) -> bool:
        """Give up the place of a job that leaves the queue; says whether it had one."""
        if record.reservation is None:
            return False
        planner.drop(record.reservation)
        record.reservation = None
        self.reserved.discard(record)
        return True

    def next_start(self) -> int | None:
        """When the next reserved job is to start."""
        while self._due and not _is_due(self._due[0]):
            heappop(self._due)
        return self._due[0][0] if self._due else None

    def take_due(self, now: int) -> list[JobRecord]:
        """The jobs whose reserved start has come, in the queue's order."""
        found = set()
        while (at := self.next_start()) is not None and at <= now:
            found.add(heappop(self._due)[2])
        return sorted(found, key=lambda record: record.order)

    def slip(self, due: list[JobRecord], now: int) -> bool:
        """A cycle that comes late moves the whole plan by as much, or the jobs that were due would be put
        behind those planned after them."""
        late = max((now - record.reserved_at for record in due if record.reserved_at is not None), default=0)
        if not late:
            return False
        for record in self.reserved:
            if record.deadline is not None:
                record.deadline += late
        return True

    # -- shapes ----------------------------------------------------------------------------------------------

    def make_room(self, shape: int) -> None:
        """A job of this shape has come."""
        if shape >= len(self._blocked):
            grown = np.full(2 * shape + 2, _UNBLOCKED, np.int64)
            grown[: len(self._blocked)] = self._blocked
            self._blocked = grown

    def start_anew(self, shapes: int) -> None:
        """Another planner: no reservations, other shapes."""
        for record in self.reserved:
            record.reservation = None
        self.reserved.clear()
        self._blocked = np.full(max(16, 2 * shapes), _UNBLOCKED, np.int64)

    # -- passes ----------------------------------------------------------------------------------------------

    def run(
        self,
        planner: Planner,
        now: int,
        due: list[JobRecord],
        *,
        rebuild: bool,
        lost: bool,
        freed: bool,
        since: int,
    ) -> SchedulingPass:
        """Run the policy; what it did is undone where it would break a promise, or fails."""
        if rebuild or freed:
            self._blocked.fill(_UNBLOCKED)
        before = self.reservations()
        mark = planner.mark()
        mode = PassMode.REBUILD if rebuild else PassMode.EXTEND
        keep = not lost and not self._replan
        since = 0 if rebuild or freed or due else since
        chosen = self._policy
        while True:
            made = self._make(planner, now, mode, since, keep and mode is PassMode.REBUILD, chosen)
            try:
                self._begin(made, planner, before, due)
                chosen.run(made)
                if mode is PassMode.REBUILD and keep and any(map(_is_broken, before.keys() - made.begun)):
                    raise PromiseAtRisk
                return made
            except PromiseAtRisk:
                mode = PassMode.REBUILD if mode is PassMode.EXTEND else PassMode.COMPRESS
            except Exception as fault:
                if chosen.built_in:
                    self._undo(made, planner, mark, before)  # whoever takes the job out can go on
                    for record in due:
                        self._note_due(record, record.reservation)
                    if made.current is None:
                        raise
                    raise JobFault(made.current.key) from fault
                self._guard.note(f"queue policy {chosen.name}", fault)
                chosen = policies.BUILT_IN["easy"]
                mode = PassMode.REBUILD
            self._undo(made, planner, mark, before)
            mark = planner.mark()
            since = 0

    def keep(self, done: SchedulingPass, before: Reservations, now: int) -> None:
        """Write down the reservations of a pass."""
        for record, held in done.planned.items():
            if record.reservation is not held or not record.waiting:
                continue
            was = before.get(record)
            if was is None or was.start != held.start:
                self._note_due(record, held)
            if record.deadline is None:
                record.deadline = held.start
            if record.phase is Phase.PENDING:
                record.move(Phase.RESERVED, now, Reason.of(Code.PLANNED))
        for record in before:
            if record.reservation is None and record.phase is Phase.RESERVED:
                record.move(Phase.PENDING, now, Reason.of(Code.UNPLANNED))
        self.reserved = {
            record for record in (*before, *done.planned) if record.reservation is not None and record.waiting
        }

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
            since=since,
            depth=self._depth,
            window=self._window,
            keep=keep,
            admit=self._rules.admits if limited else None,
            check=None if chosen.built_in else self._guard.deadline(),
        )
        made.reserved = len(self.reserved)
        if limited:
            made.claims.update(record.owner for record in self.reserved)
        return made

    @staticmethod
    def _begin(made: SchedulingPass, planner: Planner, before: Reservations, due: list[JobRecord]) -> None:
        """What becomes of the reservations there are, before the policy looks at the rest."""
        if made.mode is PassMode.REBUILD:
            planner.drop_all()
            for record in before:
                record.reservation = None
            made.reserved = 0
            made.claims.clear()
        elif made.mode is PassMode.COMPRESS:
            made.compress()
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
            heappush(self._due, (held.start, record.order[2], record))


def _is_due(item: tuple[int, int, JobRecord]) -> bool:
    at, _, record = item
    return record.reserved_at == at and record.waiting > 0


def _is_broken(record: JobRecord) -> bool:
    """Whether a job that had a place in the plan has none now, or too late."""
    if not record.waiting or record.deadline is None:
        return False
    return record.reserved_at is None or record.reserved_at > record.deadline
