"""Reasons: why work waits or is refused, as a closed set of codes with parameters.

All code that decides (groups, filters, planners, the cycle) returns a `Reason`. Only `fluence.messages` turns
it into text: no decision reads English.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

COUNTS = frozenset(("nodes", "names", "seats", "sums", "skew", "domains", "holders", "ratio", "other_ratio"))
"""Parameters that are shown, but whose change is not reported: the numbers of nodes and placements, the nodes
per cause, the total free amount, the skew, the number of other holders, the usage of a queue's share. They
change with every pod of every user."""


class Code(StrEnum):
    """All reasons. Each has one text in `fluence.messages`."""

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
    GIVEN = "Given"  # a text

    # Why a job waits in the queue, or never starts.
    QUEUED_BEHIND_OTHERS = "QueuedBehindOthers"
    FIRST_IN_QUEUE = "FirstInQueue"
    MUST_START_FIRST = "MustStartFirst"
    BEYOND_DEPTH = "BeyondDepth"
    DEPENDENCY = "Dependency"
    DEPENDENCY_FAILED = "DependencyFailed"
    USER_LIMIT = "UserLimit"
    DEVICE_LIMIT = "DeviceLimit"
    ARRAY_LIMIT = "ArrayLimit"  # array, most
    LIMIT_ABOVE_QUEUE = "LimitAboveQueue"
    UNKNOWN_QUEUE = "UnknownQueue"  # queue, nearest, known
    QUEUE_IS_INNER = "QueueIsInner"  # queue, queues
    QUEUE_CLOSED = "QueueClosed"  # queue, nearest, known
    QUEUE_STOPPED = "QueueStopped"  # queue
    QUOTA_IN_USE = "QuotaInUse"  # queue, resource, used, limit, wanted, until, far; amounts in words
    QUOTA_OF_USER = "QuotaOfUser"  # the same, and user
    SHARE_USED = "ShareUsed"  # queue, ratio, other, other_ratio, week; ratios in words
    SHARE_OF_USER_USED = "ShareOfUserUsed"  # queue, ratio, other_ratio, week
    QUEUES_CHANGED = "QueuesChanged"
    QUOTA_TOO_SMALL = "QuotaTooSmall"  # queue, resource, limit, wanted
    CONSTRAINT_TOO_NARROW = "ConstraintTooNarrow"
    IN_PHASE = "InPhase"
    TOO_FEW_UNITS = "TooFewUnits"
    UNITS_BUSY = "UnitsBusy"
    UNITS_PROMISED = "UnitsPromised"
    NO_EMPTY_CLUSTER = "NoEmptyCluster"
    INVALID_REQUEST = "InvalidRequest"
    MATCHER_EXPLAINS = "MatcherExplains"

    # What happens to a pod set in the cycle.
    CLUSTER_CANNOT_HOLD = "ClusterCannotHold"
    GROUP_GONE = "GroupGone"
    GROUP_CHANGED = "GroupChanged"
    CLUSTER_CHANGED = "ClusterChanged"
    NOT_BOUND = "NotBound"
    NODE_CHANGED = "NodeChanged"
    NODE_GONE = "NodeGone"
    ROOM_TAKEN = "RoomTaken"  # node
    DEVICE_LOST = "DeviceLost"  # type, backend
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
    BOUND_VOLUME_OUT_OF_REACH = "BoundVolumeOutOfReach"
    VOLUME_TAKEN = "VolumeTaken"
    VOLUME_NOT_MADE = "VolumeNotMade"
    POD_OVER_OR_BOUND = "PodOverOrBound"
    NODE_CLOSED = "NodeClosed"
    VOLUMES_BOUND = "VolumesBound"

    # Why a promise was broken.
    RESOURCES_LOST = "ResourcesLost"
    RUNS_PAST_LIMIT = "RunsPastLimit"
    OVERTAKEN = "Overtaken"
    RESTARTED = "Restarted"

    # -- time limits: jobs that overrun --
    WAITS_FOR_OVERRUN = "WaitsForOverrun"  # kind, namespace, name, more, limit, since
    WAITS_FOR_OVERRUN_OF_OTHERS = "WaitsForOverrunOfOthers"  # holders
    WAITS_FOR_UNLIMITED = "WaitsForUnlimited"  # kind, namespace, name, more
    WAITS_FOR_UNLIMITED_OF_OTHERS = "WaitsForUnlimitedOfOthers"  # holders
    LIMIT_PASSED = "LimitPassed"  # limit, since, ends
    ENDED_AT_LIMIT = "EndedAtLimit"  # limit, since
    NOT_ENDED_AT_LIMIT = "NotEndedAtLimit"  # limit, since, error

    # -- preemption --
    PREEMPTING = "Preempting"  # pods, on; at, reclaims
    WAITS_FOR_ENDING = "WaitsForEnding"  # on
    PREEMPTED = "Preempted"  # pod, namespace, priority, own, lost
    PREEMPTED_FOR_OTHERS = "PreemptedForOthers"  # priority, own, lost
    NOT_PREEMPTED = "NotPreempted"  # error
    PREEMPTION_IS_OFF = "PreemptionIsOff"  # queue
    PREEMPTION_NEVER = "PreemptionNever"
    PREEMPTION_NOT_NEEDED = "PreemptionNotNeeded"  # at; earlier, victims, end
    NO_VICTIMS = "NoVictims"  # priority
    VICTIMS_PROTECTED = "VictimsProtected"  # priority
    QUOTA_NOT_FREED = "QuotaNotFreed"  # queue
    DRAINED = "Drained"  # queue
    GANG_ENDED = "GangEnded"
    RECLAIMED = "Reclaimed"  # queue, lost
    PREEMPTION_PLANNED = "PreemptionPlanned"  # at
    PREEMPTION_WITHDRAWN = "PreemptionWithdrawn"

    # -- groups: what a gang waits for --
    OWNER_NOT_SEEN = "OwnerNotSeen"  # kind, name
    POD_GROUP_NOT_SEEN = "PodGroupNotSeen"  # group
    POD_GROUP_OR_SIZE_MISSING = "PodGroupOrSizeMissing"  # group
    GROUP_SETTLES = "GroupSettles"  # quiet, in milliseconds
    OWNER_SUSPENDED = "OwnerSuspended"  # kind, owner
    PODS_GATED = "PodsGated"  # gated, pods
    WAITS_FOR_PRODUCER = "WaitsForProducer"  # gated, pods, producer, kind
    UNKNOWN_DEPENDENCY = "UnknownDependency"  # key, value, kinds
    GATE_OF_OTHERS = "GateOfOthers"  # key, gate
    FOREIGN_PRODUCER = "ForeignProducer"  # key, value, namespace
    PODS_MISSING = "PodsMissing"  # group, pods, minimum
    OWNER_RUNS_TOO_FEW = "OwnerRunsTooFew"  # group, pods, minimum, kind, owner, others, runs
    OWNER_IS_ORDERED = "OwnerIsOrdered"  # group, pods, minimum, owner

    # -- eligibility: what a job waits for before it is planned --
    HELD_BY_USER = "HeldByUser"  # kind, what, key
    WAITS_FOR_DEPENDENCIES = "WaitsForDependencies"  # causes, any
    WAITS_FOR_DEPENDENCY = "WaitsForDependency"  # kind, job
    DEPENDENCY_UNKNOWN = "DependencyUnknown"  # kind, job, namespace
    DEPENDENCY_NEVER_SATISFIED = "DependencyNeverSatisfied"  # kind, job, outcome, key
    DEPENDENCY_CYCLE = "DependencyCycle"  # jobs, key
    INVALID_MAX_RUNNING = "InvalidMaxRunning"  # key, value, most
    INVALID_PRIORITY = "InvalidPriority"  # key, value, most
    INVALID_DEPENDENCY = "InvalidDependency"  # key, value, fault, part

    # -- gates: why one was opened, or was not; `limit` in milliseconds --
    PRODUCER_ANNOUNCED = "ProducerAnnounced"  # gate, producer, task
    PRODUCER_STARTED = "ProducerStarted"  # gate, producer
    PRODUCER_FINISHED = "ProducerFinished"  # gate, producer
    PRODUCER_SILENT = "ProducerSilent"  # gate, producer, limit
    PRODUCER_ENDED = "ProducerEnded"  # gate, producer
    PRODUCER_GONE = "ProducerGone"  # gate, producer
    GATE_NOT_OPENED = "GateNotOpened"  # gate, error

    # -- groups: why a gang is refused --
    OTHER_SCHEDULER = "OtherScheduler"  # others, scheduler
    TOPOLOGY_NEEDS_GANG = "TopologyNeedsGang"  # group, key
    SHARED_CLAIMS = "SharedClaims"  # group, claims
    DIFFERENT_PRIORITIES = "DifferentPriorities"  # priorities
    DIFFERENT_SUBMITTERS = "DifferentSubmitters"  # users
    GROUP_PRIORITY_DIFFERS = "GroupPriorityDiffers"  # group, wanted, given
    DIFFERENT_PREEMPTION_POLICIES = "DifferentPreemptionPolicies"  # policies

    FLUX_JOB_DELETED = "FluxJobDeleted"  # what, key

    # -- groups: labels and annotations --
    INVALID_GROUP_NAME = "InvalidGroupName"  # kind, key, value
    INVALID_SIZE = "InvalidSize"  # kind, key, value, maximum
    NO_APPLICATION = "NoApplication"  # key, label
    INVALID_TASK_GROUPS = "InvalidTaskGroups"  # key, maximum
    GROUP_TOO_LARGE = "GroupTooLarge"  # group, minimum, maximum
    OWNER_TOO_LARGE = "OwnerTooLarge"  # kind, owner, minimum, maximum
    CLUSTER_HOLDS_FEWER = "ClusterHoldsFewer"  # pods, most
    TOO_MANY_HELD_PODS = "TooManyHeldPods"  # pods, most
    NAMESPACE_HOLDS_TOO_MANY = "NamespaceHoldsTooMany"  # pods, others, most
    DIFFERENT_SIZES = "DifferentSizes"  # level, sizes
    SIZE_NOT_USED = "SizeNotUsed"  # size, group, minimum
    SIZE_WITHOUT_GROUP = "SizeWithoutGroup"  # size, key
    NO_SIZE = "NoSize"  # size, key
    OWNER_SIZE_UNKNOWN = "OwnerSizeUnknown"  # kind, owner, label, key
    OWNER_NOT_READ = "OwnerNotRead"  # kind, owner, resource, label, key
    DIFFERENT_ANNOTATIONS = "DifferentAnnotations"  # level, key, value
    INVALID_ANNOTATION = "InvalidAnnotation"  # error: a parser's text, which begins with the annotation
    INVALID_DURATION = "InvalidDuration"  # key, value
    WORK_NOT_HELD = "WorkNotHeld"  # label, kind, name
    UNKNOWN_ANNOTATION = "UnknownAnnotation"  # kind, key, nearest
    LABEL_NOT_READ = "LabelNotRead"  # key
    ANNOTATION_TOO_LONG = "AnnotationTooLong"  # key, size, most
    TOO_MANY_EXCLUDED = "TooManyExcluded"  # key, given, most
    INVALID_DEVICES = "InvalidDevices"  # key, value
    INVALID_SPREAD = "InvalidSpread"  # key, value
    TOO_MANY_TERMS = "TooManyTerms"  # given, most
    REQUIRE_WITHOUT_DEVICE = "RequireWithoutDevice"  # keys
    VARIABLES_MISSING = "VariablesMissing"  # containers, held

    # -- groups: a jobspec of the user's own; `part` is the place in it --
    JOBSPEC_SLOTS = "JobspecSlots"  # key, slots, pods, minimum
    JOBSPEC_LEVEL = "JobspecLevel"  # key, part, type
    JOBSPEC_NO_SLOT = "JobspecNoSlot"  # key, part, type
    JOBSPEC_SEVERAL_SLOTS = "JobspecSeveralSlots"  # key, part, slots
    JOBSPEC_NESTED = "JobspecNested"  # key, part, type
    JOBSPEC_RANGE = "JobspecRange"  # key, part
    JOBSPEC_EXCLUSIVE = "JobspecExclusive"  # key, part
    JOBSPEC_RESOURCE = "JobspecResource"  # key, type
    JOBSPEC_UNIT = "JobspecUnit"  # key, part, type, unit
    JOBSPEC_NO_UNIT = "JobspecNoUnit"  # key, part, type
    JOBSPEC_DEPENDENCIES = "JobspecDependencies"  # key, part
    JOBSPEC_TOO_LONG = "JobspecTooLong"  # key, part, value
    JOBSPEC_MORE = "JobspecMore"  # key, resource, asked, requested
    JOBSPEC_TOO_LARGE = "JobspecTooLarge"  # key, part, type
    JOBSPEC_DURATION = "JobspecDuration"  # key, limit, other, given
    JOBSPEC_QUEUE = "JobspecQueue"  # key, queue, other, given

    # -- advice: what would help --
    GIVE_DURATION = "GiveDuration"  # key
    NEVER_FITS = "NeverFits"
    SOME_WOULD_FIT = "SomeWouldFit"  # some, needed, group, key, enough, empty
    FITS_WITHOUT = "FitsWithout"  # field
    FITS_WITH_TOLERATIONS = "FitsWithTolerations"  # taints
    HOLDS_WITHOUT = "HoldsWithout"  # field
    HOLDS_WITH_TOLERATIONS = "HoldsWithTolerations"  # taints
    REMOVE_GATES = "RemoveGates"  # gates
    ANNOUNCE_TASK = "AnnounceTask"  # producer, key
    UNSUSPEND = "Unsuspend"
    CREATE_PODS = "CreatePods"  # more, group, key

    # -- fluence.cluster: a pod is not placed as it is --
    RESOURCE_CLAIMS_UNSUPPORTED = "ResourceClaimsUnsupported"
    TOO_MANY_DEVICE_KINDS = "TooManyDeviceKinds"  # most
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
    NODES = "Nodes"  # that one of the following causes excludes
    NODE_UNSCHEDULABLE = "NodeUnschedulable"
    NODE_NOT_READY = "NodeNotReady"
    TAINT_NOT_TOLERATED = "TaintNotTolerated"
    NODE_SELECTOR_MISMATCH = "NodeSelectorMismatch"
    NODE_AFFINITY_MISMATCH = "NodeAffinityMismatch"
    VOLUME_OUT_OF_REACH = "VolumeOutOfReach"
    VOLUME_NOT_PROVIDED = "VolumeNotProvided"
    NODE_OFFERS_TOO_LITTLE = "NodeOffersTooLittle"
    NODE_EXCLUDED = "NodeExcluded"
    NODE_HELD_WHOLE = "NodeHeldWhole"
    NODE_IN_USE = "NodeInUse"
    RESOURCES_LACKING = "ResourcesLacking"
    RESOURCE_INSUFFICIENT = "ResourceInsufficient"
    RESOURCE_TOO_SMALL = "ResourceTooSmall"
    RESOURCE_SUM = "ResourceSum"  # of all its pods, over the suitable nodes
    HOST_PORTS_IN_USE = "HostPortsInUse"
    TOPOLOGY_LABEL_MISSING = "TopologyLabelMissing"
    TOPOLOGY_SPREAD = "TopologySpread"
    POD_AFFINITY = "PodAffinity"
    POD_ANTI_AFFINITY = "PodAntiAffinity"
    EXISTING_ANTI_AFFINITY = "ExistingAntiAffinity"
    CLAIM_ON_ANOTHER_NODE = "ClaimOnAnotherNode"
    VOLUMES_TAKEN = "VolumesTaken"
    ATTACH_LIMIT = "AttachLimit"
    TOO_FEW_VOLUMES = "TooFewVolumes"

    # -- fluence.cluster: devices that belong to no node --
    DEVICE_TYPE_UNKNOWN = "DeviceTypeUnknown"  # type, types
    DEVICE_NO_ATTRIBUTE = "DeviceNoAttribute"  # key, keys
    DEVICE_VALUE_UNKNOWN = "DeviceValueUnknown"  # key, value, nearest
    DEVICE_NONE_SUITS = "DeviceNoneSuits"  # type, terms
    DEVICE_OFFLINE = "DeviceOffline"  # type, backends
    DEVICE_TOO_FEW = "DeviceTooFew"  # type, wanted, most
    DEVICE_BUSY = "DeviceBusy"  # type, wanted, backends, until
    DEVICES_CHANGED = "DevicesChanged"

    # -- fluence.cluster: seats came free --
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
