"""Simulator: drives the live scheduler's queue and the matcher over a workload on a cluster, with a clock
that jumps.

Decisions are made when jobs arrive, end, or are due by the plan. A job runs as long as its record says, and
is ended at its limit.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from pathlib import Path

from fluence.errors import InvalidGraph, InvalidInput
from fluence.graph import files
from fluence.graph.graph import CONTAINMENT, Batch, ResourceGraph
from fluence.match.matcher import HORIZON, Matcher
from fluence.match.policy import MatchPolicy
from fluence.match.request import NONE, Extensions
from fluence.messages import text
from fluence.model.job_state import JobState
from fluence.model.queues import QueueTree
from fluence.queue import Dependency, JobRecord, PoolPlanner, Queue, Start, Submission, history, planner_for
from fluence.queue.fair_share import HALF_LIFE
from fluence.queue.history import Predictor
from fluence.queue.job import SECOND
from fluence.queue.policy import QueuePolicy
from fluence.queue.rules import Priority, find_priority
from fluence.sim.intake import TraceJob, TraceWorkload
from fluence.sim.measure import Record
from fluence.sim.workload import OPENB_EXTENSIONS, is_openb_nodes, openb_nodes

_SHORTHAND = re.compile(r"\s*([0-9]{1,9})\s*[xX×*]\s*([0-9]{1,9})\s*(?:[xX×*]\s*([0-9]{1,9})\s*)?")
_MAX_VERTICES = 20_000_000  # vertices, about 4 GB
_UNITS = ("core", "cpu", "node")


@dataclass(frozen=True, slots=True)
class Platform:
    """A cluster, ready to be simulated on."""

    graph: ResourceGraph
    source: str
    extensions: Extensions
    unit: str
    """The type that jobs and the cluster are measured in."""
    capacity: int
    """The number of units."""
    nodes: int

    @property
    def node_size(self) -> int:
        """Units of a node, in the middle where nodes differ."""
        return max(1, self.capacity // self.nodes) if self.nodes else 1


def read(cluster: str | Path, *, unit: str | None = None) -> Platform:
    """The cluster that a file or shorthand describes.

    *cluster* is `nodes×cores` or `nodes×cores×gpus`, such as 240x1 or 100x32x4; a graph in a file (JGF, GRUG,
    R, hwloc); or the CSV of the nodes of openb. Without a *unit*, cores are counted, else cpu, else nodes.
    """
    source = str(cluster)
    shorthand = _SHORTHAND.fullmatch(source)
    if shorthand is not None:
        nodes, cores, gpus = (int(number or 0) for number in shorthand.groups())
        return _platform(_graph(regular(nodes, cores, gpus), source), source, NONE, unit)
    try:
        text = Path(cluster).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no name of a file"
        cure = "give a file, or nodes×cores such as 240x1 or 100x32x4 (with gpus)"
        raise InvalidGraph(f"cannot be read ({reason}): {cure}", where=source) from None
    if is_openb_nodes(text):
        graph = _graph(openb_nodes(text, source=source), source)
        return _platform(graph, source, OPENB_EXTENSIONS, unit)
    return _platform(files.graph_of(text, None, source=source), source, NONE, unit)


def of(graph: ResourceGraph) -> Platform:
    """A graph as a cluster to simulate on."""
    return _platform(graph, "graph", NONE, None)


def regular(nodes: int, cores: int, gpus: int = 0) -> Batch:
    """Equal nodes below one cluster, ranked from 0."""
    if nodes < 1 or cores < 1:
        raise InvalidInput(f"a cluster needs a node and a core at least, not {nodes}×{cores}")
    vertices = 1 + nodes * (1 + cores + gpus)
    if vertices > _MAX_VERTICES:
        raise InvalidInput(
            f"{nodes}×{cores}×{gpus} are {vertices} vertices: at most {_MAX_VERTICES} can be held"
        )
    batch = Batch()
    number = count()
    root = batch.roots[CONTAINMENT] = batch.vertex("cluster", id=0, uniq_id=next(number))
    for rank in range(nodes):
        node = batch.vertex("node", id=rank, uniq_id=next(number), rank=rank)
        batch.edge(root, node)
        for type_, amount in (("core", cores), ("gpu", gpus)):
            for i in range(amount):
                batch.edge(node, batch.vertex(type_, id=i, uniq_id=next(number), rank=rank))
    return batch


def capacity(graph: ResourceGraph, unit: str) -> int:
    """How many of a type a graph has, the parts of pools counted one by one."""
    code = graph.types.find(unit)
    return 0 if code is None else int(graph.size[(graph.type == code) & graph.alive].sum())


def _platform(graph: ResourceGraph, source: str, extensions: Extensions, unit: str | None) -> Platform:
    counted = unit or next((word for word in _UNITS if capacity(graph, word)), None)
    if counted is None or not capacity(graph, counted):
        kinds = sorted({graph.types.words[code] for code in set(graph.type.tolist())})
        wanted = counted or " or ".join(_UNITS)
        raise InvalidGraph(f"has no {wanted} to count: name as unit one of {', '.join(kinds)}", where=source)
    return Platform(graph, source, extensions, counted, capacity(graph, counted), capacity(graph, "node"))


def _graph(batch: Batch, source: str) -> ResourceGraph:
    graph = ResourceGraph()
    graph.extend(batch)
    return graph


_END, _ARRIVE = 0, 1  # at the same time, ends come before arrivals


@dataclass(slots=True)
class Simulation:
    """The result of a run, complete or interrupted."""

    queue: Queue
    matcher: Matcher
    records: list[Record] = field(default_factory=list)
    now: int = 0
    wall_s: float = 0.0
    decisions: int = 0  # placements tried
    interrupted: bool = False
    stopped_at: int | None = None
    """ms at which the run was cut short; None: it came to its end."""
    plugin_faults: Counter[str] = field(default_factory=Counter)
    """What plug-ins did wrong, and how often."""

    @property
    def decisions_per_s(self) -> float:
        return self.decisions / self.wall_s if self.wall_s else 0.0


def simulate(
    workload: TraceWorkload,
    platform: Platform,
    *,
    policy: str | QueuePolicy = "easy",
    match_policy: str | MatchPolicy = "first",
    depth: int | None = None,
    window: int | None = None,
    resolution: int = 1,
    replan: bool = False,
    forecasts: bool = True,
    priority: str | Priority = "urgency",
    predictor: str | Predictor = "history",
    queues: QueueTree | None = None,
    half_life: int = HALF_LIFE,
    promises: int | None = None,
    until: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Simulation:
    """Run a workload to its end; Ctrl-C ends it early, with the results so far."""
    matcher = Matcher(platform.graph, match_policy, extensions=platform.extensions, horizon=HORIZON * SECOND)
    first = workload.submissions[0].jobspec if workload.submissions else None
    queue = Queue(
        planner_for(matcher, first, names_late=True),
        policy,
        depth=depth,
        window=window,
        resolution=resolution,
        replan=replan,
        forecasts=forecasts,
        priority=find_priority(priority) if isinstance(priority, str) else priority,
        predictor=history.find(predictor) if isinstance(predictor, str) else predictor,
        queues=queues,
        half_life=half_life,
        promises=promises,
        timer=time.perf_counter,
    )
    if queues is not None:
        check_resources(queues, queue.planner.capacities())
    run = Simulation(queue, matcher)
    began = time.perf_counter()
    try:
        _run(run, workload, until, progress)
    except KeyboardInterrupt:
        run.interrupted, run.stopped_at = True, run.now
    if isinstance(queue.planner, PoolPlanner) and run.stopped_at is not None and not run.interrupted:
        queue.planner.name()  # the run was stopped: pictures and snapshots show where tasks run
    run.wall_s = time.perf_counter() - began
    run.decisions = queue.tries
    run.records = [_record(s, queue.records.get(s.name), queue) for s in workload.submissions]
    return run


def check_resources(queues: QueueTree, capacities: Mapping[str, int]) -> None:
    """A limit on something that the cluster does not have is a mistake."""
    for name, queue in queues.queues.items():
        for field_name, amounts in (
            ("guaranteed", queue.guaranteed),
            ("limit", queue.limit),
            ("perUser", queue.per_user.amounts),
        ):
            for resource in amounts:
                if resource.node_class:
                    message = "classes of nodes are not counted in simulations: remove the part from @ on"
                elif resource.name not in capacities:
                    message = f"this cluster has no {resource.name}: use {', '.join(sorted(capacities))}"
                else:
                    continue
                raise InvalidInput(message, where=f"queue {name}: spec.{field_name}.{resource}")


def _run(
    run: Simulation, workload: TraceWorkload, until: int | None, progress: Callable[[int], None] | None
) -> None:
    queue = run.queue
    tasks = {submission.name: submission for submission in workload.submissions}
    events: list[tuple[int, int, int, TraceJob | Start]] = []
    for serial, submission in enumerate(workload.submissions):
        heappush(events, (submission.submit, _ARRIVE, serial, submission))
    serial = len(events)
    while True:
        due = queue.next_due()
        if not events and due is None:
            return
        now = events[0][0] if events else due
        assert now is not None
        if due is not None and run.now < due < now:
            now = due
        if until is not None and now > until:
            run.stopped_at = until
            return
        run.now = now
        while events and events[0][0] == now:
            what = heappop(events)[3]
            if isinstance(what, Start):
                queue.finish(
                    what.task,
                    now,
                    outcome=JobState.COMPLETED if tasks[what.record.key].succeeds else JobState.FAILED,
                )
                if progress is not None:
                    progress(1)
            else:
                queue.submit(_job(what))
        for start in queue.cycle(now):
            queue.running(start.task, now)
            runtime = tasks[start.record.key].runtime
            heappush(events, (min(now + runtime, start.end), _END, serial, start))
            serial += 1
        run.plugin_faults.update(fault.summary for fault in queue.take_faults())


def _job(submission: TraceJob) -> Submission:
    return Submission(
        key=submission.name,
        request=submission.jobspec,
        submit=submission.submit,
        limit=submission.limit,
        soft_limit=submission.soft_limit,
        user=submission.user,
        # NB no name: those of a workload are unique, so that a singleton waits for all jobs of its user.
        queue=submission.queue,
        priority=submission.priority,
        after=tuple(Dependency(kind, job) for kind, job in submission.after),
        tasks=submission.tasks,
    )


def _record(submission: TraceJob, entry: JobRecord | None, queue: Queue) -> Record:
    return Record(
        name=submission.name,
        user=submission.user,
        queue=entry.job.queue if entry else submission.queue,
        size=submission.size,
        submit=submission.submit,
        start=entry.started if entry else None,
        end=entry.ended if entry and entry.started is not None else None,
        runtime=submission.runtime,
        limit=submission.limit,
        no_later_than=entry.promised if entry else None,
        expected=entry.first_expected if entry else None,
        backfilled=entry.backfilled if entry else False,
        state=(entry.state if entry else JobState.PENDING).value,
        broken=text(entry.broken[0].cause) if entry and entry.broken else "",
    )
