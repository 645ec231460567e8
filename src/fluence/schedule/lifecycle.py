"""Lifecycle: the transitions of pod sets, one method each. It keeps groups, cluster and queue in step.

    submit ─► (queue.cycle) ─► start ─► [volumes] ─► bound ─► pod_over ─► finish
       │                         │                     ▲
       └─ withdraw               └─ lose ──────────────┘ or back to the queue            adopt: found running

The steps of the cycle call it, and so does Intake for events. The phases and their table are in
`fluence.queue.job`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fluence import names
from fluence.cluster.graph import ClusterGraph, job_number
from fluence.cluster.planner import HORIZON, ClusterPlanner, PodSetRequest, is_whole
from fluence.model.external_resources import DeviceGrant
from fluence.model.grant import LimitNote, ReleaseNote
from fluence.model.job_state import JobState
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.queue import Queue, Start
from fluence.queue.job import Submission
from fluence.schedule import restart
from fluence.schedule.binding import BindRetries, PlacementCheck, Releases
from fluence.schedule.events import Bind, Release
from fluence.schedule.external_resources.requests import Lent, amounts, hand_off, lent_to, request_of, split
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.gangs.groups import Exclusions, Groups
from fluence.schedule.history import Journal
from fluence.schedule.pod_set import Changes, PodSet, PodSets
from fluence.schedule.queueing.placeholder import (
    index_of,
    is_placeholder,
    is_placeholder_uid,
    owner_of_uid,
)
from fluence.schedule.queueing.placeholders import Placeholders
from fluence.schedule.reconcile import Gather, Submit, name_of
from fluence.schedule.restart import PriorPromise, Takeover
from fluence.schedule.status.reports import StatusReports
from fluence.schedule.step import Step, working_on
from fluence.schedule.volumes import VolumeBinding, VolumeBindings

if TYPE_CHECKING:
    from fluence.schedule.cycle import Decisions


class Lifecycle(Step):
    """Moves the pod sets of one scheduler through their lives. ``forget`` is called for a group that is
    gone."""

    def __init__(
        self,
        *,
        groups: Groups,
        cluster: ClusterGraph,
        planner: ClusterPlanner,
        queue: Queue,
        pod_sets: PodSets,
        check: PlacementCheck,
        retries: BindRetries,
        exclusions: Exclusions,
        placeholders: Placeholders,
        releases: Releases,
        volumes: VolumeBindings,
        reports: StatusReports,
        journal: Journal,
        takeover: Takeover,
        changes: Changes,
        forget: Callable[[str], None],
    ) -> None:
        self._groups = groups
        self._cluster = cluster
        self._planner = planner
        self._queue = queue
        self._pod_sets = pod_sets
        self._check = check
        self._retries = retries
        self._exclusions = exclusions
        self._placeholders = placeholders
        self._releases = releases
        self._volumes = volumes
        self._reports = reports
        self._journal = journal
        self._takeover = takeover
        self._changes = changes
        self._forget = forget

    # -- waiting ---------------------------------------------------------------------------------------------

    def submit(self, gang: Gang, wanted: Submit, now: int) -> None:
        """Put pods into the queue under a key."""
        pods = wanted.request.pods
        told = self._takeover.told(gang.key, wanted.key, pods, lambda pod: self._groups.owners(pod)[0])
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
            payer=gang.payer,
            queue=gang.queue,
            priority=wanted.priority,
            favour=gang.favour,
            array=gang.array,
            max_running=gang.max_running,
            devices=_counted(wanted.request),
            is_part=any(other.state.has_nodes for other in self._pod_sets.of_group(gang.key).values()),
        )
        pod_set = self._record(gang, job)
        self._queue.submit(job, pod_set)
        if promise is not None and promise.covers(gang.limit):
            self._queue.resume_promise(
                job.key, promise.no_later_than, expected=promise.expected, firm=promise.firm
            )
        self._journal.note(pod_set)
        self._reports.want(pod_set.key)
        self._changes.queue_changed = True

    def gather(self, gang: Gang, gathered: Gather, now: int) -> None:
        """Record the members that exist so far under the key of the group."""
        known = self._pod_sets.by_key.get(gang.key)
        if known is not None and known.state is not JobState.GATHERING:
            return  # the group has started, and this is about late members
        request = PodSetRequest(gathered.pods, max(1, gang.needed), gang.policy)
        queued = known.job.queued if known is not None else self._changes.next_queued(now)
        job = Submission(
            gang.key,
            request,
            gang.submit,
            user=gang.user,
            queue=gang.queue,
            array=gang.array,
            queued=queued,
        )
        self._record(gang, job)

    def withdraw(self, pod_set: PodSet, now: int, reason: Reason) -> None:
        """Remove a waiting pod set that is not wanted any more."""
        queue = self._queue
        self._journal.withdrawn(pod_set, now, reason)
        if pod_set.key in queue.records:
            if not pod_set.state.leaves_queue:
                queue.cancel(pod_set.key, now, reason)
            queue.forget(pod_set.key)
        self._remove(pod_set)
        self._changes.queue_changed = True

    def amend(self, pod_set: PodSet, request: PodSetRequest, now: int, reason: Reason) -> None:
        """Change the request of a waiting pod set without a change by its user, or check again whether it can
        start."""
        before = pod_set.request
        if request is not before:
            request = replace(request, number=before.number)
        self._queue.amend(pod_set.key, request, now, reason)
        if request is not before:
            self._planner.forget(before)
        self._journal.note(pod_set)
        self._reports.want(pod_set.key)
        self._changes.queue_changed = True

    def adjust(self, pod_set: PodSet, favour: int, max_running: int | None, now: int) -> None:
        """Apply a user's change to a waiting pod set: its priority among their own jobs, or the size of its
        array."""
        if pod_set.state.leaves_queue:
            pod_set.job = replace(pod_set.job, favour=favour, max_running=max_running)
            return
        if favour != pod_set.job.favour:
            self._queue.reprioritise(pod_set.key, pod_set.job.priority, now, favour)
        if max_running != pod_set.job.max_running:
            self._queue.set_max_running(pod_set.key, max_running)
        self._journal.note(pod_set)
        self._reports.want(pod_set.key)
        self._changes.queue_changed = True

    def judge_again(self, keys: Iterable[str], now: int) -> None:
        """Check again whether the cluster can hold these jobs. A job that never fits must not block
        others."""
        for pod_set in [found for key in keys if (found := self._pod_sets.by_key.get(key)) is not None]:
            if pod_set.state.has_nodes or pod_set.state is JobState.GATHERING:
                continue
            with working_on(pod_set.group):
                feasible = self._planner.feasibility(pod_set.request) is None
                if feasible == (pod_set.state is JobState.UNSCHEDULABLE):
                    self.amend(pod_set, pod_set.request, now, Reason.of(Code.CLUSTER_CHANGED))

    # -- found running ---------------------------------------------------------------------------------------

    def adopt(self, gang: Gang, pods: Iterable[Pod], now: int) -> None:
        """Adopt pods of a group that run without our knowledge: after a restart, or bound by another
        replica."""
        own = gang.per_pod_devices
        for found in restart.running(pods, job_number(gang.uid), now=now, limit=gang.limit, per_pod=own):
            uids = [pod.metadata.uid for pod in found.pods if pod.metadata.uid in self._cluster.pods.entries]
            if not uids:
                continue
            pod_set = self._running(gang, found.number, now)
            if pod_set is None:
                pod_set = self._adopt(gang, found, uids, now)
            else:
                held = pod_set.running[pod_set.key]
                end = None if held.end >= HORIZON else held.end
                grants, lent = split(found.grants, self._holders(gang, but=pod_set.number))
                self._cluster.adopt(pod_set.number, uids, start=held.start, end=end, grants=grants)
                self._share(pod_set.number, lent)
                self._recount(pod_set)
            for uid in uids:
                self._pod_sets.seat(pod_set, uid)
            self._journal.note(pod_set)
        self._changes.queue_changed = True

    def _running(self, gang: Gang, number: int, now: int) -> PodSet | None:
        """The running pod set that these pods name. What pods say is only a hint, so it may name pod sets of
        their own group only."""
        numbers = (number, _derived(gang, number))
        for pod_set in list(self._pod_sets.of_group(gang.key).values()):
            if pod_set.number in numbers:
                if pod_set.state.has_nodes:
                    return pod_set
                self.withdraw(pod_set, now, Reason.of(Code.FOUND_RUNNING))
        return None

    def _adopt(self, gang: Gang, found: restart.Running, uids: list[str], now: int) -> PodSet:
        is_main = found.number == job_number(gang.uid)
        own = (pod.metadata.uid for pod in found.pods if job_number(pod.metadata.uid) == found.number)
        number = self._free_number(gang.uid if is_main else next(own, _hint(gang, found.number)))
        whole = is_whole(gang.policy or self._cluster.policy)
        grants, lent = split(found.grants, self._holders(gang, but=number))
        self._cluster.adopt(number, uids, start=found.start, end=found.end, whole=whole, grants=grants)
        self._share(number, lent)
        siblings = list(self._pod_sets.of_group(gang.key).values())
        key = gang.key
        if not is_main or any(each.key == key for each in siblings):
            key = name_of(gang.key, min(uids), siblings)
        devices = request_of(grants, gang.device_terms, per_pod=gang.per_pod_devices)
        request = PodSetRequest(found.pods, policy=gang.policy, devices=devices, number=number)
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
            payer=gang.payer,
            queue=gang.queue if found.queue is None else found.queue,
            is_in_queue=found.queue is not None,
            array=gang.array,
            devices=_counted(request),
            is_part=any(other.state.has_nodes for other in siblings),
        )
        pod_set = PodSet(job, JobState.GATHERING, group=gang.key)
        self._pod_sets.add(pod_set)
        held = self._planner.adopt(key, request, found.start, found.end)
        self._queue.adopt(job, held, now, pod_set)
        return pod_set

    def _free_number(self, uid: str) -> int:
        """The job number that follows from a uid. If it is taken, the next one."""
        while (number := job_number(uid)) in self._pod_sets.by_number or number in self._cluster.fit.jobs:
            uid += "'"
        return number

    # -- starting --------------------------------------------------------------------------------------------

    def start(self, start: Start, now: int) -> list[Bind]:
        """Start a pod set that has its placements. Returns its binds."""
        pod_set = self._pod_sets.by_key[start.record.key]
        holding = self._cluster.fit.jobs[pod_set.number]
        pods = {pod.metadata.uid: pod for pod in pod_set.pods}
        gang = self._groups.gang(pod_set.group)
        lent = self._borrow(pod_set, gang)
        notes: dict[str, str] = {}
        if refused := self._exclusions.refused(pod_set.group):
            notes = restart.excluded_note({*refused, *(gang.excluded if gang is not None else ())})
        binds = []
        for seat in holding.placements.values():
            uid = str(seat.pod)
            self._pod_sets.seat(pod_set, uid, seat.node)
            own = [each for each in (*holding.grants, *lent) if uid in each.pods]
            binds.append(self._bind(pods[uid], seat.node, pod_set, now, start.end, own, notes))
        self._reports.starts(pod_set.key)
        self._journal.note(pod_set)
        if len(binds) < len(pods):
            self._changes.touch((pod_set.group,))  # the other pods follow
            self._recount(pod_set)
        if pod_set.expects:
            self._expect(pod_set, binds, now)
            return []
        return binds

    def _expect(self, pod_set: PodSet, binds: list[Bind], now: int) -> None:
        """Some pods do not exist yet: release their Jobs, and keep the binds of the others until all have
        arrived."""
        of_owner: dict[str, list[Bind]] = {}
        for bind in binds:
            if is_placeholder(bind.pod):
                of_owner.setdefault(owner_of_uid(bind.uid), []).append(bind)
            else:
                pod_set.arrived[bind.uid] = bind
        self._pod_sets.expecting[pod_set.key] = pod_set
        for uid, some in of_owner.items():
            owner = self._groups.owner(uid)
            if owner is not None and owner.spec.suspend and uid not in self._releases:
                nodes = sorted((index_of(bind.pod), bind.node) for bind in some)
                said = {bind.annotations[names.ALLOCATION] for bind in some}
                # If the pods have devices of their own, one note cannot name them, so they are not restored
                # from it.
                number = some[0].annotations[names.JOBID]
                allocation, planned = said.pop() if len(said) == 1 else "", owner.metadata.generation or 0
                note = ReleaseNote(number, allocation, tuple(nodes), planned)
                self._placeholders.let_go(uid, note)
                self._releases.order(Release(owner, pod_set.key, note), now)

    def take_seats(self, pairs: Iterable[tuple[Pod, Pod]]) -> None:
        """Let pods take over from their placeholders: (placeholder, pod)."""
        arrived: dict[str, list[tuple[Pod, Bind]]] = {}
        for placeholder, pod in pairs:
            pod_set = self._pod_sets.by_pod[placeholder.metadata.uid]
            node = self._cluster.replace_pod(pod_set.number, placeholder.metadata.uid, pod)
            held, holding = pod_set.running[pod_set.key], self._cluster.fit.jobs[pod_set.number]
            own = [each for each in (*holding.grants, *holding.shares) if pod.metadata.uid in each.pods]
            bind = self._bind(pod, node, pod_set, held.start, held.end, own)
            arrived.setdefault(pod_set.key, []).append((placeholder, bind))
        for key, some in arrived.items():
            pod_set = self._pod_sets.by_key[key]
            before = pod_set.request
            self._pod_sets.take_seats(pod_set, some)
            self._planner.forget(before)
            for placeholder, _ in some:
                self._changes.touch(self._groups.remove_pod(placeholder))
                self._placeholders.met(owner_of_uid(placeholder.metadata.uid), placeholder)

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
        """``own``: the external resources of the pod."""
        until = None if end >= HORIZON else end
        said = {**(notes or {}), **restart.annotations_for(pod_set.number, start, until, own)}
        if own:
            said |= hand_off(own, self._cluster.fit.backends)
        return Bind(
            pod,
            node,
            pod_set.key,
            said,
            restart.device_notes(own),
            own_devices=any(not each.shared for each in own),
            limit=self._enforced_limit(pod_set, start),
            queue=pod_set.job.queue if self._queue.has_choice(pod_set.job.account) else None,
        )

    def _enforced_limit(self, pod_set: PodSet, start: int) -> LimitNote | None:
        """The limit at which the scheduler ends the job. Promises to other jobs depend on it."""
        job, rules = pod_set.job, self._queue.rules
        if not pod_set.bounded or job.enforced or not rules.of(job.queue).enforced:
            return None
        return LimitNote(start, start + pod_set.limit, job.queue)

    def give_up_seats(self, owner: str, group: str) -> None:
        """The pods of an owner differ from the plan: give up their placements, so that all are placed again
        together."""
        self._placeholders.give_up(owner)
        for pod_set in list(self._pod_sets.of_group(group).values()):
            lost = [
                uid
                for pod in pod_set.pods
                if (uid := pod.metadata.uid) in pod_set.alive
                and (is_placeholder_uid(uid) or uid in pod_set.arrived)
                and self._groups.seat_of(pod)[0] == owner
            ]
            if lost:
                self.lose(pod_set, *lost)

    def prepare(self, pod_set: PodSet, binding: VolumeBinding, now: int) -> None:
        """Bind its volumes before its pods."""
        pod_set.volumes = binding
        pod_set.move(JobState.PREPARING, now, binding.reason)

    def volumes_ready(self, pod_set: PodSet, now: int) -> None:
        """All claims are bound, so the pods may be bound."""
        self._volumes.end(pod_set.key)
        self._exclusions.clear(pod_set.group)
        self._changes.touch((pod_set.group,))
        pod_set.volumes = None
        pod_set.move(JobState.STARTING, now, Reason.of(Code.VOLUMES_BOUND))

    def volumes_failed(self, pod_set: PodSet, nodes: Iterable[str], now: int) -> None:
        """The volumes cannot be bound on these nodes: the pods wait again."""
        self._volumes.end(pod_set.key)
        self._exclusions.exclude(pod_set.group, nodes, now)
        pod_set.volumes = None
        if pod_set.unbound:
            self.lose(pod_set, *pod_set.unbound)

    def bound(self, pod_set: PodSet, uid: str) -> None:
        """Record that a pod is bound."""
        self._retries.forget(uid)
        if pod_set.unbound.pop(uid, None) is not None:
            self._run_if_bound(pod_set)

    def lose(self, pod_set: PodSet, *uids: str) -> None:
        """Take placements back from pods that will not be bound there: they wait again, or are gone."""
        entries = self._cluster.pods.entries
        found = [entries[uid].pod for uid in uids if uid in entries]
        expected = [uid for uid in uids if is_placeholder_uid(uid)]
        if expected:
            pod = next((each.key for each in found), expected[0])
            reason = Reason.of(Code.POD_NOT_BOUND, pod=pod)
            self._cluster.release(pod_set.number, expected, reason=reason)
        for owner in {owner_of_uid(uid) for uid in expected}:
            self._placeholders.give_up(owner)
            self._releases.forget(owner)
        for pod_object in found:
            if pod_object.metadata.uid in pod_set.arrived:
                # The owner's other pods are placed again together.
                self._placeholders.give_up(self._groups.seat_of(pod_object)[0])
        self._cluster.forget(*uids)
        for pod_object in found:
            self._changes.claims_given_up(pod_object)
        self._planner.note_freed()
        for uid in uids:
            self._retries.stop(uid)
            self._pod_sets.unseat(pod_set, uid)
        self._changes.touch((pod_set.group,))
        if pod_set.alive:
            self._recount(pod_set)
            self._run_if_bound(pod_set)

    # -- ending ----------------------------------------------------------------------------------------------

    def pod_over(self, pod_set: PodSet, pod: Pod) -> None:
        """Record that a placed pod has ended or is gone."""
        uid = pod.metadata.uid
        self._retries.forget(uid)
        pod_set.unbound.pop(uid, None)
        pod_set.arrived.pop(uid, None)
        pod_set.failed = pod_set.failed or pod.status.phase != "Succeeded"
        by_itself = pod.status.phase == "Failed" and pod.metadata.deletion_timestamp is None
        pod_set.crashed = pod_set.crashed or by_itself
        if uid in pod_set.alive:
            pod_set.alive.discard(uid)
            pod_set.finished[uid] = None
        self._pod_sets.note_over(pod_set)
        if pod_set.alive:
            if self._cluster.release_each:
                self._recount(pod_set)
            self._run_if_bound(pod_set)

    def free_seats(self, pod_set: PodSet, uids: tuple[str, ...]) -> None:
        """Free the placements of ended members for new ones."""
        self._cluster.release(pod_set.number, uids, reason=Reason.of(Code.SEAT_FOR_NEW_MEMBER))
        for uid in uids:
            pod_set.finished.pop(uid, None)
            self._pod_sets.by_pod.pop(uid, None)
        self._recount(pod_set)
        self._planner.note_freed()

    def run(self, now: int, decisions: Decisions) -> None:
        """Finish pod sets whose pods have all ended."""
        for pod_set in self._pod_sets.take_over():
            with working_on(pod_set.group):
                self._finish(pod_set, now)

    def _finish(self, pod_set: PodSet, now: int) -> None:
        if pod_set.finished:
            outcome = pod_set.ended_as(now, self._queue.rules.ends_after(pod_set.job))
            self._journal.ended(pod_set, outcome, now)
            self._queue.finish(pod_set.key, now, outcome=outcome)
            self._queue.forget(pod_set.key)
            self._remove(pod_set)
        elif pod_set.state is JobState.RUNNING:  # it counted as bound after a fault, but is not
            self.withdraw(pod_set, now, Reason.of(Code.NOT_BOUND))
        else:
            self._return_to_queue(pod_set, now)
        self._changes.touch((pod_set.group,))
        self._changes.queue_changed = True

    def _return_to_queue(self, pod_set: PodSet, now: int) -> None:
        """No pod of it will be bound. It waits again as the same job, with its place and its promise."""
        self._volumes.end(pod_set.key)
        self._pod_sets.expecting.pop(pod_set.key, None)
        pod_set.volumes, pod_set.failed, pod_set.crashed = None, False, False
        self._queue.requeue(pod_set.key, now, Reason.of(Code.NOT_BOUND))
        self._journal.note(pod_set)
        self._reports.want(pod_set.key)

    # -- external resources ----------------------------------------------------------------------------------

    def held_devices(self, gang: Gang) -> dict[str, int]:
        """The external resources that a group holds in the ledger and shares, by type."""
        if not self._cluster.fit.backends:
            return {}
        grants = [each for some in self._holders(gang).values() for each in some]
        return amounts(grants)

    def _holders(self, gang: Gang, *, but: int = -1) -> dict[int, tuple[DeviceGrant, ...]]:
        """The devices that other jobs of a group hold and share with it, by job number."""
        found = {}
        for pod_set in self._pod_sets.of_group(gang.key).values():
            holding = self._cluster.fit.jobs.get(pod_set.number)
            if holding is None or holding.reserved or pod_set.number == but:
                continue
            shared = (each for each in holding.grants if each.shared)
            if kept := tuple(each for each in shared if self._check.keeps(pod_set, each)):
                found[pod_set.number] = kept
        return found

    def _borrow(self, pod_set: PodSet, gang: Gang | None) -> tuple[DeviceGrant, ...]:
        """The devices that a starting pod set shares with other jobs of its group, which already hold
        them."""
        if gang is None or pod_set.request.devices is not None or not self._cluster.fit.backends:
            return ()
        holders = self._holders(gang, but=pod_set.number)
        lent = lent_to(pod_set.pods, holders) if holders else None
        self._share(pod_set.number, lent)
        return () if lent is None else lent.grants

    def _share(self, number: int, lent: Lent | None) -> None:
        if lent is not None:
            self._cluster.share_devices(number, lent.grants, lent.lender)

    # -- internals -------------------------------------------------------------------------------------------

    def _queued(self, key: str, pods: Iterable[Pod], told: PriorPromise | None, now: int) -> int:
        """The arrival time of pods: the one recorded before a restart, the one in their annotations, the time
        when the first was seen, or now."""
        if told is not None and told.queued:
            return told.queued
        gathering = self._pod_sets.by_key.get(key)
        seen = gathering.job.queued if gathering is not None else 0
        return restart.queued_of(pods) or seen or self._changes.next_queued(now)

    def _record(self, gang: Gang, job: Submission) -> PodSet:
        """The record of a job: the one that gathered under its key if there is one, or a new one."""
        pod_sets = self._pod_sets
        gathering = pod_sets.by_key.get(job.key)
        if gathering is not None:
            pod_sets.remove(gathering)
        pod_set = gathering or PodSet(job, JobState.GATHERING, group=gang.key)
        pod_set.job = job
        pod_sets.add(pod_set)
        return pod_set

    def _recount(self, pod_set: PodSet) -> None:
        """Count only the current placements of a pod set in quotas, after it lost or gained some."""
        holding = self._cluster.fit.jobs.get(pod_set.number)
        if holding is None or holding.reserved or pod_set.key not in self._queue.records:
            return
        known = {pod.metadata.uid: pod for pod in pod_set.pods}
        entries = self._cluster.pods.entries
        pods = []
        for uid in map(str, (seat.pod for seat in holding.placements.values())):
            if uid in known:
                pods.append(known[uid])
            elif uid in entries:
                pods.append(entries[uid].pod)
        request = replace(pod_set.request, pods=tuple(pods))
        self._queue.recount(pod_set.key, request, self._queue.now)

    def _run_if_bound(self, pod_set: PodSet) -> None:
        if not pod_set.unbound and pod_set.state in (JobState.STARTING, JobState.PREPARING):
            self._queue.running(pod_set.key, self._queue.now)
            self._reports.over(pod_set.key)
            self._journal.note(pod_set)

    def _remove(self, pod_set: PodSet) -> None:
        self._pod_sets.remove(pod_set)
        self._reports.over(pod_set.key)
        self._planner.forget(pod_set.request)
        self._volumes.end(pod_set.key)
        if not self._pod_sets.of_group(pod_set.group) and self._groups.gang(pod_set.group) is None:
            self._forget(pod_set.group)


def _counted(request: PodSetRequest) -> tuple[tuple[str, int], ...]:
    """The devices of a request, as limits count them."""
    return () if request.devices is None else request.devices.needs


def _hint(gang: Gang, number: int) -> str:
    return f"{gang.uid}+{number}"


def _derived(gang: Gang, number: int) -> int:
    """The job number of pods that name another number than their group's. It follows from both, so that no
    user can claim a number of another group."""
    return job_number(_hint(gang, number))
