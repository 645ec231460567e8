"""The queue: jobs in order, the plan of their starts, and the promises to their users.

A pure state machine on top of a planner. Events are calls with their time; `cycle` runs the policy and
returns the tasks to start. The plan is kept from one cycle to the next: if nothing came free earlier than
planned, the reservations stay and only new jobs are tried. The live scheduler, the simulator and what-if all
use this module.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fluence.errors import Conflict, NotFound
from fluence.model.job_state import JobState
from fluence.model.queues import QueueTree
from fluence.model.reason import Code, Reason
from fluence.queue import policy as policies
from fluence.queue.allocations import Allocation
from fluence.queue.fair_share import HALF_LIFE, Account, FairShare
from fluence.queue.history import History, Predictor
from fluence.queue.job import FOREVER, SECOND, Charge, JobRecord, Order, Submission
from fluence.queue.pending import Dependencies, Pending
from fluence.queue.plan import News, Plan, Reservations
from fluence.queue.planner import Planner
from fluence.queue.policy import PluginFault, PluginGuard, QueuePolicy
from fluence.queue.promises import Promises
from fluence.queue.quota import QuotaBook
from fluence.queue.rules import Overruns, Priority, QueueRules, RuleBook, by_urgency
from fluence.queue.scheduling_pass import CycleBudget, SchedulingPass, Sweep
from fluence.queue.turns import Favours, Turns

_TELL_PAUSE = SECOND  # between two rounds of promises, where a cycle has a budget
_IMPROVE_PAUSE = SECOND // 2  # between two cycles that only improve the plan
_DEFAULT = "default"  # the queue of a job that names none
_REFUSALS = (Code.UNKNOWN_QUEUE, Code.QUEUE_IS_INNER, Code.QUEUE_CLOSED, Code.QUOTA_TOO_SMALL)
_MAX_RUNS = 2000  # kept so that a restored queue can learn from them


@dataclass(frozen=True, slots=True)
class Start:
    """A task to start now."""

    record: JobRecord
    task: str
    end: int  # by its limit


def _rules(tree: QueueTree, settings: Mapping[str, QueueRules]) -> dict[str, QueueRules]:
    """The rules of each queue: those of the settings, and the time limits of its document. The settings
    override the document. The settings for jobs without a queue apply to the default queue."""
    rules = dict(settings)
    for leaf in tree.leaves:
        time = tree.time(leaf)
        base = settings.get(leaf) or QueueRules()
        if leaf not in settings and leaf == tree.leaf(_DEFAULT):
            base = settings.get("", base)
        rules[leaf] = replace(
            base,
            default_limit=base.default_limit if base.default_limit is not None else time.default,
            max_limit=base.max_limit if base.max_limit is not None else time.max,
            enforced=base.enforced or bool(time.enforce),
            grace=base.grace if base.enforced else time.grace or 0,
        )
    return rules


def _overridden(tree: QueueTree, settings: Mapping[str, QueueRules]) -> dict[str, list[tuple[str, str]]]:
    """The fields of queues that settings override, with the name of each setting."""
    found: dict[str, list[tuple[str, str]]] = {}
    for leaf in tree.leaves if settings else ():
        time, base = tree.time(leaf), settings.get(leaf)
        if base is None and leaf == tree.leaf(_DEFAULT):
            base = settings.get("")
        if base is None:
            continue
        compared = (
            ("default-durations", "default", base.default_limit, time.default),
            ("max-durations", "max", base.max_limit, time.max),
            ("enforce-limits", "enforce", base.enforced or None, time.enforce),
            ("enforce-limits", "grace", base.grace if base.enforced else None, time.grace),
        )
        pairs = [
            (setting, field)
            for setting, field, counts, said in compared
            if counts is not None and said is not None and counts != said
        ]
        if pairs:
            found[leaf] = pairs
    return found


class Queue:
    """All waiting and running jobs, and the plan. ``timer`` returns seconds. It bounds the time of plug-ins
    (``budget``) and, if ``cycle_budget`` is given, the time that a cycle spends on the plan."""

    def __init__(
        self,
        planner: Planner,
        policy: str | QueuePolicy = "easy",
        *,
        rules: Mapping[str, QueueRules] | None = None,
        names: Collection[str] | None = None,
        queues: QueueTree | None = None,
        half_life: int = HALF_LIFE,
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
        self.runs: deque[tuple[Submission, int]] = deque(maxlen=_MAX_RUNS)
        self.tries = 0
        self.cycles = 0
        self._guard = guard = PluginGuard(budget, timer)
        self.rules = RuleBook(rules, priority, guard, names=names)
        self.overruns = Overruns(self.rules)
        self.dependencies = Dependencies(self.records)
        self.favours = Favours(self.pending)
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
        self._tasks: dict[str, JobRecord] = {}  # running
        self._new: list[JobRecord] = []  # since the last cycle
        self._since = 0  # the first of them, by place
        self._seen = (planner.freed, planner.opened, planner.lost)
        self._disturbed = False  # the order of reserved jobs has changed, or one of them has left
        self._go_on = 0  # when the next cycle should continue to improve the plan
        self._cause: Reason | None = None  # of a loss that no cycle has seen
        self._settings, self._names = dict(rules or {}), self.rules.names
        self.labels_of: Callable[[str], Mapping[str, str]] | None = None
        """Returns the labels of an account, which is a namespace; None: accounts have no labels."""
        self._lost_quota = False
        self._nodes_in_classes: Hashable = None  # the nodes for which classes are counted
        self.quotas: QuotaBook | None = None
        self.overridden: dict[str, list[tuple[str, str]]] = {}
        """By leaf: settings that override a field of its document, with that field."""
        self.turns: Turns | None = None
        self._half_life = half_life
        self._choices: dict[str, bool] = {}  # by account: whether several queues are open to it
        if queues is not None:
            self.use_queues(queues, now)

    # -- events ----------------------------------------------------------------------------------------------

    def submit(self, job: Submission, record: JobRecord | None = None) -> JobRecord:
        """Add a job. A job that can never start is marked unschedulable at once, and its record stays.
        ``record``: the caller's own record of the job, which may be gathering its pods already."""
        now = self.now = max(self.now, job.submit)
        job = self._in_leaf(job)
        self._check_new(job.key)
        self.dependencies.check(job)
        if not self.planner.understands(job.request):
            self._widen()
        record = self._register(job, record)
        record.move(JobState.PENDING, now, Reason.of(Code.SUBMITTED))
        self._judge(record, now)
        return record

    def resume(
        self, job: Submission, running: Mapping[str, Allocation], waiting: Sequence[int] | None, now: int
    ) -> JobRecord:
        """Add a job that has running tasks in the planner's allocations. ``waiting``: the tasks that have not
        started; tasks that neither run nor wait are over. None: no task has started."""
        record = self.submit(replace(job, submit=min(job.submit, now)))
        if waiting is None or record.state.leaves_queue:
            return record
        record.waiting, record.fresh, record.again = len(waiting), job.tasks, list(reversed(waiting))
        if not record.waiting:
            self.favours.started(record)
            self.pending.remove(record)
            self._new.remove(record)
        for held in running.values():
            self._hold(record, held)
        record.started = min((held.start for held in running.values()), default=now)
        record.move(JobState.STARTING, record.started, Reason.of(Code.WAS_RUNNING))
        record.move(JobState.RUNNING, record.started, Reason.of(Code.WAS_RUNNING))
        return record

    def adopt(
        self, job: Submission, held: Allocation, now: int, record: JobRecord | None = None
    ) -> JobRecord:
        """Add a job that is running already, after a restart. Its feasibility is not checked. The planner's
        allocations hold its resources under its key."""
        job = self._in_open_leaf(job)
        self._check_new(job.key)
        record = self._register(job, record)
        record.move(JobState.RUNNING, held.start, Reason.of(Code.FOUND_RUNNING))
        self._hold(record, held)
        if self.quotas is not None:  # the planner added it before its claim was known
            self.quotas.added(held)
        return record

    def forget(self, key: str) -> None:
        """Remove a job that is over; its key may be used again."""
        record = self._record(key)
        if not record.state.leaves_queue:
            raise Conflict(f"job {key} is {record.state.value}: cancel it first")
        for other, reason in self.dependencies.forget(record):
            self._over(other, JobState.UNSCHEDULABLE, self.now, reason)
        if self.quotas is not None:
            self.quotas.forget(key)
        del self.records[key]

    def resume_reservation(self, key: str, held: Allocation) -> None:
        """Take over a reservation that the planner already has."""
        record = self._record(key)
        self.plan.adopt(record, held)
        if record.state is JobState.PENDING:
            record.move(JobState.RESERVED, self.now, Reason.of(Code.PLANNED))

    def resume_promise(self, key: str, at: int, *, expected: int | None, firm: bool) -> None:
        """Take over a start that an earlier process promised to the job."""
        record = self._record(key)
        if record.state is not JobState.PENDING or key in self.held:
            return
        self.promises.resume(record, at, self.now, expected=expected, firm=firm)
        self._keep_promise(record)

    def cancel(self, key: str, now: int, reason: Reason | None = None) -> None:
        """Cancel a waiting or running job."""
        self.now = now
        record = self._record(key)
        if record.state.leaves_queue:
            raise Conflict(f"job {key} is {record.state.value} already")
        self._withdraw(record)
        for task in list(record.running):
            self._stop(record, task, now)
        self._over(record, JobState.CANCELLED, now, reason or Reason.of(Code.CANCELLED_BY_USER))

    def running(self, task: str, now: int) -> None:
        """A task that was started is running now."""
        record = self._of_task(task)
        if record.state in (JobState.STARTING, JobState.PREPARING):
            record.move(JobState.RUNNING, now, Reason.of(Code.RESOURCES_BOUND))

    def finish(self, task: str, now: int, *, outcome: JobState = JobState.COMPLETED) -> None:
        """A task has ended by itself, or at its limit."""
        self.now = now
        record = self._of_task(task)
        lasted = now - record.running[task].start
        self._stop(record, task, now)
        if record.outcome is JobState.COMPLETED:
            record.outcome = outcome
        if outcome is not JobState.CANCELLED:  # how long it would have run is not known
            self.learn(record.job, record.shape, lasted)
        if not record.overdue:
            self.rules.kept(record.job)
        if not record.running and not record.waiting:
            succeeded = record.outcome is JobState.COMPLETED
            self._over(record, record.outcome, now, Reason.of(Code.ENDED if succeeded else Code.FAILED))

    def learn(self, job: Submission, shape: int, runtime: int) -> None:
        """Record the run time of a task of this job."""
        self.runs.append((job, runtime))
        self.promises.learn(job, shape, runtime)

    def requeue(self, key: str, now: int, cause: Reason) -> None:
        """A job lost its nodes before it ran: it waits again, and keeps its history, its place and its
        promise."""
        self.now = now
        record = self._record(key)
        if record.state not in (JobState.STARTING, JobState.PREPARING):
            raise Conflict(f"job {key} is {record.state}: only one that starts can lose its start")
        # The cause of a broken promise is the loss, not that the pods of this job were not bound.
        loss = Reason.of(Code.RESOURCES_LOST) if cause.code is Code.NOT_BOUND else cause
        self._cause = loss
        waited = record.waiting > 0
        for task in list(record.running):
            self._stop(record, task, now)
            record.put_back(task)
        if record.counted is not None:
            record.counted = None
            self._enrol(record)
        self.promises.lost_start(record, now, loss)
        record.move(JobState.PENDING, now, cause)
        if not waited:
            self._enter(record)
        self._keep_promise(record)

    def amend(self, key: str, request: Hashable, now: int, reason: Reason) -> None:
        """The request of a waiting job, or the size of the cluster, has changed without an action of its
        user: the job keeps its history, its place and its promise."""
        self.now = now
        record = self._record(key)
        if record.state is JobState.UNSCHEDULABLE:
            self._change(record, request)
            record.move(JobState.PENDING, now, reason)
        else:
            self._withdraw(record)
            self._change(record, request)
        self._judge(record, now)
        self._keep_promise(record)

    def unplan(self, key: str, now: int) -> None:
        """A waiting job gives up its reservation; the next cycle may give it another."""
        record = self._record(key)
        if self.plan.withdraw(record, self.planner):
            self._disturbed = True
            if record.state is JobState.RESERVED:
                record.move(JobState.PENDING, now, Reason.of(Code.TAKEN_OUT_OF_PLAN))

    def reprioritise(self, key: str, priority: int, now: int, favour: int | None = None) -> None:
        """Change the priority of a waiting job, or its favour."""
        self.now = now
        record = self._record(key)
        if not record.waiting or record.state.leaves_queue:
            raise Conflict(f"job {key} is {record.state.value}: only waiting jobs have a priority")
        is_held = key in self.held
        if not is_held:
            self._withdraw(record)
        favour = record.job.favour if favour is None else favour
        record.job = replace(record.job, priority=priority, favour=favour)
        # The promise was for the old place in the queue, so moving the job gives it up.
        record.deadline = record.no_later_than = record.promised = None
        record.order = self._order(record.job, record.order[-1])
        if not is_held:
            self._enter(record)

    def set_max_running(self, key: str, most: int | None) -> None:
        """Change how many jobs of its array may run at a time."""
        record = self._record(key)
        record.job = replace(record.job, max_running=most)
        self.rules.limits_users = self.rules.limits_users or most is not None
        self._disturbed = True

    def note_loss(self, cause: Reason) -> None:
        """Resources were lost for this reason. Call it before the cycle that notices the loss."""
        self._cause = cause

    def take_faults(self) -> list[PluginFault]:
        """The faults of plug-ins since the last call."""
        return self._guard.take()

    # -- queues ----------------------------------------------------------------------------------------------

    def use_queues(
        self, tree: QueueTree, now: int, usage: Mapping[Account, tuple[float, int]] | None = None
    ) -> None:
        """Put other queues in force. Running jobs stay, and count in their leaf until they end. Waiting jobs
        are checked against the new limits; promises that these do not allow are broken as after a loss.
        ``usage``: earlier usage of accounts as (value, time), if these are the first queues."""
        self.now = now
        self.rules.rules, self.rules.names = _rules(tree, self._settings), None
        self.overridden = _overridden(tree, self._settings)
        self._choices.clear()
        before, self.quotas = self.quotas, QuotaBook(tree, now)
        self.promises.quotas = self.planner.allocations.quotas = quotas = self.quotas
        self.planner.use_classes(tree)
        quotas.in_classes = lambda held: self.planner.in_classes(held)  # NB the planner may be widened
        self._nodes_in_classes = self.planner.nodes_in_classes() if tree.in_classes else None
        for record in self.records.values():
            if not record.state.leaves_queue or record.state is JobState.UNSCHEDULABLE:
                if not record.running:
                    record.job = self._in_leaf(record.job)
                elif before is None:
                    record.job = self._in_open_leaf(record.job)
                self._enrol(record)
        allocations = self.planner.allocations
        for held in (*allocations.running.values(), *allocations.reserved.values()):
            quotas.added(held)
        if self.turns is None:
            self.turns = Turns(quotas, FairShare(tree, self._half_life))
            for account, (value, at) in (usage or {}).items():
                self.turns.shares.restore(account, value, at)
            self.turns.begin(self.records.values())
            self.pending.reorder(self.pending.records)
            for task, record in self._tasks.items():
                self.turns.started(record, record.running[task], self.planner.capacities())
        else:
            self.turns.use(quotas)
        if self.records:
            self._queues_changed()
            self._judge_queues(self.records.values(), now)

    def drop_queues(self, now: int) -> None:
        """Remove all queues and their limits. Waiting jobs keep their places."""
        if self.quotas is None or self.turns is None:
            return
        self.now = now
        self.rules.rules, self.rules.names = dict(self._settings), self._names
        self.quotas = self.promises.quotas = self.planner.allocations.quotas = None
        waiting = self.pending.records
        self.turns.end(waiting, self.records.values())
        self.turns = None
        self.pending.reorder(waiting)
        for record in self.records.values():
            if not record.running:
                record.job = self._in_leaf(record.job)
        self._queues_changed()
        self._judge_queues(self.records.values(), now)

    def accounts_changed(self, accounts: Collection[str], now: int) -> None:
        """The labels of accounts have changed, so other queues may be open to them. Running jobs are not
        affected."""
        self._choices.clear()
        if self.quotas is not None:
            self.now = now
            self._judge_queues((each for each in self.records.values() if each.job.account in accounts), now)

    def recount(self, key: str, request: Hashable, now: int) -> None:
        """A running job uses more or less than when it started."""
        record = self._record(key)
        record.counted = request
        held = record.running.get(key)
        if self.quotas is None or self.turns is None or held is None:
            return
        self.quotas.removed(held)
        self._enrol(record)
        self.quotas.added(held)
        self.turns.recounted(record, key, self.planner.capacities(), now)

    def has_choice(self, account: str) -> bool:
        """Whether more than one queue is open to an account."""
        if self.quotas is None:
            return False
        found = self._choices.get(account)
        if found is None:
            labels = None if self.labels_of is None else self.labels_of(account)
            found = self._choices[account] = self.quotas.tree.has_choice(labels)
        return found

    def quota_reason(
        self, record: JobRecord, *, but: Collection[JobRecord] = (), gone: Collection[Allocation] = ()
    ) -> Reason | None:
        """The quota that keeps a waiting job from starting now. Its own reservation does not count, nor do
        the holds and reservations of the jobs ``but`` and the running allocations ``gone``."""
        quotas = self.quotas
        if quotas is None or record.key not in quotas.claims:
            return None
        clear = record.limit if record.bounded else FOREVER
        places = [each.reservation for each in (record, *but) if each.reservation is not None]
        with quotas.without([each.key for each in but]):
            return quotas.waits_for(record.key, (*places, *gone), self.now, clear)

    def _queues_changed(self) -> None:
        self.favours.regroup()
        self._lost_quota = self._disturbed = True
        self._cause = Reason.of(Code.QUEUES_CHANGED)

    def _judge_queues(self, records: Iterable[JobRecord], now: int) -> None:
        """Accept jobs that the queues refused before and accept now, and refuse those that they no longer
        accept."""
        changed = Reason.of(Code.QUEUES_CHANGED)
        for record in list(records):
            if record.state is JobState.UNSCHEDULABLE and record.story[-1].reason.code in _REFUSALS:
                self._enrol(record)
                record.move(JobState.PENDING, now, changed)
                self._judge(record, now)
            elif record.state in (JobState.PENDING, JobState.RESERVED):
                refusal = self._refusal(record)
                if refusal is not None:
                    self._withdraw(record)
                    if record.no_later_than is not None:
                        self.promises.broke(record, now, changed)
                        record.no_later_than = record.deadline = None
                    self._over(record, JobState.UNSCHEDULABLE, now, refusal)

    # -- asking ----------------------------------------------------------------------------------------------

    @property
    def held(self) -> Mapping[str, JobRecord]:
        """The jobs with unfinished dependencies."""
        return self.dependencies.held

    def waiting(self) -> Iterator[JobRecord]:
        """All waiting jobs in order, then the jobs with unfinished dependencies."""
        yield from self.pending
        yield from self.held.values()

    def limit_of(self, record: JobRecord) -> tuple[Charge, int] | None:
        """The limit of its queue that the job would exceed, counting running and reserved jobs; None if there
        is no such limit."""
        if not self.rules.limits_users:
            return None
        return self.rules.exceeded(record, self.rules.claims(record, self.plan.reserved))

    @property
    def has_more(self) -> bool:
        """Whether the last cycle ran out of time before it tried all jobs that may be able to start."""
        progress = self.plan.progress
        return any(progress.at(sweep) is not None for sweep in (Sweep.TRY, Sweep.REPAIR, Sweep.START))

    def next_due(self) -> int | None:
        """When the next cycle is due if no event comes first: for a reservation, an overrun, or work that the
        last cycle had no time for."""
        times = [self.plan.next_start(), self.planner.allocations.next_end(), self.promises.next_due()]
        if self.plan.progress:
            times.append(self._go_on)
        return min((at for at in times if at is not None), default=None)

    # -- the cycle -------------------------------------------------------------------------------------------

    def advance(self, now: int) -> None:
        """Set the time. A running job that is past its planned end is planned to run longer: otherwise
        quotas would not count it."""
        self.now = now
        self.planner.advance(now)
        if self.quotas is not None:
            self.quotas.now = now
            if self.quotas.tree.in_classes:
                self._count_classes(self.quotas)
        self._cause = self.overruns.extend(now, self.planner, self._tasks) or self._cause

    def _count_classes(self, quotas: QuotaBook) -> None:
        """After a change of nodes, count what is in each class of nodes."""
        nodes = self.planner.nodes_in_classes()
        if nodes == self._nodes_in_classes:
            return
        self._nodes_in_classes = nodes
        for record in self.records.values():
            if not record.running and record.key in quotas.claims:
                self._enrol(record)
        quotas.count_anew()
        self._judge_queues(self.records.values(), self.now)

    def cycle(self, now: int) -> list[Start]:
        """Run the policy and return the tasks to start."""
        self.cycles += 1
        self._go_on = now
        self.advance(now)
        if self.quotas is not None:
            self._take_turns(now)
        freed, opened, lost = self.planner.freed, self.planner.opened, self.planner.lost
        was_freed, was_opened, was_lost = self._seen
        if self._lost_quota:
            was_lost, self._lost_quota = was_lost - 1, False
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
        self.promises.replanned(dict.fromkeys(done.planned) | before)
        self._seen = (self.planner.freed, self.planner.opened, self.planner.lost)
        if self._disturbed:  # the matcher refused a start, and the planner was widened
            return starts + self.cycle(now)
        self._new.clear()
        self._since = len(self.pending)
        self._go_on = now if self.has_more else now + _IMPROVE_PAUSE
        if not self.has_more or self.promises.is_late(now):  # starts come first
            self.promises.tell(now, self.planner, self.held, self._tasks)
        return starts

    # -- inside ----------------------------------------------------------------------------------------------

    def _keep(self, done: SchedulingPass, before: Reservations, now: int) -> list[Start]:
        """Apply the result of a pass to the records."""
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
            if not record.state.has_nodes:
                self._begin(record, now, first_waiting)
        for record in {start.record for start in starts}:
            record.deadline = None  # the next task of an array gets its own, with its reservation
            if not record.waiting:
                self.favours.started(record)
                self.pending.remove(record)
        if failed:
            self._widen()
            for record in done.planned:
                record.reservation = None
        self.plan.keep(done, before, now)
        return starts

    def _begin(self, record: JobRecord, now: int, first_waiting: Order | None) -> None:
        record.backfilled = first_waiting is not None and record.order > first_waiting
        reason = Reason.of(Code.BACKFILLED if record.backfilled else Code.ITS_TURN)
        record.move(JobState.STARTING, now, reason)
        self.promises.started(record, now)

    def _check_new(self, key: str) -> None:
        if key in self.records:
            raise Conflict(f"job {key} has been submitted already: choose another key")

    def _register(self, job: Submission, record: JobRecord | None) -> JobRecord:
        """Make the record of a job, with its place in the order and the limit for planning."""
        record = record or JobRecord(job)
        record.job = job
        record.shape = self.planner.shape(job.request)
        record.limit, record.bounded = self.rules.limit(job, self.resolution)
        record.order = self._order(job)
        self.plan.make_room(record.shape)
        if job.max_running is not None:
            self.rules.limits_users = True
        self.records[job.key] = record
        self.dependencies.add(record)
        self._enrol(record)
        return record

    def _in_leaf(self, job: Submission) -> Submission:
        """The job with the leaf queue that accepts it, in which it counts."""
        named = job.named_queue
        leaf = None
        if self.quotas is not None:
            tree = self.quotas.tree
            leaf = tree.leaf(tree.local(named or _DEFAULT, job.account))
        queue = named if leaf is None else leaf
        if (queue, job.named_queue) == (job.queue, named) and job.asked is None:
            return job
        return replace(job, queue=queue, asked=None if queue == named else named)

    def _in_open_leaf(self, job: Submission) -> Submission:
        """The job with the queue in which it counts while it runs. Its user may have changed the queue
        annotation since it started: if the named queue is closed to the account, the job counts in an open
        one."""
        job = self._in_leaf(job)
        if self.quotas is None or self.labels_of is None or job.is_in_queue or self._closed(job) is None:
            return job
        tree = self.quotas.tree
        usual = tree.leaf(tree.local(_DEFAULT, job.account))
        open_ = tree.open_to(self.labels_of(job.account))
        leaf = usual if usual in open_ else next(iter(open_), None)
        return job if leaf is None else replace(job, queue=leaf, asked=job.named_queue)

    def _closed(self, job: Submission) -> Reason | None:
        """Why no queue accepts a job."""
        assert self.quotas is not None
        labels = None if self.labels_of is None else self.labels_of(job.account)
        tree = self.quotas.tree
        return tree.refusal(tree.local(job.named_queue or _DEFAULT, job.account), labels)

    def _enrol(self, record: JobRecord) -> None:
        if self.quotas is not None:
            job = record.job
            amounts = self.planner.amounts(job.request if record.counted is None else record.counted)
            jobs = 0 if job.is_part else 1
            request = job.request if record.counted is None else record.counted
            if self.quotas.tree.in_classes:
                classes = self.planner.class_amounts(request)
                self.quotas.enrol(job.key, job.queue, job.charged, amounts, jobs, classes, job.request)
            else:
                self.quotas.enrol(job.key, job.queue, job.charged, amounts, jobs)

    def _hold(self, record: JobRecord, held: Allocation) -> None:
        """A task of a job has an allocation in the planner."""
        record.running[held.task] = held
        self._tasks[held.task] = record
        self.rules.count(record, 1)
        if self.turns is not None:
            self.turns.started(record, held, self.planner.capacities())

    def _stop(self, record: JobRecord, task: str, now: int) -> None:
        self.planner.end(record.running.pop(task), now)
        del self._tasks[task]
        self.overruns.over(task)
        self.rules.count(record, -1)
        if self.turns is not None:
            self.turns.ended(task, now)

    def _order(self, job: Submission, serial: int | None = None) -> Order:
        if serial is None:
            self._serial += 1
            serial = self._serial
        rank = -self.rules.rank(job, self.now)
        if self.turns is not None:
            return rank, *self.turns.of_new(job), job.submit, job.queued, serial, serial
        return rank, job.submit, job.queued, serial, serial

    def _take_turns(self, now: int) -> None:
        """Sort the waiting jobs by guarantees and shares, unless that would break promises."""
        assert self.turns is not None
        records = self.turns.order(self.pending.records, now, renewed=bool(self._new))
        if records is None:
            return
        if self.policy.promise != "reservation":  # there the plan itself keeps promises
            records = self.turns.keep_promises(records, self._plan_in)
        if self.turns.apply(records):
            self._disturbed = True
        self.pending.reorder(records)

    def _plan_in(self, records: Sequence[JobRecord]) -> list[int | None]:
        """The start of each job if they were planned in this order."""
        requests = [self.promises.request(record) for record in records]
        return self.planner.sketch(self.now, requests, in_order=self.policy.promise == "order")

    def _judge(self, record: JobRecord, now: int) -> None:
        """Decide whether a pending job can be planned, waits for dependencies, or can never start."""
        never = self.rules.refusal(record.job) or self.planner.feasibility(record.job.request)
        never = never or self._refusal(record)
        if never is not None:
            record.move(JobState.UNSCHEDULABLE, now, never)
        else:
            self._admit_or_hold(record, now)

    def _refusal(self, record: JobRecord) -> Reason | None:
        """Why the queues do not accept a job."""
        if self.quotas is None:
            return None
        return self._closed(record.job) or self.quotas.never(record.key)

    def _change(self, record: JobRecord, request: Hashable) -> None:
        record.job = replace(record.job, request=request)
        record.shape = self.planner.shape(request)
        self.plan.make_room(record.shape)
        self._enrol(record)

    def _keep_promise(self, record: JobRecord) -> None:
        """Let the plan honour the promise of a job, if promises are reservations under this policy."""
        promised = record.no_later_than is not None and record.state is JobState.PENDING
        if promised and self.policy.promise == "reservation" and record.key not in self.held:
            self.plan.resume(record)

    def _admit_or_hold(self, record: JobRecord, now: int) -> None:
        hopeless = self.dependencies.hold(record)
        if hopeless is not None:
            record.move(JobState.UNSCHEDULABLE, now, hopeless)
        elif record.key not in self.held:
            self._enter(record)

    def _enter(self, record: JobRecord) -> None:
        if self.quotas is not None and record.key not in self.quotas.claims:
            self._enrol(record)  # its claim was dropped when it left the queue
        place = self.pending.add(record)
        if place < len(self.pending) - 1 and any(
            later.reservation is not None for later in self.pending.records[place + 1 :]
        ):
            self._disturbed = True
        self._since = min(self._since, place) if self._new else place
        self._new.append(record)
        self.promises.owe(record)
        for later in self.favours.entered(record):
            # Its own user moved it back, which gives up the promise for the old place.
            later.deadline = later.no_later_than = later.promised = None
            self.promises.owe(later)
            self._disturbed = True

    def _withdraw(self, record: JobRecord) -> None:
        """Remove a waiting job from the order and from the plan."""
        if self.dependencies.held.pop(record.key, None) is not None or not record.waiting:
            return
        if self.favours.withdraws(record):
            self._disturbed = True
        place = self.pending.remove(record)
        self._since -= place < self._since
        if self.plan.withdraw(record, self.planner):
            self._disturbed = True
            if record.state is JobState.RESERVED:
                record.move(JobState.PENDING, self.now, Reason.of(Code.TAKEN_OUT_OF_PLAN))

    def _over(self, record: JobRecord, state: JobState, now: int, reason: Reason) -> None:
        record.move(state, now, reason)
        self.promises.forget(record)
        if self.quotas is not None:
            self.quotas.forget(record.key)
        over = [record]  # NB not by recursion: a chain may be as long as the queue
        while over:
            for other in self.dependencies.released_by(over.pop()):
                was_refused = other.state.leaves_queue  # by its queue, while it waited for others
                if was_refused:
                    continue
                self._admit_or_hold(other, now)
                if other.state.leaves_queue:
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
