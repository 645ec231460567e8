"""Plugins: the public API for code that a site adds, such as match policies, priorities and predictors.

    from fluence.plugins import MatchPolicy

    def free_ports(graph): ...

    quiet = MatchPolicy("quiet", best="high", scores=free_ports)

A plug-in is found by an entry point, by `module:name` in a setting, or by a `register_…` function in the same
process. The live scheduler, `fluence simulate` and `fluence whatif` find the same ones. A module that sets
`FLUENCE_PLUGIN_API = 1` is refused by a Fluence whose `API_VERSION` is another.
"""

from __future__ import annotations

from collections.abc import Callable

from fluence import plugin_loader
from fluence.errors import InvalidInput
from fluence.graph.graph import ResourceGraph
from fluence.match.policy import MatchPolicy
from fluence.match.policy import register as register_match_policy
from fluence.model.jobspec import Jobspec
from fluence.plugin_loader import API_VERSION
from fluence.queue import policy as queue_policies
from fluence.queue.history import Predictor
from fluence.queue.job import JobRecord, Submission
from fluence.queue.policy import QueuePolicy
from fluence.queue.rules import Priority
from fluence.queue.scheduling_pass import SchedulingPass

__all__ = [
    "API_VERSION",
    "JobRecord",
    "Jobspec",
    "MatchPolicy",
    "Predictor",
    "Priority",
    "QueuePolicy",
    "ResourceGraph",
    "SchedulingPass",
    "Submission",
    "register_match_policy",
    "register_predictor",
    "register_priority",
    "register_queue_policy",
]


def register_queue_policy(policy: QueuePolicy) -> QueuePolicy:
    """Register a queue policy under its name."""
    if policy.name in queue_policies.BUILT_IN:
        raise InvalidInput(f"{policy.name!r} is a built-in queue policy: choose another name")
    plugin_loader.register(plugin_loader.QUEUE_POLICIES, policy.name, policy)
    return policy


def register_priority(name: str, priority: Priority) -> Priority:
    """Register a priority: a function from a job and the time in milliseconds to an integer."""
    plugin_loader.register(plugin_loader.PRIORITIES, name, priority)
    return priority


def register_predictor(name: str, make: Callable[[], Predictor]) -> Callable[[], Predictor]:
    """Register a predictor by the class or function that creates it."""
    plugin_loader.register(plugin_loader.PREDICTORS, name, make)
    return make
