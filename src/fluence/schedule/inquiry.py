"""Inquiry: what the scheduler would do with one gang on a cluster that was listed once.

`fluence explain` calls it. It does not imitate the scheduler: it creates one with the same settings and the
same objects, and runs the cycle that a restarted scheduler would run. So constraints, excluded nodes, the
match policy, the queue policy and the jobs ahead count in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fluence.model.job_state import JobState
from fluence.model.reason import Code, Reason
from fluence.schedule.events import Changed, Object
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.pod_set import PodSet
from fluence.schedule.scheduler import Scheduler
from fluence.schedule.status import advice

# Claims are not part of the cluster: they may be created or freed later.
_MAY_COME = frozenset((Code.CLAIM_MISSING, Code.CLAIM_PENDING, Code.CLAIM_IN_USE, Code.CLAIM_ASKED_TWICE))
# Only the user can change groups with these reasons; they never become complete.
_NEVER_GATHER = frozenset((Code.OWNER_IS_ORDERED, Code.OWNER_RUNS_TOO_FEW))
_NEVER_STARTS = frozenset((Code.DEPENDENCY_NEVER_SATISFIED, Code.DEPENDENCY_CYCLE))


@dataclass(frozen=True, slots=True)
class NextCycle:
    """What would happen to a gang in the next cycle, and what would help it."""

    blocks: tuple[Reason, ...] = ()  # why it does not start
    sooner: tuple[Reason, ...] = ()  # what the user can do
    starts: bool = False  # all waiting pods get a node
    never: bool = False  # only a change of the gang or of the nodes helps
    ahead: int | None = None  # how many groups wait ahead of it in the queue


class Inquiry:
    """``scheduler`` is new and has observed nothing. It cannot be used for anything else afterwards."""

    def __init__(self, scheduler: Scheduler, objects: Iterable[Object], now: int) -> None:
        self._scheduler = scheduler
        self._now = now
        self._ran = False
        scheduler.handle([Changed(None, each) for each in objects], now, decide=False)
        scheduler.settle_placeholders(now)  # held Jobs have no pods
        self.groups = scheduler.state.groups

    def about(self, gang: Gang, *, with_cluster: bool = True) -> NextCycle:
        """``with_cluster``: all nodes and pods are known. If not, the answer covers only what the gang itself
        lacks."""
        known = finding_without_cluster(gang)
        if known is not None or not with_cluster:
            return known or NextCycle()
        self._run()
        state = self._scheduler.state
        waiting = [each for each in state.pod_sets.of_group(gang.key).values() if not each.state.has_nodes]
        if all(pod.metadata.uid in state.pod_sets.by_pod for pod in gang.members):
            return NextCycle(starts=True)
        settles = state.settling.reason(gang.key)
        if settles is not None:
            return NextCycle((settles,))
        depends = state.eligibility.reason(gang.key)
        if depends is not None:
            return NextCycle((depends,), never=depends.code in _NEVER_STARTS)
        if not waiting:
            return NextCycle()  # quarantined: its condition says so
        return self._waits(gang, min(waiting, key=lambda each: each.key))

    def _run(self) -> None:
        """Run cycles until nothing more starts."""
        while not self._ran:
            decisions = self._scheduler.handle((), self._now)
            self._ran = not (decisions.binds or self._scheduler.has_more)

    def _waits(self, gang: Gang, pod_set: PodSet) -> NextCycle:
        state, request = self._scheduler.state, pod_set.request
        report = state.reports.report(pod_set, self._now)
        if report.state is not JobState.UNSCHEDULABLE:
            helps = advice.when_it_waits(gang, request, state.planner, now=self._now, limit=pod_set.limit)
            place = state.pod_sets.places(state.queue.waiting()).get(gang.key)
            return NextCycle(report.reasons, helps, ahead=None if place is None else place - 1)
        (why,) = report.reasons
        helps = ()
        if why.code is Code.CLUSTER_CANNOT_HOLD:
            helps = advice.when_it_never_fits(gang, request, state.planner, why)
        return NextCycle(report.reasons, helps, never=why.code not in _MAY_COME)


def finding_without_cluster(gang: Gang) -> NextCycle | None:
    """What is known of a gang without nodes; None if the answer depends on them."""
    if gang.fault is not None:
        return NextCycle((gang.fault,), never=True)
    if gang.missing is not None:
        never = gang.missing.code in _NEVER_GATHER
        return NextCycle((gang.missing,), advice.complete(gang, gang.missing), never=never)
    return None if gang.members else NextCycle()
