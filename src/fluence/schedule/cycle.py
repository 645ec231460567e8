"""The scheduling cycle: creates all objects of one scheduler, and runs its steps: observe, start what fits,
report.

As in kube-scheduler, a cycle has three parts. The plan names the jobs that start. Their pods are assumed to
run on their nodes at once. The binds are handed out, and their results come back as events. Pure: no clock,
no network. `fluence.schedule.scheduler.Scheduler` is the entry point and protects the cycle from faults.

Only `Scheduler` creates rooms, and `cycle` puts them in order. Code outside this package reads some of them
(`queue`, `groups`, `pod_sets`, `reports`) and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fluence.cluster.graph import ClusterGraph
from fluence.cluster.planner import ClusterPlanner
from fluence.model.job_state import JobEntry
from fluence.model.pod import Pod
from fluence.model.queues import QueuesInForce
from fluence.queue import Queue
from fluence.queue.fair_share import Account
from fluence.queue.policy import PluginFault
from fluence.queue.scheduling_pass import CycleBudget
from fluence.schedule.binding import Binding, BindRetries, PlacementCheck, Releases, Releasing, StartOver
from fluence.schedule.dra import DynamicResources
from fluence.schedule.eligibility.eligibility import Eligibility
from fluence.schedule.events import (
    Bind,
    ClaimUpdate,
    Event,
    Nominate,
    NotBound,
    Object,
    PlanEnd,
    Preempt,
    Release,
)
from fluence.schedule.external_resources.producer_gates import GateOrder, ProducerGates
from fluence.schedule.external_resources.requests import DeviceConfig, ExternalResources
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.gangs.groups import Exclusions, Groups
from fluence.schedule.gangs.settling import Settling
from fluence.schedule.history import Journal
from fluence.schedule.intake import Intake
from fluence.schedule.lifecycle import Lifecycle
from fluence.schedule.overruns import EndOverrun, Enforcement, WarnOverrun
from fluence.schedule.planning import Planning, Reassessment, Reconciliation
from fluence.schedule.pod_set import Changes, PodSets
from fluence.schedule.preemption.preemption import Preemption
from fluence.schedule.preemption.rules import EndedCounts
from fluence.schedule.queueing.placeholders import Placeholders
from fluence.schedule.queueing.unheld import UnheldNamespace, UnheldWork
from fluence.schedule.queues import ClusterQueues, QueueStatusUpdate, UsageAt
from fluence.schedule.restart import Takeover
from fluence.schedule.status.reports import GangWarning, Reminders, StatusReports, Waiting, Warnings
from fluence.schedule.step import Fault, Step
from fluence.schedule.volumes import ClaimChanges, VolumeBindings, VolumeChecks

if TYPE_CHECKING:
    from fluence.schedule.scheduler import SchedulerConfig


class Rooms:
    """``pods_in`` lists the pods of a namespace, ``find`` returns an object by kind, namespace and name, and
    ``forget`` is called for a group that is gone."""

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        groups: Groups,
        cluster: ClusterGraph,
        planner: ClusterPlanner,
        queue: Queue,
        devices: DeviceConfig,
        queues_in_force: QueuesInForce,
        usage: Mapping[Account, UsageAt],
        takeover: Takeover,
        pods_in: Callable[[str], Iterable[Pod]],
        find: Callable[[str, str, str], Object | None],
        forget: Callable[[str], None],
    ) -> None:
        # State that several steps read.
        self.groups = groups
        self.cluster = cluster
        self.planner = planner
        self.queue = queue
        self.devices = devices
        self.takeover = takeover
        self.pod_sets = pod_sets = PodSets()
        self.changes = changes = Changes(queue=queue, planner=planner, pod_sets=pod_sets)
        self.exclusions = exclusions = Exclusions()
        self.settling = settling = Settling(config.settle)
        self.retries = retries = BindRetries(*config.backoff)
        self.releases = releases = Releases(*config.backoff)
        self.volumes = volumes = VolumeBindings(cluster, timeout=config.volume_timeout)
        self.check = check = PlacementCheck(cluster=cluster, pod_sets=pod_sets)

        # The steps of the cycle.
        self.dynamic = dynamic = DynamicResources()
        planner.device_classes = dynamic.by_class
        self.external_resources = ExternalResources(
            config=devices, cluster=cluster, planner=planner, queue=queue, changes=changes
        )
        self.placeholders = placeholders = Placeholders(groups.scheduler)
        self.unheld = UnheldWork(groups)
        groups.withheld = placeholders.withheld
        placeholders.pods_of = groups.pods_of
        self.reports = reports = StatusReports(
            groups=groups,
            queue=queue,
            planner=planner,
            pod_sets=pod_sets,
            takeover=takeover,
            budget=CycleBudget(config.cycle_budget / 4, config.timer),
            scale_up_after=config.scale_up_after,
        )
        self.reminders = Reminders(reports)
        self.journal = journal = Journal(
            groups, cluster, pod_sets, reports, queue=queue, changes=changes, kept=config.history
        )
        ended = EndedCounts()
        self.cluster_queues = ClusterQueues(
            in_force=queues_in_force,
            usage=usage,
            has_statuses=config.queue_statuses,
            groups=groups,
            cluster=cluster,
            queue=queue,
            pod_sets=pod_sets,
            reports=reports,
            journal=journal,
            takeover=takeover,
            changes=changes,
            ended=ended,
        )
        self.lifecycle = lifecycle = Lifecycle(
            groups=groups,
            cluster=cluster,
            planner=planner,
            queue=queue,
            pod_sets=pod_sets,
            check=check,
            retries=retries,
            exclusions=exclusions,
            placeholders=placeholders,
            releases=releases,
            volumes=volumes,
            reports=reports,
            journal=journal,
            takeover=takeover,
            changes=changes,
            forget=forget,
        )
        self.intake = intake = Intake(
            groups=groups,
            cluster=cluster,
            planner=planner,
            queue=queue,
            pod_sets=pod_sets,
            retries=retries,
            exclusions=exclusions,
            placeholders=placeholders,
            dynamic=dynamic,
            takeover=takeover,
            lifecycle=lifecycle,
            changes=changes,
        )
        self.claim_changes = ClaimChanges(
            cluster=cluster, planner=planner, pod_sets=pod_sets, volumes=volumes, changes=changes
        )
        self.start_over = StartOver(groups=groups, pod_sets=pod_sets, retries=retries, lifecycle=lifecycle)
        self.eligibility = eligibility = Eligibility(
            groups=groups,
            planner=planner,
            pod_sets=pod_sets,
            changes=changes,
            budget=CycleBudget(config.cycle_budget / 4, config.timer),
            find=find,
        )
        self.reassessment = Reassessment(
            pod_sets=pod_sets,
            exclusions=exclusions,
            settling=settling,
            lifecycle=lifecycle,
            changes=changes,
        )
        self.reconciliation = Reconciliation(
            groups=groups,
            cluster=cluster,
            pod_sets=pod_sets,
            exclusions=exclusions,
            settling=settling,
            takeover=takeover,
            eligibility=eligibility,
            reports=reports,
            warnings=Warnings(),
            lifecycle=lifecycle,
            intake=intake,
            changes=changes,
            forget=forget,
        )
        self.binding = binding = Binding(
            groups=groups, pod_sets=pod_sets, retries=retries, check=check, lifecycle=lifecycle
        )
        self.volume_checks = volume_checks = VolumeChecks(
            groups=groups,
            cluster=cluster,
            pod_sets=pod_sets,
            volumes=volumes,
            reports=reports,
            lifecycle=lifecycle,
            binding=binding,
        )
        self.preemption = preemption = Preemption(
            config.preemption,
            groups=groups,
            cluster=cluster,
            planner=planner,
            queue=queue,
            pod_sets=pod_sets,
            takeover=takeover,
            lifecycle=lifecycle,
            reports=reports,
            changes=changes,
            budget=CycleBudget(config.cycle_budget, config.timer),
            ended=ended,
        )
        reports.preemption = preemption.reasons
        reports.preemption_verdict = preemption.verdict
        self.planning = Planning(
            queue=queue,
            cluster=cluster,
            pod_sets=pod_sets,
            takeover=takeover,
            volumes=volume_checks,
            reports=reports,
            journal=journal,
            lifecycle=lifecycle,
            changes=changes,
        )
        self.releasing = Releasing(
            groups=groups,
            pod_sets=pod_sets,
            placeholders=placeholders,
            releases=releases,
            volumes=volume_checks,
            binding=binding,
        )
        self.enforcement = Enforcement(
            config.enforce,
            config.enforce_grace,
            queue=queue,
            pod_sets=pod_sets,
            groups=groups,
            on_nodes=cluster.pods.entries,
        )
        self.producer_gates = ProducerGates(
            scheduler=config.scheduler_name if config.open_gates else None,
            timeout=config.announce_timeout,
            pods_in=pods_in,
            owner=groups.owner,
        )


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
