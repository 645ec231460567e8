"""Reasons: why work waits or is refused, as a closed set of codes with parameters.

Whatever decides (groups, filters, planners, the cycle) answers with a `Reason`. Text is made from it at the
edge, by `fluence.messages`, and nowhere else: no decision reads English.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias


class Code(StrEnum):
    """Every reason there is. Each has one text in `fluence.messages`."""

    # What happens to a job in the queue.
    SUBMITTED = "Submitted"
    FOUND_RUNNING = "FoundRunning"
    WAS_RUNNING = "WasRunning"
    PLANNED = "Planned"
    UNPLANNED = "Unplanned"
    TAKEN_OUT_OF_PLAN = "TakenOutOfPlan"
    BACKFILLED = "Backfilled"
    ITS_TURN = "ItsTurn"
    RESOURCES_BOUND = "ResourcesBound"
    ENDED = "Ended"
    FAILED = "Failed"
    CANCELLED_BY_USER = "CancelledByUser"
    GIVEN = "Given"  # in words that somebody gave

    # Why a job waits in the queue, or never starts.
    QUEUED_BEHIND_OTHERS = "QueuedBehindOthers"
    FIRST_IN_QUEUE = "FirstInQueue"
    MUST_START_FIRST = "MustStartFirst"
    BEYOND_DEPTH = "BeyondDepth"
    DEPENDENCY = "Dependency"
    DEPENDENCY_FAILED = "DependencyFailed"
    USER_LIMIT = "UserLimit"
    LIMIT_ABOVE_QUEUE = "LimitAboveQueue"
    CONSTRAINT_TOO_NARROW = "ConstraintTooNarrow"
    IN_PHASE = "InPhase"
    TOO_FEW_UNITS = "TooFewUnits"
    UNITS_BUSY = "UnitsBusy"
    UNITS_PROMISED = "UnitsPromised"
    NO_EMPTY_CLUSTER = "NoEmptyCluster"
    INVALID_REQUEST = "InvalidRequest"
    MATCHER_EXPLAINS = "MatcherExplains"

    CLUSTER_CANNOT_HOLD = "ClusterCannotHold"
    GROUP_GONE = "GroupGone"
    GROUP_CHANGED = "GroupChanged"
    CLUSTER_CHANGED = "ClusterChanged"
    NOT_BOUND = "NotBound"
    NODE_CHANGED = "NodeChanged"
    NODE_GONE = "NodeGone"
    QUARANTINED = "Quarantined"

    # Why a pod set waits for its volumes, or got none.
    WAITS_FOR_ITS_CLAIMS = "WaitsForItsClaims"
    WAITS_FOR_CLAIMS_OF_GROUP = "WaitsForClaimsOfGroup"
    WAITS_FOR_CLAIMS_OF_PODS = "WaitsForClaimsOfPods"
    CLAIM_TO_BE_BOUND = "ClaimToBeBound"
    CLAIM_TO_BE_PROVISIONED = "ClaimToBeProvisioned"
    CLAIM_TIMED_OUT = "ClaimTimedOut"
    CLAIM_GONE = "ClaimGone"
    CLAIM_DELETING = "ClaimDeleting"
    VOLUME_OUT_OF_REACH = "VolumeOutOfReach"
    VOLUME_TAKEN = "VolumeTaken"
    VOLUME_NOT_MADE = "VolumeNotMade"
    POD_OVER_OR_BOUND = "PodOverOrBound"
    NODE_CLOSED = "NodeClosed"
    VOLUMES_BOUND = "VolumesBound"

    # Why a promise was broken.
    RESOURCES_LOST = "ResourcesLost"
    RUNS_PAST_LIMIT = "RunsPastLimit"
    OVERTAKEN = "Overtaken"


Value: TypeAlias = "str | int | bool | tuple[Value, ...] | Reason | None"


@dataclass(frozen=True, slots=True)
class Reason:
    """A code and its parameters, in the order in which they were given. Equal reasons compare equal."""

    code: Code
    params: tuple[tuple[str, Value], ...] = ()

    @classmethod
    def of(cls, code: Code, **params: Value) -> Reason:
        return cls(code, tuple(params.items()))

    def __getitem__(self, name: str) -> Value:
        for key, value in self.params:
            if key == name:
                return value
        raise KeyError(name)
