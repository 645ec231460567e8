"""Status reports: what those that wait are told: at once when they are new, later only if something changed.

The cycle asks for a round of them at its end. Reasons are worked out once per shape and for so many shapes
per cycle: a thousand gangs that ask for the same get the same answer, and a long queue is told over several
cycles. A group whose members still come is told what is missing when they have stopped coming: a report with
each new member would be a write for every member that is there, and the square of its size until it is whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.queue import Phase, Queue
from fluence.queue.budget import CycleBudget
from fluence.queue.reasons import limit_reason
from fluence.schedule.gang import Gang
from fluence.schedule.groups import Groups
from fluence.schedule.holders import named, told_to
from fluence.schedule.overrun_reasons import breaking, holding
from fluence.schedule.planner import ClusterPlanner
from fluence.schedule.status import SchedulingStatus, StatusReport
from fluence.schedule.unlimited_reasons import unlimited

if TYPE_CHECKING:
    from fluence.schedule.pod_set import PodSet

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
    queued: int = 0  # when it came, in microseconds; 0: that is not to be written

    @property
    def reasons(self) -> tuple[Reason, ...]:
        return self.report.reasons


class StatusReports:
    """What was said last, and what is to be said."""

    def __init__(self, groups: Groups, queue: Queue, planner: ClusterPlanner, budget: CycleBudget) -> None:
        self.said: dict[str, Waiting] = {}  # by pod set; by group if it is incomplete or refused
        self._groups = groups
        self._queue = queue
        self._planner = planner
        self._budget = budget
        self._next: dict[str, None] = {}  # pod sets that wait and are to be told why
        # By group: since when it gathers, when it is told, and what; in the order in which they are told.
        self._gathering: dict[str, tuple[int, int, Waiting]] = {}
        self.subject = ""  # the group whose reason is being worked out, to name it if that fails
        self._looked_at = 0
        self._counts = (0, 0)

    def want(self, key: str) -> None:
        """A pod set waits, and is to be told why."""
        self._next[key] = None

    def starts(self, key: str) -> None:
        self._next.pop(key, None)

    def over(self, key: str) -> None:
        """It waits no more, whatever became of it."""
        self._next.pop(key, None)
        self.said.pop(key, None)

    @property
    def has_more(self) -> bool:
        """Whether some that wait are to be told why in one of the next cycles."""
        return bool(self._next)

    def will_say(self, key: str) -> bool:
        """Whether a pod set is one of those."""
        return key in self._next

    def next_due(self) -> int | None:
        """When to look again even if nothing happens."""
        if self._next:
            return 0
        times = [due for _, due, _ in islice(self._gathering.values(), 1)]
        if (self._queue.pending or self.said) and self._counts != (self._planner.freed, self._planner.lost):
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

    def complete(self, group: str) -> None:
        """Nothing is missing any more, or nothing waits."""
        self._gathering.pop(group, None)
        said = self.said.get(group)
        ended = (SchedulingStatus.INCOMPLETE, SchedulingStatus.REFUSED)
        if said is not None and said.report.outcome in ended:
            del self.said[group]

    def round(self, now: int, pod_sets: Mapping[str, PodSet]) -> Iterable[Waiting]:
        """What is new to say."""
        while (due := next(iter(self._gathering.values()), None)) is not None and due[1] <= now:
            yield from self.say(due[2].gang.key, due[2])
        counts = (self._planner.freed, self._planner.lost)
        if counts != self._counts and now - self._looked_at >= _AGAIN:
            self._counts, self._looked_at = counts, now
            waiting = (key for key, each in pod_sets.items() if _waits(each))
            self._next.update(dict.fromkeys(waiting))
        by_shape: dict[int, StatusReport] = {}
        worked_out = 0
        self._budget.begin()
        for key in list(islice(self._next, 8 * _SHAPES)):
            pod_set = pod_sets.get(key)
            gang = None if pod_set is None else self._groups.gang(pod_set.group)
            if pod_set is None or gang is None or not _waits(pod_set):
                del self._next[key]
                continue
            report = by_shape.get(pod_set.shape)
            if report is None:
                if worked_out >= _SHAPES or (worked_out and self._budget.is_spent):
                    break
                self.subject = pod_set.group
                report = self._of_shape(pod_set, now)
                self.subject = ""
                worked_out += 1
                if self._planner.shares_reasons(pod_set.request):
                    by_shape[pod_set.shape] = report
            del self._next[key]
            told = dict.fromkeys((*report.reasons, *breaking(pod_set, self._queue)))
            report = replace(
                report,
                reasons=(*self._limits(pod_set), *told),
                no_later_than=pod_set.no_later_than,
                firm=pod_set.firm,
                expected=pod_set.expected,
                limit=pod_set.job.limit,
            )
            yield from self.say(key, Waiting(gang, pod_set.pods, report, pod_set.job.queued))

    def say(self, key: str, waiting: Waiting) -> Iterable[Waiting]:
        """The same again, unless all of its pods were told so before. Whatever is written on objects comes
        by here: names of other namespaces go no further."""
        self._gathering.pop(key, None)
        reasons = told_to(waiting.gang.namespace, waiting.report.reasons)
        waiting = replace(waiting, report=replace(waiting.report, reasons=reasons))
        was_said = self._was_said(key, waiting)
        self.said[key] = waiting
        return () if was_said else (waiting,)

    def _was_said(self, key: str, waiting: Waiting) -> bool:
        before = self.said.get(key)
        if before is None or before.report != waiting.report:
            return False
        told = {pod.metadata.uid for pod in before.pods}
        return told.issuperset(pod.metadata.uid for pod in waiting.pods)

    def report(self, pod_set: PodSet, now: int) -> StatusReport:
        """Why a pod set waits, as things stand, for who may read all objects."""
        found = self._of_shape(pod_set, now)
        return replace(found, reasons=(*self._limits(pod_set), *named(found.reasons)))

    def _limits(self, pod_set: PodSet) -> tuple[Reason, ...]:
        """What its user or its queue has had enough of."""
        if pod_set.phase is Phase.NEVER:
            return ()
        limit = limit_reason(self._queue, pod_set)
        return () if limit is None else (limit,)

    def _of_shape(self, pod_set: PodSet, now: int) -> StatusReport:
        """The same for all that ask for the same."""
        if pod_set.phase is Phase.NEVER:
            # As the nodes are now. What is no matter of the cluster, its queue has told.
            reason = self._planner.feasibility(pod_set.request) or pod_set.story[-1].reason
            return StatusReport(SchedulingStatus.NEVER, (reason,))
        reasons = (
            *self._planner.why(pod_set.request, now, pod_set.limit),
            *holding(pod_set.request, pod_set.limit, now, self._queue, self._planner),
            *unlimited(pod_set, self._planner, self._queue),
        )
        return StatusReport(SchedulingStatus.WAITS, reasons or (Reason.of(Code.QUEUED_BEHIND_OTHERS),))


def _waits(pod_set: PodSet) -> bool:
    return not pod_set.phase.holds and pod_set.phase is not Phase.GATHERING
