"""Planning: brings the queue up to date with the groups that changed, and asks the plan which jobs start.

`fluence.schedule.reconcile` says what must change. This module applies it, for a bounded number of groups per
cycle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fluence.cluster.graph import ClusterGraph
from fluence.model.job_state import JobState
from fluence.model.reason import Code, Reason
from fluence.queue import Queue
from fluence.queue.policy import PluginFault
from fluence.schedule import reconcile as changes
from fluence.schedule.eligibility.eligibility import Eligibility
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.gangs.groups import Exclusions, Groups
from fluence.schedule.gangs.settling import Settling
from fluence.schedule.history import Journal
from fluence.schedule.intake import Intake
from fluence.schedule.lifecycle import Lifecycle
from fluence.schedule.pod_set import Changes, PodSet, PodSets
from fluence.schedule.reconcile import reconcile
from fluence.schedule.restart import Takeover
from fluence.schedule.status.reports import StatusReports, Waiting, Warnings
from fluence.schedule.status.status import StatusReport
from fluence.schedule.step import Step, working_on
from fluence.schedule.volumes import VolumeChecks

if TYPE_CHECKING:
    from fluence.schedule.cycle import Decisions


_ROUNDS = 4  # how often one group is adopted, seated or unseated before the rest is applied


class Reassessment(Step):
    """Checks groups again that have settled or may use excluded nodes again, and jobs that now fit the
    cluster or no longer do."""

    def __init__(
        self,
        *,
        pod_sets: PodSets,
        exclusions: Exclusions,
        settling: Settling,
        lifecycle: Lifecycle,
        changes: Changes,
    ) -> None:
        self._pod_sets = pod_sets
        self._exclusions = exclusions
        self._settling = settling
        self._lifecycle = lifecycle
        self._changes = changes

    def run(self, now: int, decisions: Decisions) -> None:
        noted = self._changes
        noted.touch(self._exclusions.expire(now))
        noted.touch(self._settling.take_due(now))
        if noted.cluster_changed or noted.judge_again:
            keys = list(self._pod_sets.by_key) if noted.cluster_changed else sorted(noted.judge_again)
            noted.cluster_changed, noted.judge_again = False, set()
            self._lifecycle.judge_again(keys, now)

    def next_due(self) -> int | None:
        times = (self._exclusions.next_due(), self._settling.next_due())
        return min((at for at in times if at is not None), default=None)

    def forget(self, group: str) -> None:
        self._exclusions.forget(group)
        self._settling.forget(group)


class Reconciliation(Step):
    """Reconciles the groups that changed with the queue. ``forget`` is called for a group that is gone."""

    def __init__(
        self,
        *,
        groups: Groups,
        cluster: ClusterGraph,
        pod_sets: PodSets,
        exclusions: Exclusions,
        settling: Settling,
        takeover: Takeover,
        eligibility: Eligibility,
        reports: StatusReports,
        warnings: Warnings,
        lifecycle: Lifecycle,
        intake: Intake,
        changes: Changes,
        forget: Callable[[str], None],
    ) -> None:
        self._groups = groups
        self._cluster = cluster
        self._pod_sets = pod_sets
        self._exclusions = exclusions
        self._settling = settling
        self._takeover = takeover
        self._eligibility = eligibility
        self._reports = reports
        self._warnings = warnings
        self._lifecycle = lifecycle
        self._intake = intake
        self._changes = changes
        self._forget = forget

    def run(self, now: int, decisions: Decisions) -> None:
        self._takeover.begin(self._changes.touched, now)
        for group in self._changes.take_touched():
            with working_on(group):
                self._reconcile(group, now, decisions)
            self._takeover.took(group, now)

    def _reconcile(self, group: str, now: int, decisions: Decisions) -> None:
        """Bring the queue up to date with one group."""
        gang = self._settled(group, now)
        if gang is not None and gang.warnings:
            decisions.warnings += self._warnings.new(gang)
        elif gang is None:
            self._changes.unrank(group)
        found = self._wanted(group, gang)
        for _ in range(_ROUNDS):
            first = found[0] if found else None
            if isinstance(first, changes.Adopt):
                assert gang is not None
                self._lifecycle.adopt(gang, first.pods, now)
            elif isinstance(first, changes.TakeSeats):
                self._lifecycle.take_seats(first.pairs)
            elif isinstance(first, changes.GiveUpSeats):
                for owner in first.owners:
                    self._lifecycle.give_up_seats(owner, group)
                self._intake.settle_placeholders(now)
            else:
                break
            gang = self._settled(group, now)
            found = self._wanted(group, gang)
        for change in found:
            if isinstance(change, changes.Adopt | changes.TakeSeats | changes.GiveUpSeats):
                continue
            self._apply(group, gang, change, now, decisions)
        if gang is None and not self._pod_sets.of_group(group):
            self._forget(group)

    def _settled(self, group: str, now: int) -> Gang | None:
        """A group as it may be planned now. A group without a size waits until it stops growing, and a group
        with dependencies waits for them."""
        gang = self._groups.gang(group)
        if gang is None:
            self._settling.forget(group)
            return None
        there = self._takeover.found(group)
        gang = self._settling.hold(gang, has_seat=self._pod_sets.by_pod, was_there=there, now=now)
        return self._eligibility.admit(gang, has_seat=self._pod_sets.by_pod, now=now)

    def _wanted(self, group: str, gang: Gang | None) -> list[changes.Change]:
        return reconcile(
            gang,
            self._pod_sets.of_group(group),
            has_seat=self._pod_sets.by_pod,
            has_job=self._cluster.fit.jobs,
            exclude=self._exclusions.of(group),
            held=self._lifecycle.held_devices(gang) if gang is not None else None,
            seat_of=self._groups.seat_of,
        )

    def _apply(
        self, group: str, gang: Gang | None, change: changes.Change, now: int, decisions: Decisions
    ) -> None:
        reports = self._reports
        match change:
            case changes.Complete():
                reports.complete(group)
            case changes.Withdraw(pod_set, reason):
                self._lifecycle.withdraw(pod_set, now, reason)
            case changes.Amend(pod_set, request):
                self._lifecycle.amend(pod_set, request, now, Reason.of(Code.GROUP_CHANGED))
            case changes.Adjust(pod_set, favour, max_running):
                self._lifecycle.adjust(pod_set, favour, max_running, now)
            case changes.FreeSeats(pod_set, uids):
                self._lifecycle.free_seats(pod_set, uids)
            case _ if gang is None:
                raise AssertionError(f"group {group} is gone: {change}")
            case changes.Submit():
                self._lifecycle.submit(gang, change, now)
            case changes.Started():
                decisions.begun.append(gang)
            case changes.Gather(pods, missing):
                self._lifecycle.gather(gang, change, now)
                expected = self._eligibility.expected(group)
                incomplete = StatusReport(JobState.GATHERING, (missing,), expected=expected)
                decisions.waiting += reports.gathers(Waiting(gang, pods, incomplete), now)
            case changes.Refuse(pods, fault):
                refused = StatusReport(JobState.REFUSED, (fault,))
                decisions.waiting += reports.say(group, Waiting(gang, pods, refused))


class Planning(Step):
    """Starts jobs by the plan of the queue."""

    def __init__(
        self,
        *,
        queue: Queue,
        cluster: ClusterGraph,
        pod_sets: PodSets,
        takeover: Takeover,
        volumes: VolumeChecks,
        reports: StatusReports,
        journal: Journal,
        lifecycle: Lifecycle,
        changes: Changes,
    ) -> None:
        self._queue = queue
        self._cluster = cluster
        self._pod_sets = pod_sets
        self._takeover = takeover
        self._volumes = volumes
        self._reports = reports
        self._journal = journal
        self._lifecycle = lifecycle
        self._changes = changes

    def next_due(self) -> int | None:
        return self._queue.next_due()

    def run(self, now: int, decisions: Decisions) -> None:
        self._plan(now, decisions)
        decisions.plugin_faults = self._queue.take_faults() + [
            PluginFault(f"match policy {name}", error)
            for name, error in self._cluster.fit.table.take_policy_faults()
        ]

    def _plan(self, now: int, decisions: Decisions) -> None:
        changes = self._changes
        if not (changes.queue_changed or changes.plan_is_due(now)) or self._takeover.holds_back:
            return
        changes.queue_changed = False
        for start in self._queue.cycle(now):
            pod_set = self._pod_sets.by_key[start.record.key]
            with working_on(pod_set.group):
                binds = self._lifecycle.start(start, now)
                if binds and not self._volumes.prepare(pod_set, binds, now, decisions):
                    decisions.binds.append(binds)
        for record in self._queue.promises.take_changed():
            self._reports.want(record.key)
            if isinstance(record, PodSet):
                self._journal.note(record)
        changes.plan_was_asked()
