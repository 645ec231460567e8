"""A queue and its cluster as one JSON document: what runs, on what, and what waits.

`fluence simulate --snapshot` writes one; `fluence whatif` reads it.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from fluence.errors import InvalidInput
from fluence.graph.graph import ResourceGraph
from fluence.graph.selection import Selection
from fluence.match.extensions import Extensions
from fluence.match.matcher import HORIZON, Matcher
from fluence.match.placement import Placed
from fluence.model.jobspec import Jobspec
from fluence.queue.graphspace import GraphSpace
from fluence.queue.job import SECOND, Dependency, Entry, Job
from fluence.queue.policy import find
from fluence.queue.poolspace import PoolSpace, counted
from fluence.queue.queue import Queue

VERSION = 1


class SavedTask(msgspec.Struct, frozen=True):
    """A task that runs, and what it holds: path of a vertex, amount, whether for itself."""

    start: int
    end: int
    holds: list[tuple[str, int, bool]]


class SavedJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job that waits or runs. Times are milliseconds."""

    key: str
    jobspec: dict[str, Any]
    submit: int
    limit: int | None = None
    soft_limit: int | None = None
    user: str = ""
    name: str = ""
    queue: str = ""
    priority: int = 16
    after: list[tuple[str, str]] = []
    tasks: int = 1
    waiting: list[int] = []  # of a job that has started: the tasks that have not
    no_later_than: int | None = None
    running: dict[str, SavedTask] = {}


class Snapshot(msgspec.Struct, frozen=True):
    """All of it, at one moment."""

    version: int
    now: int
    policy: str
    match_policy: str
    pools: list[str]
    jobs: list[SavedJob]
    graph: msgspec.Raw


def save(queue: Queue, matcher: Matcher) -> bytes:
    """The document of a queue that plans on a matcher."""
    jobs = [_saved(entry, queue, matcher) for entry in queue.entries.values() if not entry.state.is_over]
    return msgspec.json.encode(
        Snapshot(
            version=VERSION,
            now=queue.now,
            policy=queue.policy.name,
            match_policy=matcher.policy.name,
            pools=sorted(matcher.extensions.quantities),
            jobs=jobs,
            graph=msgspec.Raw(matcher.graph.render("jgf").encode()),
        )
    )


def restore(text: bytes, *, source: str = "snapshot", policy: str | None = None) -> Queue:
    """The queue of a document, as it was."""
    try:
        saved = msgspec.json.decode(text, type=Snapshot)
    except (msgspec.DecodeError, UnicodeDecodeError) as fault:
        raise InvalidInput(
            f"is no snapshot: {fault}; make one with fluence simulate --snapshot", where=source
        ) from None
    if saved.version != VERSION:
        raise InvalidInput(f"has version {saved.version}; this program reads {VERSION}", where=source)
    graph = ResourceGraph.parse(bytes(saved.graph), "jgf", source=source)
    matcher = Matcher(
        graph,
        saved.match_policy,
        horizon=HORIZON * SECOND,
        extensions=Extensions(quantities=frozenset(saved.pools)),
    )
    specs: dict[bytes, Jobspec] = {}
    jobs = [(_job(each, specs, source), each) for each in saved.jobs]
    space = _space(matcher, [job for job, _ in jobs], saved.now)
    queue = Queue(space, find(policy or saved.policy), now=saved.now)
    number = 0
    for job, each in jobs:
        for task, held in each.running.items():
            number += 1
            _hold(matcher, number, held, source)
            space.adopt(task, number, job.request, held.end, saved.now)
        spans = {task: (held.start, held.end) for task, held in each.running.items()}
        queue.resume(job, spans, each.waiting, saved.now)
        entry = queue.entries[job.key]
        entry.no_later_than = entry.promised = each.no_later_than
    return queue


def _space(matcher: Matcher, jobs: list[Job], now: int) -> PoolSpace | GraphSpace:
    specs = {id(job.request): job.request for job in jobs if isinstance(job.request, Jobspec)}.values()
    kinds = {counted(matcher, matcher.compile(spec)) for spec in specs}
    units = {kind[0] for kind in kinds if kind is not None}
    if len(units) == 1 and None not in kinds:
        return PoolSpace(matcher, units.pop(), now)
    return GraphSpace(matcher)


def _saved(entry: Entry, queue: Queue, matcher: Matcher) -> SavedJob:
    job = entry.job
    assert isinstance(job.request, Jobspec)
    running = {}
    space = queue.space
    assert isinstance(space, PoolSpace | GraphSpace)
    for task, start in entry.running.items():
        number, end = space.holding(task)
        spans = matcher.ledger.job(number).spans
        ledger, graph = matcher.ledger, matcher.graph
        running[task] = SavedTask(
            start,
            end,
            [
                (graph.path(vertex) or "", needs, alone)
                for vertex, needs, alone in zip(
                    ledger.vertex[spans].tolist(),
                    ledger.needs[spans].tolist(),
                    ledger.exclusive[spans].tolist(),
                    strict=True,
                )
            ],
        )
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
        after=[(each.kind, each.job) for each in job.after],
        tasks=job.tasks,
        waiting=[*reversed(entry.again), *range(entry.fresh, job.tasks)] if running else [],
        no_later_than=entry.no_later_than,
        running=running,
    )


def _job(saved: SavedJob, specs: dict[bytes, Jobspec], source: str) -> Job:
    text = msgspec.json.encode(saved.jobspec)
    if text not in specs:
        specs[text] = Jobspec.parse(text.decode(), source=f"{source}: job {saved.key}")
    return Job(
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
    matcher.hold(Placed(number, held.start, held.end, False, selection), now=held.start)
