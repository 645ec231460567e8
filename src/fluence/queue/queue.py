"""The queue: jobs in order, the plan of who starts when, and what each job was promised.

A pure state machine on a planner. Events come in as calls with their time; `cycle` lets the policy act and
returns what is to be started. The plan is kept from one cycle to the next: as long as nothing comes free
before it was planned to, the reservations stand and only jobs that are new are looked at. The live scheduler,
the simulator and what-if all use it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fluence.errors import Conflict, NotFound
from fluence.model.reason import Code, Reason
from fluence.queue import policy as policies
from fluence.queue.allocations import Allocation
from fluence.queue.budget import CycleBudget, Sweep
from fluence.queue.dependencies import Dependencies
from fluence.queue.guard import PluginFault, PluginGuard
from fluence.queue.history import History, Predictor
from fluence.queue.job import SECOND, Charge, JobRecord, Order, Phase, StoryStep, Submission
from fluence.queue.overruns import Overruns
from fluence.queue.pending import Pending
from fluence.queue.plan import News, Plan, Reservations
from fluence.queue.planner import Planner
from fluence.queue.policy import QueuePolicy
from fluence.queue.priority import Priority, by_urgency
from fluence.queue.promises import Promises
from fluence.queue.rules import QueueRules, RuleBook
from fluence.queue.scheduling_pass import SchedulingPass

_TELL_PAUSE = SECOND  # between two rounds of promises, where a cycle has a budget
_PAUSE = SECOND // 2  # between two cycles that only improve the plan
_RUNS = 2000  # that whoever takes over the queue can learn from


@dataclass(frozen=True, slots=True)
class Start:
    """A task that is to be started now."""

    record: JobRecord
    task: str
    end: int  # by its limit


class Queue:
    """All jobs, waiting and running, and the plan. ``timer`` gives seconds, to bound what plug-ins take
    (``budget``) and, if ``cycle_budget`` is given, how long a cycle plans."""

    def __init__(
        self,
        planner: Planner,
        policy: str | QueuePolicy = "easy",
        *,
        rules: Mapping[str, QueueRules] | None = None,
        priority: Priority = by_urgency,
        predictor: Predictor | None = None,
        depth: int | None = None,
        window: int | None = None,
        resolution: int = 1,
        replan: bool = False,
        forecasts: bool = True,
        renews: bool = False,
        promises: int | None = None,
        now: int = 0,
        budget: float = 1.0,
        cycle_budget: float | None = None,
        timer: Callable[[], float] | None = None,
    ) -> None:
        self.planner = planner
        self.policy = policies.find(policy) if isinstance(policy, str) else policy
        self.depth = depth
        self.window = window
        self.resolution = resolution
        self.now = now
        self.records: dict[str, JobRecord] = {}
        self.pending = Pending()
        self.runs: deque[tuple[Submission, int]] = deque(maxlen=_RUNS)
        self.tries = 0
        self.cycles = 0
        self._guard = guard = PluginGuard(budget, timer)
        self.rules = RuleBook(rules, priority, guard)
        self.overruns = Overruns(self.rules)
        self.dependencies = Dependencies(self.records)
        plan_budget = CycleBudget(cycle_budget, timer)
        self.promises = Promises(
            self.pending,
            self.policy,
            predictor or History(),
            guard,
            is_enforced=self.rules.is_enforced,
            depth=depth,
            most=promises,
            forecasts=forecasts,
            renews=renews,
            pause=_TELL_PAUSE if plan_budget.is_limited else 0,
        )
        self._serial = 0
        options = {"depth": depth, "window": window}
        self.plan = Plan(self.pending, self.policy, self.rules, guard, plan_budget, replan=replan, **options)
        self._tasks: dict[str, JobRecord] = {}  # that run
        self._new: list[JobRecord] = []  # since the last cycle
        self._since = 0  # the first of them, by place
        self._seen = (planner.freed, planner.opened, planner.lost)
        self._disturbed = False  # the order of reserved jobs has changed, or one of them has left
        self._go_on = 0  # when to move on with reservations
        self._cause: Reason | None = None  # of a loss that no cycle has seen

    # -- events ----------------------------------------------------------------------------------------------

    def submit(self, job: Submission, record: JobRecord | None = None) -> JobRecord:
        """Take a job in; what can never start is said at once and stays to be asked about. ``record``: the
        caller's own, for this job; it may have gathered before."""
        now = self.now = max(self.now, job.submit)
        self._check_new(job.key)
        self.dependencies.check(job)
        if not self.planner.understands(job.request):
            self._widen()
        record = self._register(job, record)
        record.waiting, record.ended, record.succeeded = job.tasks, None, True
        if record.phase is not Phase.PENDING:
            record.move(Phase.PENDING, now, Reason.of(Code.SUBMITTED))
        else:
            record.story.append(StoryStep(now, Phase.PENDING, Reason.of(Code.SUBMITTED)))
        never = self.planner.feasibility(job.request) or self.rules.refusal(job)
        if never is not None:
            self._refuse(record, now, never)
        else:
            self._admit_or_hold(record, now)
        return record

    def resume(
        self, job: Submission, running: Mapping[str, Allocation], waiting: Sequence[int] | None, now: int
    ) -> JobRecord:
        """Take in a job some of whose tasks run already, in the planner's allocations.
        ``waiting``: the tasks that have not started, others are over; None: no task has started."""
        record = self.submit(replace(job, submit=min(job.submit, now)))
        if waiting is None or record.phase.is_over:
            return record
        record.waiting, record.fresh, record.again = len(waiting), job.tasks, list(reversed(waiting))
        if not record.waiting:
            self.pending.remove(record)
            self._new.remove(record)
        for held in running.values():
            self._hold(record, held)
        record.started = min((held.start for held in running.values()), default=now)
        record.move(Phase.BINDING, record.started, Reason.of(Code.WAS_RUNNING))
        record.move(Phase.RUNNING, record.started, Reason.of(Code.WAS_RUNNING))
        return record

    def adopt(
        self, job: Submission, held: Allocation, now: int, record: JobRecord | None = None
    ) -> JobRecord:
        """Take in a job all of which runs already, after a restart: it is not judged, for it is there. The
        planner's allocations hold its resources under its key."""
        self._check_new(job.key)
        record = self._register(job, record)
        record.waiting, record.fresh, record.started = 0, 1, held.start
        record.phase = Phase.RUNNING  # NB a record begins here: there is nothing that it moved from
        record.story.append(StoryStep(now, Phase.RUNNING, Reason.of(Code.FOUND_RUNNING)))
        self._hold(record, held)
        return record

    def forget(self, key: str) -> None:
        """Leave out a job that is over; its key may be used again."""
        record = self._record(key)
        if not record.phase.is_over:
            raise Conflict(f"job {key} is {record.phase.value}: cancel it first")
        for other, reason in self.dependencies.forget(record):
            self._over(other, Phase.NEVER, self.now, reason, succeeded=False)
        del self.records[key]

    def resume_reservation(self, key: str, held: Allocation) -> None:
        """Take over a place in the plan that the planner knows."""
        record = self._record(key)
        self.plan.adopt(record, held)
        if record.phase is Phase.PENDING:
            record.move(Phase.RESERVED, self.now, Reason.of(Code.PLANNED))

    def resume_promise(self, key: str, at: int, *, expected: int | None, firm: bool) -> None:
        """A job was told of its start before this queue knew it, by one that is no more: that holds."""
        record = self._record(key)
        if record.phase is not Phase.PENDING or key in self.held:
            return
        self.promises.resume(record, at, self.now, expected=expected, firm=firm)
        if self.policy.promise == "reservation":
            self.plan.resume(record)

    def cancel(self, key: str, now: int, reason: Reason | None = None) -> None:
        """Take a job out, waiting or running."""
        self.now = now
        record = self._record(key)
        if record.phase.is_over:
            raise Conflict(f"job {key} is {record.phase.value} already")
        self._withdraw(record)
        for task in list(record.running):
            self._stop(record, task, now)
        record.waiting = 0
        reason = reason or Reason.of(Code.CANCELLED_BY_USER)
        self._over(record, Phase.CANCELLED, now, reason, succeeded=False)

    def running(self, task: str, now: int) -> None:
        """A task that was to be started runs."""
        record = self._of_task(task)
        if record.phase in (Phase.BINDING, Phase.PREPARING):
            record.move(Phase.RUNNING, now, Reason.of(Code.RESOURCES_BOUND))

    def finish(self, task: str, now: int, *, succeeded: bool = True) -> None:
        """A task has ended by itself, or at its limit."""
        self.now = now
        record = self._of_task(task)
        lasted = now - record.running[task].start
        self._stop(record, task, now)
        record.succeeded = record.succeeded and succeeded
        self.learn(record.job, record.shape, lasted)
        if not record.overdue:
            self.rules.kept(record.job)
        if not record.running and not record.waiting:
            reason = Reason.of(Code.ENDED if succeeded else Code.FAILED)
            self._over(record, Phase.DONE, now, reason, succeeded=record.succeeded)

    def learn(self, job: Submission, shape: int, runtime: int) -> None:
        """A task of this job ran so long."""
        self.runs.append((job, runtime))
        self.promises.learn(job, shape, runtime)

    def requeue(self, task: str, now: int, cause: Reason) -> None:
        """A task lost its resources, or could not be started: it waits again, in its old place."""
        self.now = now
        record = self._of_task(task)
        self._stop(record, task, now)
        record.put_back(task)
        if record.no_later_than is not None and record.started is not None:
            self.promises.broke(record, now, cause)
        record.no_later_than = record.deadline = None
        self.promises.note_loss(now, cause)
        if not record.running:
            record.move(Phase.PENDING, now, cause)
            record.started = None
        if record.waiting > 1:
            self.promises.owe(record)  # it waits already, and is told anew
        else:
            self._enter(record)

    def reprioritise(self, key: str, priority: int, now: int) -> None:
        """Change the priority of a job that waits."""
        self.now = now
        record = self._record(key)
        if not record.waiting or record.phase.is_over:
            raise Conflict(f"job {key} is {record.phase.value}: only waiting jobs have a priority")
        is_held = key in self.held
        if not is_held:
            self._withdraw(record)
        record.job = replace(record.job, priority=priority)
        # Whoever moves a job gives up what it was promised in its old place.
        record.deadline = record.no_later_than = record.promised = None
        record.order = self._order(record.job, record.order[-1])
        if not is_held:
            self._enter(record)

    def note_loss(self, cause: Reason) -> None:
        """Resources went away for this reason; said before the cycle that finds out."""
        self._cause = cause

    def take_faults(self) -> list[PluginFault]:
        """What plug-ins did wrong since the last call."""
        return self._guard.take()

    # -- asking ----------------------------------------------------------------------------------------------

    @property
    def held(self) -> Mapping[str, JobRecord]:
        """The jobs that wait for others to end."""
        return self.dependencies.held

    def waiting(self) -> Iterator[JobRecord]:
        """All jobs that wait, in order, then those that wait for others."""
        yield from self.pending
        yield from self.held.values()

    def limit_of(self, record: JobRecord) -> tuple[Charge, int] | None:
        """The limit of its queue that it would pass beside those that run and are to run; None: none."""
        if not self.rules.limits_users:
            return None
        return self.rules.exceeded(record, self.rules.claims(record, self.plan.reserved))

    @property
    def has_more(self) -> bool:
        """Whether a cycle had no time for some jobs that may be able to start."""
        progress = self.plan.progress
        return any(progress.at(sweep) is not None for sweep in (Sweep.TRY, Sweep.REPAIR, Sweep.START))

    def next_due(self) -> int | None:
        """When the plan wants the next cycle, if nothing happens before: a reservation, an overrun, or to go
        on with what it had no time for."""
        times = [self.plan.next_start(), self.planner.allocations.next_end(), self.promises.next_due()]
        if self.plan.progress:
            times.append(self._go_on)
        return min((at for at in times if at is not None), default=None)

    # -- the cycle -------------------------------------------------------------------------------------------

    def cycle(self, now: int) -> list[Start]:
        """Let the policy act; returns what is to be started."""
        self.now = now
        self.cycles += 1
        self._go_on = now
        self.planner.advance(now)
        self._cause = self.overruns.extend(now, self.planner, self._tasks) or self._cause
        freed, opened, lost = self.planner.freed, self.planner.opened, self.planner.lost
        was_freed, was_opened, was_lost = self._seen
        due = self.plan.take_due(now)
        nothing_new = freed == was_freed and not due and not self._new and not self._disturbed
        nothing_new = nothing_new and not self.plan.progress
        if lost != was_lost:
            self.promises.note_loss(now, self._cause)
        self.promises.withdraw_passed(now)
        if nothing_new and opened == was_opened and lost == was_lost:
            self.promises.tell(now, self.planner, self.held, self._tasks)
            return []
        rebuild = opened != was_opened or lost != was_lost or self._disturbed
        before = self.plan.reservations()
        repairs = self.plan.progress.at(Sweep.REPAIR) is not None
        news = News(due, self._new, self._since, freed != was_freed, lost != was_lost, rebuild)
        done = self.plan.run(self.planner, now, news)
        self._disturbed = False
        self.tries += done.tries
        starts = self._keep(done, before, now)
        if done.resumed:
            self.promises.note_loss(now, self._cause or Reason.of(Code.RESTARTED))
        if lost != was_lost or repairs or done.resumed:
            self.promises.broken_by_loss((*before, *done.resumed), now)
            self._cause = None
        self._seen = (self.planner.freed, self.planner.opened, self.planner.lost)
        if self._disturbed:  # the matcher refused what was counted on, and the planner was widened
            return starts + self.cycle(now)
        self._new.clear()
        self._since = len(self.pending)
        self._go_on = now if self.has_more else now + _PAUSE
        if not self.has_more or self.promises.is_late(now):  # starts come first
            self.promises.tell(now, self.planner, self.held, self._tasks)
        return starts

    # -- inside ----------------------------------------------------------------------------------------------

    def _keep(self, done: SchedulingPass, before: Reservations, now: int) -> list[Start]:
        """Write down what a pass did."""
        failed = set(self.planner.settle(now))
        starts: list[Start] = []
        first_waiting = next((each.order for each in self.pending if each.waiting), None)
        for record, held in done.starts:
            if held in failed:
                record.put_back(held.task)
                del record.running[held.task]
                continue
            self._hold(record, held)
            starts.append(Start(record, held.task, held.end))
            if record.phase is not Phase.BINDING and record.started is None:
                self._begin(record, now, first_waiting)
        for record in {start.record for start in starts}:
            record.deadline = None  # of an array's next task: its place, if it gets one
            if not record.waiting:
                self.pending.remove(record)
        if failed:
            self._widen()
            for record in done.planned:
                record.reservation = None
        self.plan.keep(done, before, now)
        return starts

    def _begin(self, record: JobRecord, now: int, first_waiting: Order | None) -> None:
        record.backfilled = first_waiting is not None and record.order > first_waiting
        record.started = now
        reason = Reason.of(Code.BACKFILLED if record.backfilled else Code.ITS_TURN)
        record.move(Phase.BINDING, now, reason)
        self.promises.started(record, now)

    def _check_new(self, key: str) -> None:
        if key in self.records:
            raise Conflict(f"job {key} has been submitted already: choose another key")

    def _register(self, job: Submission, record: JobRecord | None) -> JobRecord:
        """A record of the job, in the queue's order, with the limit that is planned with."""
        record = record or JobRecord(job)
        record.job = job
        record.shape = self.planner.shape(job.request)
        record.limit, record.bounded = self.rules.limit(job, self.resolution)
        record.order = self._order(job)
        self.plan.make_room(record.shape)
        self.records[job.key] = record
        self.dependencies.add(record)
        return record

    def _hold(self, record: JobRecord, held: Allocation) -> None:
        """A task of a job has resources, in the planner's allocations."""
        record.running[held.task] = held
        self._tasks[held.task] = record
        self.rules.count(record, 1)

    def _stop(self, record: JobRecord, task: str, now: int) -> None:
        self.planner.end(record.running.pop(task), now)
        del self._tasks[task]
        self.overruns.over(task)
        self.rules.count(record, -1)

    def _order(self, job: Submission, serial: int | None = None) -> Order:
        if serial is None:
            self._serial += 1
            serial = self._serial
        return -self.rules.rank(job, self.now), job.submit, job.queued, serial

    def _admit_or_hold(self, record: JobRecord, now: int) -> None:
        hopeless = self.dependencies.hold(record)
        if hopeless is not None:
            self._refuse(record, now, hopeless)
        elif record.key not in self.held:
            self._enter(record)

    @staticmethod
    def _refuse(record: JobRecord, now: int, reason: Reason) -> None:
        record.move(Phase.NEVER, now, reason)
        record.ended, record.succeeded = now, False

    def _enter(self, record: JobRecord) -> None:
        place = self.pending.add(record)
        if place < len(self.pending) - 1 and any(
            later.reservation is not None for later in self.pending.records[place + 1 :]
        ):
            self._disturbed = True
        self._since = min(self._since, place) if self._new else place
        self._new.append(record)
        self.promises.owe(record)

    def _withdraw(self, record: JobRecord) -> None:
        """Take a waiting job out of the order and the plan."""
        if self.dependencies.held.pop(record.key, None) is not None or not record.waiting:
            return
        place = self.pending.remove(record)
        self._since -= place < self._since
        if self.plan.withdraw(record, self.planner):
            self._disturbed = True
            if record.phase is Phase.RESERVED:
                record.move(Phase.PENDING, self.now, Reason.of(Code.TAKEN_OUT_OF_PLAN))

    def _over(self, record: JobRecord, phase: Phase, now: int, reason: Reason, *, succeeded: bool) -> None:
        record.move(phase, now, reason)
        record.ended = now
        record.succeeded = succeeded
        self.promises.forget(record)
        over = [record]  # NB not by recursion: a chain may be as long as the queue
        while over:
            for other in self.dependencies.released_by(over.pop()):
                self._admit_or_hold(other, now)
                if other.phase.is_over:
                    over.append(other)

    def _widen(self) -> None:
        self.planner = self.planner.widened()
        self._disturbed = True
        for record in self.records.values():
            record.shape = self.planner.shape(record.job.request)
        self.pending.reshape()
        self.plan.start_anew(max((record.shape for record in self.records.values()), default=0) + 1)

    def _of_task(self, task: str) -> JobRecord:
        record = self._tasks.get(task)
        if record is None:
            raise NotFound(f"no task {task} is running")
        return record

    def _record(self, key: str) -> JobRecord:
        record = self.records.get(key)
        if record is None:
            raise NotFound(f"no job {key}: see what there is with the queue's list")
        return record
