"""Status: the state of a pod or a gang after a cycle, and the reasons, as data.

The cycle and `reports` make it, and `fluence.act.conditions` writes it on pods and PodGroups. `pod_reason` is
the reason of the condition `PodScheduled`. Autoscalers add nodes for pods whose reason is `Unschedulable`, so
a pod has that reason only if more nodes would help.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from fluence.model.job_state import JobState
from fluence.model.reason import Code, Reason


class PodReason(StrEnum):
    """Why a pod has no node, as the reason of its condition `PodScheduled`."""

    UNSCHEDULABLE = "Unschedulable"  # more nodes would help
    TURN = "WaitingForTurn"  # it has a promised start, or waits for jobs ahead, a limit or a device
    GROUP = "WaitingForGroup"  # members, its PodGroup or its owner are missing
    VOLUMES = "WaitingForVolumes"  # its claims are missing, unbound, or being bound
    ARRAY = "WaitingForArray"  # its Job allows no more running pods
    HELD = "Held"  # its user holds it
    DEPENDENCY = "WaitingForDependency"
    NEVER = "DependencyNeverSatisfied"
    ERROR = "SchedulerError"  # it is refused or quarantined, or can start on no cluster as it is


@dataclass(frozen=True, slots=True)
class StatusReport:
    """A state with its reasons and both start times, in milliseconds since 1970."""

    state: JobState
    reasons: tuple[Reason, ...] = ()
    no_later_than: int | None = None
    expected: int | None = None
    firm: bool = True  # *no later than* depends only on limits that are enforced
    limit: int | None = None  # ms: the limit that the promise was made for
    in_turn: bool = False  # it waits for its turn or its promised start, although more nodes might help
    eligible: int | None = None  # ms: since when it may start, if it was held or depended on other jobs
    opened: str = ""  # a digest of the dependencies that held then

    @property
    def pod_reason(self) -> PodReason:
        """The reason of the condition of its pods."""
        state, codes = self.state, {reason.code for reason in self.reasons}
        if self.reasons and self.reasons[0].code in _BY_CODE:
            return _BY_CODE[self.reasons[0].code]
        if state in _FIXED:
            return _FIXED[state]
        if codes & _CLAIMS:
            return PodReason.VOLUMES
        never = state is JobState.UNSCHEDULABLE
        if more_nodes_help(self.reasons) and (never or not self.in_turn):
            return PodReason.UNSCHEDULABLE
        return PodReason.ERROR if never else PodReason.TURN


def more_nodes_help(reasons: Iterable[Reason]) -> bool:
    """Whether only nodes are missing, and no limit, dependency, claim or external resource."""
    missing = [reason for reason in reasons if reason.code not in _EXPLAINING]
    return bool(missing) and all(map(_is_short_of_nodes, missing))


def _is_short_of_nodes(reason: Reason) -> bool:
    if reason.code is not Code.CLUSTER_CANNOT_HOLD:
        return reason.code in _NODES
    causes = reason["causes"]
    return isinstance(causes, tuple) and more_nodes_help(each for each in causes if isinstance(each, Reason))


_FIXED = {
    JobState.GATHERING: PodReason.GROUP,
    JobState.PREPARING: PodReason.VOLUMES,
    JobState.REFUSED: PodReason.ERROR,
}
_BY_CODE = {
    Code.ARRAY_LIMIT: PodReason.ARRAY,
    Code.HELD_BY_USER: PodReason.HELD,
    Code.WAITS_FOR_DEPENDENCIES: PodReason.DEPENDENCY,
    Code.WAITS_FOR_DEPENDENCY: PodReason.DEPENDENCY,
    Code.DEPENDENCY_UNKNOWN: PodReason.DEPENDENCY,
    Code.DEPENDENCY_NEVER_SATISFIED: PodReason.NEVER,
    Code.DEPENDENCY_CYCLE: PodReason.NEVER,
}
_NODES = frozenset((Code.TOO_FEW_SEATS, Code.NOT_TOGETHER, Code.TOO_FEW_SEATS_IN_ONE_DOMAIN))
# These name the jobs that use the nodes or are ahead, and accompany another reason.
_EXPLAINING = frozenset(
    (
        Code.WAITS_FOR_OVERRUN,
        Code.WAITS_FOR_OVERRUN_OF_OTHERS,
        Code.WAITS_FOR_UNLIMITED,
        Code.WAITS_FOR_UNLIMITED_OF_OTHERS,
        Code.SHARE_USED,
        Code.SHARE_OF_USER_USED,
    )
)
_CLAIMS = frozenset(
    (
        Code.CLAIM_MISSING,
        Code.CLAIM_OF_ANOTHER_POD,
        Code.CLAIM_PENDING,
        Code.CLAIM_IN_USE,
        Code.CLAIM_TERMINATING,
        Code.CLAIM_UNBOUND,
        Code.CLAIM_LOST,
        Code.CLAIM_TIMED_OUT,
        Code.CLAIM_GONE,
        Code.CLAIM_DELETING,
        Code.STORAGE_CLASS_MISSING,
        Code.VOLUME_TAKEN,
        Code.VOLUME_NOT_MADE,
        Code.BOUND_VOLUME_OUT_OF_REACH,
    )
)
