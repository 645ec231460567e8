"""Inquiry: what the scheduler makes of a cluster as it is listed once, asked about one gang.

Called by `fluence explain`. It does not imitate the scheduler: it is one, made from the same settings and
told of the same objects, that runs the cycle which a restarted scheduler would run. So constraints, excluded
nodes, the match policy, the queue policy and who is ahead count as they do there.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fluence.model.reason import Code, Reason
from fluence.schedule import advice
from fluence.schedule.events import Changed, Object
from fluence.schedule.gang import Gang
from fluence.schedule.pod_set import PodSet
from fluence.schedule.scheduler import Scheduler
from fluence.schedule.status import SchedulingStatus

# A claim says nothing of the cluster: it may come, or come free.
_MAY_COME = frozenset((Code.CLAIM_MISSING, Code.CLAIM_PENDING, Code.CLAIM_IN_USE, Code.CLAIM_ASKED_TWICE))
# Only the user can change that these never gather.
_NEVER_GATHER = frozenset((Code.OWNER_IS_ORDERED, Code.OWNER_RUNS_TOO_FEW))


@dataclass(frozen=True, slots=True)
class NextCycle:
    """What would become of a gang in the next cycle, and what would help it."""

    blocks: tuple[Reason, ...] = ()  # what stands in its way
    sooner: tuple[Reason, ...] = ()  # what the user can do
    starts: bool = False  # all that wait get their seats
    never: bool = False  # only a change of the gang or of the nodes helps


class Inquiry:
    """``scheduler`` has seen nothing yet; it is used up."""

    def __init__(self, scheduler: Scheduler, objects: Iterable[Object], now: int) -> None:
        self._scheduler = scheduler
        self._now = now
        self._ran = False
        scheduler.handle([Changed(None, each) for each in objects], now, decide=False)
        self.groups = scheduler.state.groups

    def about(self, gang: Gang, *, with_cluster: bool = True) -> NextCycle:
        """``with_cluster``: all nodes and pods were told of; without, only what the gang itself lacks is
        known."""
        known = finding_without_cluster(gang)
        if known is not None or not with_cluster:
            return known or NextCycle()
        self._run()
        state = self._scheduler.state
        waiting = [each for each in state.pod_sets.of_group(gang.key).values() if not each.phase.holds]
        if all(pod.metadata.uid in state.pod_sets.by_pod for pod in gang.members):
            return NextCycle(starts=True)
        settles = state.settling.reason(gang.key)
        if settles is not None:
            return NextCycle((settles,))
        if not waiting:
            return NextCycle()  # quarantined: its condition says so
        return self._waits(gang, min(waiting, key=lambda each: each.key))

    def _run(self) -> None:
        """What starts, starts."""
        while not self._ran:
            decisions = self._scheduler.handle((), self._now)
            self._ran = not (decisions.binds or self._scheduler.has_more)

    def _waits(self, gang: Gang, pod_set: PodSet) -> NextCycle:
        state, request = self._scheduler.state, pod_set.request
        report = state.reports.report(pod_set, self._now)
        if report.outcome is not SchedulingStatus.NEVER:
            helps = advice.when_it_waits(gang, request, state.planner, now=self._now, limit=pod_set.limit)
            return NextCycle(report.reasons, helps)
        (why,) = report.reasons
        helps = ()
        if why.code is Code.CLUSTER_CANNOT_HOLD:
            helps = advice.when_it_never_fits(gang, request, state.planner, why)
        return NextCycle(report.reasons, helps, never=why.code not in _MAY_COME)


def finding_without_cluster(gang: Gang) -> NextCycle | None:
    """What is known of a gang without looking at nodes; None: they are to be asked."""
    if gang.fault is not None:
        return NextCycle((gang.fault,), never=True)
    if gang.missing is not None:
        never = gang.missing.code in _NEVER_GATHER
        return NextCycle((gang.missing,), advice.complete(gang, gang.missing), never=never)
    return None if gang.members else NextCycle()
