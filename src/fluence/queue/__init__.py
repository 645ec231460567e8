"""The plan: which job starts when, the promised starts, and why jobs wait. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Hashable

from fluence.match.matcher import Matcher
from fluence.model.job_state import JobState
from fluence.model.jobspec import Jobspec
from fluence.queue.graph_planner import GraphPlanner
from fluence.queue.job import Dependency, JobRecord, Submission
from fluence.queue.planner import Planner
from fluence.queue.policy import QueuePolicy
from fluence.queue.pool_planner import PoolPlanner, counted
from fluence.queue.queue import Queue, Start
from fluence.queue.rules import QueueRules

__all__ = [
    "Dependency",
    "GraphPlanner",
    "JobRecord",
    "JobState",
    "Planner",
    "PoolPlanner",
    "Queue",
    "QueuePolicy",
    "QueueRules",
    "Start",
    "Submission",
    "planner_for",
]


def planner_for(matcher: Matcher, first: Hashable | None = None, *, names_late: bool = False) -> Planner:
    """The fastest planner that understands a first request; the queue replaces it when another request needs
    more. ``names_late``: the units of a task are known only after `PoolPlanner.name`."""
    if isinstance(first, Jobspec) and not matcher.ledger.jobs:
        units = counted(matcher, matcher.compile(first))
        if units is not None:
            return PoolPlanner(matcher, units[0], 0, names_late=names_late)
    return GraphPlanner(matcher)
