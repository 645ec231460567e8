"""Events of pods: how each pod counts, and which placements they free.

A pod counts once: in the usage of its node or, from its placement until the job frees it, as part of a job.
`ClusterGraph` is the only caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from fluence.cluster.pods import DeviceOvercommit, NodeUsage, PodEntry, PodTable, is_usage, place_of
from fluence.cluster.requests import PodGang
from fluence.errors import NotFound
from fluence.model.external_resources import DeviceGrant
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.placer.gang_fit import GangFit
from fluence.placer.placer import GangHolding, GangPlacement, PodPlacement

RELEASED = Reason.of(Code.JOB_RELEASED)


@dataclass(frozen=True, slots=True)
class FreedPlacements:
    """Placements that a job has lost or freed."""

    job: int
    pods: tuple[str, ...]  # uids
    node: str | None  # None: the whole job
    reason: Reason
    whole_job: bool  # the job has no placements left


class PodEvents:
    """Pods that count on nodes, and the placements of jobs."""

    def __init__(
        self,
        pods: PodTable,
        fit: GangFit,
        usage: NodeUsage,
        overcommit: DeviceOvercommit,
        *,
        release_each: bool,
        sync: Callable[[], None],
    ) -> None:
        self._pods = pods
        self._fit = fit
        self._usage = usage
        self._overcommit = overcommit
        self._release_each = release_each
        self._sync = sync  # applies collected events: placements are recorded on the current nodes

    def set_pod(self, pod: Pod) -> tuple[FreedPlacements, ...]:
        """Add or change a pod; returns the freed placements if it has ended."""
        uid = pod.metadata.uid
        if pod.is_terminal:
            return self._ended(uid, Reason.of(Code.POD_ENDED, pod=pod.key, phase=pod.status.phase.lower()))
        entry, node = self._pods.entries.get(uid), place_of(pod)
        bound = pod.spec.node_name is not None
        if entry is None:
            if node is not None:
                self._put(pod, node, bound=bound)
        elif entry.assumed and not bound:  # not bound yet
            if _has_changed(entry, pod):
                self._pods.put(pod, entry.node, bound=False, assumed=True, job=entry.job)
            else:
                entry.pod = pod
        elif node is None:
            if entry.job is not None:
                reason = Reason.of(Code.POD_NOT_BOUND, pod=pod.key)
                return self.release(entry.job, (uid,), reason=reason)
            self._drop(uid)
        elif entry.job is not None:
            self._confirm(entry, entry.job, pod, node)
        elif (
            entry.node != node
            or entry.needs != self._pods.needs(pod, bound=bound)
            or _has_changed(entry, pod)
        ):
            self._put(pod, node, bound=bound)
        else:
            entry.pod, entry.bound, entry.assumed = pod, bound, False
        return ()

    def remove_pod(self, pod: Pod | str) -> tuple[FreedPlacements, ...]:
        """Remove a pod; returns the freed placements."""
        uid = pod if isinstance(pod, str) else pod.metadata.uid
        entry = self._pods.entries.get(uid)
        name = pod.key if isinstance(pod, Pod) else entry.pod.key if entry else uid
        return self._ended(uid, Reason.of(Code.POD_GONE, pod=name))

    def forget(self, *uids: str) -> tuple[FreedPlacements, ...]:
        """Free assumed or placed pods that will not be bound after all."""
        by_job: dict[int, list[PodEntry]] = {}
        for uid in uids:
            entry = self._pods.entries.get(uid)
            if entry is None or not entry.assumed:
                continue
            if entry.job is None:
                self._drop(uid)
            else:
                by_job.setdefault(entry.job, []).append(entry)
        freed: tuple[FreedPlacements, ...] = ()
        for job, entries in by_job.items():
            reason = Reason.of(Code.POD_NOT_BOUND, pod=entries[0].pod.key)
            freed += self.release(job, [entry.uid for entry in entries], reason=reason)
        return freed

    def _put(self, pod: Pod, node: str, *, bound: bool) -> None:
        """Count a pod on a node, outside of jobs."""
        self._drop(pod.metadata.uid)
        self._pods.put(pod, node, bound=bound)
        self._usage.mark(node)

    # -- jobs ------------------------------------------------------------------------------------------------

    def assume(self, gang: PodGang, found: GangPlacement) -> None:
        """Count the pods of a gang on their nodes before they are bound."""
        pods = {profile.pod.metadata.uid: profile.pod for kind in gang.kinds for profile in kind}
        for uid, node, needs, _ in found.placements:
            pod = pods[str(uid)]
            self._pods.put(pod, node, bound=False, assumed=True, job=found.job, needs=needs)

    def unassume(self, holding: GangHolding) -> None:
        """A job that was just placed does not start after all, and was removed from the ledger."""
        for uid in map(str, holding.placements):
            entry = self._pods.entries.get(uid)
            if entry is not None and entry.job == holding.id:
                self._pods.drop(uid)

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
        """Add running pods to a job: after a restart, or when the rest of a gang follows."""
        entries = [entry for uid in pods if (entry := self._pods.entries.get(uid)) is not None]
        placements = [self._join_job(entry, job) for entry in entries]
        if not placements:
            raise NotFound(f"job {job}: none of its pods is on a node")
        for placement in placements:
            # The record is written only once, later, because thousands of pods are adopted after a restart.
            self._usage.erase(placement.node)
        if job in self._fit.jobs:
            self._fit.jobs[job].grants = _together(self._fit.jobs[job].grants, grants)
            self._fit.rewrite(job, placements)
        else:
            self._fit.hold(job, placements, start=start, end=end, whole=whole, grants=grants)
        for entry in entries:
            self._overcommit.check(entry.node, job)

    def replace_pod(self, job: int, uid: str, pod: Pod) -> str:
        """A pod replaces its placeholder and gets its placement; returns the node."""
        self._sync()
        entry, placement = self._pods.drop(uid), self._fit.rename(job, uid, pod.metadata.uid)
        node = placement.node
        if entry is not None and entry.job is None:
            self._usage.mark(node)
        self._drop(pod.metadata.uid)
        self._pods.put(pod, node, bound=False, assumed=True, job=job, needs=placement.needs)
        return node

    def release(
        self, job: int, pods: Iterable[str] | None = None, *, reason: Reason = RELEASED
    ) -> tuple[FreedPlacements, ...]:
        """Free a job, or the placements of some of its pods. Bound pods still count, outside of the job."""
        self._sync()
        if job not in self._fit.jobs:
            return ()
        freed = self._fit.release(job, pods)
        if not freed:
            return ()
        for placement in freed:
            self._leave(job, str(placement.pod), placement.node)
        uids = tuple(str(placement.pod) for placement in freed)
        return (FreedPlacements(job, uids, None, reason, whole_job=job not in self._fit.jobs),)

    def jobs_on(self, name: str) -> dict[int, list[str]]:
        """The jobs with placements on a node, and the pods of these placements."""
        found: dict[int, list[str]] = {}
        for job, holding in self._fit.jobs.items():
            if not is_usage(job):
                uids = [str(pod) for pod, node, *_ in holding.placements.values() if node == name]
                if uids:
                    found[job] = uids
        return found

    def record_jobs_anew(self, node: str) -> None:
        """The vertices of a node have changed."""
        for job in self.jobs_on(node):
            self._record_anew(job, node)

    def record_grants_anew(self) -> None:
        """The vertices of external resources have changed."""
        for job, holding in list(self._fit.jobs.items()):
            if holding.grants:
                self._fit.rewrite(job)

    def leaving(self, now: int, by: int) -> set[str]:
        """The pods of jobs that end after now and by another time."""
        return {
            str(pod)
            for job, holding in self._fit.jobs.items()
            if now < holding.end <= by and not holding.reserved and not is_usage(job)
            for pod in holding.placements
        }

    # -- inside ----------------------------------------------------------------------------------------------

    def _record_anew(self, job: int, *nodes: str, placements: Iterable[PodPlacement] = ()) -> None:
        """Some placements of a job have changed, or some nodes have other vertices."""
        self._fit.rewrite(job, placements)
        for node in nodes:
            self._overcommit.check(node, job)

    def _share_devices(self, node: str) -> None:
        """A pod has left a node: jobs that share a device, or lack one, may get their own now."""
        for job in self._overcommit.jobs(node):
            if is_usage(job):
                self._usage.mark(node)
            elif job in self._fit.jobs:
                self._record_anew(job, node)

    def _drop(self, uid: str) -> None:
        entry = self._pods.drop(uid)
        if entry is not None and entry.job is None:
            self._usage.mark(entry.node)

    def _join_job(self, entry: PodEntry, job: int) -> PodPlacement:
        """A pod outside of jobs becomes part of a job."""
        self._drop(entry.uid)
        self._pods.put(
            entry.pod, entry.node, bound=entry.bound, assumed=entry.assumed, job=job, needs=entry.needs
        )
        self._usage.mark(entry.node)
        return PodPlacement(entry.uid, entry.node, entry.needs)

    def _confirm(self, entry: PodEntry, job: int, pod: Pod, node: str) -> None:
        """A placed pod is seen bound: to its node, to another node, or with another size."""
        needs = self._pods.needs(pod, bound=True)
        before = entry.node
        if before == node and entry.needs == needs and not _has_changed(entry, pod):
            entry.pod, entry.bound, entry.assumed = pod, True, False
            return
        self._sync()
        self._pods.put(pod, node, bound=True, job=job)
        nodes = {before, node}
        self._record_anew(job, *nodes, placements=(PodPlacement(entry.uid, node, needs),))
        for name in nodes:
            self._share_devices(name)

    def _ended(self, uid: str, reason: Reason) -> tuple[FreedPlacements, ...]:
        entry = self._pods.entries.get(uid)
        if entry is None:
            return ()
        self._drop(uid)
        if entry.job is not None:
            return self._ended_in_job(entry.job, uid, reason)
        if entry.node in self._overcommit:
            self._sync()
            self._share_devices(entry.node)
        return ()

    def _ended_in_job(self, job: int, uid: str, reason: Reason) -> tuple[FreedPlacements, ...]:
        holding = self._fit.jobs.get(job)
        if holding is None or uid not in holding.placements:
            return ()
        holding.ended.add(uid)
        if len(holding.ended) == len(holding.placements):
            return self.release(job, reason=Reason.of(Code.LAST_POD_OF_JOB, cause=reason))
        return self.release(job, (uid,), reason=reason) if self._release_each else ()

    def _leave(self, job: int, uid: str, node: str) -> None:
        """A pod has lost its placement; if it is bound, it counts outside of jobs."""
        entry = self._pods.entries.get(uid)
        if entry is not None and entry.job == job:
            if entry.bound:
                self._put(entry.pod, entry.node, bound=True)
            else:
                self._pods.drop(uid)
        self._overcommit.clear(node, job)
        self._share_devices(node)


def _together(some: tuple[DeviceGrant, ...], more: tuple[DeviceGrant, ...]) -> tuple[DeviceGrant, ...]:
    """Merge grants of one device and type that pods share."""
    own = tuple(each for each in (*some, *more) if not each.shared)
    found: dict[tuple[object, ...], DeviceGrant] = {}
    for each in (*some, *more):
        if each.shared:
            known = found.get((each.device, each.type), each)
            amount = max(known.amount, each.amount)
            found[each.device, each.type] = each._replace(amount=amount, pods=known.pods | each.pods)
    return (*found.values(), *dict.fromkeys(own))


def _has_changed(entry: PodEntry, pod: Pod) -> bool:
    """Whether the labels of a pod have changed, or it has begun to terminate."""
    before, now = entry.pod.metadata, pod.metadata
    return before.labels != now.labels or before.deletion_timestamp != now.deletion_timestamp
