"""The plan: who starts when, what each job is promised, and why it waits. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Hashable

from fluence.match.matcher import Matcher
from fluence.model.jobspec import Jobspec
from fluence.queue.graphspace import GraphSpace
from fluence.queue.job import Dependency, Entry, Job, State
from fluence.queue.policy import QueuePolicy
from fluence.queue.poolspace import PoolSpace, counted
from fluence.queue.queue import Queue, Rules, Start
from fluence.queue.space import Space

__all__ = [
    "Dependency",
    "Entry",
    "GraphSpace",
    "Job",
    "PoolSpace",
    "Queue",
    "QueuePolicy",
    "Rules",
    "Space",
    "Start",
    "State",
    "space_for",
]


def space_for(matcher: Matcher, first: Hashable | None = None, *, now: int = 0) -> Space:
    """The quickest space that understands a first request; it widens when another needs more."""
    if isinstance(first, Jobspec) and not matcher.ledger.jobs:
        units = counted(matcher, matcher.compile(first))
        if units is not None:
            return PoolSpace(matcher, units[0], now)
    return GraphSpace(matcher)
