"""A queue and its cluster as one JSON document: running jobs with their resources, and waiting jobs.

`fluence simulate --snapshot` writes one; `fluence whatif` reads it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from fluence import plugin_loader
from fluence.errors import InvalidInput
from fluence.graph.graph import ResourceGraph
from fluence.graph.selection import Selection
from fluence.match.matcher import HORIZON, Matcher
from fluence.match.request import Extensions, Placed
from fluence.model.jobspec import Jobspec
from fluence.queue.graph_planner import GraphPlanner
from fluence.queue.history import find as find_predictor
from fluence.queue.job import SECOND, Dependency, JobRecord, Submission
from fluence.queue.policy import find
from fluence.queue.pool_planner import PoolPlanner
from fluence.queue.queue import Queue
from fluence.queue.rules import find_priority

VERSION = 1

Time = Annotated[int, Meta(ge=0, le=2**61)]  # ms
Amount = Annotated[int, Meta(ge=0, le=2**61)]
Length = Annotated[int, Meta(ge=1, le=2**61)]  # ms
Number = Annotated[int, Meta(ge=0, le=2**31)]


class SavedTask(msgspec.Struct, frozen=True):
    """A running task and its resources: path of a vertex, amount, whether exclusive."""

    start: Time
    end: Time
    holds: list[tuple[str, Amount, bool]]


class SavedJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that waits or runs. Times are milliseconds."""

    key: str
    jobspec: dict[str, Any]
    submit: Time
    limit: Length | None = None
    soft_limit: Length | None = None
    user: str = ""
    name: str = ""
    queue: str = ""
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31)] = 16
    after: list[tuple[str, str]] = []
    tasks: Annotated[int, Meta(ge=1, le=2**31)] = 1
    waiting: list[Number] | None = None  # of a started job: the tasks that have not started
    no_later_than: Time | None = None
    deadline: Time | None = None
    running: dict[str, SavedTask] = {}
    reserved: dict[str, SavedTask] = {}  # its reservation; without resources if the plan uses counts


class SavedRun(msgspec.Struct, frozen=True, omit_defaults=True):
    """The run time of a task that has ended, for predictions."""

    spec: Number
    runtime: Time
    user: str = ""
    limit: Length | None = None


class Snapshot(msgspec.Struct, frozen=True):
    """The queue, its jobs and the graph at one moment."""

    version: int
    now: Time
    policy: str
    match_policy: str
    pools: list[str]
    jobs: list[SavedJob]
    graph: msgspec.Raw
    unit: str | None = None  # the type that is counted; None: requests are matched
    depth: Number | None = None
    window: Time | None = None
    resolution: Length = 1
    calibration: Annotated[float, Meta(ge=0, le=1e6)] = 1.0
    priority: str = "urgency"
    predictor: str = "history"
    specs: list[dict[str, Any]] = []
    runs: list[SavedRun] = []


def save(queue: Queue, matcher: Matcher, *, priority: str = "urgency", predictor: str = "history") -> bytes:
    """The document of a queue that plans on a matcher. It names the priority and the predictor."""
    jobs = [
        _saved(record, queue, matcher) for record in queue.records.values() if not record.state.leaves_queue
    ]
    planner = queue.planner
    specs: dict[Hashable, int] = {}
    runs = [
        SavedRun(specs.setdefault(job.request, len(specs)), runtime, job.user, job.limit)
        for job, runtime in queue.runs
    ]
    return msgspec.json.encode(
        Snapshot(
            version=VERSION,
            now=queue.now,
            policy=queue.policy.name,
            match_policy=matcher.policy.name,
            pools=sorted(matcher.extensions.quantities),
            jobs=jobs,
            graph=msgspec.Raw(matcher.graph.render("jgf").encode()),
            unit=matcher.graph.types.words[planner.unit] if isinstance(planner, PoolPlanner) else None,
            depth=queue.depth,
            window=queue.window,
            resolution=queue.resolution,
            calibration=queue.promises.calibration.place,
            priority=priority,
            predictor=predictor,
            specs=[spec.to_value() for spec in specs if isinstance(spec, Jobspec)],
            runs=runs,
        )
    )


