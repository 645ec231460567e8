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

    QUEUED_BEHIND_OTHERS = "QueuedBehindOthers"

    # -- fluence.cluster: a pod is not placed as it is --
    RESOURCE_CLAIMS_UNSUPPORTED = "ResourceClaimsUnsupported"
    TOLERATION_OPERATOR_UNKNOWN = "TolerationOperatorUnknown"
    NODE_AFFINITY_OPERATOR_UNKNOWN = "NodeAffinityOperatorUnknown"
    SPREAD_POLICY_UNKNOWN = "SpreadPolicyUnknown"
    CLAIM_MISSING = "ClaimMissing"
    CLAIM_OF_ANOTHER_POD = "ClaimOfAnotherPod"
    CLAIM_PENDING = "ClaimPending"
    CLAIM_IN_USE = "ClaimInUse"
    CLAIM_ASKED_TWICE = "ClaimAskedTwice"
    # what a pending claim lacks
    CLAIM_TERMINATING = "ClaimTerminating"
    CLAIM_UNBOUND = "ClaimUnbound"
    CLAIM_LOST = "ClaimLost"
    STORAGE_CLASS_MISSING = "StorageClassMissing"

    # -- fluence.cluster: a gang finds no seats now --
    TOO_FEW_SEATS = "TooFewSeats"
    NOT_TOGETHER = "NotTogether"
    TOO_FEW_SEATS_IN_ONE_DOMAIN = "TooFewSeatsInOneDomain"
    NODES = "Nodes"  # that one of the following rules out
    NODE_UNSCHEDULABLE = "NodeUnschedulable"
    NODE_NOT_READY = "NodeNotReady"
    TAINT_NOT_TOLERATED = "TaintNotTolerated"
    NODE_SELECTOR_MISMATCH = "NodeSelectorMismatch"
    NODE_AFFINITY_MISMATCH = "NodeAffinityMismatch"
    VOLUME_OUT_OF_REACH = "VolumeOutOfReach"
    VOLUME_NOT_PROVIDED = "VolumeNotProvided"
    NODE_EXCLUDED = "NodeExcluded"
    NODE_HELD_WHOLE = "NodeHeldWhole"
    NODE_IN_USE = "NodeInUse"
    RESOURCES_LACKING = "ResourcesLacking"
    RESOURCE_INSUFFICIENT = "ResourceInsufficient"
    RESOURCE_TOO_SMALL = "ResourceTooSmall"
    HOST_PORTS_IN_USE = "HostPortsInUse"
    TOPOLOGY_SPREAD = "TopologySpread"
    POD_AFFINITY = "PodAffinity"
    POD_ANTI_AFFINITY = "PodAntiAffinity"
    EXISTING_ANTI_AFFINITY = "ExistingAntiAffinity"
    CLAIM_ON_ANOTHER_NODE = "ClaimOnAnotherNode"
    VOLUMES_TAKEN = "VolumesTaken"
    ATTACH_LIMIT = "AttachLimit"
    TOO_FEW_VOLUMES = "TooFewVolumes"

    # -- fluence.cluster: seats came free --
    NODE_GONE = "NodeGone"
    POD_ENDED = "PodEnded"
    POD_GONE = "PodGone"
    POD_NOT_BOUND = "PodNotBound"
    LAST_POD_OF_JOB = "LastPodOfJob"
    JOB_RELEASED = "JobReleased"
    SEAT_FOR_NEW_MEMBER = "SeatForNewMember"


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
