"""Pod sets: pods of a group that are placed together, from the first pod to the last end.

Most groups have one pod set. Members that arrive after the group has started, and members beyond the minimum
that found no node, are pod sets of their own. If a crash, a lost node or a refusal leaves a gang half bound,
the rest is a pod set too, and it starts all or nothing up to the minimum of the group.

`PodSet` is the queue's record of a job (`fluence.queue.job.JobRecord`, which has the table of phases) with
its pods. `PodSets` finds pod sets by key, group and pod.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fluence.cluster.filters.volumes import mounts
from fluence.cluster.planner import PodSetRequest
from fluence.model import job_state
from fluence.model.job_state import JobState
from fluence.model.pod import Pod
from fluence.model.volume import Key
from fluence.queue.job import JobRecord
from fluence.schedule.actions import Bind
from fluence.schedule.queueing.placeholder import is_placeholder_uid

if TYPE_CHECKING:
    from fluence.schedule.volumes import VolumeBinding


@dataclass(slots=True, eq=False)
class PodSet(JobRecord):
    """One job of the queue with its pods. Pods are identified by uid."""

    group: str = ""
    unbound: dict[str, str] = field(default_factory=dict)  # pod -> node, until it is bound
    alive: set[str] = field(default_factory=set)  # pods with a placement that have not ended
    finished: dict[str, None] = field(default_factory=dict)  # ended, with their placement still held
    failed: bool = False  # a pod did not succeed
    crashed: bool = False  # a pod failed without being deleted
    volumes: VolumeBinding | None = None  # set while the pod set is preparing
    arrived: dict[str, Bind] = field(default_factory=dict)  # came for a placeholder

    @property
    def request(self) -> PodSetRequest:
        assert isinstance(self.job.request, PodSetRequest)
        return self.job.request

    @property
    def number(self) -> int:
        """The number of its job in the ledger."""
        return self.request.number

    @property
    def pods(self) -> tuple[Pod, ...]:
        return self.request.pods

    def ended_as(self, now: int, ends_after: int | None) -> JobState:
        """The final state, once all pods have ended. ``ends_after``: how long it may run before it is
        ended."""
        lasted = now - (now if self.started is None else self.started)
        enforced = ends_after is not None and lasted >= ends_after
        late = enforced or (self.job.limit is not None and lasted >= self.job.limit)
        return job_state.ended(failed=self.failed, crashed=self.crashed, late=late, enforced=enforced)

    @property
    def expects(self) -> bool:
        """Whether it holds placements for pods that do not exist yet."""
        return any(map(is_placeholder_uid, self.alive))


class PodSets:
    """All pod sets of a scheduler."""

    def __init__(self) -> None:
        self.by_key: dict[str, PodSet] = {}
        self.by_pod: dict[str, PodSet] = {}  # by the uid of a pod with a placement
        self.by_number: dict[int, PodSet] = {}
        self._by_group: dict[str, dict[str, PodSet]] = {}
        self._mounting: dict[Key, set[str]] = {}  # claim -> keys of pod sets whose pods mount it
        self._over: dict[str, PodSet] = {}
        self.expecting: dict[str, PodSet] = {}  # waiting for pods to be created

    def add(self, pod_set: PodSet) -> None:
        self.by_key[pod_set.key] = pod_set
        if pod_set.number >= 0:
            self.by_number[pod_set.number] = pod_set
        self._by_group.setdefault(pod_set.group, {})[pod_set.key] = pod_set
        for claim in _claims(pod_set.pods):
            self._mounting.setdefault(claim, set()).add(pod_set.key)

    def remove(self, pod_set: PodSet) -> None:
        """Remove a pod set that has ended or is not wanted any more."""
        self.by_key.pop(pod_set.key, None)
        self.expecting.pop(pod_set.key, None)
        if self.by_number.get(pod_set.number) is pod_set:
            del self.by_number[pod_set.number]
        siblings = self._by_group.get(pod_set.group, {})
        siblings.pop(pod_set.key, None)
        if not siblings:
            self._by_group.pop(pod_set.group, None)
        for uid in (*pod_set.alive, *pod_set.finished):
            self.by_pod.pop(uid, None)
        for claim in _claims(pod_set.pods):
            keys = self._mounting.get(claim, set())
            keys.discard(pod_set.key)
            if not keys:
                self._mounting.pop(claim, None)

    def of_group(self, group: str) -> Mapping[str, PodSet]:
        return self._by_group.get(group, {})

    def places(self, waiting: Iterable[JobRecord]) -> dict[str, int]:
        """The position of each group in the queue. ``waiting`` is in queue order."""
        places: dict[str, int] = {}
        for record in waiting:
            pod_set = self.by_key.get(record.key)
            if pod_set is not None:
                places.setdefault(pod_set.group, len(places) + 1)
        return places

    def mounting(self, claims: Iterable[Key]) -> set[str]:
        """The keys of the pod sets that mount any of these claims."""
        return {key for claim in claims for key in self._mounting.get(claim, ())} if self._mounting else set()

    # -- pods ------------------------------------------------------------------------------------------------

    def seat(self, pod_set: PodSet, uid: str, node: str | None = None) -> None:
        """Record that a pod has a placement. ``node`` is set if the pod is not bound yet."""
        if node is not None:
            pod_set.unbound[uid] = node
        pod_set.alive.add(uid)
        self.by_pod[uid] = pod_set

    def take_seats(self, pod_set: PodSet, arrivals: Iterable[tuple[Pod, Bind]]) -> None:
        """Let pods take over the placements of their placeholders: (placeholder, bind)."""
        came: dict[str, Pod] = {}
        for placeholder, bind in arrivals:
            old = placeholder.metadata.uid
            came[old] = bind.pod
            self.by_pod.pop(old, None)
            pod_set.unbound.pop(old, None)
            pod_set.alive.discard(old)
            self.seat(pod_set, bind.uid, bind.node)
            pod_set.arrived[bind.uid] = bind
        pods = tuple(came.get(each.metadata.uid, each) for each in pod_set.pods)
        pod_set.job = replace(pod_set.job, request=replace(pod_set.request, pods=pods))
        self.expecting[pod_set.key] = pod_set

    def unseat(self, pod_set: PodSet, uid: str) -> None:
        """Remove a pod's placement: the pod waits again, or is gone."""
        self.by_pod.pop(uid, None)
        pod_set.unbound.pop(uid, None)
        pod_set.alive.discard(uid)
        pod_set.finished.pop(uid, None)
        pod_set.arrived.pop(uid, None)
        self.note_over(pod_set)

    def note_over(self, pod_set: PodSet) -> None:
        """If no pod of it is alive, the next cycle finishes the pod set."""
        if not pod_set.alive:
            self._over[pod_set.key] = pod_set

    def take_over(self) -> Collection[PodSet]:
        """The pod sets whose pods have all ended since the last call."""
        over, self._over = self._over, {}
        return [each for each in over.values() if not each.alive and self.by_key.get(each.key) is each]


def _claims(pods: Iterable[Pod]) -> Iterable[Key]:
    return (claim for pod in pods if pod.spec.volumes for claim in mounts(pod))
