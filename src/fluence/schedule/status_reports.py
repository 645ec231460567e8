"""Telling: what those that wait are told: at once when they are new, later only if something changed.

Reasons are worked out once per shape and for so many shapes per cycle: a thousand gangs that ask for the same
get the same answer, and a long queue is told over several cycles. A group whose members still come is told
what is missing when they have stopped coming: a word with each new member would be a write for every member
that is there, and the square of its size until it is whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice

from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.queue import Phase, Queue
from fluence.schedule.gang import Gang
from fluence.schedule.groups import Groups
from fluence.schedule.planner import ClusterPlanner
from fluence.schedule.pod_set import PodSet, Stage
from fluence.schedule.status import SchedulingStatus, StatusReport

_AGAIN = 30_000  # a reason that may have changed is looked at again after so long
_SHAPES = 24  # reasons worked out per cycle
_QUIET = 1_000  # a group that gathers is told what is missing when nothing of it changed for so long,
_GATHERS = 10_000  # or when it has gathered for so long


@dataclass(frozen=True, slots=True)
class Waiting:
    """A group whose pods wait, and what they are told."""

    gang: Gang
    pods: tuple[Pod, ...]
    report: StatusReport

    @property
    def reasons(self) -> tuple[Reason, ...]:
        return self.report.reasons


class StatusReports:
    """What was said last, and what is to be said."""

    def __init__(self, groups: Groups, queue: Queue, space: ClusterPlanner) -> None:
        self.said: dict[str, Waiting] = {}  # by part; by group if it is incomplete or refused
        self._groups = groups
        self._queue = queue
        self._space = space
        self._next: dict[str, None] = {}  # parts that wait and are to be told why
        # By group: since when it gathers, when it is told, and what; in the order in which they are told.
        self._gathering: dict[str, tuple[int, int, Waiting]] = {}
        self._looked_at = 0
        self._counts = (0, 0)

    def want(self, part: str) -> None:
        self._next[part] = None

    def starts(self, part: str) -> None:
        self._next.pop(part, None)

    def over(self, part: str) -> None:
        """It waits no more, whatever became of it."""
        self._next.pop(part, None)
        self.said.pop(part, None)

    def next_due(self) -> int | None:
        """When to look again even if nothing happens."""
        if self._next:
            return 0
        times = [due for _, due, _ in islice(self._gathering.values(), 1)]
        if self._queue.pending and self._counts != (self._space.freed, self._space.lost):
            times.append(self._looked_at + _AGAIN)
        return min(times, default=None)

    def gathers(self, waiting: Waiting, now: int) -> Iterable[Waiting]:
        """Members are missing, and may be on their way."""
        key = waiting.gang.key
        since, _, _ = self._gathering.pop(key, (now, 0, waiting))
        if now - since >= _GATHERS:
            return self.say(key, waiting)
        if not self._was_said(key, waiting):
            self._gathering[key] = (since, now + _QUIET, waiting)
        return ()

    def whole(self, group: str) -> None:
        """Nothing is missing any more, or nothing waits."""
        self._gathering.pop(group, None)
        said = self.said.get(group)
        if said is not None and said.report.outcome in (
            SchedulingStatus.INCOMPLETE,
            SchedulingStatus.REFUSED,
        ):
            del self.said[group]

    def round(self, now: int, parts: Mapping[str, PodSet]) -> Iterable[Waiting]:
        """What is new to say."""
        while (due := next(iter(self._gathering.values()), None)) is not None and due[1] <= now:
            yield from self.say(due[2].gang.key, due[2])
        counts = (self._space.freed, self._space.lost)
        if counts != self._counts and now - self._looked_at >= _AGAIN:
            self._counts, self._looked_at = counts, now
            self._next.update(dict.fromkeys(key for key, part in parts.items() if part.stage is Stage.QUEUED))
        by_shape: dict[int, StatusReport] = {}
        worked_out = 0
        for key in list(islice(self._next, 8 * _SHAPES)):
            part = parts[key]
            gang = self._groups.gang(part.gang)
            entry = self._queue.entries.get(key)
            if gang is None or entry is None:
                del self._next[key]
                continue
            report = by_shape.get(entry.shape)
            if report is None:
                if worked_out >= _SHAPES:
                    break
                report = self._why(part, now)
                worked_out += 1
                if self._space.shares_reasons(entry.shape):
                    by_shape[entry.shape] = report
            del self._next[key]
            report = replace(report, no_later_than=entry.no_later_than, expected=entry.expected)
            yield from self.say(key, Waiting(gang, part.request.pods, report))

    def say(self, key: str, waiting: Waiting) -> Iterable[Waiting]:
        """The same again, unless all of its pods were told so before."""
        self._gathering.pop(key, None)
        was_said = self._was_said(key, waiting)
        self.said[key] = waiting
        return () if was_said else (waiting,)

    def _was_said(self, key: str, waiting: Waiting) -> bool:
        before = self.said.get(key)
        if before is None or before.report != waiting.report:
            return False
        told = {pod.metadata.uid for pod in before.pods}
        return told.issuperset(pod.metadata.uid for pod in waiting.pods)

    def _why(self, part: PodSet, now: int) -> StatusReport:
        entry = self._queue.entries[part.key]
        if entry.state is Phase.NEVER:
            refused = self._space.refusal(part.request)
            if refused is not None:  # a claim that is missing says nothing of the cluster
                return StatusReport(SchedulingStatus.NEVER, (Reason.of(Code.GIVEN, text=refused),))
            why = Reason.of(Code.GIVEN, text=entry.story[-1].reason)
            return StatusReport(SchedulingStatus.NEVER, (Reason.of(Code.CLUSTER_CANNOT_HOLD, causes=(why,)),))
        told = self._space.why(part.request, now, entry.limit)
        reasons = tuple(Reason.of(Code.GIVEN, text=each) for each in told)
        return StatusReport(SchedulingStatus.WAITS, reasons or (Reason.of(Code.QUEUED_BEHIND_OTHERS),))
