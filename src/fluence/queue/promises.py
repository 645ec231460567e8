"""What waiting jobs are told of their start, and what becomes of it.

The queue calls `tell` at the end of a cycle for the jobs that were not told yet, `started` when one starts,
and `broken_by_loss` when resources were lost. *No later than* rests on limits, by the rule of the policy
(`QueuePolicy.promise`); *expected* rests on how long such jobs ran.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from fluence.model.reason import Code, Reason
from fluence.queue.calibration import Calibration
from fluence.queue.guard import PluginGuard
from fluence.queue.history import Predictor
from fluence.queue.job import SECOND, BrokenPromise, JobRecord, Submission
from fluence.queue.pending import Pending
from fluence.queue.planner import Planner, PlanRequest
from fluence.queue.policy import QueuePolicy

LATE = 60 * SECOND  # a start so long after its promise counts as late
_CAUTION = 0.15  # how much of the expected start is taken from limits: history misses the long runs
_LOST = Reason.of(Code.RESOURCES_LOST)


class Promises:
    """The promises of one queue."""

    def __init__(
        self,
        pending: Pending,
        policy: QueuePolicy,
        predictor: Predictor,
        guard: PluginGuard,
        *,
        depth: int | None,
        most: int | None,
        forecasts: bool,
    ) -> None:
        self.calibration = Calibration()
        self.predictor = predictor
        self._pending = pending
        self._policy = policy
        self._guard = guard
        self._depth = depth  # the queue looks at so many
        self._most = most  # so many of the first are told
        self._forecasts = forecasts
        self._untold: list[JobRecord] = []
        self._loss = (-1, _LOST)  # the last one: when and why

    def owe(self, record: JobRecord) -> None:
        """A job waits, and is to be told until when."""
        self._untold.append(record)

    def note_loss(self, now: int, cause: Reason | None) -> None:
        self._loss = (now, cause or _LOST)

    # -- keeping and breaking --------------------------------------------------------------------------------

    def started(self, record: JobRecord, now: int) -> None:
        """A job that waited has started: was that in time?"""
        promised = record.no_later_than
        if promised is None:
            return
        missed = now > promised + LATE
        if missed:
            at, cause = self._loss
            if at <= record.told:
                cause = Reason.of(Code.OVERTAKEN)
            record.broken.append(BrokenPromise(now, promised, cause))
        if self._policy.promise == "record":
            self.calibration.observe(missed=missed)

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
                record.broken.append(BrokenPromise(now, promised, self._loss[1]))
                record.no_later_than, record.told = at, now
                if at is None:
                    self.owe(record)  # to be told as soon as somebody knows

    # -- telling ---------------------------------------------------------------------------------------------

    def tell(
        self, now: int, planner: Planner, held: Collection[str], running: Mapping[str, JobRecord]
    ) -> None:
        """Tell the jobs that must wait, and were not told yet, when they will start."""
        places = self._places(held)
        if not places:
            return
        ahead = self._pending.records[: places[-1] + 1]
        requests = [self.request(record) for record in ahead]
        records = [ahead[place] for place in places]
        planned = self._bounds(now, planner, ahead, requests, places, records)
        for record in records:
            if record.deadline is not None and record.no_later_than is not None:
                record.no_later_than = min(record.no_later_than, record.deadline)
                if record.reserved_at is not None:
                    # A sketch counts sums; the plan knows that what is free may be in pieces.
                    record.no_later_than = max(record.no_later_than, record.reserved_at)
            record.told = now
            if record.promised is None:
                record.promised = record.no_later_than
        self._untold = [record for record in records if record.no_later_than is None]
        if self._forecasts:
            wanted = dict(zip(places, records, strict=True))
            self._expect(now, planner, requests, planned, wanted, running)

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
        in_order = planner.sketch(now, requests, in_order=True)
        recorded = self._policy.promise == "record"
        planned = planner.sketch(now, requests, in_order=False) if recorded else in_order
        for place, record in zip(places, records, strict=True):
            plan, late = planned[place], in_order[place]
            if plan is not None and late is not None:
                record.no_later_than = self.calibration.bound(now, plan, late) if recorded else late
        return planned

    def _places(self, held: Collection[str]) -> list[int]:
        """The places of jobs without a promise, as deep as the queue is looked at."""
        bounds = [bound for bound in (self._depth, self._most) if bound is not None]
        if bounds:
            first = self._pending.records[: min(bounds)]
            return [place for place, record in enumerate(first) if record.no_later_than is None]
        waiting = (each for each in self._untold if each.waiting and each.no_later_than is None)
        return sorted(self._pending.place(record) for record in waiting if record.key not in held)

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
            began = record.running[task].start
            lasts = self.predict(record, now - began)
            ends[task] = max(now + 1, began + (record.limit if lasts is None else lasts))
        for place, start in planner.expect(now, ends, requests, wanted).items():
            record, plan = wanted[place], planned[place]
            if plan is not None and plan > start:
                start += round(_CAUTION * (plan - start))
            record.expected = start
            if record.first_expected is None:
                record.first_expected = start
