"""The queue: jobs in order, the plan of who starts when, and what each job was promised.

A pure state machine on a space. Events come in as calls with their time; `cycle` lets the policy act and
returns what is to be started. The plan is kept from one cycle to the next: as long as nothing comes free
before it was planned to, the reservations stand and only jobs that are new are looked at.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush

import numpy as np

from fluence.errors import Conflict, NotFound
from fluence.graph.graph import Ints
from fluence.queue import policy as policies
from fluence.queue.history import History, Predictor
from fluence.queue.job import (
    FOREVER,
    SECOND,
    BrokenPromise,
    Dependency,
    JobRecord,
    Phase,
    StoryStep,
    Submission,
)
from fluence.queue.pending import Pending
from fluence.queue.planner import Planner, PlanRequest
from fluence.queue.policy import QueuePolicy
from fluence.queue.priority import Priority, by_urgency
from fluence.queue.promise import Calibration
from fluence.queue.scheduling_pass import OverBudget, PassMode, PromiseAtRisk, SchedulingPass

LATE = 60 * SECOND  # a start so long after its promise counts as late
_GRACE = 60 * SECOND  # how long a task that outlives its limit is counted on, each time anew
_RUNS = 2000  # that whoever takes over the queue can learn from
_UNBLOCKED = 2 * FOREVER
_CAUTION = 0.15  # how much of the expected start is taken from limits: history misses the long runs


@dataclass(frozen=True, slots=True)
class QueueRules:
    """What a named queue lays down for its jobs."""

    default_limit: int | None = None
    max_limit: int | None = None
    max_running_per_user: int | None = None
    priority: int = 0  # added to that of its jobs


@dataclass(frozen=True, slots=True)
class Start:
    """A task that is to be started now."""

    entry: JobRecord
    task: str
    end: int  # by its limit


class Queue:
    """All jobs, waiting and running, and the plan."""

    def __init__(
        self,
        space: Planner,
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
        promises: int | None = None,
        now: int = 0,
        budget: float = 1.0,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.space = space
        self.policy = policies.find(policy) if isinstance(policy, str) else policy
        self.rules = dict(rules or {})
        self.priority = priority
        self.predictor: Predictor = predictor or History()
        self.runs: deque[tuple[Submission, int]] = deque(maxlen=_RUNS)
        self.depth = depth
        self.window = window
        self.resolution = resolution
        self.replan = replan
        self.forecasts = forecasts
        self.promises = promises  # so many of the first waiting jobs are told when they start; None: all
        self.budget = budget
        self.timer = timer
        self.entries: dict[str, JobRecord] = {}
        self.pending = Pending()
        self.held: dict[str, JobRecord] = {}  # waiting for other jobs to end
        self._waiters: defaultdict[str, list[JobRecord]] = defaultdict(list)  # by the job that each waits for
        self._namesakes: defaultdict[tuple[str, str], dict[str, JobRecord]] = defaultdict(
            dict
        )  # by user, name
        self.calibration = Calibration()
        self.now = now
        self.tries = 0
        self.cycles = 0
        self.faults: list[str] = []  # of plug-ins
        self._serial = 0
        self._tasks: dict[str, JobRecord] = {}
        self._ends: list[tuple[int, str]] = []  # of tasks, by their limits; some are out of date
        self._end: dict[str, int] = {}
        self._due: list[tuple[int, int, JobRecord]] = []
        self._users: defaultdict[tuple[str, str], int] = defaultdict(int)  # running, by queue and user
        self._blocked: Ints = np.full(16, _UNBLOCKED, np.int64)
        self._new: list[JobRecord] = []  # since the last cycle
        self._unpromised: list[JobRecord] = []
        self._since = 0  # the first of them, by place
        self._reserved: set[JobRecord] = set()
        self._seen = (space.freed, space.opened, space.lost)
        self._disturbed = False  # the order of reserved jobs has changed, or one of them has left
        self._cause = ""  # of a loss that no cycle has seen
        self._loss = (-1, "")  # the last one: when and why

    # -- events ----------------------------------------------------------------------------------------------

    def submit(self, job: Submission) -> JobRecord:
        """Take a job in; what can never start is said at once and stays to be asked about."""
        now = self.now = max(self.now, job.submit)
        if job.key in self.entries:
            raise Conflict(f"job {job.key} has been submitted already: choose another key")
        for dependency in job.after:
            if dependency.job and dependency.job not in self.entries:
                raise NotFound(f"job {job.key} waits for {dependency.job}, which was never submitted")
        if not self.space.understands(job.request):
            self._widen()
        rules = self.rules.get(job.queue, QueueRules())
        shape = self.space.shape(job.request)
        limit, bounded = self._limit(job, shape, rules)
        entry = JobRecord(job, self._order(job), shape, limit, bounded, waiting=job.tasks)
        self.entries[job.key] = entry
        self._namesakes[job.user, job.name][job.key] = entry
        self._room_for(shape)
        entry.story.append(StoryStep(now, Phase.PENDING, "submitted"))
        never = self.space.judge(job.request)
        longest = rules.max_limit
        if never is None and longest is not None and job.limit is not None and job.limit > longest:
            never = (
                f"its limit of {job.limit // SECOND} s is over the {longest // SECOND} s that queue "
                f"{job.queue!r} allows: ask for less"
            )
        if never is not None:
            self._give_up(entry, now, never)
        else:
            self._admit_or_hold(entry, now)
        return entry

    def resume(
        self, job: Submission, running: Mapping[str, tuple[int, int]], waiting: Sequence[int] | None, now: int
    ) -> JobRecord:
        """Take in a job some of whose tasks run already and are known to the space: task -> start, end.
        ``waiting``: the tasks that have not started, others are over; None: no task has started."""
        entry = self.submit(replace(job, submit=min(job.submit, now)))
        if waiting is None or entry.state.is_over:
            return entry
        entry.waiting, entry.fresh, entry.again = len(waiting), job.tasks, list(reversed(waiting))
        if not entry.waiting:
            self.pending.remove(entry)
            self._new.remove(entry)
        for task, (start, end) in running.items():
            entry.running[task] = start
            self._holds(entry, task, end)
        entry.started = min((start for start, _ in running.values()), default=now)
        entry.move(Phase.STARTING, entry.started, "it was running already")
        entry.move(Phase.RUNNING, entry.started, "it was running already")
        return entry

    def adopt(self, job: Submission, started: int, now: int) -> JobRecord:
        """Take in a job all of which runs already, after a restart: it is not judged, for it is there. The
        space holds its resources under its key."""
        if job.key in self.entries:
            raise Conflict(f"job {job.key} is known already: choose another key")
        rules = self.rules.get(job.queue, QueueRules())
        shape = self.space.shape(job.request)
        limit, bounded = self._limit(job, shape, rules)
        entry = JobRecord(job, self._order(job), shape, limit, bounded, Phase.RUNNING, waiting=0)
        self._room_for(shape)
        entry.started, entry.running, entry.fresh = started, {job.key: started}, 1
        entry.story.append(StoryStep(now, Phase.RUNNING, "found running"))
        self.entries[job.key] = entry
        self._namesakes[job.user, job.name][job.key] = entry
        self._holds(entry, job.key, max(started + limit, now))
        return entry

    def forget(self, key: str) -> None:
        """Leave out a job that is over; its key may be used again."""
        entry = self._entry(key)
        if not entry.state.is_over:
            raise Conflict(f"job {key} is {entry.state.value}: cancel it first")
        for other in list(self.held.values()):
            mine = [each for each in other.job.after if each.job == key]
            if not entry.succeeded and any(each.kind == "afterok" for each in mine):
                del self.held[other.key]
                reason = f"it waits for {key} to succeed, which is {entry.state.value}"
                self._over(other, Phase.NEVER, self.now, reason, succeeded=False)
            elif mine:
                rest = tuple(each for each in other.job.after if each.job != key)
                other.job = replace(other.job, after=rest)
        del self.entries[key]
        self._namesakes[entry.job.user, entry.job.name].pop(key, None)

    def resume_place(self, key: str, task: str, at: int) -> None:
        """Take over a place in the plan that the space knows."""
        entry = self._entry(key)
        entry.reserved_at, entry.reserved_as = at, task
        self._reserved.add(entry)
        heappush(self._due, (at, entry.order[2], entry))
        if entry.state is Phase.PENDING:
            entry.move(Phase.RESERVED, self.now, "the plan has a place for it")

    def learn(self, job: Submission, shape: int, runtime: int) -> None:
        """A task of this job ran so long."""
        self.runs.append((job, runtime))
        self.predictor.learn(job, shape, runtime)

    def cancel(self, key: str, now: int, reason: str = "cancelled by its user") -> None:
        """Take a job out, waiting or running."""
        self.now = now
        entry = self._entry(key)
        if entry.state.is_over:
            raise Conflict(f"job {key} is {entry.state.value} already")
        self._withdraw(entry)
        for task in list(entry.running):
            self._stop(entry, task, now)
        entry.waiting = 0
        self._over(entry, Phase.CANCELLED, now, reason, succeeded=False)

    def running(self, task: str, now: int) -> None:
        """A task that was to be started runs."""
        entry = self._task(task)
        if entry.state is Phase.STARTING:
            entry.move(Phase.RUNNING, now, "its resources were bound")

    def finish(self, task: str, now: int, *, succeeded: bool = True) -> None:
        """A task has ended by itself, or at its limit."""
        self.now = now
        entry = self._task(task)
        began = entry.running[task]
        self._stop(entry, task, now)
        entry.succeeded = entry.succeeded and succeeded
        self.learn(entry.job, entry.shape, now - began)
        if not entry.running and not entry.waiting:
            self._over(entry, Phase.DONE, now, "ended" if succeeded else "failed", succeeded=entry.succeeded)

    def requeue(self, task: str, now: int, cause: str) -> None:
        """A task lost its resources, or could not be started: it waits again, in its old place."""
        self.now = now
        entry = self._task(task)
        self._stop(entry, task, now)
        entry.put_back(task)
        if entry.no_later_than is not None and entry.started is not None and cause:
            entry.broken.append(BrokenPromise(now, entry.no_later_than, cause))
        entry.no_later_than = entry.deadline = None
        self._loss = (now, cause)
        if not entry.running:
            entry.move(Phase.PENDING, now, cause)
            entry.started = None
        if entry.waiting > 1:
            self._unpromised.append(entry)  # it waits already, and is told anew
        else:
            self._enter(entry)

    def reprioritise(self, key: str, priority: int, now: int) -> None:
        """Change the priority of a job that waits."""
        self.now = now
        entry = self._entry(key)
        if not entry.waiting or entry.state.is_over:
            raise Conflict(f"job {key} is {entry.state.value}: only waiting jobs have a priority")
        is_held = key in self.held
        if not is_held:
            self._withdraw(entry)
        entry.job = replace(entry.job, priority=priority)
        # Whoever moves a job gives up what it was promised in its old place.
        entry.deadline = entry.no_later_than = entry.promised = None
        entry.order = self._order(entry.job, entry.order[2])
        if not is_held:
            self._enter(entry)

    def lost(self, cause: str) -> None:
        """Resources went away for this reason; said before the cycle that finds out."""
        self._cause = cause

    # -- the cycle -------------------------------------------------------------------------------------------

    def cycle(self, now: int) -> list[Start]:
        """Let the policy act; returns what is to be started."""
        self.now = now
        self.cycles += 1
        self.space.advance(now)
        self._stretch(now)
        freed, opened, lost = self.space.freed, self.space.opened, self.space.lost
        was_freed, was_opened, was_lost = self._seen
        due = self._take_due(now)
        nothing_new = freed == was_freed and not due and not self._new and not self._disturbed
        if nothing_new and opened == was_opened and lost == was_lost:
            return []
        slipped = self._slip(due, now)
        rebuild = slipped or opened != was_opened or lost != was_lost or self._disturbed
        before = {entry: entry.reserved_at for entry in self._reserved}
        if lost != was_lost:
            self._loss, self._cause = (now, self._cause or "resources were lost"), ""
        turn = self._pass(now, due, rebuild, lost != was_lost, freed != was_freed)
        self._disturbed = False
        self.tries += turn.tries
        starts = self._keep(turn, before, now)
        if lost != was_lost:
            self._count_broken(before, now)
        self._seen = (self.space.freed, self.space.opened, self.space.lost)
        if self._disturbed:  # the matcher refused what was counted on, and the space was widened
            return starts + self.cycle(now)
        self._promise(now)
        return starts

    def next_due(self) -> int | None:
        """When the plan wants the next cycle, if nothing happens before: a reservation, or an overrun."""
        while self._due and not self._is_due(self._due[0]):
            heappop(self._due)
        while self._ends and not self._still_runs(self._ends[0]):
            heappop(self._ends)
        times = [heap[0][0] for heap in (self._due, self._ends) if heap]
        return min(times, default=None)

    def waiting(self) -> Iterator[JobRecord]:
        """All jobs that wait, in order, then those that wait for others."""
        yield from self.pending
        yield from self.held.values()

    # -- passes ----------------------------------------------------------------------------------------------

    def _pass(self, now: int, due: list[JobRecord], rebuild: bool, lost: bool, freed: bool) -> SchedulingPass:
        """Run the policy; what it did is undone where it would break a promise, or fails."""
        space = self.space
        if rebuild or freed:
            self._blocked.fill(_UNBLOCKED)
        before = {entry: (entry.reserved_at, entry.reserved_as) for entry in self._reserved}
        mark = space.mark()
        mode = PassMode.REBUILD if rebuild else PassMode.EXTEND
        keep = not lost and not self.replan
        since = 0 if rebuild or freed or due else self._since
        chosen = self.policy
        while True:
            turn = self._turn(now, mode, since, keep and mode is PassMode.REBUILD, chosen)
            try:
                if mode is PassMode.REBUILD:
                    space.drop_all()
                    for entry in before:
                        entry.reserved_at = None
                    turn.reserved = 0
                    turn.claims.clear()
                elif mode is PassMode.COMPRESS:
                    turn.renew()
                else:
                    turn.start_due(due)
                chosen.run(turn)
                if (
                    turn.mode is PassMode.REBUILD
                    and keep
                    and any(map(_is_broken, before.keys() - turn.begun))
                ):
                    raise PromiseAtRisk
                return turn
            except PromiseAtRisk:
                mode = PassMode.REBUILD if mode is PassMode.EXTEND else PassMode.COMPRESS
            except Exception as fault:
                if chosen.built_in:
                    raise
                self.faults.append(f"queue policy {chosen.name}: {type(fault).__name__}: {fault}")
                chosen = policies.BUILT_IN["easy"]
                mode = PassMode.REBUILD
            self._undo(turn, mark, before)
            mark = space.mark()
            since = 0

    def _turn(self, now: int, mode: PassMode, since: int, keep: bool, chosen: QueuePolicy) -> SchedulingPass:
        limited = any(rules.max_running_per_user is not None for rules in self.rules.values())
        turn = SchedulingPass(
            self.pending,
            self.space,
            now,
            mode,
            self._blocked,
            since=since,
            depth=self.depth,
            window=self.window,
            keep=keep,
            admit=self.is_admitted if limited else None,
            check=None if chosen.built_in else self._deadline(),
        )
        turn.reserved = len(self._reserved)
        if limited:
            turn.claims.update(entry.owner for entry in self._reserved)
        return turn

    def _deadline(self) -> Callable[[], None]:
        end = self.timer() + self.budget

        def check() -> None:
            if self.timer() > end:
                raise OverBudget(f"took more than {self.budget} s")

        return check

    def _undo(
        self, turn: SchedulingPass, mark: object, before: dict[JobRecord, tuple[int | None, str]]
    ) -> None:
        self.space.undo(mark)
        for entry, task in reversed(turn.starts):
            entry.put_back(task)
            del entry.running[task]
        for entry in turn.planned:
            entry.reserved_at = None
        for entry, place in before.items():
            entry.reserved_at, entry.reserved_as = place
        self._blocked.fill(_UNBLOCKED)

    def _keep(self, turn: SchedulingPass, before: dict[JobRecord, int | None], now: int) -> list[Start]:
        """Write down what a turn did."""
        failed = set(self.space.settle(now))
        starts: list[Start] = []
        first_waiting = next((e.order for e in self.pending if e.waiting), None)
        for entry, task in turn.starts:
            if task in failed:
                entry.put_back(task)
                del entry.running[task]
                continue
            end = now + entry.limit
            self._holds(entry, task, end)
            starts.append(Start(entry, task, end))
            if entry.state is not Phase.STARTING and entry.started is None:
                self._begin(entry, now, first_waiting)
        for entry in {start.entry for start in starts}:
            entry.deadline = None  # of an array's next task: its place, if it gets one
            if not entry.waiting:
                self.pending.remove(entry)
        if failed:
            self._widen()
            for entry in turn.planned:
                entry.reserved_at = None
        for entry, at in turn.planned.items():
            if entry.reserved_at != at or not entry.waiting:
                continue
            if before.get(entry) != at:
                heappush(self._due, (at, entry.order[2], entry))
            if entry.deadline is None:
                entry.deadline = at
            if entry.state is Phase.PENDING:
                entry.move(Phase.RESERVED, now, "the plan has a place for it")
        for entry in before:
            if entry.reserved_at is None and entry.state is Phase.RESERVED:
                entry.move(Phase.PENDING, now, "its place in the plan was given up")
        self._reserved = {
            entry for entry in (*before, *turn.planned) if entry.reserved_at is not None and entry.waiting
        }
        return starts

    def _begin(self, entry: JobRecord, now: int, first_waiting: tuple[int, int, int] | None) -> None:
        entry.backfilled = first_waiting is not None and entry.order > first_waiting
        entry.started = now
        how = "backfilled ahead of jobs that must wait" if entry.backfilled else "its turn, and it fits"
        entry.move(Phase.STARTING, now, how)
        if entry.no_later_than is not None:
            if now > entry.no_later_than + LATE:
                at, cause = self._loss
                if at <= entry.told:
                    cause = "jobs that came later were backfilled ahead of it"
                entry.broken.append(BrokenPromise(now, entry.no_later_than, cause))
            if self.policy.promise == "record":
                self.calibration.observe(missed=now > entry.no_later_than + LATE)

    def _count_broken(self, before: Iterable[JobRecord], now: int) -> None:
        """After a loss: whose place in the plan is later than promised, or gone?"""
        for entry in before:
            at, promised = entry.reserved_at, entry.no_later_than
            if not entry.waiting or promised is None or (at is not None and at <= promised):
                continue
            entry.deadline = at
            if at is not None and at <= promised + LATE:
                continue
            if at is not None or self.policy.promise == "reservation":
                entry.broken.append(BrokenPromise(now, promised, self._loss[1]))
                entry.no_later_than, entry.told = at, now
                if at is None:
                    self._unpromised.append(entry)  # to be told as soon as somebody knows

    def _slip(self, due: list[JobRecord], now: int) -> bool:
        """A cycle that comes late moves the whole plan by as much, or the jobs that were due would be put
        behind those planned after them."""
        late = max((now - entry.reserved_at for entry in due if entry.reserved_at is not None), default=0)
        if not late:
            return False
        for entry in self._reserved:
            if entry.deadline is not None:
                entry.deadline += late
        return True

    # -- promises --------------------------------------------------------------------------------------------

    def _promise(self, now: int) -> None:
        """Tell the jobs that must wait, and were not told yet, when they will start."""
        self._new.clear()
        self._since = len(self.pending)
        places = self._untold()
        if not places:
            return
        ahead = self.pending.entries[: places[-1] + 1]
        asks = [self.ask(entry) for entry in ahead]
        entries = [ahead[place] for place in places]
        if self.policy.promise == "reservation":
            planned = [entry.reserved_at for entry in ahead]
            for entry in entries:
                entry.no_later_than = entry.reserved_at
        else:
            in_order = self.space.sketch(now, asks, in_order=True)
            recorded = self.policy.promise == "record"
            planned = self.space.sketch(now, asks, in_order=False) if recorded else in_order
            for place, entry in zip(places, entries, strict=True):
                plan, late = planned[place], in_order[place]
                if plan is not None and late is not None:
                    entry.no_later_than = self.calibration.bound(now, plan, late) if recorded else late
        for entry in entries:
            if entry.deadline is not None and entry.no_later_than is not None:
                entry.no_later_than = min(entry.no_later_than, entry.deadline)
                if entry.reserved_at is not None:
                    # A sketch counts sums; the plan knows that what is free may be in pieces.
                    entry.no_later_than = max(entry.no_later_than, entry.reserved_at)
            entry.told = now
            if entry.promised is None:
                entry.promised = entry.no_later_than
        self._unpromised = [entry for entry in entries if entry.no_later_than is None]
        if self.forecasts:
            self._expect(now, asks, planned, dict(zip(places, entries, strict=True)))

    def _untold(self) -> list[int]:
        """The places of jobs without a promise, as deep as the queue is looked at."""
        bounds = [bound for bound in (self.depth, self.promises) if bound is not None]
        if bounds:
            first = self.pending.entries[: min(bounds)]
            return [place for place, entry in enumerate(first) if entry.no_later_than is None]
        waiting = (e for e in self._unpromised if e.waiting and e.no_later_than is None)
        return sorted(self.pending.place(entry) for entry in waiting if entry.key not in self.held)

    def _expect(
        self, now: int, asks: list[PlanRequest], planned: list[int | None], wanted: dict[int, JobRecord]
    ) -> None:
        ends = {}
        for task, entry in self._tasks.items():
            began = entry.running[task]
            lasts = self.predictor.predict(entry.job, entry.shape, now - began)
            ends[task] = max(now + 1, began + (entry.limit if lasts is None else lasts))
        for place, start in self.space.expect(now, ends, asks, wanted).items():
            entry, plan = wanted[place], planned[place]
            if plan is not None and plan > start:
                start += round(_CAUTION * (plan - start))
            entry.expected = start
            if entry.first_expected is None:
                entry.first_expected = start

    def ask(self, entry: JobRecord) -> PlanRequest:
        lasts = self.predictor.predict(entry.job, entry.shape, 0)
        return PlanRequest(entry.job.request, entry.limit, max(1, entry.limit if lasts is None else lasts))

    # -- inside ----------------------------------------------------------------------------------------------

    def _holds(self, entry: JobRecord, task: str, end: int) -> None:
        """A task of a job has resources until then, by its limit."""
        self._tasks[task] = entry
        self._end[task] = end
        heappush(self._ends, (end, task))
        self._users[entry.owner] += 1

    def _limit(self, job: Submission, shape: int, rules: QueueRules) -> tuple[int, bool]:
        """What to plan with: the job's own limit, its queue's, or history; and whether it holds."""
        given = next((x for x in (job.limit, rules.default_limit, rules.max_limit) if x is not None), None)
        bounded = given is not None
        if given is None:
            given = self.predictor.predict(job, shape, 0) or FOREVER
        return min(-(-given // self.resolution) * self.resolution, FOREVER), bounded

    def _room_for(self, shape: int) -> None:
        if shape >= len(self._blocked):
            grown = np.full(2 * shape + 2, _UNBLOCKED, np.int64)
            grown[: len(self._blocked)] = self._blocked
            self._blocked = grown

    def _order(self, job: Submission, serial: int | None = None) -> tuple[int, int, int]:
        if serial is None:
            self._serial += 1
            serial = self._serial
        rank = self._rank(job)
        return -(rank + self.rules.get(job.queue, QueueRules()).priority), job.submit, serial

    def _rank(self, job: Submission) -> int:
        """The job's priority; a plug-in that fails or takes too long must not lose a job."""
        if self.priority is by_urgency:
            return job.priority
        began = self.timer()
        try:
            rank = int(self.priority(job, self.now))
            if self.timer() - began > self.budget:
                raise OverBudget(f"took more than {self.budget} s")
        except Exception as fault:
            self.faults.append(f"priority of job {job.key}: {type(fault).__name__}: {fault}")
            return job.priority
        return rank

    def _admit_or_hold(self, entry: JobRecord, now: int) -> None:
        blocker, hopeless = self._waits_for(entry)
        if hopeless:
            self.held.pop(entry.key, None)
            self._give_up(entry, now, hopeless)
        elif blocker:
            self.held[entry.key] = entry
            self._waiters[blocker].append(entry)
        else:
            self.held.pop(entry.key, None)
            self._enter(entry)

    @staticmethod
    def _give_up(entry: JobRecord, now: int, reason: str) -> None:
        entry.move(Phase.NEVER, now, reason)
        entry.ended, entry.succeeded = now, False

    def dependencies(self, entry: JobRecord) -> tuple[str, ...]:
        """The jobs that a job waits for."""
        return tuple(
            other.key
            for dependency in entry.job.after
            for other in self._before(entry, dependency)
            if not other.state.is_over
        )

    def _waits_for(self, entry: JobRecord) -> tuple[str, str]:
        """The job that this one waits for, and why that will never end well; empty if not so."""
        for dependency in entry.job.after:
            for other in self._before(entry, dependency):
                if dependency.kind == "afterok" and other.state.is_over and not other.succeeded:
                    return other.key, f"it waits for {other.key} to succeed, which is {other.state.value}"
                if not other.state.is_over:
                    return other.key, ""
        return "", ""

    def _before(self, entry: JobRecord, dependency: Dependency) -> Iterable[JobRecord]:
        if dependency.job:
            return (self.entries[dependency.job],)
        namesakes = self._namesakes[entry.job.user, entry.job.name]
        return (other for other in namesakes.values() if other.order[2] < entry.order[2])

    def _enter(self, entry: JobRecord) -> None:
        place = self.pending.add(entry)
        if place < len(self.pending) - 1 and any(
            later.reserved_at is not None for later in self.pending.entries[place + 1 :]
        ):
            self._disturbed = True
        self._since = min(self._since, place) if self._new else place
        self._new.append(entry)
        self._unpromised.append(entry)

    def _withdraw(self, entry: JobRecord) -> None:
        """Take a waiting job out of the order and the plan."""
        if self.held.pop(entry.key, None) is not None or not entry.waiting:
            return
        place = self.pending.remove(entry)
        self._since -= place < self._since
        if entry.reserved_at is not None:
            self.space.drop(entry.reserved_as)
            entry.reserved_at = None
            self._reserved.discard(entry)
            self._disturbed = True
            if entry.state is Phase.RESERVED:
                entry.move(Phase.PENDING, self.now, "taken out of the plan")

    def _stop(self, entry: JobRecord, task: str, now: int) -> None:
        self.space.end(task, now)
        del entry.running[task], self._tasks[task], self._end[task]
        self._users[entry.owner] -= 1

    def _over(self, entry: JobRecord, state: Phase, now: int, reason: str, *, succeeded: bool) -> None:
        entry.move(state, now, reason)
        entry.ended = now
        entry.succeeded = succeeded
        over = [entry]  # NB not by recursion: a chain may be as long as the queue
        while over:
            for other in self._waiters.pop(over.pop().key, ()):
                if other.key in self.held:
                    self._admit_or_hold(other, now)
                    if other.state.is_over:
                        over.append(other)

    def _stretch(self, now: int) -> None:
        """Tasks that outlive their limit are counted on a little longer, each time anew."""
        while self._ends and self._ends[0][0] <= now:
            end, task = heappop(self._ends)
            if not self._still_runs((end, task)):
                continue
            entry = self._tasks[task]
            # Ending a job at its limit takes its time: that alone breaks no promise.
            soon = entry.running[task] + entry.limit + LATE // 2
            later = soon if now < soon else now + max(_GRACE, entry.limit // 10)
            self.space.stretch(task, later)
            self._end[task] = later
            heappush(self._ends, (later, task))
            self._cause = f"job {entry.key} runs past its limit"

    def _take_due(self, now: int) -> list[JobRecord]:
        found = set()
        while self._due and self._due[0][0] <= now:
            item = heappop(self._due)
            if self._is_due(item):
                found.add(item[2])
        return sorted(found, key=lambda entry: entry.order)

    @staticmethod
    def _is_due(item: tuple[int, int, JobRecord]) -> bool:
        at, _, entry = item
        return entry.reserved_at == at and entry.waiting > 0

    def _still_runs(self, item: tuple[int, str]) -> bool:
        return self._end.get(item[1]) == item[0]

    def is_admitted(self, entry: JobRecord, claims: int | None = None) -> bool:
        """Whether its user may run one more job in its queue, beside those that run and are to run."""
        most = self.rules.get(entry.job.queue, QueueRules()).max_running_per_user
        if most is None:
            return True
        if claims is None:
            claims = sum(other.owner == entry.owner for other in self._reserved if other is not entry)
        return self._users[entry.owner] + claims < most

    def _widen(self) -> None:
        self.space = self.space.widened()
        for entry in self._reserved:
            entry.reserved_at = None
        self._reserved.clear()
        self._disturbed = True
        for entry in self.entries.values():
            entry.shape = self.space.shape(entry.job.request)
        self.pending.reshape()
        shapes = max((entry.shape for entry in self.entries.values()), default=0) + 1
        self._blocked = np.full(max(16, 2 * shapes), _UNBLOCKED, np.int64)

    def _task(self, task: str) -> JobRecord:
        entry = self._tasks.get(task)
        if entry is None:
            raise NotFound(f"no task {task} is running")
        return entry

    def _entry(self, key: str) -> JobRecord:
        entry = self.entries.get(key)
        if entry is None:
            raise NotFound(f"no job {key}: see what there is with the queue's list")
        return entry


def _is_broken(entry: JobRecord) -> bool:
    """Whether a job that had a place in the plan has none now, or too late."""
    if not entry.waiting or entry.deadline is None:
        return False
    return entry.reserved_at is None or entry.reserved_at > entry.deadline
