"""Changes: what happened since the last cycle, and what the next cycle must look at.

Steps note here which groups to reconcile, which jobs to check again, and whether to run the plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nsmallest

from fluence.cluster.filters.volumes import mounts
from fluence.cluster.planner import ClusterPlanner
from fluence.model.pod import Pod
from fluence.queue import Queue
from fluence.schedule.pod_set import PodSets

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
