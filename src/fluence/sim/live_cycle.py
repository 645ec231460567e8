"""Drive the live scheduler's cycle over manifests: the gang placer and Kubernetes' rules, a clock that jumps.

The same `Scheduler` as in a cluster decides, with the same settings; see `EmbeddedCluster` for what stands in
for the API server, the controllers and the nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from fluence.errors import InvalidInput
from fluence.model.node import Node
from fluence.model.pod import Pod
from fluence.model.resources import pod_requests
from fluence.schedule.settings import SchedulerSettings
from fluence.sim.cluster import EmbeddedCluster, EmbeddedJob, Json, run_seconds
from fluence.sim.manifests import ManifestWorkload
from fluence.sim.measure import Record

UNIT = "cpu"
"""What sizes are counted in: thousandths of a core."""


@dataclass(slots=True)
class CycleSimulation:
    """What came of a run, whole or cut short."""

    cluster: EmbeddedCluster
    capacity: int
    records: list[Record] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    """Why jobs that have not started wait, as their pods are told."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    now: int = 0
    wall_s: float = 0.0
    interrupted: bool = False
    stopped_at: int | None = None
    """ms at which the run was cut short; None: it came to its end."""

    @property
    def decisions_per_s(self) -> float:
        return self.cluster.placements_tried / self.wall_s if self.wall_s else 0.0


def simulate(
    workload: ManifestWorkload,
    nodes: Iterable[Json],
    *,
    settings: SchedulerSettings | None = None,
    unit: str = UNIT,
    until: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> CycleSimulation:
    """Apply every object as it arrives, and let time pass until nothing more can happen.

    Ctrl-C ends a run earlier, with what is known by then. A pod that never ends by itself, such as one of a
    Deployment, holds its place to the end of the run.
    """
    cluster = EmbeddedCluster(nodes, settings=settings)
    run = CycleSimulation(cluster, _capacity(cluster.nodes, unit))
    began, submitted = cluster.now, _Submissions(cluster)
    started = time.perf_counter()
    try:
        _run(run, workload, until, began, progress)
    except KeyboardInterrupt:
        run.interrupted, run.stopped_at = True, run.now
    run.wall_s = time.perf_counter() - started
    run.skipped = {**workload.skipped, **submitted.foreign()}
    for job in cluster.jobs():
        run.records.append(_record(job, submitted.of(job.pods), began, unit))
        if job.started is None and job.reason:
            run.reasons[job.key] = job.reason
    return run


class _Submissions:
    """When each pod was created."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster
        self._at: dict[str, int] = {}
        cluster.on_pod(self._note)

    def _note(self, old: Pod | None, new: Pod | None) -> None:
        if old is None and new is not None:
            self._at[new.key] = self._cluster.now

    def of(self, pods: Iterable[Pod]) -> int:
        return min(self._at[pod.key] for pod in pods)

    def foreign(self) -> dict[str, int]:
        """Pods that another scheduler is asked to place."""
        ours = self._cluster.scheduler_name
        others = [pod for pod in self._cluster.pods.values() if pod.spec.scheduler_name != ours]
        return {f"pods without schedulerName: {ours}": len(others)} if others else {}


def _run(
    run: CycleSimulation,
    workload: ManifestWorkload,
    until: int | None,
    began: int,
    progress: Callable[[int], None] | None,
) -> None:
    cluster, coming = run.cluster, list(reversed(workload.arrivals))
    while True:
        following = cluster.next_time()
        times = [] if following is None else [following - began]
        if coming:
            times.append(coming[-1].at)
        if not times:
            return
        at = min(times)
        if until is not None and at > until:
            run.now = run.stopped_at = until
            return
        run.now = at
        cluster.advance(began + at)
        arrived = 0
        while coming and coming[-1].at <= at:
            cluster.apply(coming.pop().document)
            arrived += 1
        cluster.settle()
        if progress is not None:
            progress(arrived)


def _record(job: EmbeddedJob, submit: int, began: int, unit: str) -> Record:
    def after(at: int | None) -> int | None:
        return None if at is None else at - began

    lengths = [length for pod in job.pods if (length := run_seconds(pod)) is not None]
    return Record(
        name=job.key,
        user=job.user,
        queue=job.queue,
        size=sum(pod_requests(pod).get(unit, 0) for pod in job.pods),
        submit=submit - began,
        start=after(job.started),
        end=after(job.ended) if job.started is not None else None,
        runtime=round(max(lengths, default=0.0) * 1000),
        limit=job.limit,
        no_later_than=after(job.promised),
        expected=after(job.expected),
        backfilled=job.backfilled,
        state=job.state,
        broken=job.broken,
    )


def _capacity(nodes: Iterable[Node], unit: str) -> int:
    sizes = [node.allocatable() for node in nodes]
    found = sum(size.get(unit, 0) for size in sizes)
    if not found:
        kinds = sorted({name for size in sizes for name, amount in size.items() if amount})
        told = f"name as --unit one of {', '.join(kinds)}" if kinds else "give one at least"
        raise InvalidInput(f"the nodes have no {unit} to count: {told}", where="--nodes")
    return found
