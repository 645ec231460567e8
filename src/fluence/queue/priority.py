"""Priorities: a number for a job at a time; more is earlier."""

from __future__ import annotations

from collections.abc import Callable

from fluence.errors import InvalidInput
from fluence.queue import plugins
from fluence.queue.job import Submission

Priority = Callable[[Submission, int], int]


def by_urgency(job: Submission, now: int) -> int:
    """What the job was submitted with."""
    return job.priority


def find(name: str) -> Priority:
    """A priority by name: ``urgency``, or a function that a site added."""
    if name == "urgency":
        return by_urgency
    found = plugins.load(plugins.PRIORITIES, name, "priority", ["urgency"])
    if not callable(found):
        raise InvalidInput(f"the priority {name!r} is no function of a job and a time")
    return found
