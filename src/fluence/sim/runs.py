"""Runs: simulate a workload on a cluster from Python, as `fluence simulate --trace` does it. Public API.

run = fluence.simulate("log.swf", "240x1", queue_policy="conservative")
run.measures.wait.mean
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fluence import plugin_loader
from fluence.errors import InvalidInput
from fluence.graph.graph import ResourceGraph
from fluence.match.policy import MatchPolicy
from fluence.queue.history import Predictor
from fluence.queue.job import SECOND
from fluence.queue.policy import QueuePolicy
from fluence.queue.rules import Priority
from fluence.queue.scheduling_pass import SchedulingPass
from fluence.sim import simulator, workload
from fluence.sim import simulator as platforms
from fluence.sim.intake import IntakeTerms, left_out
from fluence.sim.measure import Run
from fluence.sim.simulator import Platform

_SOURCE = "jobs"  # what errors call a list of jobs


def simulate(
    jobs: str | Path | Sequence[Mapping[str, object]],
    cluster: str | Path | ResourceGraph,
    *,
    queue_policy: str | QueuePolicy | Callable[[SchedulingPass], None] = "easy",
    match_policy: str | MatchPolicy = "first",
    priority: str | Priority = "urgency",
    predictor: str | Predictor = "history",
    until: float | None = None,
    seed: int = 0,
    strict: bool = True,
) -> Run:
    """Run a workload to its end, or ``until`` a time in seconds.

    ``jobs`` is a file that `fluence simulate --trace` reads, or a list of jobs with the fields of such a
    file. ``cluster`` is nodes×cores such as "240x1", a file, or a graph. Policies, priority and predictor are
    names, `module:name`, or the objects themselves. ``strict`` refuses a bad record; else it is counted as
    skipped.
    """
    for name in (queue_policy, match_policy, priority, predictor):
        if isinstance(name, str):
            plugin_loader.allow(name)
    platform = _platform(cluster)
    terms = IntakeTerms(
        strict=strict,
        seed=seed,
        unit=platform.unit,
        node_size=platform.node_size,
        processors=platform.capacity,
    )
    text, kind, source = _text(jobs)
    work = workload.parse(text, kind=kind, source=source, terms=terms)
    if not work.submissions:
        raise InvalidInput(f"has no job to simulate{left_out(work.skipped)}", where=work.source)
    policy = queue_policy
    if not isinstance(policy, (str, QueuePolicy)):
        policy = QueuePolicy(getattr(policy, "__name__", "policy"), policy)
    done = simulator.simulate(
        work,
        platform,
        policy=policy,
        match_policy=match_policy,
        priority=priority,
        predictor=predictor,
        until=None if until is None else round(until * SECOND),
    )
    return Run(
        done.queue.policy.name,
        done.records,
        platform.capacity,
        platform.unit,
        {"match policy": done.matcher.policy.name},
        decisions_per_s=done.decisions_per_s,
        wall_s=done.wall_s,
        skipped=work.skipped,
        interrupted=done.interrupted,
        stopped_at=done.stopped_at,
        plugin_faults=done.plugin_faults,
    )


def _platform(cluster: str | Path | ResourceGraph) -> Platform:
    return platforms.of(cluster) if isinstance(cluster, ResourceGraph) else platforms.read(cluster)


def _text(jobs: str | Path | Sequence[Mapping[str, object]]) -> tuple[bytes, str | None, str]:
    """A workload as a text, its kind, and what errors call it."""
    if isinstance(jobs, (str, Path)):
        return workload.read_bytes(jobs), None, str(jobs)
    try:
        return json.dumps({"jobs": [dict(job) for job in jobs]}).encode(), "yaml", _SOURCE
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"must be mappings of plain values: {error}", where=_SOURCE) from None
