"""The scheduling cycle: take in what happened, start what fits, say why the rest waits.

Like kube-scheduler's, in three parts: the plan is asked for starts; what starts is assumed (its pods have
their seats at once); binds are handed out, and what became of them comes back as events. Pure: no clock, no
network. `fluence.schedule.scheduler.Scheduler` is the entrance and guards it against faults.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from fluence.queue.guard import PluginFault
from fluence.schedule import reconcile as changes
from fluence.schedule.actions import Bind, ClaimUpdate
from fluence.schedule.events import Event, NotBound
from fluence.schedule.gang import Gang
from fluence.schedule.lifecycle import Lifecycle
from fluence.schedule.observer import Observer
from fluence.schedule.pod_set import PodSet
from fluence.schedule.quarantine import Fault
from fluence.schedule.reconcile import reconcile
from fluence.schedule.state import SchedulerState
from fluence.schedule.status import SchedulingStatus, StatusReport
from fluence.schedule.status_reports import Waiting
from fluence.schedule.volume_binding import Failed, Ready, VolumeBinding


@dataclass(slots=True)
class Decisions:
    """What a cycle came to; the edge carries it out."""

    binds: list[list[Bind]] = field(default_factory=list)  # one list per job
    waiting: list[Waiting] = field(default_factory=list)
    begun: list[Gang] = field(default_factory=list)  # have on nodes all that they need
    claim_updates: list[ClaimUpdate] = field(default_factory=list)
    plugin_faults: list[PluginFault] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)  # objects that cannot be handled


class SchedulingCycle:
    """Events in, decisions out, on one scheduler's state."""

    def __init__(self, state: SchedulerState) -> None:
        self.state = state
        self._lifecycle = Lifecycle(state)
        self._observer = Observer(state, self._lifecycle)

    def observe(self, event: Event | NotBound, now: int) -> None:
        """Take one event in."""
        self._observer.observe(event, now)

    def run(self, now: int) -> Decisions:
        """One cycle."""
        state, decisions = self.state, Decisions()
        # 1. What changes of volumes mean to claims that wait.
        self._observer.settle_claims()
        # 2. A gang that lost a member before its first bind starts over as a whole.
        self._start_over()
        # 3. Pod sets whose pods are all over give back what they hold.
        self._lifecycle.finish(now)
        # 4. Where what the cluster could hold has changed, jobs are judged again.
        state.touch(state.exclusions.expire(now))
        self._judge_again(now)
        # 5. The queue is brought up to date with the groups that changed.
        for group in state.take_touched():
            self._reconcile(group, now, decisions)
        # 6. The plan is asked for starts, and what starts is assumed.
        self._schedule(now, decisions)
        # 7. Pod sets whose volumes are bound are bound; those that cannot have them are placed anew.
        self._check_volumes(now, decisions)
        # 8. Binds that failed for a while are sent again.
        self._retry_binds(now, decisions)
        # 9. Whoever waits is told why.
        decisions.waiting += state.reports.round(now, state.pod_sets.by_key)
        decisions.claim_updates = state.volumes.take_updates()
        decisions.plugin_faults = state.queue.take_faults()
        return decisions

    # -- groups ----------------------------------------------------------------------------------------------

    def _judge_again(self, now: int) -> None:
        state = self.state
        if state.cluster_changed or state.judge_again:
            keys = list(state.pod_sets.by_key) if state.cluster_changed else sorted(state.judge_again)
            state.cluster_changed, state.judge_again = False, set()
            self._lifecycle.judge_again(keys, now)

    def _reconcile(self, group: str, now: int, decisions: Decisions) -> None:
        """Bring the queue up to date with one group."""
        state = self.state
        state.subject = group
        gang = state.groups.gang(group)
        if gang is None:
            state.unrank(group)
        found = self._changes(group, gang)
        if found and isinstance(found[0], changes.Adopt):
            assert gang is not None
            self._lifecycle.adopt(gang, found[0].pods, now)
            found = [each for each in self._changes(group, gang) if not isinstance(each, changes.Adopt)]
        for change in found:
            self._apply(group, gang, change, now, decisions)
        if gang is None and not state.pod_sets.of_group(group):
            state.exclusions.forget(group)
        state.subject = ""

    def _changes(self, group: str, gang: Gang | None) -> list[changes.Change]:
        state = self.state
        return reconcile(
            gang,
            state.pod_sets.of_group(group),
            has_seat=state.pod_sets.by_pod,
            has_job=state.cluster.seats.jobs,
            exclude=state.exclusions.of(group),
        )

    def _apply(
        self, group: str, gang: Gang | None, change: changes.Change, now: int, decisions: Decisions
    ) -> None:
        reports = self.state.reports
        match change:
            case changes.Complete():
                reports.complete(group)
            case changes.Withdraw(pod_set, reason):
                self._lifecycle.withdraw(pod_set, now, reason)
            case changes.FreeSeats(pod_set, uids):
                self._lifecycle.free_seats(pod_set, uids)
            case _ if gang is None:
                raise AssertionError(f"group {group} is gone: {change}")
            case changes.Submit():
                self._lifecycle.submit(gang, change, now)
            case changes.Begun():
                decisions.begun.append(gang)
            case changes.Gather(pods, missing):
                self._lifecycle.gather(gang, change)
                incomplete = StatusReport(SchedulingStatus.INCOMPLETE, (missing,))
                decisions.waiting += reports.gathers(Waiting(gang, pods, incomplete), now)
            case changes.Refuse(pods, fault):
                refused = StatusReport(SchedulingStatus.REFUSED, (fault,))
                decisions.waiting += reports.say(group, Waiting(gang, pods, refused))

    # -- starts ----------------------------------------------------------------------------------------------

    def _schedule(self, now: int, decisions: Decisions) -> None:
        state = self.state
        if not (state.queue_changed or state.plan_is_due(now)):
            return
        state.queue_changed = False
        for start in state.queue.cycle(now):
            pod_set = state.pod_sets.by_key[start.record.key]
            state.subject = pod_set.group
            binds = self._lifecycle.start(start, now)
            binding = state.volumes.begin(pod_set.key, binds, now)
            if binding is None:
                decisions.binds.append(binds)
            else:
                self._lifecycle.prepare(pod_set, binding, now)
                self._say_prepares(pod_set, binding, decisions)
        state.subject = ""
        state.plan_was_asked()

    def _check_volumes(self, now: int, decisions: Decisions) -> None:
        """Pod sets whose claims are all bound are bound; others go on waiting, or are placed anew."""
        state = self.state
        for key, binding in list(state.volumes.active.items()):
            pod_set = state.pod_sets.by_key[key]
            state.subject = pod_set.group
            found = binding.check(state.cluster, pod_set.unbound, now)
            if isinstance(found, Ready):
                self._lifecycle.volumes_ready(pod_set, now)
                decisions.binds.append(binding.binds)
            elif isinstance(found, Failed):
                gang = state.groups.gang(pod_set.group)
                if gang is not None:
                    pods = tuple(bind.pod for bind in binding.binds)
                    report = StatusReport(SchedulingStatus.WAITS, (found.reason,))
                    decisions.waiting += state.reports.say(key, Waiting(gang, pods, report))
                self._lifecycle.volumes_failed(pod_set, found.nodes, now)
        state.subject = ""

    def _say_prepares(self, pod_set: PodSet, binding: VolumeBinding, decisions: Decisions) -> None:
        """Each pod is told of its own claims; the group, and whoever asks for its reason, of all."""
        gang = self.state.groups.gang(pod_set.group)
        if gang is None:
            return
        pods = tuple(bind.pod for bind in binding.binds)
        for pod in pods if len(pods) > 1 else ():
            report = StatusReport(SchedulingStatus.PREPARES, (binding.reason_of(pod.metadata.uid),))
            decisions.waiting.append(Waiting(gang, (pod,), report))
        everyone = Waiting(gang, pods, StatusReport(SchedulingStatus.PREPARES, (binding.reason,)))
        self.state.reports.said[pod_set.key] = everyone
        decisions.waiting.append(everyone if len(pods) == 1 else replace(everyone, pods=()))

    # -- binds that failed -----------------------------------------------------------------------------------

    def _start_over(self) -> None:
        """A gang of which nothing is bound, and that lost a member which had a seat, would begin in part:
        what is not under way waits again with the rest. One that has begun is driven to its end."""
        state = self.state
        by_pod = state.pod_sets.by_pod
        for key in {by_pod[uid].group for uid in state.retries}:
            gang = state.groups.gang(key)
            if gang is None or gang.placed:
                continue
            seated = [pod.metadata.uid for pod in gang.members if pod.metadata.uid in by_pod]
            if gang.needed > len(seated):
                for uid in [uid for uid in seated if uid in state.retries]:
                    self._lifecycle.lose(by_pod[uid], uid)

    def _retry_binds(self, now: int, decisions: Decisions) -> None:
        state = self.state
        due_at = state.retries.next_due()
        if due_at is None or due_at > now:
            return
        of_group: dict[str, list[str]] = {}
        for uid in state.retries:
            of_group.setdefault(state.pod_sets.by_pod[uid].group, []).append(uid)
        for group, uids in of_group.items():
            due = [uid for uid in uids if state.retries.is_due(uid, now)]
            gang = state.groups.gang(group)
            if due and (gang is None or not gang.placed):
                due = uids  # the first binds of a gang are looked at together: none is sent if one is stale
            if due:
                decisions.binds.append([state.retries.take(uid) for uid in due])
