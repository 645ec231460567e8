"""What waiting jobs are told of their start, and what becomes of it.

The queue calls `tell` at the end of a cycle for the jobs that were not told yet, `started` when one starts,
and `broken_by_loss` when resources were lost. *No later than* rests on limits, by the rule of the policy
(`QueuePolicy.promise`); *expected* rests on how long such jobs ran (`Expectations`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from fluence.model.reason import Code, Reason
from fluence.queue.calibration import Calibration
from fluence.queue.due_times import DueTimes
from fluence.queue.expectations import Expectations, expected_end
from fluence.queue.guard import PluginGuard
from fluence.queue.history import Predictor
from fluence.queue.job import SECOND, BrokenPromise, JobRecord, Submission
from fluence.queue.pending import Pending
from fluence.queue.planner import Planner, PlanRequest
from fluence.queue.policy import QueuePolicy

LATE = 60 * SECOND  # a start so long after its promise counts as late
_PASSED = LATE + 1
_ROUND = 32  # jobs that are told in one round,
_ASK_AGAIN = 10 * SECOND  # and how long one that was told "unknown" waits for its next
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
"""What can break a promise. Other causes count as the last of these."""


@dataclass(slots=True)
class PromiseTally:
    """How many promises were kept, and how many were broken by which cause."""

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
        """``renews``: expectations that have passed are worked out anew. ``pause``: between two rounds of
        telling; with one, a round is for so many jobs as take little time."""
        self.calibration = Calibration()
        self.expectations = Expectations(renews=renews)
        self.tally = PromiseTally()
        self.predictor = predictor
        self._pending = pending
        self._policy = policy
        self._guard = guard
        self._is_enforced = is_enforced
        self._depth = depth  # the queue looks at so many
        self._most = most  # so many of the first are told
        self._forecasts = forecasts
        self._pause = pause
        self._rests_on_record = policy.promise == "record"
        self._last_round = -pause
        self._next_round: int | None = None  # when there is somebody to tell, if nothing happens before
        self._passing = DueTimes(_stands)  # when a promise will have passed
        self._untold: dict[JobRecord, None] = {}
        self._changed: dict[JobRecord, None] = {}
        self._loss = (-1, _LOST)  # the last one: when and why

    def owe(self, record: JobRecord) -> None:
        """A job waits, and is to be told until when."""
        self._untold[record] = None
        self._next_round = self._last_round + self._pause

    def next_due(self) -> int | None:
        """When somebody is to be told something, if nothing happens before."""
        again = self._next_round if self._pause else None
        times = (self._passing.next(), self.expectations.next_due(), again)
        return min((at for at in times if at is not None), default=None)

    def forget(self, record: JobRecord) -> None:
        """A job waits no more."""
        self._untold.pop(record, None)
        self._changed.pop(record, None)
        self.expectations.forget(record)

    def take_changed(self) -> list[JobRecord]:
        """The jobs that were promised something, or nothing any more, since the last call."""
        found, self._changed = list(self._changed), {}
        return found

    def resume(self, record: JobRecord, at: int, now: int, *, expected: int | None, firm: bool) -> None:
        """A job was told this start before a restart."""
        record.no_later_than = record.promised = at
        record.firm = firm
        self.expectations.resume(record, expected)
        record.told = now - 1  # NB before the restart: that is the cause if nothing else has broken it
        self.note_loss(now, Reason.of(Code.RESTARTED))
        self._untold.pop(record, None)
        self._passing.add(at + _PASSED, record)

    def rests_on_record(self, planner: Planner) -> bool:
        """Whether a bound is a sketch that is widened by how earlier ones held. In order nobody overtakes,
        but that is a bound only where sums are all there is to know."""
        return self._policy.promise == "record" or (self._policy.promise == "order" and not planner.is_exact)

    def is_late(self, now: int) -> bool:
        """Whether those who wait have heard nothing for long."""
        return now >= self._last_round + _ASK_AGAIN

    def note_loss(self, now: int, cause: Reason | None) -> None:
        self._loss = (now, cause or _LOST)

    # -- keeping and breaking --------------------------------------------------------------------------------

    def started(self, record: JobRecord, now: int) -> None:
        """A job that waited has started: was that in time?"""
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

    def withdraw_passed(self, now: int) -> None:
        """A promise that has passed is none: whoever had it is told anew, and so is why it was broken."""
        while (record := self._passing.pop(now)) is not None:
            self._break(record, now)
            record.no_later_than = record.deadline = None
            self._changed[record] = None
            if self._rests_on_record:
                self.calibration.observe(missed=True)
            self.owe(record)
        for record in self.expectations.withdraw_passed(now):
            self._changed[record] = None

    def _break(self, record: JobRecord, now: int) -> None:
        at, cause = self._loss
        if at <= record.told:
            cause = Reason.of(Code.OVERTAKEN)
        self.broke(record, now, cause)

    def broke(self, record: JobRecord, now: int, cause: Reason) -> None:
        """The promise that a job has is broken."""
        assert record.no_later_than is not None
        record.broken.append(BrokenPromise(now, record.no_later_than, cause))
        self.tally.broken[cause.code if cause.code in BREAKS else Code.RESOURCES_LOST] += 1

    def broken_by_loss(self, before: Iterable[JobRecord], now: int) -> None:
        """After a loss: whose place in the plan is later than promised, or gone?"""
        for record in before:
            at, promised = record.reserved_at, record.no_later_than
            if not record.waiting:
                continue
            if at is not None and record.deadline is not None and at > record.deadline:
                record.deadline = at  # what the plan kept to cannot be kept
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
                    self.owe(record)  # to be told as soon as somebody knows
                else:
                    self._passing.add(at + _PASSED, record)

    # -- telling ---------------------------------------------------------------------------------------------

    def tell(
        self, now: int, planner: Planner, held: Collection[str], running: Mapping[str, JobRecord]
    ) -> None:
        """Tell the jobs that must wait, and were not told yet, when they will start."""
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
        requests = [self.request(record) for record in ahead]
        records = [ahead[place] for place in places]
        planned = [record.reserved_at for record in ahead]
        if places:
            planned = self._bounds(now, planner, ahead, requests, places, records)
        for record in records:
            if record.deadline is not None and record.deadline < now:
                record.deadline = None  # a place that it lost, and of which it was not told
            if record.deadline is not None and record.no_later_than is not None:
                record.no_later_than = min(record.no_later_than, record.deadline)
                if record.reserved_at is not None:
                    # A sketch counts sums; the plan knows that what is free may be in pieces.
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
        """Which promises rest only on limits that something enforces. On the safe side: any job that nothing
        ends, and that is to end before or goes before, may be what a promise rests on."""
        loose = [task for task, record in running.items() if self._is_loose(record)]
        first = min((running[task].running[task].end for task in loose), default=_NEVER)
        behind = next((at for at, record in enumerate(ahead) if self._is_loose(record)), len(ahead))
        for place in places:
            record = ahead[place]
            at = record.no_later_than
            record.firm = at is not None and at < first and place <= behind

    def _is_loose(self, record: JobRecord) -> bool:
        return record.bounded and not self._is_enforced(record.job)

    def request(self, record: JobRecord) -> PlanRequest:
        """What a waiting job asks of the plan."""
        lasts = self.predict(record, 0)
        return PlanRequest(record.job.request, record.limit, max(1, record.limit if lasts is None else lasts))

    def predict(self, record: JobRecord, elapsed: int) -> int | None:
        """How long a task of a job will have run at its end; None: nobody knows."""
        try:
            return self.predictor.predict(record.job, record.shape, elapsed)
        except Exception as error:
            self._guard.note("predictor", error, record.key)
            return None

    def learn(self, job: Submission, shape: int, runtime: int) -> None:
        """A task of this job ran so long."""
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
        """Set *no later than* of some records; returns the start that the plan has for all ahead."""
        if self._policy.promise == "reservation":
            for record in records:
                record.no_later_than = record.reserved_at
            return [record.reserved_at for record in ahead]
        in_order = planner.sketch(now, requests, in_order=True, wanted=places)
        recorded = self._rests_on_record = self.rests_on_record(planner)
        planned = planner.sketch(now, requests, in_order=False, wanted=places) if recorded else in_order
        supported: dict[tuple[int, int], int | None] = {}
        turn, asked = now, 0  # where nobody overtakes, none starts before those in front of it
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
                continue  # whoever was let down is promised nothing but what is held for it
            if at is None:
                like = record.shape, record.limit
                if like not in supported:
                    supported[like] = planner.supported(record.job.request, now, record.limit)
                at = supported[like]
            if at is not None:  # else sums would suffice, and where they are, or the rules, do not
                bound = self.calibration.bound(now, plan, late) if recorded else late
                record.no_later_than = max(bound, at, turn)
        return planned

    def _places(self, held: Collection[str], now: int, seen: int) -> list[int]:
        """The places of jobs without a promise, as deep as the queue is looked at."""
        bounds = [bound for bound in (self._depth, self._most) if bound is not None]
        if bounds:
            first = self._pending.records[: min(bounds)]
            found = [place for place, record in enumerate(first) if record.no_later_than is None]
        else:
            waiting = (each for each in self._untold if each.waiting and each.no_later_than is None)
            found = sorted(self._pending.place(record) for record in waiting if record.key not in held)
        return self._due(found, now, seen) if self._pause else found

    def _due(self, places: list[int], now: int, seen: int) -> list[int]:
        """Those of some whose turn it is: new ones, and those of which nothing was known a while ago if
        anything has happened since."""
        found: list[int] = []
        for place in places:
            record = self._pending.records[place]
            if record.asked == seen:
                continue
            again = record.told + _ASK_AGAIN if record.asked >= 0 else now
            if again > now or len(found) == _ROUND:
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
    """Whether a promise is still the one that was given."""
    return record.waiting > 0 and record.no_later_than is not None and record.no_later_than + _PASSED == at
