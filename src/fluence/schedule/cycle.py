"""The scheduling cycle: observe what changed, start the jobs that fit, report why the others wait.

As in kube-scheduler, a cycle has three parts. The plan names the jobs that start. Their pods are assumed to
run on their nodes at once. The binds are handed out, and their results come back as events. Pure: no clock,
no network. `fluence.schedule.scheduler.Scheduler` is the entry point and protects the cycle from faults.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fluence.model.job_entry import JobEntry
from fluence.queue.policy import PluginFault
from fluence.schedule.actions import Bind, ClaimUpdate, Nominate, PlanEnd, Preempt, Release
from fluence.schedule.enforcement import EndOverrun, WarnOverrun
from fluence.schedule.events import Event, NotBound
from fluence.schedule.external_resources.producer_gates import GateOrder
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.quarantine import Fault
from fluence.schedule.queueing.unheld import UnheldNamespace
from fluence.schedule.queues import QueueStatusUpdate
from fluence.schedule.rooms import Rooms
from fluence.schedule.status.reports import Waiting
from fluence.schedule.status.warnings import GangWarning
from fluence.schedule.step import Step


@dataclass(slots=True)
class Decisions:
    """The result of a cycle, which `fluence.act` and `fluence.live` carry out."""

    binds: list[list[Bind]] = field(default_factory=list)  # one list per job
    waiting: list[Waiting] = field(default_factory=list)
    reminders: list[Waiting] = field(default_factory=list)  # long waits, reported again
    warnings: list[GangWarning] = field(default_factory=list)
    unheld: list[UnheldNamespace] = field(default_factory=list)  # labelled, but nothing is held
    begun: list[Gang] = field(default_factory=list)  # gangs with all the pods they need on nodes
    releases: list[Release] = field(default_factory=list)  # Jobs that may create their pods
    claim_updates: list[ClaimUpdate] = field(default_factory=list)
    overruns: list[WarnOverrun | EndOverrun] = field(default_factory=list)
    preemptions: list[Preempt] = field(default_factory=list)  # pods that end for work of higher priority
    planned_ends: list[PlanEnd] = field(default_factory=list)  # pods that end later for other work
    nominations: list[Nominate] = field(default_factory=list)  # nodes that are being freed for waiting pods
    gates: list[GateOrder] = field(default_factory=list)
    queue_statuses: list[QueueStatusUpdate] = field(default_factory=list)
    plugin_faults: list[PluginFault] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)  # objects that the scheduler cannot handle
    jobs: list[JobEntry] = field(default_factory=list)  # history entries for the jobs that changed
    roll: frozenset[int] | None = None  # after a resync: the numbers of all existing jobs


def steps(rooms: Rooms, more: Iterable[Step] = ()) -> list[Step]:
    """The steps of the cycle, in order. A new concern adds one line here. ``more`` are a site's own steps."""
    return [
        # 1. Read changes of nodes, pods and owners; update placeholders for pods that do not exist yet.
        rooms.intake,
        rooms.placeholders,
        # 2. Read changes of DRA devices and of external resources.
        rooms.dynamic,
        rooms.external_resources,
        # 3. Read changes of claims and volumes, and update the pods that mount them.
        rooms.claim_changes,
        # 4. Restart a gang as a whole if it lost a member before its first bind.
        rooms.start_over,
        # 5. Finish pod sets whose pods have all ended, and free their resources.
        rooms.lifecycle,
        # 6. Check again which waiting jobs the cluster can hold at all.
        rooms.reassessment,
        # 7. Apply changes of Queue objects, and update their statuses.
        rooms.cluster_queues,
        # 8. Reconcile the queue with the groups that changed.
        rooms.reconciliation,
        # 9. Preempt running work of lower priority for jobs that cannot start, and earmark what it frees.
        rooms.preemption,
        # 10. Ask the plan which jobs start, and assume their placements.
        rooms.planning,
        # 11. Release held Jobs that have placements; bind their pods together once all of them exist.
        rooms.releasing,
        # 12. Bind pod sets whose volumes are ready; place pod sets again whose volumes cannot be bound.
        rooms.volume_checks,
        # 13. Send binds again that failed with a temporary error.
        rooms.binding,
        # 14. Warn or end jobs that exceed their limit, if their queue asks for it.
        rooms.enforcement,
        # 15. Remove the gates of pods whose producer is ready, or never will be.
        rooms.producer_gates,
        # 16. Report labelled namespaces whose work is not held.
        rooms.unheld,
        # 17. Estimate the start of jobs that depend on other jobs.
        rooms.eligibility,
        *more,
        # 18. Report why jobs wait.
        rooms.reports,
        # 19. Repeat the report of jobs that have waited for long.
        rooms.reminders,
        # 20. Pass changed jobs to the history.
        rooms.journal,
    ]


class SchedulingCycle:
    """Runs every step in order: events in, decisions out."""

    def __init__(self, all_steps: list[Step]) -> None:
        self._steps = all_steps
        self._observers = [step for step in all_steps if type(step).observe is not Step.observe]

    def observe(self, event: Event | NotBound, now: int) -> None:
        """Pass one event to the steps that observe events."""
        for step in self._observers:
            step.observe(event, now)

    def run(self, now: int) -> Decisions:
        """Run one cycle."""
        decisions = Decisions()
        for step in self._steps:
            step.run(now, decisions)
        return decisions

    def next_due(self) -> int | None:
        """When to run a cycle even if nothing happens."""
        times = (step.next_due() for step in self._steps)
        return min((at for at in times if at is not None), default=None)

    def forget(self, group: str) -> None:
        """Drop the state of a group that is gone with all its pods."""
        for step in self._steps:
            step.forget(group)
