"""The scheduling cycle: take in what happened, start what fits, say why the rest waits.

Like kube-scheduler's, in three parts: the plan is asked for starts; what starts is assumed (its pods have
their seats at once); binds are handed out, and what became of them comes back as events. Pure: no clock, no
network. `fluence.schedule.scheduler.Scheduler` is the entrance and guards it against faults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from fluence.model.job_entry import JobEntry
from fluence.model.owner import Job
from fluence.queue.guard import PluginFault
from fluence.queue.job import Phase
from fluence.schedule import reconcile as changes
from fluence.schedule import seat_check
from fluence.schedule.actions import Bind, ClaimUpdate, Release
from fluence.schedule.enforcement import EndOverrun, WarnOverrun
from fluence.schedule.events import Event, NotBound
from fluence.schedule.gang import Gang
from fluence.schedule.lifecycle import Lifecycle
from fluence.schedule.observer import Observer
from fluence.schedule.pod_set import PodSet
from fluence.schedule.producer_gates import GateOrder
from fluence.schedule.quarantine import Fault
from fluence.schedule.reconcile import reconcile
from fluence.schedule.stand_in import is_stand_in, is_stand_in_uid, owner_of, stand_in_uid
from fluence.schedule.state import SchedulerState
from fluence.schedule.status import SchedulingStatus, StatusReport
from fluence.schedule.status_reports import Waiting
from fluence.schedule.volume_binding import Failed, Ready, VolumeBinding
from fluence.schedule.warnings import GangWarning

_ROUNDS = 4  # of adopting, taking seats and giving them up, for one group


@dataclass(slots=True)
class Decisions:
    """What a cycle came to; the edge carries it out."""

    binds: list[list[Bind]] = field(default_factory=list)  # one list per job
    waiting: list[Waiting] = field(default_factory=list)
    warnings: list[GangWarning] = field(default_factory=list)
    begun: list[Gang] = field(default_factory=list)  # have on nodes all that they need
    releases: list[Release] = field(default_factory=list)  # Jobs that are let go
    claim_updates: list[ClaimUpdate] = field(default_factory=list)
    overruns: list[WarnOverrun | EndOverrun] = field(default_factory=list)
    gates: list[GateOrder] = field(default_factory=list)
    plugin_faults: list[PluginFault] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)  # objects that cannot be handled
    jobs: list[JobEntry] = field(default_factory=list)  # for the history: what changed
    roll: frozenset[int] | None = None  # and, now and then, which jobs there are at all


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
        # 0. Who stands for pods that are still to be made, and what drivers offer to them all.
        self._observer.settle_stand_ins(now)
        self._observer.settle_devices()
        # 1. What changes of volumes mean to claims that wait.
        self._observer.settle_claims()
        # 2. A gang that lost a member before its first bind starts over as a whole.
        self._start_over()
        # 3. Pod sets whose pods are all over give back what they hold.
        self._lifecycle.finish(now)
        # 4. Where what the cluster could hold has changed, jobs are judged again.
        state.touch(state.exclusions.expire(now))
        state.touch(state.settling.take_due(now))
        self._judge_again(now)
        # 5. The queue is brought up to date with the groups that changed.
        state.takeover.begin(state.touched, now)
        for group in state.take_touched():
            self._reconcile(group, now, decisions)
            state.takeover.took(group, now)
        # 6. The plan is asked for starts, and what starts is assumed.
        self._schedule(now, decisions)
        # 7. Jobs that have their seats are let go, and pods that came for such seats are bound together.
        self._release(now, decisions)
        # 8. Pod sets whose volumes are bound are bound; those that cannot have them are placed anew.
        self._check_volumes(now, decisions)
        # 9. Binds that failed for a while are sent again.
        self._retry_binds(now, decisions)
        # 10. What runs past its limit is warned, or ended, where its queue says so.
        decisions.overruns += state.enforcement.round(
            now, state.queue.overruns, state.pod_sets, state.groups, state.cluster.pods.entries
        )
        # 11. Gates open whose pods waited for a producer, once that has done its part.
        decisions.gates += state.producer_gates.round(now)
        # 12. Whoever waits is told why.
        if not state.takeover.holds_back:  # else nobody has looked whether it must wait
            decisions.waiting += state.reports.round(now, state.pod_sets.by_key)
        decisions.claim_updates = state.volumes.take_updates()
        decisions.plugin_faults = state.queue.take_faults()
        # 13. The history learns what changed.
        for waiting in decisions.waiting:
            state.journal.note_group(waiting.gang.key)
        decisions.jobs = state.journal.take(state.queue.plan.reserved, now)
        if not state.has_touched:
            unseen, decisions.roll = state.journal.take_roll(now)
            decisions.jobs += unseen
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
        gang = self._held(group, now)
        if gang is not None and gang.warnings:
            decisions.warnings += state.warnings.new(gang)
        elif gang is None:
            state.unrank(group)
        found = self._changes(group, gang)
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
                self._observer.settle_stand_ins(now)
            else:
                break
            gang = self._held(group, now)
            found = self._changes(group, gang)
        for change in found:
            if isinstance(change, changes.Adopt | changes.TakeSeats | changes.GiveUpSeats):
                continue
            self._apply(group, gang, change, now, decisions)
        if gang is None and not state.pod_sets.of_group(group):
            state.exclusions.forget(group)
        state.subject = ""

    def _held(self, group: str, now: int) -> Gang | None:
        """A group as it may be tried now: one that names no size waits until nothing new comes to it."""
        state = self.state
        gang = state.groups.gang(group)
        if gang is None:
            state.settling.forget(group)
            return None
        there = state.takeover.found(group)
        return state.settling.hold(gang, has_seat=state.pod_sets.by_pod, was_there=there, now=now)

    def _changes(self, group: str, gang: Gang | None) -> list[changes.Change]:
        state = self.state
        return reconcile(
            gang,
            state.pod_sets.of_group(group),
            has_seat=state.pod_sets.by_pod,
            has_job=state.cluster.seats.jobs,
            exclude=state.exclusions.of(group),
            held=self._lifecycle.held_devices(gang) if gang is not None else None,
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
                self._lifecycle.gather(gang, change, now)
                incomplete = StatusReport(SchedulingStatus.INCOMPLETE, (missing,))
                decisions.waiting += reports.gathers(Waiting(gang, pods, incomplete), now)
            case changes.Refuse(pods, fault):
                refused = StatusReport(SchedulingStatus.REFUSED, (fault,))
                decisions.waiting += reports.say(group, Waiting(gang, pods, refused))

    # -- starts ----------------------------------------------------------------------------------------------

    def _schedule(self, now: int, decisions: Decisions) -> None:
        state = self.state
        if not (state.queue_changed or state.plan_is_due(now)) or state.takeover.holds_back:
            return
        state.queue_changed = False
        for start in state.queue.cycle(now):
            pod_set = state.pod_sets.by_key[start.record.key]
            state.subject = pod_set.group
            binds = self._lifecycle.start(start, now)
            binding = state.volumes.begin(pod_set.key, binds, now)
            if binding is not None:
                self._lifecycle.prepare(pod_set, binding, now)
                self._say_prepares(pod_set, binding, decisions)
            elif binds:
                decisions.binds.append(binds)
        state.subject = ""
        for record in state.queue.promises.take_changed():
            state.reports.want(record.key)
            if isinstance(record, PodSet):
                state.journal.note(record)
        state.plan_was_asked()

    def _release(self, now: int, decisions: Decisions) -> None:
        """Send what lets Jobs go, and the binds of pods that came for seats which were held for them:
        together, as any gang, unless it has begun or its owner makes one after the other."""
        state = self.state
        by_pod = state.pod_sets.by_pod
        for order in state.releases.take_due(now):
            owner = state.groups.owner(order.key)
            uids = [stand_in_uid(order.key, index) for index, _ in order.note.nodes]
            seated = all(uid in by_pod for uid in uids)
            if owner is None or not owner.spec.suspend or not seated:
                state.releases.forget(order.key)
            elif not self._lose_stale(uids):
                decisions.releases.append(replace(order, owner=owner))
        for pod_set in list(state.pod_sets.expecting.values()):
            state.subject = pod_set.group
            if pod_set.arrived and self._may_begin(pod_set) and not self._lose_stale(list(pod_set.arrived)):
                binds = list(pod_set.arrived.values())
                pod_set.arrived.clear()
                prepares = pod_set.phase is Phase.BINDING
                binding = state.volumes.begin(pod_set.key, binds, now) if prepares else None
                if binding is None:
                    decisions.binds.append(binds)
                else:
                    self._lifecycle.prepare(pod_set, binding, now)
                    self._say_prepares(pod_set, binding, decisions)
            if not pod_set.arrived and not pod_set.expects:
                state.pod_sets.expecting.pop(pod_set.key, None)
        state.subject = ""

    def _lose_stale(self, uids: Iterable[str]) -> list[str]:
        """Of some pods that are about to be bound on seats which they got earlier, those whose seats are not
        good any more: they wait again."""
        state, by_pod = self.state, self.state.pod_sets.by_pod
        nodes = {uid: by_pod[uid].unbound.get(uid, "") for uid in uids if uid in by_pod}
        stale = [uid for uid, node in nodes.items() if seat_check.lost(state, uid, node) is not None]
        for pod_set, lost in _by_pod_set(stale, by_pod):
            self._lifecycle.lose(pod_set, *lost)
        return stale

    def _may_begin(self, pod_set: PodSet) -> bool:
        """Whether pods that came for their seats may be bound before the others are there."""
        state = self.state
        gang = state.groups.gang(pod_set.group)
        if gang is None:
            return False
        if any(pod.spec.node_name and not is_stand_in(pod) for pod in gang.placed):
            return True
        awaited = [pod for pod in pod_set.pods if pod.metadata.uid in pod_set.alive and is_stand_in(pod)]
        if any(isinstance(state.groups.owner(owner_of(pod)), Job) for pod in awaited):
            return False
        seated = sum(pod.metadata.uid in state.pod_sets.by_pod for pod in gang.members)
        return gang.needed <= seated

    def _check_volumes(self, now: int, decisions: Decisions) -> None:
        """Pod sets whose claims are all bound are bound; others go on waiting, or are placed anew."""
        state = self.state
        for key, binding in list(state.volumes.active.items()):
            pod_set = state.pod_sets.by_key[key]
            state.subject = pod_set.group
            found = binding.check(state.cluster, pod_set.unbound, now)
            if isinstance(found, Ready):
                self._lifecycle.volumes_ready(pod_set, now)
                self._send_again(pod_set.group, binding.binds, decisions)
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
        groups = {by_pod[uid].group for uid in state.retries}
        groups |= {pod_set.group for pod_set in state.pod_sets.expecting.values()}
        for key in groups:
            gang = state.groups.gang(key)
            if gang is None or gang.placed:
                continue
            seated = [pod.metadata.uid for pod in gang.members if pod.metadata.uid in by_pod]
            if gang.needed > len(seated):
                unsent = [
                    uid
                    for uid in seated
                    if uid in state.retries or uid in by_pod[uid].arrived or is_stand_in_uid(uid)
                ]
                for pod_set, lost in _by_pod_set(unsent, by_pod):
                    self._lifecycle.lose(pod_set, *lost)

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
            if due and not self._has_begun(group):
                due = uids  # the first binds of a gang are looked at together: none is sent if one is stale
            if due:
                self._send_again(group, [state.retries.take(uid) for uid in due], decisions)

    def _send_again(self, group: str, binds: list[Bind], decisions: Decisions) -> None:
        """Hand out binds that were decided earlier and whose seats are still good. While nothing of a gang is
        bound, one that is stale takes the others with it, as in the binder."""
        by_pod = self.state.pod_sets.by_pod
        stale = self._lose_stale(bind.uid for bind in binds)
        good = [bind for bind in binds if bind.uid not in stale]
        if stale and not self._has_begun(group):
            for pod_set, lost in _by_pod_set((bind.uid for bind in good), by_pod):
                self._lifecycle.lose(pod_set, *lost)
        elif good:
            decisions.binds.append(good)

    def _has_begun(self, group: str) -> bool:
        gang = self.state.groups.gang(group)
        return gang is not None and bool(gang.placed)


def _by_pod_set(uids: Iterable[str], by_pod: Mapping[str, PodSet]) -> list[tuple[PodSet, list[str]]]:
    """Pods with seats, together with those that were placed with them."""
    found: dict[str, list[str]] = {}
    for uid in uids:
        found.setdefault(by_pod[uid].key, []).append(uid)
    return [(by_pod[some[0]], some) for some in found.values()]
