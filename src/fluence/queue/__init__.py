"""The plan: who starts when, what each job is promised, and why it waits. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Hashable

from fluence.match.matcher import Matcher
from fluence.model.jobspec import Jobspec
from fluence.queue.graph_planner import GraphPlanner
from fluence.queue.job import Dependency, JobRecord, Phase, Submission
from fluence.queue.planner import Planner
from fluence.queue.policy import QueuePolicy
from fluence.queue.pool_planner import PoolPlanner, counted
from fluence.queue.queue import Queue, Start
from fluence.queue.rules import QueueRules

__all__ = [
    "Dependency",
    "GraphPlanner",
    "JobRecord",
    "Phase",
    "Planner",
    "PoolPlanner",
    "Queue",
    "QueuePolicy",
    "QueueRules",
    "Start",
    "Submission",
    "planner_for",
]


def planner_for(matcher: Matcher, first: Hashable | None = None, *, now: int = 0) -> Planner:
    """The quickest space that understands a first request; it widens when another needs more."""
    if isinstance(first, Jobspec) and not matcher.ledger.jobs:
        units = counted(matcher, matcher.compile(first))
        if units is not None:
            return PoolPlanner(matcher, units[0], now)
    return GraphPlanner(matcher)
