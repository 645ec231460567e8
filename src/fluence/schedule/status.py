"""Status: what became of a pod or a gang in a cycle, and why, as data.

Made by the cycle and `status_reports`; `fluence.act.conditions` writes it on pods and PodGroups.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fluence.model.reason import Reason


class SchedulingStatus(Enum):
    """What became of a pod or a gang in a cycle."""

    SCHEDULED = "scheduled"
    WAITS = "waits"  # for resources or for its turn
    NEVER = "never"  # this cluster cannot hold it
    INCOMPLETE = "incomplete"  # members, its PodGroup or its owner are not there
    PREPARES = "prepares"  # it has seats, and its claims are being bound
    REFUSED = "refused"  # what it asks for contradicts itself, or is not ours to check


@dataclass(frozen=True, slots=True)
class StatusReport:
    """A status with its reasons and both start times, in milliseconds since 1970."""

    outcome: SchedulingStatus
    reasons: tuple[Reason, ...] = ()
    no_later_than: int | None = None
    expected: int | None = None
    firm: bool = True  # *no later than* rests only on limits which something enforces
    limit: int | None = None  # ms: what it was told that start for
