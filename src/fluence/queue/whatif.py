"""What would become of a job that nobody has submitted, and of the others if somebody did."""

from __future__ import annotations

from dataclasses import dataclass

from fluence.model.jobspec import Jobspec
from fluence.queue.job import JobRecord, Phase, Submission
from fluence.queue.queue import Queue
from fluence.queue.reasons import WaitReason, why

_KEY = "(this job)"


@dataclass(frozen=True, slots=True)
class Delay:
    """A waiting job that would start later, by a plan in order, if this one were submitted."""

    job: str
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    """All times are milliseconds."""

    now: int
    starts_now: bool
    never: bool
    start: int | None  # no later than this
    expected: int | None
    reason: WaitReason
    delays: tuple[Delay, ...]


def ask(
    queue: Queue, spec: Jobspec, *, limit: int | None = None, user: str = "", priority: int = 16
) -> WhatIfAnswer:
    """Submit the job to this queue, which is used up by it, and see."""
    queue.cycle(queue.now)  # what waits without need is not this job's doing
    before = _plan(queue)
    record = queue.submit(Submission(_KEY, spec, queue.now, limit=limit, user=user, priority=priority))
    if record.phase is Phase.NEVER:
        return WhatIfAnswer(queue.now, False, True, None, None, why(queue, _KEY), ())
    started = [start for start in queue.cycle(queue.now) if start.record is record]
    after = _plan(queue)
    delays = [
        Delay(other.key, before[other], later)
        for other, later in after.items()
        if other in before and later > before[other]
    ]
    return WhatIfAnswer(
        now=queue.now,
        starts_now=bool(started),
        never=False,
        start=queue.now if started else record.no_later_than,
        expected=queue.now if started else record.expected,
        reason=why(queue, _KEY),
        delays=tuple(delays),
    )


def _plan(queue: Queue) -> dict[JobRecord, int]:
    """When each waiting job would start by a plan in order."""
    records = list(queue.pending)
    requests = [queue.promises.request(record) for record in records]
    starts = queue.planner.sketch(queue.now, requests, in_order=False)
    return {record: start for record, start in zip(records, starts, strict=True) if start is not None}