def restore(text: bytes, *, source: str = "snapshot", policy: str | None = None) -> Queue:
    """Restore the queue of a document."""
    try:
        saved = msgspec.json.decode(text, type=Snapshot)
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise InvalidInput(
            f"is not a valid snapshot: {fault}; make one with fluence simulate --snapshot", where=source
        ) from None
    if saved.version != VERSION:
        raise InvalidInput(f"has version {saved.version}; this program reads {VERSION}", where=source)
    _check(saved, source)
    _check_plugins(saved, policy, source)
    graph = ResourceGraph.parse(bytes(saved.graph), "jgf", source=source)
    matcher = Matcher(
        graph,
        saved.match_policy,
        horizon=HORIZON * SECOND,
        extensions=Extensions(quantities=frozenset(saved.pools)),
    )
    specs: dict[bytes, Jobspec] = {}
    jobs = [(_job(each, specs, source), each) for each in saved.jobs]
    planner = _planner(matcher, saved.unit, [job for job, _ in jobs], saved.now)
    queue = Queue(
        planner,
        find(policy or saved.policy),
        priority=find_priority(saved.priority),
        predictor=find_predictor(saved.predictor),
        now=saved.now,
        depth=saved.depth,
        window=saved.window,
        resolution=saved.resolution,
    )
    queue.promises.calibration.place = saved.calibration
    _learn(queue, saved, source)
    number = 0
    for job, each in jobs:
        spans = {}
        for task, held in each.running.items():
            number += 1
            _hold(matcher, number, held, source)
            spans[task] = planner.adopt(task, number, job.request, held.start, held.end, saved.now)
        queue.resume(job, spans, each.waiting, saved.now)
        record = queue.records[job.key]
        record.no_later_than = record.promised = each.no_later_than
        record.told, record.deadline = saved.now, each.deadline
    if policy is None or policy == saved.policy:
        for job, each in jobs:
            for task, held in each.reserved.items():
                number += 1
                placed = _placed(matcher, number, held, source, reserved=True)
                queue.resume_reservation(job.key, planner.adopt_reservation(task, job.request, placed))
    return queue


def _check_plugins(saved: Snapshot, policy: str | None, source: str) -> None:
    """A snapshot is data: opening it must not import code that only the snapshot names."""
    for name in (policy or saved.policy, saved.match_policy, saved.priority, saved.predictor):
        if not plugin_loader.is_allowed(name):
            raise InvalidInput(f"uses the plug-in {name}: allow it with --plugin {name}", where=source)


def _learn(queue: Queue, saved: Snapshot, source: str) -> None:
    specs = [Jobspec.parse(msgspec.json.encode(spec).decode(), source=source) for spec in saved.specs]
    for run in saved.runs:
        if not 0 <= run.spec < len(specs):
            raise InvalidInput(f"a run is of spec {run.spec}; there are {len(specs)}", where=source)
        request = specs[run.spec]
        if queue.planner.understands(request):
            job = Submission("", request, 0, limit=run.limit, user=run.user)
            queue.learn(job, queue.planner.shape(request), run.runtime)


def _check(saved: Snapshot, source: str) -> None:
    """Check what holds for every queue. The parsers of the parts find all other errors."""
    seen: set[str] = set()
    for job in saved.jobs:
        waiting = set(job.waiting or ())
        if len(waiting) < len(job.waiting or ()) or max(waiting, default=0) >= job.tasks:
            raise InvalidInput(f"has {job.tasks} tasks; {job.waiting} wait", where=f"{source}: job {job.key}")
        if len(job.reserved) > 1 or (job.reserved and job.waiting == []):
            raise InvalidInput("has too many places in the plan", where=f"{source}: job {job.key}")
        for held in (job.running, job.reserved):
            for task, span in held.items():
                where, number = f"{source}: task {task}", _number(job, task)
                runs = held is job.running
                if number is None or (runs and (job.waiting is None or number in waiting or task in seen)):
                    raise InvalidInput(f"is no task of job {job.key} that could run", where=where)
                if span.end <= span.start:
                    raise InvalidInput(f"ends at {span.end}, and starts at {span.start}", where=where)
        seen.update(job.running)


