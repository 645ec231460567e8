"""What would become of a job that nobody has submitted, and of the others if somebody did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fluence.messages import texts
from fluence.model.jobspec import Jobspec
from fluence.queue.job import SECOND, JobRecord, Phase, Submission
from fluence.queue.queue import Queue
from fluence.queue.reasons import Change, WaitReason, span, why

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

    def lines(self, shown: int | None = None) -> list[str]:
        """The answer in words."""
        if self.never:
            return [f"never: {texts(self.reason.reasons)}"]
        found = []
        if self.starts_now:
            found.append("it would start now")
        else:
            when = "at a time that nobody knows"
            if self.start is not None:
                when = f"no later than in {span(self.start - self.now)}"
            found.append(f"it would wait, and start {when}")
            if self.expected is not None:
                found.append(f"expected, by how long such jobs ran: in {span(self.expected - self.now)}")
            found.append(f"blocked by {self.reason.kind.value}: {texts(self.reason.reasons)}")
            if self.reason.waits_for:
                found.append(f"waits for {_list(self.reason.waits_for, shown)}")
            found.extend(f"sooner: {change.words(self.now)}" for change in self.reason.changes)
        if not self.delays:
            found.append("nobody else would wait longer")
        for delay in self.delays[:shown]:
            found.append(f"job {delay.job} would start {span(delay.after - delay.before)} later")
        if shown is not None and len(self.delays) > shown:
            found.append(f"… and {len(self.delays) - shown} more (see -o wide)")
        return found

    def to_value(self) -> dict[str, Any]:
        """The answer for programs, in seconds."""
        return {
            "now": self.now / SECOND,
            "starts_now": self.starts_now,
            "never": self.never,
            "start_no_later_than": _seconds(self.start),
            "expected_start": _seconds(self.expected),
            "reason": {"kind": self.reason.kind.value, "text": texts(self.reason.reasons)},
            "waits_for": list(self.reason.waits_for),
            "changes": [_change(change) for change in self.reason.changes],
            "delays": [
                {"job": d.job, "before": d.before / SECOND, "after": d.after / SECOND} for d in self.delays
            ],
        }


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


def _list(keys: tuple[str, ...], shown: int | None) -> str:
    more = 0 if shown is None else len(keys) - shown
    return ", ".join(keys[:shown]) + (f" and {more} more" if more > 0 else "")


def _seconds(time: int | None) -> float | None:
    return None if time is None else time / SECOND


def _change(change: Change) -> dict[str, Any]:
    value = change.value
    if change.what == "limit" and value is not None:
        return {"what": "limit", "to_s": value / SECOND, "start": change.start / SECOND}
    return {"what": change.what, "to": value, "start": change.start / SECOND}
