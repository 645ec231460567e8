"""Rooms: creates all objects of one scheduler. Each gets what it needs as named arguments.

Only `Scheduler` creates rooms, and `cycle` puts them in order. Code outside this package reads some of them
(`queue`, `groups`, `pod_sets`, `reports`) and changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from fluence.cluster.graph import ClusterGraph
from fluence.cluster.planner import ClusterPlanner
from fluence.model.pod import Pod
from fluence.model.queues import QueuesInForce
from fluence.queue import Queue
from fluence.queue.budget import CycleBudget
from fluence.queue.fair_share import Account
from fluence.schedule.binding import Binding, BindRetries, PlacementCheck, StartOver
from fluence.schedule.changes import Changes
from fluence.schedule.dra import DynamicResources
from fluence.schedule.eligibility.eligibility import Eligibility
from fluence.schedule.enforcement import Enforcement
from fluence.schedule.events import Object
from fluence.schedule.external_resources.config import DeviceConfig, ExternalResources
from fluence.schedule.external_resources.producer_gates import ProducerGates
from fluence.schedule.gangs.exclusions import Exclusions
from fluence.schedule.gangs.groups import Groups
from fluence.schedule.gangs.settling import Settling
from fluence.schedule.history import Journal
from fluence.schedule.intake import Intake
from fluence.schedule.lifecycle import Lifecycle
from fluence.schedule.planning import Planning
from fluence.schedule.pod_set import PodSets
from fluence.schedule.preemption.counts import EndedCounts
from fluence.schedule.preemption.preemption import Preemption
from fluence.schedule.queueing.placeholders import Placeholders
from fluence.schedule.queueing.releases import Releases, Releasing
from fluence.schedule.queueing.unheld import UnheldWork
from fluence.schedule.queues import ClusterQueues, UsageAt
from fluence.schedule.reconciliation import Reassessment, Reconciliation
from fluence.schedule.restart import Takeover
from fluence.schedule.status.reports import StatusReports
from fluence.schedule.status.warnings import Reminders, Warnings
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
