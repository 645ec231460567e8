"""JobEntry: the entry of one job in the history: user, request, times, nodes, outcome, and why it waited.

The cycle makes an entry whenever a visible property of a job changes (`fluence.schedule.history`). Each entry
is complete and replaces the earlier one. Times are milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fluence.model.job_state import JobState
from fluence.model.reason import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEntry:
    """The state of a job at a time. ``job`` is derived from a uid, so it is the same after a restart."""

    job: int
    at: int
    state: JobState
    key: str  # of its pod set: namespace/group, and a suffix that is unique in the group
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
    reasons: tuple[Reason, ...] = ()  # why it waited, as reported last


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
