"""Builders: small clusters, requests and queues for the tests of the queue."""

from __future__ import annotations

from functools import cache
from typing import Any

from fluence.graph.graph import ResourceGraph
from fluence.match.matcher import HORIZON, Matcher
from fluence.model.jobspec import Jobspec
from fluence.model.reason import Code, Reason
from fluence.queue import GraphPlanner, PoolPlanner, Queue, Submission
from fluence.queue.job import SECOND
from fluence.sim.simulator import regular

MINUTE = 60 * SECOND


def matcher(nodes: int = 1, cores: int = 16, policy: str = "first") -> Matcher:
    graph = ResourceGraph()
    graph.extend(regular(nodes, cores))
    return Matcher(graph, policy, horizon=HORIZON * SECOND)


@cache
def cores(count: int) -> Jobspec:
    """Some cores, whichever."""
    return spec(f"[{{type: slot, count: {count}, label: a, with: [{{type: core, count: 1}}]}}]")


@cache
def nodes(count: int, cores: int = 1, constraint: str = "") -> Jobspec:
    """Nodes of its own choice, so many cores on each."""
    inner = f"[{{type: slot, count: 1, label: a, with: [{{type: core, count: {cores}}}]}}]"
    return spec(f"[{{type: node, count: {count}, with: {inner}}}]", constraint)


def spec(resources: str, constraint: str = "") -> Jobspec:
    """The jobspec of some resources, for which the slot must be labelled a."""
    constraints = f", constraints: {constraint}" if constraint else ""
    tasks = "[{command: [a], slot: a, count: {per_slot: 1}}]"
    rest = f"tasks: {tasks}, attributes: {{system: {{duration: 0{constraints}}}}}"
    return Jobspec.parse(f"{{version: 9999, resources: {resources}, {rest}}}")


def pool(policy: str = "easy", *, nodes: int = 1, cores: int = 16, **settings: Any) -> Queue:
    return Queue(PoolPlanner(matcher(nodes, cores), "core"), policy, **settings)


def graph(policy: str = "easy", *, nodes: int = 1, cores: int = 16, **settings: Any) -> Queue:
    return Queue(GraphPlanner(matcher(nodes, cores)), policy, **settings)


def job(key: str, count: int, minutes: float | None, at: int = 0, **more: Any) -> Submission:
    limit = None if minutes is None else round(minutes * MINUTE)
    return Submission(key, more.pop("request", None) or cores(count), at, limit=limit, **more)


def because(text: str) -> Reason:
    """A reason in somebody's own words."""
    return Reason.of(Code.GIVEN, text=text)


def finish_at_limits(queue: Queue, now: int) -> None:
    """Every task whose end by its limit has come ends, in the order of their names."""
    running = queue.planner.allocations.running
    for task in sorted(task for task, held in running.items() if held.end <= now):
        queue.finish(task, now)


def run(queue: Queue, now: int) -> list[str]:
    """One cycle; what it starts runs."""
    started = queue.cycle(now)
    for start in started:
        queue.running(start.task, now)
    return [start.task for start in started]
