"""What a workload is made of: submissions, each a job with the time at which it arrives; frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fluence.model.jobspec import Jobspec

Dependency = Literal["afterok", "afterany", "singleton"]


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a workload: when it arrives, what it asks for, and what it then does."""

    name: str
    submit: int
    """ms after the workload's beginning; the first submission is at 0."""
    runtime: int
    """ms that it runs if nothing stops it."""
    jobspec: Jobspec
    """What one task asks for, without duration; equal requests share one object."""
    size: int
    """Units that one task holds (processors, nodes or parts of a pool), for the metrics."""
    limit: int | None
    """ms, hard walltime; None: not stated."""
    soft_limit: int | None = None
    user: str = ""
    queue: str = ""
    priority: int = 16
    """Flux's urgency, whose default this is."""
    after: tuple[tuple[Dependency, str], ...] = ()
    """What it waits for, each with the name of a job; a singleton names none."""
    tasks: int = 1
    """An array: this many equal tasks under one record."""
    succeeds: bool = True


@dataclass(frozen=True, slots=True)
class TraceWorkload:
    """The submissions of one source, by time of arrival."""

    submissions: tuple[TraceJob, ...]
    source: str
    processors: int | None = None
    """The size of the machine that the log says it is of (MaxProcs, else MaxNodes)."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Records that were left out: cause -> how many."""
    reordered: int = 0
    """Records that stood after one with a later arrival, and were put into their place."""
