"""Lifecycle: what happens to pod sets, one method per transition; groups, cluster and queue stay in step.

    submit ─► (queue.cycle) ─► start ─► [volumes] ─► bound ─► pod_over ─► finish
       │                         │                     ▲
       └─ withdraw               └─ lose ──────────────┘ or back to the queue            adopt: found running

The cycle and the observer of events call it. The phases and their table are in `fluence.queue.job`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fluence import names
from fluence.cluster.ids import job_number
from fluence.model.device import DeviceGrant
from fluence.model.grant import LimitNote, ReleaseNote
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.queue import Start
from fluence.queue.job import Phase, Submission
from fluence.schedule import group_devices, recovery, seat_check
from fluence.schedule.actions import Bind, Release
from fluence.schedule.gang import Gang
from fluence.schedule.planner import HORIZON, PodSetRequest, is_whole
from fluence.schedule.pod_set import PodSet
from fluence.schedule.reconcile import Gather, Submit, name_of
from fluence.schedule.stand_in import index_of, is_stand_in, is_stand_in_uid, owner_of, owner_of_uid
from fluence.schedule.state import SchedulerState
from fluence.schedule.takeover import Told
from fluence.schedule.volume_binding import VolumeBinding


class Lifecycle:
    """Acts on the state of one scheduler."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state

    # -- waiting ---------------------------------------------------------------------------------------------

    def submit(self, gang: Gang, wanted: Submit, now: int) -> None:
        """Have pods in the queue under a key."""
        state = self._state
        pods = wanted.request.pods
        told = state.takeover.told(gang.key, wanted.key, pods, lambda pod: state.groups.owners(pod)[0])
        promise = None if told is None else told.promise
        job = Submission(
            key=wanted.key,
            request=replace(wanted.request, number=self._free_number(wanted.uid)),
            submit=min(gang.submit, now),
            queued=self._queued(wanted.key, pods, told, now),
            limit=gang.limit,
            enforced=gang.bounded,
            soft_limit=gang.soft_limit,
            user=gang.user,
            account=gang.namespace,
            queue=gang.queue,
            priority=wanted.priority,
            devices=_counted(wanted.request),
        )
        pod_set = self._record(gang, job)
        state.queue.submit(job, pod_set)
        if promise is not None and promise.covers(gang.limit):
            state.queue.resume_promise(
                job.key, promise.no_later_than, expected=promise.expected, firm=promise.firm
            )
        state.journal.note(pod_set)
        state.reports.want(pod_set.key)
        state.queue_changed = True

    def gather(self, gang: Gang, gathered: Gather, now: int) -> None:
        """Some members are there; the record is theirs from now on."""
        known = self._state.pod_sets.by_key.get(gang.key)
        if known is not None and known.phase is not Phase.GATHERING:
            return  # the first of the group have begun, and this is about late members
        request = PodSetRequest(-1, gathered.pods, max(1, gang.needed), gang.policy)
        queued = known.job.queued if known is not None else self._state.next_queued(now)
        job = Submission(gang.key, request, gang.submit, user=gang.user, queue=gang.queue, queued=queued)
        self._record(gang, job)

    def withdraw(self, pod_set: PodSet, now: int, reason: Reason) -> None:
        """A pod set that waits is not wanted any more."""
        queue = self._state.queue
        self._state.journal.withdrawn(pod_set, now, reason)
        if pod_set.key in queue.records:
            if not pod_set.phase.is_over:
                queue.cancel(pod_set.key, now, reason)
            queue.forget(pod_set.key)
        self._remove(pod_set)
        self._state.queue_changed = True

    def judge_again(self, keys: Iterable[str], now: int) -> None:
        """Jobs that can be held now and could not, and those that never will: these must block nobody."""
        state = self._state
        for pod_set in [found for key in keys if (found := state.pod_sets.by_key.get(key)) is not None]:
            if pod_set.phase.holds or pod_set.phase is Phase.GATHERING:
                continue
            state.subject = pod_set.group
            feasible = state.planner.feasibility(pod_set.request) is None
            if feasible == (pod_set.phase is Phase.NEVER):
                self.withdraw(pod_set, now, Reason.of(Code.CLUSTER_CHANGED))
                state.touch((pod_set.group,))
        state.subject = ""

    # -- found running ---------------------------------------------------------------------------------------

    def adopt(self, gang: Gang, pods: Iterable[Pod], now: int) -> None:
        """Pods of a group are on nodes, and we did not put them there: a restart, or another replica."""
        state = self._state
        own = gang.per_pod_devices
        for found in recovery.running(pods, job_number(gang.uid), now=now, limit=gang.limit, per_pod=own):
            uids = [pod.metadata.uid for pod in found.pods if pod.metadata.uid in state.cluster.pods.entries]
            if not uids:
                continue
            pod_set = self._running(gang, found.number, now)
            if pod_set is None:
                pod_set = self._adopt(gang, found, uids, now)
            else:
                held = pod_set.running[pod_set.key]
                end = None if held.end >= HORIZON else held.end
                grants, lent = group_devices.split(found.grants, self._holders(gang, but=pod_set.number))
                state.cluster.adopt(pod_set.number, uids, start=held.start, end=end, grants=grants)
                self._share(pod_set.number, lent)
            for uid in uids:
                state.pod_sets.seat(pod_set, uid)
            state.journal.note(pod_set)
        state.queue_changed = True

    def _running(self, gang: Gang, number: int, now: int) -> PodSet | None:
        """The pod set of a group that pods which run say they belong to. What pods say is a hint: it can name
        pod sets of their own group only."""
        numbers = (number, _derived(gang, number))
        for pod_set in list(self._state.pod_sets.of_group(gang.key).values()):
            if pod_set.number in numbers:
                if pod_set.phase.holds:
                    return pod_set
                self.withdraw(pod_set, now, Reason.of(Code.FOUND_RUNNING))
        return None

    def _adopt(self, gang: Gang, found: recovery.Running, uids: list[str], now: int) -> PodSet:
        state = self._state
        is_main = found.number == job_number(gang.uid)
        own = (pod.metadata.uid for pod in found.pods if job_number(pod.metadata.uid) == found.number)
        number = self._free_number(gang.uid if is_main else next(own, _hint(gang, found.number)))
        whole = is_whole(gang.policy or state.cluster.policy)
        grants, lent = group_devices.split(found.grants, self._holders(gang, but=number))
        state.cluster.adopt(number, uids, start=found.start, end=found.end, whole=whole, grants=grants)
        self._share(number, lent)
        siblings = list(state.pod_sets.of_group(gang.key).values())
        key = gang.key
        if not is_main or any(each.key == key for each in siblings):
            key = name_of(gang.key, min(uids), siblings)
        devices = group_devices.request_of(grants, gang.device_terms, per_pod=gang.per_pod_devices)
        request = PodSetRequest(number, found.pods, len(found.pods), gang.policy, devices=devices)
        limit = None if found.end is None else max(1, found.end - found.start)
        job = Submission(
            key,
            request,
            found.start,
            limit=limit,
            enforced=gang.bounded,
            soft_limit=gang.soft_limit,
            user=gang.user,
            account=gang.namespace,
            queue=gang.queue if found.queue is None else found.queue,
            devices=_counted(request),
        )
        pod_set = PodSet(job, Phase.GATHERING, group=gang.key)
        state.pod_sets.add(pod_set)
        held = state.planner.adopt(key, request, found.start, found.end)
        state.queue.adopt(job, held, now, pod_set)
        return pod_set

    def _free_number(self, uid: str) -> int:
        """A number for a job that follows from a uid; where two follow from it, the next one."""
        state = self._state
        while (number := job_number(uid)) in state.pod_sets.by_number or number in state.cluster.seats.jobs:
            uid += "'"
        return number

    # -- starting --------------------------------------------------------------------------------------------

    def start(self, start: Start, now: int) -> list[Bind]:
        """A pod set has its seats: what is to be bound, and where."""
        state = self._state
        pod_set = state.pod_sets.by_key[start.record.key]
        seating = state.cluster.seats.jobs[pod_set.number]
        pods = {pod.metadata.uid: pod for pod in pod_set.pods}
        gang = state.groups.gang(pod_set.group)
        lent = self._borrow(pod_set, gang)
        notes: dict[str, str] = {}
        if refused := state.exclusions.refused(pod_set.group):
            notes = recovery.excluded_note({*refused, *(gang.excluded if gang is not None else ())})
        binds = []
        for seat in seating.seats.values():
            uid = str(seat.pod)
            state.pod_sets.seat(pod_set, uid, seat.node)
            own = [each for each in (*seating.grants, *lent) if uid in each.pods]
            binds.append(self._bind(pods[uid], seat.node, pod_set, now, start.end, own, notes))
        state.reports.starts(pod_set.key)
        state.journal.note(pod_set)
        if len(binds) < len(pods):
            state.touch((pod_set.group,))  # the rest follow
        if pod_set.expects:
            self._expect(pod_set, binds, now)
            return []
        return binds

    def _expect(self, pod_set: PodSet, binds: list[Bind], now: int) -> None:
        """Some of its pods are still to be made: their Jobs are let go, and those that are there wait."""
        state = self._state
        of_owner: dict[str, list[Bind]] = {}
        for bind in binds:
            if is_stand_in(bind.pod):
                of_owner.setdefault(owner_of(bind.pod), []).append(bind)
            else:
                pod_set.arrived[bind.uid] = bind
        state.pod_sets.expecting[pod_set.key] = pod_set
        for uid, some in of_owner.items():
            owner = state.groups.owner(uid)
            if owner is not None and owner.spec.suspend and uid not in state.releases:
                nodes = sorted((index_of(bind.pod), bind.node) for bind in some)
                said = {bind.annotations[names.ALLOCATION] for bind in some}
                # Where each has devices of its own, one note cannot say it: then it is not read again.
                number = some[0].annotations[names.JOBID]
                allocation, planned = said.pop() if len(said) == 1 else "", owner.metadata.generation or 0
                note = ReleaseNote(number, allocation, tuple(nodes), planned)
                state.stand_ins.let_go(uid, note)
                state.releases.order(Release(owner, pod_set.key, note), now)

    def take_seats(self, pairs: Iterable[tuple[Pod, Pod]]) -> None:
        """Pods have come that were planned for: (stand-in, pod)."""
        state = self._state
        arrived: dict[str, list[tuple[Pod, Bind]]] = {}
        for stand_in, pod in pairs:
            pod_set = state.pod_sets.by_pod[stand_in.metadata.uid]
            node = state.cluster.take_seat(pod_set.number, stand_in.metadata.uid, pod)
            held, seating = pod_set.running[pod_set.key], state.cluster.seats.jobs[pod_set.number]
            own = [each for each in (*seating.grants, *seating.shares) if pod.metadata.uid in each.pods]
            bind = self._bind(pod, node, pod_set, held.start, held.end, own)
            arrived.setdefault(pod_set.key, []).append((stand_in, bind))
        for key, some in arrived.items():
            pod_set = state.pod_sets.by_key[key]
            before = pod_set.request
            state.pod_sets.take_seats(pod_set, some)
            state.planner.forget(before)
            for stand_in, bind in some:
                state.touch(state.groups.remove_pod(stand_in))
                state.stand_ins.met(owner_of(bind.pod), stand_in)

    def _bind(
        self,
        pod: Pod,
        node: str,
        pod_set: PodSet,
        start: int,
        end: int,
        own: Sequence[DeviceGrant],
        notes: Mapping[str, str] | None = None,
    ) -> Bind:
        """``own``: its devices that belong to no node."""
        until = None if end >= HORIZON else end
        said = {**(notes or {}), **recovery.annotations_for(pod_set.number, start, until, own)}
        if own:
            said |= group_devices.hand_off(own, self._state.cluster.seats.backends)
        return Bind(
            pod,
            node,
            pod_set.key,
            said,
            recovery.device_notes(own),
            own_devices=any(not each.shared for each in own),
            limit=self._enforced_limit(pod_set, start),
        )

    def _enforced_limit(self, pod_set: PodSet, start: int) -> LimitNote | None:
        """The limit at which we end what starts now: others are told starts that rest on it."""
        job, rules = pod_set.job, self._state.queue.rules
        if not pod_set.bounded or job.enforced or not rules.of(job.queue).enforced:
            return None
        return LimitNote(start, start + pod_set.limit, job.queue)

    def give_up_seats(self, owner: str, group: str) -> None:
        """What an owner's pods were planned with does not hold: they are placed anew, together."""
        state = self._state
        state.stand_ins.give_up(owner)
        for pod_set in list(state.pod_sets.of_group(group).values()):
            lost = [
                uid
                for pod in pod_set.pods
                if (uid := pod.metadata.uid) in pod_set.alive
                and (is_stand_in_uid(uid) or uid in pod_set.arrived)
                and owner_of(pod) == owner
            ]
            if lost:
                self.lose(pod_set, *lost)

    def prepare(self, pod_set: PodSet, binding: VolumeBinding, now: int) -> None:
        """Its volumes come first."""
        pod_set.volumes = binding
        pod_set.move(Phase.PREPARING, now, binding.reason)

    def volumes_ready(self, pod_set: PodSet, now: int) -> None:
        """All claims are bound: so may be the pods."""
        state = self._state
        state.volumes.end(pod_set.key)
        state.exclusions.clear(pod_set.group)
        state.touch((pod_set.group,))
        pod_set.volumes = None
        pod_set.move(Phase.BINDING, now, Reason.of(Code.VOLUMES_BOUND))

    def volumes_failed(self, pod_set: PodSet, nodes: Iterable[str], now: int) -> None:
        """It cannot have its volumes where it is: its pods wait again."""
        state = self._state
        state.volumes.end(pod_set.key)
        state.exclusions.exclude(pod_set.group, nodes, now)
        pod_set.volumes = None
        if pod_set.unbound:
            self.lose(pod_set, *pod_set.unbound)

    def bound(self, pod_set: PodSet, uid: str) -> None:
        """A pod is bound."""
        self._state.retries.forget(uid)
        if pod_set.unbound.pop(uid, None) is not None:
            self._run_if_bound(pod_set)

    def lose(self, pod_set: PodSet, *uids: str) -> None:
        """Pods with seats will not be bound there: they wait again, or are gone."""
        state = self._state
        entries = state.cluster.pods.entries
        found = [entries[uid].pod for uid in uids if uid in entries]
        expected = [uid for uid in uids if is_stand_in_uid(uid)]
        if expected:
            pod = next((each.key for each in found), expected[0])
            reason = Reason.of(Code.POD_NOT_BOUND, pod=pod)
            state.cluster.release(pod_set.number, expected, reason=reason)
        for owner in {owner_of_uid(uid) for uid in expected}:
            state.stand_ins.give_up(owner)
            state.releases.forget(owner)
        for pod_object in found:
            if pod_object.metadata.uid in pod_set.arrived:
                state.stand_ins.give_up(owner_of(pod_object))  # those that are left are placed together
        state.cluster.forget(*uids)
        for pod_object in found:
            state.claims_given_up(pod_object)
        state.planner.note_freed()
        for uid in uids:
            state.retries.stop(uid)
            state.pod_sets.unseat(pod_set, uid)
        state.touch((pod_set.group,))
        if pod_set.alive:
            self._run_if_bound(pod_set)

    # -- ending ----------------------------------------------------------------------------------------------

    def pod_over(self, pod_set: PodSet, pod: Pod) -> None:
        """A pod with a seat has ended, or is gone."""
        state, uid = self._state, pod.metadata.uid
        state.retries.forget(uid)
        pod_set.unbound.pop(uid, None)
        pod_set.arrived.pop(uid, None)
        pod_set.failed = pod_set.failed or pod.status.phase != "Succeeded"
        by_itself = pod.status.phase == "Failed" and pod.metadata.deletion_timestamp is None
        pod_set.crashed = pod_set.crashed or by_itself
        if uid in pod_set.alive:
            pod_set.alive.discard(uid)
            pod_set.finished[uid] = None
        state.pod_sets.note_over(pod_set)
        if pod_set.alive:
            self._run_if_bound(pod_set)

    def free_seats(self, pod_set: PodSet, uids: tuple[str, ...]) -> None:
        """The seats of members that ended are for new ones."""
        state = self._state
        state.cluster.release(pod_set.number, uids, reason=Reason.of(Code.SEAT_FOR_NEW_MEMBER))
        for uid in uids:
            pod_set.finished.pop(uid, None)
            state.pod_sets.by_pod.pop(uid, None)
        state.planner.note_freed()

    def finish(self, now: int) -> None:
        """Pod sets whose pods are all over give back what they hold."""
        state = self._state
        for pod_set in state.pod_sets.take_over():
            state.subject = pod_set.group
            if pod_set.finished:
                state.journal.ended(pod_set, now)
                state.queue.finish(pod_set.key, now, succeeded=not pod_set.failed)
            else:  # it never started: its pods wait again
                state.journal.withdrawn(pod_set, now, Reason.of(Code.NOT_BOUND))
                state.queue.cancel(pod_set.key, now, Reason.of(Code.NOT_BOUND))
            state.queue.forget(pod_set.key)
            self._remove(pod_set)
            state.touch((pod_set.group,))
            state.queue_changed = True
        state.subject = ""

    # -- devices that belong to no node ----------------------------------------------------------------------

    def held_devices(self, gang: Gang) -> dict[str, int]:
        """What a group has of devices in the ledger, by type, for all of it to share."""
        if not self._state.cluster.seats.backends:
            return {}
        grants = [each for some in self._holders(gang).values() for each in some]
        return group_devices.amounts(grants)

    def _holders(self, gang: Gang, *, but: int = -1) -> dict[int, tuple[DeviceGrant, ...]]:
        """The devices that other jobs of a group hold and share with it, by their numbers."""
        state, found = self._state, {}
        for pod_set in state.pod_sets.of_group(gang.key).values():
            seating = state.cluster.seats.jobs.get(pod_set.number)
            if seating is None or seating.reserved or pod_set.number == but:
                continue
            shared = (each for each in seating.grants if each.shared)
            if kept := tuple(each for each in shared if seat_check.keeps(state, pod_set, each)):
                found[pod_set.number] = kept
        return found

    def _borrow(self, pod_set: PodSet, gang: Gang | None) -> tuple[DeviceGrant, ...]:
        """What a pod set that starts shares with others of its group, which hold it already."""
        if gang is None or pod_set.request.devices is not None or not self._state.cluster.seats.backends:
            return ()
        holders = self._holders(gang, but=pod_set.number)
        lent = group_devices.lent_to(pod_set.pods, holders) if holders else None
        self._share(pod_set.number, lent)
        return () if lent is None else lent.grants

    def _share(self, number: int, lent: group_devices.Lent | None) -> None:
        if lent is not None:
            self._state.cluster.share_devices(number, lent.grants, lent.lender)

    # -- inside ----------------------------------------------------------------------------------------------

    def _queued(self, key: str, pods: Iterable[Pod], told: Told | None, now: int) -> int:
        """When pods came: as was said before a restart, as they say, when the first of them was seen, now."""
        if told is not None and told.queued:
            return told.queued
        gathering = self._state.pod_sets.by_key.get(key)
        seen = gathering.job.queued if gathering is not None else 0
        return recovery.queued_of(pods) or seen or self._state.next_queued(now)

    def _record(self, gang: Gang, job: Submission) -> PodSet:
        """The record of a job: the one that gathered under its key, if there is one."""
        pod_sets = self._state.pod_sets
        gathering = pod_sets.by_key.get(job.key)
        if gathering is not None:
            pod_sets.remove(gathering)
        pod_set = gathering or PodSet(job, Phase.GATHERING, group=gang.key)
        pod_set.job = job
        pod_sets.add(pod_set)
        return pod_set

    def _run_if_bound(self, pod_set: PodSet) -> None:
        if not pod_set.unbound and pod_set.phase in (Phase.BINDING, Phase.PREPARING):
            self._state.queue.running(pod_set.key, self._state.queue.now)
            self._state.reports.over(pod_set.key)
            self._state.journal.note(pod_set)

    def _remove(self, pod_set: PodSet) -> None:
        state = self._state
        state.pod_sets.remove(pod_set)
        state.reports.over(pod_set.key)
        state.planner.forget(pod_set.request)
        state.volumes.end(pod_set.key)
        if not state.pod_sets.of_group(pod_set.group) and state.groups.gang(pod_set.group) is None:
            state.exclusions.forget(pod_set.group)


def _counted(request: PodSetRequest) -> tuple[tuple[str, int], ...]:
    """The devices of a request, for limits."""
    return () if request.devices is None else request.devices.needs


def _hint(gang: Gang, number: int) -> str:
    return f"{gang.uid}+{number}"


def _derived(gang: Gang, number: int) -> int:
    """The number of the job of pods that say another one than their group's: it follows from both, so that
    nobody can claim a number of another group."""
    return job_number(_hint(gang, number))
