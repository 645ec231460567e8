"""Pod sets: pods of a group that are placed together, and which groups and pod sets the next cycle must look
at.

Most groups have one pod set. Members that arrive after the group has started, and members beyond the minimum
that found no node, are pod sets of their own. If a crash, a lost node or a refusal leaves a gang half bound,
the rest is a pod set too, and it starts all or nothing up to the minimum of the group.

`PodSet` is the queue's record of a job (`fluence.queue.job.JobRecord`, which has the table of phases) with
its pods. `PodSets` finds pod sets by key, group and pod.

Steps note here which groups to reconcile, which jobs to check again, and whether to run the plan.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from typing import TYPE_CHECKING

from fluence.cluster.filters.volumes import mounts
from fluence.cluster.planner import ClusterPlanner, PodSetRequest
from fluence.model import job_state
from fluence.model.claims import Key
from fluence.model.job_state import JobState
from fluence.model.pod import Pod
from fluence.queue import Queue
from fluence.queue.job import JobRecord
from fluence.schedule.events import Bind
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


SLICE = 128  # groups that one cycle takes in, so that the first binds do not wait for a long list
_AT_ONCE = (-(1 << 40), 0.0)


class Changes:
    """Collects the changes of one scheduler."""

    def __init__(self, *, queue: Queue, planner: ClusterPlanner, pod_sets: PodSets) -> None:
        self._queue = queue
        self._planner = planner
        self._pod_sets = pod_sets
        self.queue_changed = True  # a job came or went: run the plan
        self.cluster_changed = False  # what an empty cluster could hold may have changed
        self.judge_again: set[str] = set()  # pod sets whose claims changed
        self._last_queued = 0
        self._plan_saw = (-1, -1, -1)
        self._touched: dict[str, None] = {}  # groups, in the order of their first event
        self._rank: dict[str, tuple[int, float]] = {}  # priority and age of groups with waiting pods

    # -- the plan --------------------------------------------------------------------------------------------

    def plan_is_due(self, now: int) -> bool:
        """Whether to run the plan although no job came or went: capacity was freed or removed, or the plan is
        due."""
        due = self._queue.next_due()
        waits = self._queue.has_more or self._plan_saw != self._resources()
        return waits or (due is not None and due <= now)

    def plan_was_asked(self) -> None:
        self._plan_saw = self._resources()

    def _resources(self) -> tuple[int, int, int]:
        return self._planner.freed, self._planner.opened, self._planner.lost

    # -- groups that changed ---------------------------------------------------------------------------------

    @property
    def has_touched(self) -> bool:
        return bool(self._touched)

    @property
    def touched(self) -> Iterable[str]:
        return self._touched

    def next_queued(self, now: int) -> int:
        """The arrival time of a new job in microseconds. No two jobs have the same."""
        self._last_queued = max(now * 1000, self._last_queued + 1)
        return self._last_queued

    def touch(self, groups: Iterable[str]) -> None:
        for group in groups:
            self._touched[group] = None

    def rank(self, group: str, pod: Pod) -> None:
        """Note the priority and the age of a waiting pod: groups are taken in that order."""
        created = pod.metadata.creation_timestamp
        rank = (-(pod.spec.priority or 0), created.timestamp() if created is not None else 0.0)
        self._rank[group] = min(rank, self._rank.get(group, rank))

    def unrank(self, group: str) -> None:
        self._rank.pop(group, None)

    def take_touched(self) -> list[str]:
        """The groups to reconcile in this cycle: all if there are few. Otherwise the first ones in queue
        order, with an equal share for each namespace; shares that a namespace does not use go to the
        others."""
        groups = list(self._touched)
        if len(groups) > SLICE:
            groups = self._first(groups)
        for group in groups:
            del self._touched[group]
        return groups

    def _first(self, groups: list[str]) -> list[str]:
        by_namespace: dict[str, list[str]] = {}
        for group in groups:
            by_namespace.setdefault(group.partition("/")[0], []).append(group)
        chosen: list[str] = []
        # Namespaces with few groups come first: the others get what these leave of their share.
        waiting = sorted(by_namespace.values(), key=len)
        for turn, some in enumerate(waiting):
            share = -(-(SLICE - len(chosen)) // (len(waiting) - turn))
            chosen += nsmallest(share, some, key=lambda group: self._rank.get(group, _AT_ONCE))
        return sorted(chosen, key=lambda group: self._rank.get(group, _AT_ONCE))

    # -- claims ----------------------------------------------------------------------------------------------

    def claims_given_up(self, pod: Pod) -> None:
        """A pod no longer uses its claims. Jobs that mount them are checked again, since only one pod may use
        some claims."""
        if pod.spec.volumes:
            self.judge_again |= self._pod_sets.mounting(mounts(pod))