def _number(job: SavedJob, task: str) -> int | None:
    """The number of a task of a job; None: it is not a task of this job."""
    if job.tasks == 1:
        return 0 if task == job.key else None
    digits = task.removeprefix(f"{job.key}[").removesuffix("]")
    if not digits.isdecimal() or task != f"{job.key}[{digits}]" or len(digits) > 10:
        return None
    return int(digits) if int(digits) < job.tasks else None


def _planner(
    matcher: Matcher, unit: str | None, jobs: list[Submission], now: int
) -> PoolPlanner | GraphPlanner:
    if unit is not None:
        planner = PoolPlanner(matcher, unit, now)
        if all(planner.understands(job.request) for job in jobs):
            return planner
    return GraphPlanner(matcher)


def _saved(record: JobRecord, queue: Queue, matcher: Matcher) -> SavedJob:
    job = record.job
    assert isinstance(job.request, Jobspec)
    running = {
        task: SavedTask(held.start, held.end, _held(matcher, held.number))
        for task, held in record.running.items()
    }
    reserved = {}
    if (held := record.reservation) is not None:
        holds = [] if held.number < 0 else _held(matcher, held.number)
        reserved[held.task] = SavedTask(held.start, held.end, holds)
    known = ((each.job, queue.records.get(each.job)) for each in job.after if each.job)
    over = {key for key, other in known if other is None or other.state.leaves_queue}
    return SavedJob(
        key=job.key,
        jobspec=job.request.to_value(),
        submit=job.submit,
        limit=job.limit,
        soft_limit=job.soft_limit,
        user=job.user,
        name=job.name,
        queue=job.queue,
        priority=job.priority,
        after=[(each.kind, each.job) for each in job.after if each.job not in over],
        tasks=job.tasks,
        waiting=[*reversed(record.again), *range(record.fresh, job.tasks)] if record.fresh else None,
        no_later_than=record.no_later_than,
        deadline=record.deadline,
        running=running,
        reserved=reserved,
    )


def _held(matcher: Matcher, number: int) -> list[tuple[str, int, bool]]:
    ledger, graph = matcher.ledger, matcher.graph
    spans = ledger.job(number).spans
    columns = (ledger.vertex[spans].tolist(), ledger.needs[spans].tolist(), ledger.exclusive[spans].tolist())
    return [(graph.path(vertex) or "", needs, alone) for vertex, needs, alone in zip(*columns, strict=True)]


def _job(saved: SavedJob, specs: dict[bytes, Jobspec], source: str) -> Submission:
    text = msgspec.json.encode(saved.jobspec)
    if text not in specs:
        specs[text] = Jobspec.parse(text.decode(), source=f"{source}: job {saved.key}")
    return Submission(
        key=saved.key,
        request=specs[text],
        submit=saved.submit,
        limit=saved.limit,
        soft_limit=saved.soft_limit,
        user=saved.user,
        name=saved.name,
        queue=saved.queue,
        priority=saved.priority,
        after=tuple(Dependency(kind, job) for kind, job in saved.after),
        tasks=saved.tasks,
    )


def _hold(matcher: Matcher, number: int, held: SavedTask, source: str) -> None:
    matcher.hold(_placed(matcher, number, held, source, reserved=False), now=held.start)


def _placed(matcher: Matcher, number: int, held: SavedTask, source: str, *, reserved: bool) -> Placed:
    rows = []
    for path, _, _ in held.holds:
        found = matcher.graph.vertices_at(path)
        if not found:
            raise InvalidInput(f"a task holds {path}, which the graph does not have", where=source)
        rows.append(found[0])
    selection = Selection.of(
        matcher.tree.shape(),
        np.array(rows, np.int32),
        np.array([needs for _, needs, _ in held.holds], np.int64),
        np.array([alone for _, _, alone in held.holds], np.bool_),
    )
    return Placed(number, held.start, held.end, reserved, selection)
