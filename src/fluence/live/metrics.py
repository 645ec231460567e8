"""Metrics for Prometheus, under kube-scheduler's names where they mean the same."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fluence.model.job_state import JobState
from fluence.model.reason import Code
from fluence.queue.promises import BREAKS, PromiseTally
from fluence.schedule.external_resources.producer_gates import GateOutcome
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
    JobState.GATHERING: "gathering",
    JobState.PREPARING: "binding",
    JobState.STARTING: "binding",
    JobState.RUNNING: "running",
}


_REFUSALS = (
    Code.UNKNOWN_QUEUE,
    Code.QUEUE_IS_INNER,
    Code.QUEUE_CLOSED,
    Code.LIMIT_ABOVE_QUEUE,
    Code.QUOTA_TOO_SMALL,
)


class Metrics:
    """One registry per scheduler, so that two schedulers in a process do not mix."""

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
        self.device_fault = Gauge(
            "fluence_resources_invalid",
            "1: the document that declares devices cannot be read; those declared before stay.",
            registry=self.registry,
        )
        limits = Counter(
            "fluence_limits_enforced",
            "Pods that were warned at their limit; Jobs and pods that were then ended, or could not be.",
            ("action",),
            registry=self.registry,
        )
        preemptions = Counter(
            "fluence_preemptions",
            "Pods that were ended for work of higher priority, or could not be.",
            ("action",),
            registry=self.registry,
        )
        self.preemptions = {action: preemptions.labels(action) for action in ("ended", "failed")}
        self.limits = {action: limits.labels(action) for action in ("warned", "ended", "refused", "failed")}
        gates = Counter(
            "fluence_gates_opened",
            "Pods that were released, by what became of the producer that they waited for.",
            ("outcome",),
            registry=self.registry,
        )
        self.gates = {outcome: gates.labels(outcome.value) for outcome in GateOutcome}
        self.leader = Gauge(
            "leader_election_master_status", "1: this replica leads.", ("name",), registry=self.registry
        )
        history = Counter(
            "fluence_history_entries",
            "Entries of the history, by what became of them.",
            ("result",),
            registry=self.registry,
        )
        self._history = {result: history.labels(result) for result in ("written", "lost")}
        self._history_up = Gauge(
            "fluence_history_up", "1: the history is written; 0: its database fails.", registry=self.registry
        )
        self._history_backlog = Gauge(
            "fluence_history_backlog", "Entries that wait to be written.", registry=self.registry
        )
        self._now = _Now(scheduler)
        self.registry.register(self._now)

    @property
    def fault_count(self) -> int:
        """The number of faults so far."""
        (family,) = self.faults.collect()
        return int(sum(sample.value for sample in family.samples if sample.name.endswith("_total")))

    def started(self, *, waits: bool) -> None:
        self.gang_attempts.labels("unschedulable" if waits else "scheduled", self._profile).inc()

    def history_written(self, count: int) -> None:
        self._history["written"].inc(count)

    def history_lost(self, count: int) -> None:
        self._history["lost"].inc(count)

    def history_is(self, *, up: bool, backlog: int) -> None:
        self._history_up.set(up)
        self._history_backlog.set(backlog)

    def refresh(self) -> None:
        """Update the figures of the scheduler's state. Call it only when nothing changes them meanwhile."""
        self._now.take()

    def text(self) -> bytes:
        """All metrics as text, with the figures of the last refresh; from any thread."""
        return generate_latest(self.registry)


def _promises(tally: PromiseTally) -> Iterator[Metric]:
    promises = CounterMetricFamily(
        "fluence_promises", "Starts that were promised, by what became of it.", labels=("result",)
    )
    promises.add_metric(("kept",), tally.kept)
    promises.add_metric(("broken",), tally.broken.total())
    yield promises
    broken = CounterMetricFamily("fluence_promises_broken", "Broken promises by cause.", labels=("cause",))
    for cause in BREAKS:
        broken.add_metric((cause.value,), tally.broken[cause])
    yield broken


class _Now(Collector):
    """Figures of the scheduler's state at the last refresh."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._pods = {"active": 0, "unschedulable": 0, "gated": 0}
        self._groups = {"gathering": 0, "queued": 0, "binding": 0, "running": 0}
        self._promises = PromiseTally()
        self._cycles = self._tries = 0
        self._quarantined: Counts[str] = Counts()
        self._refused: Counts[Code] = Counts()
        self._oldest: int | None = None

    def take(self) -> None:
        state = self._scheduler.state
        pods = dict.fromkeys(self._pods, 0)
        groups = dict.fromkeys(self._groups, 0)
        oldest: int | None = None
        refused: Counts[Code] = Counts()
        for pod_set in state.pod_sets.by_key.values():
            groups[_STATES.get(pod_set.state, "queued")] += 1
            if not pod_set.state.has_nodes:
                waits = pod_set.key in state.reports.said
                pods["unschedulable" if waits else "active"] += len(pod_set.pods)
                submit = pod_set.job.submit
                oldest = submit if oldest is None else min(oldest, submit)
            if pod_set.state is JobState.UNSCHEDULABLE and pod_set.story:
                refused[pod_set.story[-1].reason.code] += 1
        for gang in state.groups.gangs():
            pods["gated"] += len(gang.gated)
        self._pods, self._groups, self._oldest, self._refused = pods, groups, oldest, refused
        self._quarantined = Counts(subject.kind for subject in self._scheduler.quarantine.subjects())
        tally = state.queue.promises.tally
        self._promises = tally.copy()
        self._cycles, self._tries = state.queue.cycles, state.queue.tries

    def collect(self) -> Iterator[Metric]:
        pending = GaugeMetricFamily("scheduler_pending_pods", "Pods that wait.", labels=("queue",))
        for queue, count in self._pods.items():
            pending.add_metric((queue,), count)
        yield pending
        entities = GaugeMetricFamily(
            "scheduler_pending_entities", "Groups that wait, bind or run.", labels=("type", "state")
        )
        for phase, count in self._groups.items():
            entities.add_metric(("podgroup", phase), count)
        yield entities
        quarantined = GaugeMetricFamily(
            "fluence_quarantined",
            "Objects that are left out because they cannot be handled.",
            labels=("kind",),
        )
        for kind in {"group", "Pod", "Node", *self._quarantined}:
            quarantined.add_metric((kind,), self._quarantined[kind])
        yield quarantined
        refusals = GaugeMetricFamily(
            "fluence_refused_groups",
            "Groups that their queue refuses: it does not exist, takes no jobs itself, is closed to their "
            "namespace, or their time limit or request is above its maximum.",
            labels=("reason",),
        )
        for code in _REFUSALS:
            refusals.add_metric((code.value,), self._refused[code])
        yield refusals
        yield GaugeMetricFamily(
            "fluence_oldest_waiting_timestamp_seconds",
            "When the group that has waited longest was submitted; 0 if no group waits.",
            value=(self._oldest or 0) / 1000,
        )
        yield from _promises(self._promises)
        yield GaugeMetricFamily("scheduler_plan_cycles", "Cycles of the plan.", value=self._cycles)
        yield GaugeMetricFamily(
            "scheduler_plan_tries", "Placements that the plan has tried.", value=self._tries
        )
