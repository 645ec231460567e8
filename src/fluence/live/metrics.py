"""Metrics: what Prometheus may ask, under kube-scheduler's names where they mean the same."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fluence.queue import Phase
from fluence.schedule.scheduler import Scheduler

_SECONDS = (0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.0, 4.0, 8.0, 16.0)
_LONG = (
    0.01,
    0.02,
    0.04,
    0.08,
    0.16,
    0.32,
    0.64,
    1.28,
    2.56,
    5.12,
    10.24,
    20.48,
    40.96,
    81.92,
    163.84,
    600.0,
)


_STATES = {
    Phase.GATHERING: "gathering",
    Phase.PREPARING: "binding",
    Phase.BINDING: "binding",
    Phase.RUNNING: "running",
}


class Metrics:
    """One registry per scheduler, so that two in a process do not mix."""

    def __init__(self, scheduler: Scheduler, *, profile: str) -> None:
        self.registry = CollectorRegistry()
        self._profile = profile
        attempts = Counter(
            "scheduler_schedule_attempts",  # Prometheus adds _total
            "Attempts to bind pods, by result.",
            ("result", "profile"),
            registry=self.registry,
        )
        self.attempts = {
            result: attempts.labels(result, profile) for result in ("scheduled", "unschedulable", "error")
        }
        self.gang_attempts = Counter(
            "scheduler_podgroup_schedule_attempts",
            "Groups that started, or were told why they wait.",
            ("result", "profile"),
            registry=self.registry,
        )
        self.sli = Histogram(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "From a pod's creation to its binding.",
            buckets=_LONG,
            registry=self.registry,
        )
        self.cycle = Histogram(
            "scheduler_scheduling_algorithm_duration_seconds",
            "One cycle: what changed, the plan, the seats.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.bind = Histogram(
            "scheduler_binding_duration_seconds",
            "From the decision to the server's answer.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.faults = Counter(
            "fluence_faults",
            "Objects and plug-ins that could not be handled, by kind.",
            ("kind",),
            registry=self.registry,
        )
        self.leader = Gauge(
            "leader_election_master_status", "1: this replica leads.", ("name",), registry=self.registry
        )
        self.registry.register(_Now(scheduler))

    @property
    def fault_count(self) -> int:
        """How often something could not be handled."""
        (family,) = self.faults.collect()
        return int(sum(each.value for each in family.samples if each.name.endswith("_total")))

    def started(self, *, waits: bool) -> None:
        self.gang_attempts.labels("unschedulable" if waits else "scheduled", self._profile).inc()

    def text(self) -> bytes:
        return generate_latest(self.registry)


class _Now(Collector):
    """Numbers that are read when they are asked for."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def collect(self) -> Iterator[Metric]:
        state = self._scheduler.state
        pods = {"active": 0, "unschedulable": 0, "gated": 0}
        groups = {"gathering": 0, "queued": 0, "binding": 0, "running": 0}
        for pod_set in state.pod_sets.by_key.values():
            groups[_STATES.get(pod_set.phase, "queued")] += 1
            if not pod_set.phase.holds:
                waits = pod_set.key in state.reports.said
                pods["unschedulable" if waits else "active"] += len(pod_set.pods)
        for gang in state.groups.gangs():
            pods["gated"] += len(gang.gated)
        pending = GaugeMetricFamily("scheduler_pending_pods", "Pods that wait.", labels=("queue",))
        for queue, count in pods.items():
            pending.add_metric((queue,), count)
        yield pending
        entities = GaugeMetricFamily(
            "scheduler_pending_entities", "Groups that wait, bind or run.", labels=("type", "state")
        )
        for phase, count in groups.items():
            entities.add_metric(("podgroup", phase), count)
        yield entities
        yield GaugeMetricFamily("scheduler_plan_cycles", "Cycles of the plan.", value=state.queue.cycles)
        yield GaugeMetricFamily(
            "scheduler_plan_tries", "Placements that the plan has tried.", value=state.queue.tries
        )
