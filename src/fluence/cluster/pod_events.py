"""Pods as they are placed, bound, end and go: what each counts for, and which seats come free.

A pod counts by itself, as part of its node's usage, or as one seat of a job: from when it has the seat, once,
until its job gives it back. `ClusterGraph` is the only caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fluence.cluster.device_overcommit import DeviceOvercommit
from fluence.cluster.job_pods import JobPods
from fluence.cluster.node_usage import NodeUsage, is_usage
from fluence.cluster.pods import PodEntry, PodTable, place_of
from fluence.cluster.requests import PodGang
from fluence.errors import NotFound
from fluence.model.device import DeviceGrant
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.placer.gang import GangRequest, Seat, Seated
from fluence.placer.gang_fit import GangFit

RELEASED = Reason.of(Code.JOB_RELEASED)


@dataclass(frozen=True, slots=True)
class FreedSeats:
    """Seats that a job has lost or given back."""

    job: int
    pods: tuple[str, ...]  # uids
    node: str | None  # None: the whole job
    reason: Reason
    whole_job: bool  # it holds nothing any more


class PodEvents:
    """Pods that count on nodes, and the seats of jobs."""

    def __init__(
        self,
        pods: PodTable,
        seats: GangFit,
        usage: NodeUsage,
        overcommit: DeviceOvercommit,
        *,
        release_each: bool,
        sync: Callable[[], None],
    ) -> None:
        self._pods = pods
        self._seats = seats
        self._usage = usage
        self._overcommit = overcommit
        self._release_each = release_each
        self._sync = sync  # apply what was noted: seats are recorded on nodes as they are
        self._jobs = JobPods()

    def set_pod(self, pod: Pod) -> tuple[FreedSeats, ...]:
        """A pod as it is now; says what was given back if it has ended."""
        uid = pod.metadata.uid
        if pod.is_terminal:
            return self._ended(uid, Reason.of(Code.POD_ENDED, pod=pod.key, phase=pod.status.phase.lower()))
        entry, node = self._pods.entries.get(uid), place_of(pod)
        bound = pod.spec.node_name is not None
        if entry is None:
            if node is not None:
                self.put(pod, node, bound=bound)
        elif entry.assumed and not bound:  # not bound yet
            if _has_changed(entry, pod):
                self._pods.put(pod, entry.node, bound=False, assumed=True, job=entry.job)
            else:
                entry.pod = pod
        elif node is None:
            self._drop(uid)
        elif entry.job is not None:
            self._confirm(entry, entry.job, pod, node)
        elif (
            entry.node != node
            or entry.needs != self._pods.needs(pod, bound=bound)
            or _has_changed(entry, pod)
        ):
            self.put(pod, node, bound=bound)
        else:
            entry.pod, entry.bound, entry.assumed = pod, bound, False
        return ()

    def remove_pod(self, pod: Pod | str) -> tuple[FreedSeats, ...]:
        """A pod's object is gone; says what was given back by it."""
        uid = pod if isinstance(pod, str) else pod.metadata.uid
        entry = self._pods.entries.get(uid)
        name = pod.key if isinstance(pod, Pod) else entry.pod.key if entry else uid
        return self._ended(uid, Reason.of(Code.POD_GONE, pod=name))

    def forget(self, *uids: str) -> tuple[FreedSeats, ...]:
        """Undo assumptions, or the seats of some pods: they will not be bound after all."""
        by_job: dict[int, list[PodEntry]] = {}
        for uid in uids:
            entry = self._pods.entries.get(uid)
            if entry is None or not entry.assumed:
                continue
            if entry.job is None:
                self._drop(uid)
            else:
                by_job.setdefault(entry.job, []).append(entry)
        freed: tuple[FreedSeats, ...] = ()
        for job, entries in by_job.items():
            reason = Reason.of(Code.POD_NOT_BOUND, pod=entries[0].pod.key)
            freed += self.release(job, [entry.uid for entry in entries], reason=reason)
        return freed

    def put(self, pod: Pod, node: str, *, bound: bool, assumed: bool = False) -> None:
        """A pod counts on a node, without a job."""
        self._drop(pod.metadata.uid)
        self._pods.put(pod, node, bound=bound, assumed=assumed)
        self._usage.mark(node)

    # -- jobs ------------------------------------------------------------------------------------------------

    def assume_seats(self, gang: GangRequest, seated: Seated) -> None:
        """The pods of a gang count on their nodes before they are bound."""
        self._jobs.add(seated.job, [str(seat.pod) for seat in seated.seats])
        if isinstance(gang, PodGang):
            for seat in seated.seats:
                pod = gang.objects[str(seat.pod)]
                self._pods.put(pod, seat.node, bound=False, assumed=True, job=seated.job, needs=seat.needs)

    def adopt(
        self,
        job: int,
        pods: Iterable[str],
        *,
        start: int,
        end: int | None = None,
        whole: bool = False,
        grants: tuple[DeviceGrant, ...] = (),
    ) -> None:
        """Pods that run already belong to a job: after a restart, or when the rest of a gang follows."""
        entries = [entry for uid in pods if (entry := self._pods.entries.get(uid)) is not None]
        seats = [self._join_job(entry, job) for entry in entries]
        if not seats:
            raise NotFound(f"job {job}: none of its pods is on a node")
        for seat in seats:
            # It is written anew later, once: thousands are adopted after a restart.
            self._usage.erase(seat.node)
        if job in self._seats.jobs:
            self._seats.jobs[job].grants = _together(self._seats.jobs[job].grants, grants)
            self._seats.rewrite(job, seats)
        else:
            self._seats.hold(job, seats, start=start, end=end, whole=whole, grants=grants)
        self._jobs.add(job, [entry.uid for entry in entries])
        for entry in entries:
            self._overcommit.check(entry.node, job)

    def take_seat(self, job: int, uid: str, pod: Pod) -> str:
        """A pod has the seat of another from now on, which stood for it and asked for as much."""
        self._sync()
        entry, node = self._pods.drop(uid), self._seats.rename(job, uid, pod.metadata.uid)
        if entry is not None and entry.job is None:
            self._usage.mark(node)
        self._jobs.remove(job, uid)
        self._jobs.add(job, (pod.metadata.uid,))
        self._drop(pod.metadata.uid)
        needs = self._seats.jobs[job].seats[pod.metadata.uid].needs
        self._pods.put(pod, node, bound=False, assumed=True, job=job, needs=needs)
        return node

    def release(
        self, job: int, pods: Iterable[str] | None = None, *, reason: Reason = RELEASED
    ) -> tuple[FreedSeats, ...]:
        """Give back a job, or the seats of some of its pods. Pods that are bound go on counting by
        themselves."""
        self._sync()
        if job not in self._seats.jobs:
            return ()
        freed = self._seats.release(job, pods)
        for seat in freed:
            self._leave_seat(job, str(seat.pod), seat.node)
        whole = job not in self._seats.jobs
        if whole:
            self._jobs.remove_job(job)
        return (
            (FreedSeats(job, tuple(str(seat.pod) for seat in freed), None, reason, whole),) if freed else ()
        )

    def jobs_on(self, name: str) -> dict[int, list[str]]:
        """Our jobs with seats on a node, and whose seats those are."""
        found: dict[int, list[str]] = {}
        for job, seating in self._seats.jobs.items():
            if not is_usage(job):
                uids = [str(seat.pod) for seat in seating.seats.values() if seat.node == name]
                if uids:
                    found[job] = uids
        return found

    def record_jobs_anew(self, node: str) -> None:
        """A node has other vertices than before."""
        for job in self.jobs_on(node):
            self._record_anew(job, node)

    def record_grants_anew(self) -> None:
        """Devices that belong to no node have other vertices than before."""
        for job, seating in list(self._seats.jobs.items()):
            if seating.grants:
                self._seats.rewrite(job)

    def leaving(self, now: int, by: int) -> set[str]:
        """The pods of jobs that end after now and by another time."""
        jobs = self._seats.jobs
        return {uid for job, uids in self._jobs if job in jobs and now < jobs[job].end <= by for uid in uids}

    # -- inside ----------------------------------------------------------------------------------------------

    def _record_anew(self, job: int, *nodes: str, seats: Iterable[Seat] = ()) -> None:
        """Some seats of a job have changed, or some nodes have other vertices."""
        self._seats.rewrite(job, seats)
        for node in nodes:
            self._overcommit.check(node, job)

    def _share_devices(self, node: str) -> None:
        """Somebody left a node: those that share a device, or lack one, may have one of their own now."""
        for job in self._overcommit.jobs(node):
            if is_usage(job):
                self._usage.mark(node)
            elif job in self._seats.jobs:
                self._record_anew(job, node)

    def _drop(self, uid: str) -> None:
        entry = self._pods.drop(uid)
        if entry is not None and entry.job is None:
            self._usage.mark(entry.node)

    def _join_job(self, entry: PodEntry, job: int) -> Seat:
        """A pod that counted by itself counts as part of a job."""
        self._drop(entry.uid)
        self._pods.put(
            entry.pod, entry.node, bound=entry.bound, assumed=entry.assumed, job=job, needs=entry.needs
        )
        self._usage.mark(entry.node)
        return Seat(entry.uid, entry.node, entry.needs)

    def _confirm(self, entry: PodEntry, job: int, pod: Pod, node: str) -> None:
        """A pod with a seat is seen bound: on its seat, or elsewhere, or with another size."""
        needs = self._pods.needs(pod, bound=True)
        before = entry.node
        if before == node and entry.needs == needs and not _has_changed(entry, pod):
            entry.pod, entry.bound, entry.assumed = pod, True, False
            return
        self._sync()
        self._pods.put(pod, node, bound=True, job=job)
        nodes = {before, node}
        self._record_anew(job, *nodes, seats=(Seat(entry.uid, node, needs),))
        for name in nodes:
            self._share_devices(name)

    def _ended(self, uid: str, reason: Reason) -> tuple[FreedSeats, ...]:
        entry = self._pods.entries.get(uid)
        if entry is None:
            job = self._jobs.job_of(uid)
            return () if job is None else self._ended_in_job(job, uid, reason)
        self._drop(uid)
        if entry.job is not None:
            return self._ended_in_job(entry.job, uid, reason)
        if entry.node in self._overcommit:
            self._sync()
            self._share_devices(entry.node)
        return ()

    def _ended_in_job(self, job: int, uid: str, reason: Reason) -> tuple[FreedSeats, ...]:
        all_ended = self._jobs.end(job, uid)
        if all_ended:
            return self.release(job, reason=Reason.of(Code.LAST_POD_OF_JOB, cause=reason))
        if all_ended is not None and self._release_each:
            return self.release(job, (uid,), reason=reason)
        return ()

    def _leave_seat(self, job: int, uid: str, node: str) -> None:
        """A pod has no seat any more; if it is bound it counts by itself."""
        self._jobs.remove(job, uid)
        entry = self._pods.entries.get(uid)
        if entry is not None and entry.job == job:
            if entry.bound:
                self.put(entry.pod, entry.node, bound=True)
            else:
                self._pods.drop(uid)
        self._overcommit.clear(node, job)
        self._share_devices(node)


def _together(some: tuple[DeviceGrant, ...], more: tuple[DeviceGrant, ...]) -> tuple[DeviceGrant, ...]:
    """Grants of one device and type that pods share are one."""
    own = tuple(each for each in (*some, *more) if not each.shared)
    found: dict[tuple[object, ...], DeviceGrant] = {}
    for each in (*some, *more):
        if each.shared:
            known = found.get((each.device, each.type), each)
            amount = max(known.amount, each.amount)
            found[each.device, each.type] = each._replace(amount=amount, pods=known.pods | each.pods)
    return (*found.values(), *dict.fromkeys(own))


def _has_changed(entry: PodEntry, pod: Pod) -> bool:
    """Whether a pod has other labels than we know, or has begun to terminate."""
    before, now = entry.pod.metadata, pod.metadata
    return before.labels != now.labels or before.deletion_timestamp != now.deletion_timestamp
