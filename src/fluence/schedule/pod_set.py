"""Pod sets: pods of a group that are placed together, from the first of them to their end.

A group is mostly one pod set. Members that come when the group has started, and those that found no seat
beyond its minimum, are pod sets of their own; so is what is left of a gang that a crash, a lost node or a
refusal left half bound, and then it is all or nothing up to the group's minimum.

`PodSet` is the queue's record of a job (`fluence.queue.job.JobRecord`, with the one table of phases) and what
is known of its pods. `PodSets` finds them by key, group and pod.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from fluence.cluster.filters.volumes import mounts
from fluence.model.pod import Pod
from fluence.model.volume import Key
from fluence.queue.job import JobRecord
from fluence.schedule.actions import Bind
from fluence.schedule.planner import PodSetRequest
from fluence.schedule.stand_in import is_stand_in_uid
from fluence.schedule.volume_binding import VolumeBinding


@dataclass(slots=True, eq=False)
class PodSet(JobRecord):
    """One job of the queue and the pods that it stands for. Pods are known by uid."""

    group: str = ""
    unbound: dict[str, str] = field(default_factory=dict)  # pod -> node, from its start until it is bound
    alive: set[str] = field(default_factory=set)  # with seats, and not over
    finished: dict[str, None] = field(default_factory=dict)  # over, while their seats are still held
    failed: bool = False  # a pod of it did not succeed
    crashed: bool = False  # and was not being deleted
    volumes: VolumeBinding | None = None  # while it is preparing
    arrived: dict[str, Bind] = field(default_factory=dict)  # took a stand-in's seat; bound with the others

    @property
    def request(self) -> PodSetRequest:
        assert isinstance(self.job.request, PodSetRequest)
        return self.job.request

    @property
    def number(self) -> int:
        """Of its job in the ledger."""
        return self.request.number

    @property
    def pods(self) -> tuple[Pod, ...]:
        return self.request.pods

    @property
    def expects(self) -> bool:
        """Whether it has seats for pods that are still to come."""
        return any(map(is_stand_in_uid, self.alive))


class PodSets:
    """All pod sets of a scheduler."""

    def __init__(self) -> None:
        self.by_key: dict[str, PodSet] = {}
        self.by_pod: dict[str, PodSet] = {}  # by the uid of a pod with a seat
        self.by_number: dict[int, PodSet] = {}
        self._by_group: dict[str, dict[str, PodSet]] = {}
        self._mounting: dict[Key, set[str]] = {}  # claim -> pod sets whose pods mount it
        self._over: dict[str, PodSet] = {}
        self.expecting: dict[str, PodSet] = {}  # with seats for pods to come, or pods that wait for them

    def add(self, pod_set: PodSet) -> None:
        self.by_key[pod_set.key] = pod_set
        if pod_set.number >= 0:
            self.by_number[pod_set.number] = pod_set
        self._by_group.setdefault(pod_set.group, {})[pod_set.key] = pod_set
        for claim in _claims(pod_set.pods):
            self._mounting.setdefault(claim, set()).add(pod_set.key)

    def remove(self, pod_set: PodSet) -> None:
        """It is over, or not wanted any more."""
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

    def mounting(self, claims: Iterable[Key]) -> set[str]:
        """The keys of the pod sets that mount one of some claims."""
        return {key for claim in claims for key in self._mounting.get(claim, ())} if self._mounting else set()

    # -- pods ------------------------------------------------------------------------------------------------

    def seat(self, pod_set: PodSet, uid: str, node: str | None = None) -> None:
        """A pod has its seat; ``node``: it is not bound there yet."""
        if node is not None:
            pod_set.unbound[uid] = node
        pod_set.alive.add(uid)
        self.by_pod[uid] = pod_set

    def take_seats(self, pod_set: PodSet, arrivals: Iterable[tuple[Pod, Bind]]) -> None:
        """Pods have come, and have the seats of their stand-ins: (stand-in, bind)."""
        came: dict[str, Pod] = {}
        for stand_in, bind in arrivals:
            old = stand_in.metadata.uid
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
        """A pod has no seat any more: it waits again, or is gone."""
        self.by_pod.pop(uid, None)
        pod_set.unbound.pop(uid, None)
        pod_set.alive.discard(uid)
        pod_set.finished.pop(uid, None)
        pod_set.arrived.pop(uid, None)
        self.note_over(pod_set)

    def note_over(self, pod_set: PodSet) -> None:
        """The next cycle ends a pod set none of whose pods is alive."""
        if not pod_set.alive:
            self._over[pod_set.key] = pod_set

    def take_over(self) -> Collection[PodSet]:
        """The pod sets whose pods are all over, since the last call."""
        over, self._over = self._over, {}
        return [each for each in over.values() if not each.alive and self.by_key.get(each.key) is each]


def _claims(pods: Iterable[Pod]) -> Iterable[Key]:
    return (claim for pod in pods if pod.spec.volumes for claim in mounts(pod))
