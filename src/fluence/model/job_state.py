"""JobState: where a job is, in the words of the queue, FluxJobs, `explain` and JSON; and its entry in the
history.

| state         | FluxJob       | meaning                                                                    |
|---------------|---------------|----------------------------------------------------------------------------|
| gathering     | Held          | some of its pods do not exist yet                                          |
| refused       | Refused       | its request contradicts itself                                             |
| pending       | Pending       | it waits for resources or for its turn                                     |
| reserved      | Reserved      | it waits and has a place in the plan                                       |
| unschedulable | Unschedulable | it waits, and the cluster could not hold it even if it were empty          |
| preparing     | Starting      | it has its nodes; its volumes are being bound                              |
| starting      | Starting      | it has its nodes; its pods are being bound                                 |
| running       | Running       | all its pods are bound                                                     |
| completed     | Completed     | all its pods succeeded                                                     |
| failed        | Failed        | a pod failed                                                               |
| timeout       | Failed        | a pod failed after the job had run for as long as its limit                |
| cancelled     | Cancelled     | its pods were deleted, or are no longer wanted                             |
| unknown       | Failed        | it is over, and no scheduler saw its end                                   |

The transitions between states are in `fluence.queue.job`.

The cycle makes an entry whenever a visible property of a job changes (`fluence.schedule.history`). Each entry
is complete and replaces the earlier one. Times are milliseconds since 1970.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fluence.model.reason import Reason


class JobState(StrEnum):
    """Where a job is. The values are those of JSON and of the database."""

    GATHERING = "gathering"
    REFUSED = "refused"
    PENDING = "pending"
    RESERVED = "reserved"
    UNSCHEDULABLE = "unschedulable"
    PREPARING = "preparing"
    STARTING = "starting"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"

    @property
    def phase(self) -> str:
        """The word for users, as in the phase of a FluxJob. The API of FluxJobs knows no others."""
        return _PHASES.get(self) or self.value.capitalize()

    @property
    def has_nodes(self) -> bool:
        """Whether the job holds resources."""
        return self in _WITH_NODES

    @property
    def is_over(self) -> bool:
        return self in _OVER

    @property
    def leaves_queue(self) -> bool:
        """Whether the queue no longer plans the job: it is over, or can never start as it is."""
        return self in _OVER or self is JobState.UNSCHEDULABLE

    @property
    def stored_as(self) -> tuple[str, ...]:
        """The values that mean this state in a database: its own, and those of earlier versions."""
        return (self.value, *(old for old, state in _OLD_VALUES.items() if state is self))

    @classmethod
    def _missing_(cls, value: object) -> JobState | None:
        """Read the values of earlier versions, and the phases of FluxJobs."""
        text = str(value)
        known = {state.value: state for state in cls}
        return _OLD_VALUES.get(text) or (known.get(text.lower()) if text.istitle() else None)


def ended(*, failed: bool, crashed: bool, late: bool, enforced: bool) -> JobState:
    """How a job ended. ``crashed``: a pod failed that was not being deleted. ``late``: the job had run for as
    long as its limit. ``enforced``: it had run until something ends jobs at their limit; where nothing does,
    pods that are deleted were deleted by a user."""
    if not failed:
        return JobState.COMPLETED
    if late and (crashed or enforced):
        return JobState.TIMEOUT
    return JobState.FAILED if crashed else JobState.CANCELLED


_WITH_NODES = frozenset((JobState.PREPARING, JobState.STARTING, JobState.RUNNING))
_OVER = frozenset(
    (JobState.COMPLETED, JobState.FAILED, JobState.TIMEOUT, JobState.CANCELLED, JobState.UNKNOWN)
)
_PHASES = {
    JobState.GATHERING: "Held",
    JobState.PREPARING: "Starting",
    JobState.TIMEOUT: "Failed",
    JobState.UNKNOWN: "Failed",
}
_OLD_VALUES = {
    "never": JobState.UNSCHEDULABLE,
    "binding": JobState.STARTING,
    "done": JobState.COMPLETED,
    "incomplete": JobState.GATHERING,
    "Held": JobState.GATHERING,
    "Succeeded": JobState.COMPLETED,
}


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
