"""Promises: the promised and the expected starts of waiting jobs, and whether promises are kept.

The queue calls `tell` at the end of a cycle to make new promises, `started` when a job starts, and
`broken_by_loss` when resources are lost. *No later than* follows from limits, by the rule of the policy
(`QueuePolicy.promise`). *Expected* follows from the run times of similar jobs (`Expectations`).

`Promises` reports expected starts beside its bounds. An expected start follows from the run times of similar
jobs and from limits. A job has no expected start if it waits for work for which neither is known. Each
expected start that passes makes the next one at least a minute further away; otherwise it could slip by a
minute forever.

`Calibration` learns whether earlier bounds were met. Under a policy with backfill, the planned start of a job
is not a bound: jobs that arrive later may be backfilled into the gap before it. The start in a plan in strict
order is nearly a bound, but much later. The bound lies between the two, or beyond, at a place that moves:
outwards when a job starts after its bound, and a little inwards when it does not. So the share of broken
bounds tends to `MISSES` (adaptive conformal inference, Gibbs and Candès 2021).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from fluence.model.reason import Code, Reason
from fluence.queue.allocations import Allocation
from fluence.queue.history import History, Predictor
from fluence.queue.job import SECOND, BrokenPromise, JobRecord, Submission
from fluence.queue.pending import DueTimes, Pending
from fluence.queue.planner import Planner, PlanRequest
from fluence.queue.policy import PluginGuard, QueuePolicy
from fluence.queue.quota import QuotaBook

_CAUTION = 0.15  # the weight of limits in an expected start: history misses long runs
_LATER = 60 * SECOND  # added to the next expected start for each one that has passed
_MAX_RENEWED = 32  # expected starts computed again per round
_RENEW_PAUSE = 30 * SECOND  # between two such rounds, if no promise is due


def expected_end(held: Allocation, lasts: int | None, now: int) -> int:
    """The expected end of a task with a total run time of ``lasts``. If that is unknown or has passed, the
    end in the plan: by its limit, or never."""
    if lasts is None or held.start + lasts <= now:
        return held.end
    return held.start + lasts


class Expectations:
    """The expected starts of one queue. ``renews``: those that have passed are dropped and computed again.
    Users of a live scheduler need that; a simulation evaluates the first expected start of each job."""

    def __init__(self, *, renews: bool) -> None:
        self._renews = renews
        self._passing = DueTimes(_is_expected)  # when expected starts pass
        self._stale: dict[JobRecord, None] = {}
        self._renewed = -_RENEW_PAUSE

    def next_due(self) -> int | None:
        """When the next expected start passes, or a new one must be computed."""
        times = (self._passing.next(), self._renewed + _RENEW_PAUSE if self._stale else None)
        return min((at for at in times if at is not None), default=None)

    def resume(self, record: JobRecord) -> None:
        """Keep the expected start of a job until it passes."""
        if record.expected is None:
            self._stale[record] = None
        elif self._renews:
            self._passing.add(record.expected + 1, record)

    def is_due(self, now: int) -> bool:
        """Whether some must be computed again even if no promise is due."""
        return bool(self._stale) and now >= self._renewed + _RENEW_PAUSE

    def forget(self, record: JobRecord) -> None:
        """A job no longer waits."""
        self._stale.pop(record, None)

    def withdraw_passed(self, now: int) -> list[JobRecord]:
        """Drop expected starts that have passed; returns their jobs."""
        found = []
        while (record := self._passing.pop(now)) is not None:
            record.expected = None
            record.misjudged += 1
            self._stale[record] = None
            found.append(record)
        return found

    def take_stale(self, pending: Pending, now: int, most: int | None) -> dict[int, JobRecord]:
        """Some jobs whose expected start has passed, by their places among the first ``most`` in the
        queue."""
        some = list(self._stale)[:_MAX_RENEWED]
        self._renewed = now
        for record in some:
            del self._stale[record]
        # A job that has become unschedulable still waits, but has no place in the queue.
        places = {pending.place(record): record for record in some if record in pending}
        return {place: record for place, record in places.items() if most is None or place < most}

    def tell(
        self, now: int, wanted: Mapping[int, JobRecord], starts: Mapping[int, int], planned: list[int | None]
    ) -> list[JobRecord]:
        """Store the expected starts, by places in the queue; returns the jobs whose start has changed."""
        changed = []
        for place, record in wanted.items():
            start, plan, before = starts.get(place), planned[place], record.expected
            if start is not None and plan is not None and plan > start:
                start += round(_CAUTION * (plan - start))
            if start is not None and record.no_later_than is not None:
                start = min(start, record.no_later_than)
            if start is not None and start < now + record.misjudged * _LATER:
                start = None
            record.expected = start
            if start is not None and self._renews:
                self._passing.add(start + 1, record)
            if record.first_expected is None:
                record.first_expected = start
            if start != before:
                changed.append(record)
        self._passing.tidy()
        return changed


def _is_expected(at: int, record: JobRecord) -> bool:
    """Whether an expected start has not changed since this entry was made."""
    return record.waiting > 0 and record.expected is not None and record.expected + 1 == at


MISSES = 0.007
_PACE = 0.1


class Calibration:
    """The place of the bound: 0 is the plan, 1 the plan in order; beyond 1 the bound grows with the wait."""

    def __init__(self) -> None:
        self.place = 1.0

    def bound(self, now: int, planned: int, in_order: int) -> int:
        """The latest start to promise."""
        in_order = max(in_order, planned)
        if self.place <= 1:
            return planned + round(self.place * (in_order - planned))
        return in_order + round((self.place - 1) * (in_order - now))

    def observe(self, *, missed: bool) -> None:
        """A job with a bound has started."""
        self.place = max(0.0, self.place + _PACE * (1 - MISSES if missed else -MISSES))


LATE = 60 * SECOND  # a start is late if it is later than its promise by more than this
_PASSED = LATE + 1
_MAX_TOLD = 32  # jobs per round
_ASK_AGAIN = 10 * SECOND  # until the next try for a job whose start is unknown
_NEVER = 1 << 62
_LOST = Reason.of(Code.RESOURCES_LOST)


BREAKS = (
    Code.RUNS_PAST_LIMIT,
    Code.OVERTAKEN,
    Code.NODE_GONE,
    Code.NODE_CHANGED,
    Code.RESTARTED,
    Code.RESOURCES_LOST,
)
"""The causes of broken promises. Any other cause counts as the last of these."""


@dataclass(slots=True)
class PromiseTally:
    """The number of kept promises, and of broken ones by cause."""

    kept: int = 0
    broken: Counter[Code] = field(default_factory=Counter)

    def copy(self) -> PromiseTally:
        return PromiseTally(self.kept, Counter(self.broken))


class Promises:
    """The promises of one queue."""

    def __init__(
        self,
        pending: Pending,
        policy: QueuePolicy,
        predictor: Predictor,
        guard: PluginGuard,
        *,
        is_enforced: Callable[[Submission], bool],
        depth: int | None,
        most: int | None,
        forecasts: bool,
        renews: bool = False,
        pause: int = 0,
    ) -> None:
        """``renews``: expected starts that have passed are computed again. ``pause``: the time between two
        rounds of promises; with a pause, each round handles a limited number of jobs."""
        self.calibration = Calibration()
        self.expectations = Expectations(renews=renews)
        self.tally = PromiseTally()
        self.predictor = predictor
        self.quotas: QuotaBook | None = None
        self._pending = pending
        self._policy = policy
        self._guard = guard
        self._is_enforced = is_enforced
        self._depth = depth  # how many jobs the queue considers
        self._most = most  # how many jobs, from the front, get a promise
        self._forecasts = forecasts
        self._pause = pause
        self._rests_on_record = policy.promise == "record"
        self._last_round = -pause
        self._next_round: int | None = None  # when a round is due if no event comes first
        self._passing = DueTimes(_stands)  # when promises pass
        self._untold: dict[JobRecord, None] = {}
        self._changed: dict[JobRecord, None] = {}
        # A cache of requests, cleared when a run time is learned: job, shape, limit, request.
        self._requests: dict[JobRecord, tuple[Submission, int, int, PlanRequest]] = {}
        self._loss = (-1, _LOST)  # the last one: its time and cause
        self._is_resumed = False  # promises of an earlier process were taken over since the last cycle

    def owe(self, record: JobRecord) -> None:
        """A job waits and needs a promise."""
        self._untold[record] = None
        self._next_round = self._last_round + self._pause

    def next_due(self) -> int | None:
        """When the next round is due if no event comes first."""
        again = self._next_round if self._pause else None
        times = (self._passing.next(), self.expectations.next_due(), again)
        return min((at for at in times if at is not None), default=None)

    def forget(self, record: JobRecord) -> None:
        """A job no longer waits."""
        self._untold.pop(record, None)
        self._changed.pop(record, None)
        self._requests.pop(record, None)
        self.expectations.forget(record)

    def take_changed(self) -> list[JobRecord]:
        """The jobs whose promise or expected start has changed since the last call."""
        found, self._changed = list(self._changed), {}
        return found

    def resume(self, record: JobRecord, at: int, now: int, *, expected: int | None, firm: bool) -> None:
        """Take over a promise from before a restart."""
        record.no_later_than = record.promised = at
        record.firm = firm
        record.expected = record.first_expected = expected
        record.told = now - 1  # NB before the restart: that is the cause if nothing else has broken it
        self.note_loss(now, Reason.of(Code.RESTARTED))
        self._is_resumed = True
        self._resume_times(record)

    def _resume_times(self, record: JobRecord) -> None:
        """Keep the promise and the expected start of a job until they pass."""
        assert record.no_later_than is not None
        self.expectations.resume(record)
        self._untold.pop(record, None)
        self._passing.add(record.no_later_than + _PASSED, record)

    def rests_on_record(self, planner: Planner) -> bool:
        """Whether bounds are sketches widened by the record of earlier bounds. In strict order no job
        overtakes another, but a sketch in order is a bound only if the planner is exact."""
        return self._policy.promise == "record" or (self._policy.promise == "order" and not planner.is_exact)

    def is_late(self, now: int) -> bool:
        """Whether the last round of promises was long ago."""
        return now >= self._last_round + _ASK_AGAIN

    def note_loss(self, now: int, cause: Reason | None) -> None:
        """Resources were lost. After a restart, resources that a new process finds in use were not lost: the
        cause is the restart."""
        if cause is None:
            cause = Reason.of(Code.RESTARTED) if self._is_resumed else _LOST
        self._loss = (now, cause)

    # -- keeping and breaking --------------------------------------------------------------------------------

    def started(self, record: JobRecord, now: int) -> None:
        """A waiting job has started: count its promise as kept or broken."""
        if not record.waiting:
            self.forget(record)
        promised = record.no_later_than
        if promised is None:
            return
        missed = now > promised + LATE
        if missed:
            self._break(record, now)
        else:
            self.tally.kept += 1
        if self._rests_on_record:
            self.calibration.observe(missed=missed)

    def lost_start(self, record: JobRecord, now: int, cause: Reason) -> None:
        """A job lost its nodes before it ran. If the promised time has not passed, the promise stands, and
        the loss is the cause if it breaks. If it has passed, the promise is broken."""
        self.note_loss(now, cause)
        promised, started = record.no_later_than, record.started
        self.owe(record)
        if promised is None or started is None:
            return
        was_kept = started <= promised + LATE
        self.tally.kept -= was_kept
        if now < promised:
            self._resume_times(record)
            return
        if was_kept:
            self.broke(record, now, cause)
        record.no_later_than = record.deadline = None

    def withdraw_passed(self, now: int) -> None:
        """Withdraw promises whose time has passed. Their jobs get a new start and the cause."""
        while (record := self._passing.pop(now)) is not None:
            self._break(record, now)
            record.no_later_than = record.deadline = None
            self._changed[record] = None
            if self._rests_on_record:
                self.calibration.observe(missed=True)
            self.owe(record)
        for record in self.expectations.withdraw_passed(now):
            self._changed[record] = None
        self._is_resumed = False

    def _break(self, record: JobRecord, now: int) -> None:
        at, cause = self._loss
        if at <= record.told:
            cause = Reason.of(Code.OVERTAKEN)
        self.broke(record, now, cause)

    def broke(self, record: JobRecord, now: int, cause: Reason) -> None:
        """Record that the promise of a job is broken."""
        assert record.no_later_than is not None
        record.broken.append(BrokenPromise(now, record.no_later_than, cause))
        self.tally.broken[cause.code if cause.code in BREAKS else Code.RESOURCES_LOST] += 1

    def broken_by_loss(self, before: Iterable[JobRecord], now: int) -> None:
        """After a loss, break the promises of jobs whose reservation is gone or later than promised."""
        for record in before:
            at, promised = record.reserved_at, record.no_later_than
            if not record.waiting:
                continue
            if record.deadline is not None and (at is None or at > record.deadline):
                record.deadline = at  # the plan cannot keep the old deadline
            if promised is None or (at is not None and at <= promised):
                continue
            record.deadline = at
            if at is not None and at <= promised + LATE:
                continue
            if at is not None or self._policy.promise == "reservation":
                self.broke(record, now, self._loss[1])
                record.no_later_than, record.told = at, now
                self._changed[record] = None
                if at is None:
                    self.owe(record)  # it gets a promise when a start is known
                else:
                    self._passing.add(at + _PASSED, record)

    def replanned(self, before: Mapping[JobRecord, Allocation | None]) -> None:
        """The plan has changed: report jobs whose reservation is later than their promise, or was. The
        promise stands until its time passes, because running jobs may end early."""
        for record, held in before.items():
            promised = record.no_later_than
            if promised is None:
                continue
            was = promised if held is None else max(promised, held.job.start)
            latest = was if record.reservation is held else record.latest
            if latest != was:
                self._changed[record] = None
            if latest != promised:
                record.firm = False

    # -- telling ---------------------------------------------------------------------------------------------

    def tell(
        self, now: int, planner: Planner, held: Collection[str], running: Mapping[str, JobRecord]
    ) -> None:
        """Make promises and expected starts for waiting jobs that have none."""
        if now < self._last_round + self._pause:
            return
        seen = planner.freed + planner.opened + planner.lost
        self._next_round = None
        places = self._places(held, now, seen)
        wanted: dict[int, JobRecord] = {}
        if places or self.expectations.is_due(now):
            wanted = self.expectations.take_stale(self._pending, now, self._most)
        if not places and not wanted:
            return
        self._last_round = now
        ahead = self._pending.records[: max((*places, *wanted)) + 1]
        requests = [self.request(record, record.reserved_at or 0) for record in ahead]
        records = [ahead[place] for place in places]
        planned = [record.reserved_at for record in ahead]
        if places:
            planned = self._bounds(now, planner, ahead, requests, places, records)
        for record in records:
            if record.deadline is not None and record.deadline < now:
                record.deadline = None  # of a reservation that it lost before it got a promise
            if record.deadline is not None and record.no_later_than is not None:
                record.no_later_than = min(record.no_later_than, record.deadline)
                if record.reserved_at is not None:
                    # A sketch uses sums; the plan knows that free resources may be fragmented.
                    record.no_later_than = max(record.no_later_than, record.reserved_at)
            record.told, record.asked = now, seen
            self._changed[record] = None
            if record.promised is None:
                record.promised = record.no_later_than
            if record.no_later_than is not None:
                self._untold.pop(record, None)
                self._passing.add(record.no_later_than + _PASSED, record)
        self._passing.tidy()
        self._judge_firmness(ahead, places, running)
        self._untold = {each: None for each in self._untold if each.waiting and each.no_later_than is None}
        if self._forecasts:
            wanted |= zip(places, records, strict=True)
            self._expect(now, planner, requests, planned, wanted, running)

    def _judge_firmness(
        self, ahead: list[JobRecord], places: list[int], running: Mapping[str, JobRecord]
    ) -> None:
        """Mark promises that depend only on enforced limits. To be safe, a promise is assumed to depend on
        every job that ends before it or is ahead of it."""
        loose = [task for task, record in running.items() if self._is_loose(record)]
        first = min((running[task].running[task].end for task in loose), default=_NEVER)
        behind = next((at for at, record in enumerate(ahead) if self._is_loose(record)), len(ahead))
        for place in places:
            record = ahead[place]
            at = record.no_later_than
            record.firm = at is not None and at < first and place <= behind

    def _is_loose(self, record: JobRecord) -> bool:
        return record.bounded and not self._is_enforced(record.job)

    def request(self, record: JobRecord, since: int = 0) -> PlanRequest:
        """The request of a waiting job to the planner; it starts no earlier than ``since``."""
        claim = None if self.quotas is None else self.quotas.claims.get(record.key)
        known = self._requests.get(record)
        if (
            known is not None
            and known[:3] == (record.job, record.shape, record.limit)
            and known[3].claim is claim
            and known[3].since == since
        ):
            return known[3]
        lasts = self.predict(record, 0)
        duration = max(1, record.limit if lasts is None else lasts)
        request = PlanRequest(record.job.request, record.limit, duration, claim, since)
        if isinstance(self.predictor, History):
            self._requests[record] = (record.job, record.shape, record.limit, request)
        return request

    def predict(self, record: JobRecord, elapsed: int) -> int | None:
        """The predicted run time of a task of a job, from its start to its end; None if unknown."""
        try:
            return self.predictor.predict(record.job, record.shape, elapsed)
        except Exception as error:
            self._guard.note("predictor", error, record.key)
            return None

    def learn(self, job: Submission, shape: int, runtime: int) -> None:
        """Record the run time of a task of this job."""
        self._requests.clear()
        try:
            self.predictor.learn(job, shape, runtime)
        except Exception as error:
            self._guard.note("predictor", error, job.key)

    def _bounds(
        self,
        now: int,
        planner: Planner,
        ahead: list[JobRecord],
        requests: list[PlanRequest],
        places: list[int],
        records: list[JobRecord],
    ) -> list[int | None]:
        """Set *no later than* of some records; returns the planned start of each job in ``ahead``."""
        if self._policy.promise == "reservation":
            for record in records:
                record.no_later_than = record.reserved_at
            return [record.reserved_at for record in ahead]
        in_order = planner.sketch(now, requests, in_order=True, wanted=places)
        recorded = self._rests_on_record = self.rests_on_record(planner)
        planned = planner.sketch(now, requests, in_order=False, wanted=places) if recorded else in_order
        supported: dict[tuple[object, ...], int | None] = {}
        turn, asked = now, 0  # in strict order, no job starts before those in front of it
        for place, record in zip(places, records, strict=True):
            if self._policy.promise == "order":
                front = [each.no_later_than for each in ahead[asked:place]]
                if None in front:
                    break
                turn, asked = max(turn, *(each for each in front if each is not None), now), place
            plan, late = planned[place], in_order[place]
            if plan is None or late is None:
                continue
            at = record.reserved_at
            if at is None and record.broken:
                continue  # after a broken promise, only a reservation is promised
            if at is None:
                like: tuple[object, ...] = (record.shape, record.limit)
                if self.quotas is not None and self.quotas.tree.in_classes:
                    like = (*like, record.job.queue, record.job.charged)
                if like not in supported:
                    supported[like] = planner.supported(record.job.request, now, record.limit)
                at = supported[like]
            if at is not None and self.quotas is not None:
                at = self.quotas.earliest(record.key, at, record.limit)
            if at is not None:  # None: the sums fit, but fragmentation or the rules forbid it
                bound = self.calibration.bound(now, plan, late) if recorded else late
                record.no_later_than = max(bound, at, turn)
        return planned

    def _places(self, held: Collection[str], now: int, seen: int) -> list[int]:
        """The places of jobs without a promise, down to the depth of the queue."""
        bounds = [bound for bound in (self._depth, self._most) if bound is not None]
        if bounds:
            first = self._pending.records[: min(bounds)]
            found = [place for place, record in enumerate(first) if record.no_later_than is None]
        else:
            waiting = (each for each in self._untold if each.waiting and each.no_later_than is None)
            found = sorted(self._pending.place(record) for record in waiting if record.key not in held)
        return self._due(found, now, seen) if self._pause else found

    def _due(self, places: list[int], now: int, seen: int) -> list[int]:
        """The places to handle in this round: new jobs, and jobs whose start was unknown a while ago if the
        resources have changed since."""
        found: list[int] = []
        for place in places:
            record = self._pending.records[place]
            if record.asked == seen:
                continue
            again = record.told + _ASK_AGAIN if record.asked >= 0 else now
            if again > now or len(found) == _MAX_TOLD:
                again = max(again, now + self._pause)
                self._next_round = again if self._next_round is None else min(again, self._next_round)
            else:
                found.append(place)
        return found

    def _expect(
        self,
        now: int,
        planner: Planner,
        requests: list[PlanRequest],
        planned: list[int | None],
        wanted: dict[int, JobRecord],
        running: Mapping[str, JobRecord],
    ) -> None:
        ends = {}
        for task, record in running.items():
            task_held = record.running[task]
            lasts = self.predict(record, now - task_held.start)
            ends[task] = expected_end(task_held, lasts, now)
        starts = planner.expect(now, ends, requests, wanted)
        self._changed |= dict.fromkeys(self.expectations.tell(now, wanted, starts, planned))


def _stands(at: int, record: JobRecord) -> bool:
    """Whether a promise has not changed since this entry was made."""
    return record.waiting > 0 and record.no_later_than is not None and record.no_later_than + _PASSED == at
