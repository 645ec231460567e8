"""JobEntry: what the history has of one job: who, what, when, where, how it ended, and why it waited.

The cycle makes one whenever something of a job has changed that people can see (`fluence.schedule.journal`),
and each is the whole of what is known: a later one replaces an earlier one. Times are milliseconds since
1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fluence.model.reason import Reason


class JobState(StrEnum):
    """Where a job is, or how it ended."""

    PENDING = "pending"
    RESERVED = "reserved"  # pending, with a place in the plan
    NEVER = "never"  # pending, and this cluster cannot hold it
    STARTING = "starting"  # it has its nodes, and its pods are being bound
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"  # it failed when it had run for as long as it may
    CANCELLED = "cancelled"  # its pods were deleted, or are wanted no more
    UNKNOWN = "unknown"  # it is over, and nobody saw its end

    @property
    def is_over(self) -> bool:
        return self in _OVER


_OVER = frozenset(
    (JobState.COMPLETED, JobState.FAILED, JobState.TIMEOUT, JobState.CANCELLED, JobState.UNKNOWN)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEntry:
    """A job as it was at a time. ``job`` is the same after a restart: it follows from a uid."""

    job: int
    at: int
    state: JobState
    key: str  # of its pod set: namespace/group, and what tells it from others of its group
    namespace: str
    name: str  # of the workload: of its owner, its group, or the pod
    kind: str = "Pod"  # of the workload
    user: str = ""
    queue: str = ""
    priority: int = 0
    pods: int = 1
    minimum: int = 1  # pods that must start together
    requests: Mapping[str, int] = field(default_factory=dict)  # of all its pods; milli for cpu
    limit: int | None = None  # its walltime
    submitted: int = 0
    no_later_than: int | None = None  # the first start that it was promised
    expected: int | None = None  # the first start that was expected
    broken: int = 0  # promises that were not kept
    started: int | None = None
    ended: int | None = None
    nodes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()  # that were its own
    reasons: tuple[Reason, ...] = ()  # why it waited, as it was told last


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run whose end was seen: predictors and the calibration of promises learn from it."""

    user: str
    queue: str
    namespace: str
    limit: int | None
    no_later_than: int | None
    broken: int
    started: int
    ended: int
