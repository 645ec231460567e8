"""Status reports: why jobs wait, reported at once for new jobs and later after a change; warnings and
reminders.

The cycle asks for reports at its end. Reasons are computed once per shape, for a bounded number of shapes per
cycle: a thousand gangs with the same request get the same answer, and a long queue is reported over several
cycles. A group that is still growing is reported when it has stopped: a report for each new member would
write to every existing member, which adds up to the square of the size.

The cycle asks when a group changed, and the edge turns the answers into events. `fluence explain` shows the
same at any time, from the group itself.

The API server keeps events for an hour. For a pod that waits longer, `kubectl describe` would show none. So
the reason is repeated after 45 minutes, for a batch of pod sets at a time. Conditions stay as they are; the
edge makes an event of each reminder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, TypedDict

from cachetools import LRUCache

from fluence.cluster.planner import ClusterPlanner
from fluence.model.job_state import JobState
from fluence.model.owner import controller_of
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.queue import Queue
from fluence.queue.reasons import limit_reason, share_reason
from fluence.queue.scheduling_pass import CycleBudget
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.gangs.groups import Groups
from fluence.schedule.overruns import breaking, holding, named, told_to, unlimited
from fluence.schedule.restart import Takeover
from fluence.schedule.status.status import StatusReport
from fluence.schedule.step import Step, working_on

if TYPE_CHECKING:
    from fluence.schedule.cycle import Decisions
    from fluence.schedule.pod_set import PodSet, PodSets


_AGAIN = 30_000  # ms after which a reason that may have changed is computed again
_SHAPES = 24  # reasons computed per cycle
_QUOTAS = (Code.QUOTA_IN_USE, Code.QUOTA_OF_USER, Code.QUOTA_TOO_SMALL, Code.QUEUE_STOPPED)
# Jobs that use the nodes, or are ahead.
_OTHERS = (
    Code.QUEUED_BEHIND_OTHERS,
    Code.WAITS_FOR_OVERRUN,
    Code.WAITS_FOR_OVERRUN_OF_OTHERS,
    Code.WAITS_FOR_UNLIMITED,
    Code.WAITS_FOR_UNLIMITED_OF_OTHERS,
)
_QUIET = 1_000  # ms without a change after which an incomplete group is reported
_GATHERS = 10_000  # ms after which it is reported anyway


@dataclass(frozen=True, slots=True)
class Waiting:
    """A group with waiting pods, and their report."""

    gang: Gang
    pods: tuple[Pod, ...]
    report: StatusReport
    queued: int = 0  # arrival time in microseconds; 0: do not write it

    @property
    def reasons(self) -> tuple[Reason, ...]:
        return self.report.reasons


class StatusReports(Step):
    """The last reports, and the pending ones."""

    def __init__(
        self,
        *,
        groups: Groups,
        queue: Queue,
        planner: ClusterPlanner,
        pod_sets: PodSets,
        takeover: Takeover,
        budget: CycleBudget,
        scale_up_after: int | None,
    ) -> None:
        self.said: dict[str, Waiting] = {}  # by pod set; by group if it is incomplete or refused
        self._groups = groups
        self._queue = queue
        self._planner = planner
        self._pod_sets = pod_sets
        self._takeover = takeover
        self._budget = budget
        self._scale_up_after = scale_up_after
        self._next: dict[str, None] = {}  # waiting pod sets to report
        # By group: since when it gathers, when it is reported, and its report; in the order of the reports.
        self._gathering: dict[str, tuple[int, int, Waiting]] = {}
        self._told: dict[str, None] = {}  # keys of `said` that were reported in this cycle
        self._looked_at = 0
        self._counts = (0, 0)
        # What preemption does for a waiting pod set, and, for `explain`, why it does nothing.
        self.preemption: Callable[[PodSet], tuple[Reason, ...]] = lambda pod_set: ()
        self.preemption_verdict: Callable[[PodSet], tuple[Reason, ...]] = lambda pod_set: ()

    def want(self, key: str) -> None:
        """Report why a pod set waits."""
        self._next[key] = None

    def starts(self, key: str) -> None:
        self._next.pop(key, None)

    def over(self, key: str) -> None:
        """Drop the reports of a pod set that does not wait any more."""
        self._next.pop(key, None)
        self.said.pop(key, None)

    @property
    def has_more(self) -> bool:
        """Whether some waiting pod sets are left to report in the next cycles."""
        return bool(self._next)

    def will_say(self, key: str) -> bool:
        """Whether a report of this pod set is pending."""
        return key in self._next

    def next_due(self) -> int | None:
        """When to run again even if nothing happens."""
        if self._next:
            return 0
        times = [due for _, due, _ in islice(self._gathering.values(), 1)]
        if (self._queue.pending or self.said) and self._counts != (self._planner.freed, self._planner.lost):
            times.append(self._looked_at + _AGAIN)
        return min(times, default=None)

    def gathers(self, waiting: Waiting, now: int) -> Iterable[Waiting]:
        """Report missing members later, since they may be on their way."""
        key = waiting.gang.key
        since, _, _ = self._gathering.pop(key, (now, 0, waiting))
        if now - since >= _GATHERS:
            return self.say(key, waiting)
        if not self._was_said(key, waiting):
            self._gathering[key] = (since, now + _QUIET, waiting)
        return ()

    def complete(self, group: str) -> None:
        """No member is missing any more, or no pod waits."""
        self._gathering.pop(group, None)
        said = self.said.get(group)
        ended = (JobState.GATHERING, JobState.REFUSED)
        if said is not None and said.report.state in ended:
            del self.said[group]

    def run(self, now: int, decisions: Decisions) -> None:
        """Report why jobs wait, once all groups are taken in: before that, it is not known whether they
        must."""
        if not self._takeover.holds_back:
            decisions.waiting += self._round(now, self._pod_sets.by_key)

    def take_told(self) -> Iterable[str]:
        """The keys of `said` that were reported since the last call."""
        told, self._told = self._told, {}
        return told

    def _round(self, now: int, pod_sets: Mapping[str, PodSet]) -> Iterable[Waiting]:
        """The new reports."""
        while (due := next(iter(self._gathering.values()), None)) is not None and due[1] <= now:
            yield from self.say(due[2].gang.key, due[2])
        counts = (self._planner.freed, self._planner.lost)
        if counts != self._counts and now - self._looked_at >= _AGAIN:
            self._counts, self._looked_at = counts, now
            waiting = (key for key, each in pod_sets.items() if _waits(each))
            self._next.update(dict.fromkeys(waiting))
        by_shape: dict[tuple[int, Reason | None], StatusReport] = {}
        worked_out = 0
        self._budget.begin()
        for key in list(islice(self._next, 8 * _SHAPES)):
            pod_set = pod_sets.get(key)
            gang = None if pod_set is None else self._groups.gang(pod_set.group)
            if pod_set is None or gang is None or not _waits(pod_set):
                del self._next[key]
                continue
            # A refusal by its queue does not depend on its shape.
            refusal = pod_set.story[-1].reason if pod_set.state is JobState.UNSCHEDULABLE else None
            report = by_shape.get((pod_set.shape, refusal))
            if report is None:
                if worked_out >= _SHAPES or (worked_out and self._budget.is_spent):
                    break
                with working_on(pod_set.group):
                    report = self._of_shape(pod_set, now)
                worked_out += 1
                if self._planner.shares_reasons(pod_set.request):
                    by_shape[pod_set.shape, refusal] = report
            del self._next[key]
            told = report.reasons
            if not any(reason.code is Code.WAITS_FOR_OVERRUN for reason in told):
                # The job that overran last need not be the one that uses the nodes; those come first.
                told += tuple(breaking(pod_set, self._queue))
            limits = self._limits(pod_set, now)
            told = (*_beside(limits, told), *self._shares(pod_set, limits))
            report = replace(
                report,
                reasons=(*self.preemption(pod_set), *limits, *dict.fromkeys(told)),
                no_later_than=pod_set.latest,
                firm=pod_set.firm,
                expected=pod_set.expected,
                limit=pod_set.job.limit,
                in_turn=self._is_in_turn(pod_set, now),
                **_eligible(pod_set, gang),
            )
            yield from self.say(key, Waiting(gang, pod_set.pods, report, pod_set.job.queued))

    def say(self, key: str, waiting: Waiting) -> Iterable[Waiting]:
        """The report, unless all of its pods already have it. Everything that is written on objects passes
        here, so that no names from other namespaces get further."""
        self._gathering.pop(key, None)
        reasons = told_to(waiting.gang.namespace, waiting.report.reasons)
        waiting = replace(waiting, report=replace(waiting.report, reasons=reasons))
        was_said = self._was_said(key, waiting)
        self.said[key] = waiting
        if not was_said:
            self._told[key] = None
        return () if was_said else (waiting,)

    def _was_said(self, key: str, waiting: Waiting) -> bool:
        before = self.said.get(key)
        if before is None or before.report != waiting.report:
            return False
        told = {(pod.metadata.uid, pod.metadata.generation) for pod in before.pods}
        return told.issuperset((pod.metadata.uid, pod.metadata.generation) for pod in waiting.pods)

    def report(self, pod_set: PodSet, now: int) -> StatusReport:
        """Why a pod set waits now, for a reader who may read all objects."""
        found = self._of_shape(pod_set, now)
        preemption = self.preemption_verdict(pod_set)
        limits = self._limits(pod_set, now)
        others = (*_beside(limits, named(found.reasons)), *self._shares(pod_set, limits))
        return replace(found, reasons=(*preemption, *limits, *others))

    def _is_in_turn(self, pod_set: PodSet, now: int) -> bool:
        """Whether a pod set waits for its promised start, or for jobs ahead of it to be planned."""
        if (latest := pod_set.latest) is not None:
            after = self._scale_up_after
            return after is None or latest <= now + after
        queue = self._queue
        if queue.policy.promise == "order" and queue.pending.records[:1] != [pod_set]:
            return True
        return pod_set.asked < 0

    def _limits(self, pod_set: PodSet, now: int) -> tuple[Reason, ...]:
        """The limits of its user or its queue that keep a pod set from starting."""
        if pod_set.state is JobState.UNSCHEDULABLE:
            return ()
        quotas, quota = self._queue.quotas, self._queue.quota_reason(pod_set)
        if quota is not None and quotas is not None and quotas.may_go_elsewhere(pod_set.key, quota):
            # It waits for the limit of a class of nodes only if it would start there now.
            would_start = self._planner.seats_now(pod_set.request, now, pod_set.limit) is not None
            quota = quota if would_start else None
        limits = (limit_reason(self._queue, pod_set), quota)
        return tuple(limit for limit in limits if limit is not None)

    def _shares(self, pod_set: PodSet, limits: tuple[Reason, ...]) -> tuple[Reason, ...]:
        """The share that put other jobs ahead of a pod set, if it waits for its turn."""
        share = None if limits or self._queue.turns is None else share_reason(self._queue, pod_set)
        return () if share is None else (share,)

    def _of_shape(self, pod_set: PodSet, now: int) -> StatusReport:
        """The part of the report that is the same for all jobs with the same request."""
        if pod_set.state is JobState.UNSCHEDULABLE:
            # By the current nodes. If the cluster is not the cause, the queue gave the reason.
            reason = self._planner.feasibility(pod_set.request) or pod_set.story[-1].reason
            return StatusReport(JobState.UNSCHEDULABLE, (reason,))
        reasons = (
            *self._planner.why(pod_set.request, now, pod_set.limit),
            *holding(pod_set.request, pod_set.limit, now, self._queue, self._planner),
            *unlimited(pod_set, self._planner, self._queue),
        )
        return StatusReport(JobState.PENDING, reasons or (Reason.of(Code.QUEUED_BEHIND_OTHERS),))


def _beside(limits: Iterable[Reason], reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
    """The other reasons of a pod set that has reached a limit, without the jobs that it does not wait for."""
    codes = {limit.code for limit in limits}
    if codes.intersection(_QUOTAS):
        return tuple(reason for reason in reasons if reason.code not in _OTHERS)
    if Code.ARRAY_LIMIT in codes:
        return tuple(reason for reason in reasons if reason.code is not Code.QUEUED_BEHIND_OTHERS)
    return reasons


class _Eligible(TypedDict):
    eligible: int | None
    opened: str


def _eligible(pod_set: PodSet, gang: Gang) -> _Eligible:
    """Since when a pod set may start, if its user held it or it depended on other jobs."""
    if gang.depends_on is not None:
        return _Eligible(eligible=pod_set.job.submit, opened=gang.depends_on.digest)
    was_held = pod_set.job.submit > gang.submit
    return _Eligible(eligible=pod_set.job.submit if was_held else None, opened="")


def _waits(pod_set: PodSet) -> bool:
    return not pod_set.state.has_nodes and pod_set.state is not JobState.GATHERING


_KEPT = 16_384  # remembered warnings


@dataclass(frozen=True, slots=True)
class GangWarning:
    """A warning, and the pod that gets it."""

    pod: Pod
    reason: Reason


class Warnings:
    """Remembers warnings up to a bound, so the oldest may be repeated."""

    def __init__(self) -> None:
        self._told: LRUCache[tuple[str, Reason], bool] = LRUCache(_KEPT)

    def new(self, gang: Gang) -> list[GangWarning]:
        """The new warnings of a group."""
        pod = next(iter((*gang.members, *gang.gated, *gang.placed)), None)
        if pod is None:
            return []
        # All pods of a Job have the same template, so one of them gets the warning.
        owner = controller_of(pod.metadata) or gang.uid
        new = [each for each in gang.warnings if (owner, each) not in self._told]
        self._told.update(dict.fromkeys(((owner, each) for each in new), True))
        return [GangWarning(pod, each) for each in new]


_AFTER = 45 * 60_000
_PAUSE, _BATCH_SIZE = 5_000, 50


class Reminders(Step):
    """Repeats the report of each waiting job after a while."""

    def __init__(self, reports: StatusReports) -> None:
        self._reports = reports
        self._due: dict[str, int] = {}  # by key of `StatusReports.said`, earliest first
        self._next_batch = 0

    def next_due(self) -> int | None:
        said = self._reports.said
        while (first := next(iter(self._due), None)) is not None and first not in said:
            del self._due[first]  # it does not wait any more
        return None if first is None else max(self._due[first], self._next_batch)

    def run(self, now: int, decisions: Decisions) -> None:
        said = self._reports.said
        for key in self._reports.take_told():
            self._put(key, now)
        if len(self._due) > 2 * len(said) + 100:
            self._due = {key: at for key, at in self._due.items() if key in said}
        if now < self._next_batch:
            return
        for key, at in list(islice(self._due.items(), _BATCH_SIZE)):
            if at > now:
                break
            self._put(key, now)
            if key in said:
                decisions.reminders.append(said[key])
                self._next_batch = now + _PAUSE

    def _put(self, key: str, now: int) -> None:
        self._due.pop(key, None)
        if key in self._reports.said:
            self._due[key] = now + _AFTER
