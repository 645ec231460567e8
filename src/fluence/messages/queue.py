"""What the queue, the plan and the cycle say."""

from __future__ import annotations

from fluence.messages.rendering import Templates, names, reasons, shown, text, texts
from fluence.messages.states import word
from fluence.model.reason import Code, Reason

CANNOT_HOLD = "the cluster as it is cannot hold it"  # how a message begins that says never


def _whose(reason: Reason) -> str:
    """Whom a limit counts for; empty: all."""
    return f"namespace {reason['account']}" if reason["account"] else str(reason["user"])


QUEUE: Templates = {
    # What happens to a job in the queue.
    Code.SUBMITTED: "submitted",
    Code.FOUND_RUNNING: "found running",
    Code.WAS_RUNNING: "it was running already",
    Code.PLANNED: "the plan has a place for it",
    Code.UNPLANNED: "its place in the plan was given up",
    Code.TAKEN_OUT_OF_PLAN: "taken out of the plan",
    Code.BACKFILLED: "backfilled ahead of jobs that must wait",
    Code.ITS_TURN: "its turn, and it fits",
    Code.RESOURCES_BOUND: "its resources were bound",
    Code.ENDED: "ended",
    Code.FAILED: "failed",
    Code.CANCELLED_BY_USER: "cancelled by its user",
    Code.GIVEN: "{text}",
    # Why a job waits in the queue, or never starts.
    Code.QUEUED_BEHIND_OTHERS: "it would fit, but jobs in front of it must start first",
    Code.FIRST_IN_QUEUE: "it fits and is first: the next cycle starts it",
    Code.MUST_START_FIRST: lambda reason: (
        ("it would fit, but " if reason["fits"] else "") + f"{names(reason['jobs'])} must start first"
    ),
    Code.BEYOND_DEPTH: "only the first {depth} jobs are looked at, and {ahead} are ahead of it",
    Code.DEPENDENCY: lambda reason: f"it waits for {names(reason['jobs'])} to end",
    Code.DEPENDENCY_FAILED: lambda reason: (
        f"it waits for {reason['job']} to succeed, which is {word(str(reason['phase']))}"
    ),
    Code.USER_LIMIT: lambda reason: (
        f"{_whose(reason) or 'its user'} runs, or is promised, {reason['most']} jobs in queue "
        f"{reason['queue']!r}: no more are allowed"
    ),
    Code.DEVICE_LIMIT: lambda reason: (
        f"{_whose(reason) or 'queue ' + repr(reason['queue'])} has, or is promised, the {reason['most']} "
        f"{reason['type']} that are allowed" + (f" in queue {reason['queue']!r}" if _whose(reason) else "")
    ),
    Code.LIMIT_ABOVE_QUEUE: lambda reason: (
        f"its limit of {reason['limit_s']} s is over the {reason['max_s']} s that queue "
        f"{reason['queue']!r} allows: ask for less"
    ),
    Code.CONSTRAINT_TOO_NARROW: lambda reason: (
        f"its constraint leaves too little: {texts(reasons(reason['causes']))}"
    ),
    Code.IN_PHASE: lambda reason: f"it is {word(str(reason['phase']))}: {shown(reason['last'])}",
    Code.TOO_FEW_UNITS: "it asks for {units} {unit}s; this cluster has {total}",
    Code.UNITS_BUSY: "it needs {units} {unit}s and {free} of {total} are free",
    Code.UNITS_PROMISED: "{free} {unit}s are free, but only {most} of them for as long as it may run",
    Code.NO_EMPTY_CLUSTER: "no empty cluster could hold it: {cause}",
    Code.INVALID_REQUEST: "{fault}",
    Code.MATCHER_EXPLAINS: "{cause}",
    Code.CLUSTER_CANNOT_HOLD: lambda reason: (
        f"{CANNOT_HOLD}: " + (texts(reasons(reason["causes"])) or "the cluster has no nodes for it")
    ),
    Code.GROUP_GONE: "the group is gone",
    Code.GROUP_CHANGED: "its group changed",
    Code.CLUSTER_CHANGED: "what the cluster could hold has changed",
    Code.NOT_BOUND: "none of its pods was bound",
    Code.NODE_CHANGED: "node {node} changed",
    Code.NODE_GONE: "node {node} is gone",
    Code.ROOM_TAKEN: "node {node}: another pod took the room",
    Code.DEVICE_LOST: "{type} {backend} is gone, offline, or in use by another job",
    Code.QUARANTINED: "Fluence cannot handle this {kind}: {error}; please report it",
    # Why a promise was broken.
    Code.RESOURCES_LOST: "resources were lost",
    Code.RUNS_PAST_LIMIT: "job {job} runs past its limit",
    Code.OVERTAKEN: "jobs that came later were backfilled ahead of it",
    Code.RESTARTED: "the scheduler was restarted, and what it found leaves no room for it by then",
}

VOLUMES: Templates = {
    # Why a pod set waits for its volumes, or got none.
    Code.WAITS_FOR_ITS_CLAIMS: lambda reason: (
        f"waits for its {'claim' if len(reasons(reason['claims'])) == 1 else 'claims'} "
        + ", ".join(map(text, reasons(reason["claims"])))
    ),
    Code.WAITS_FOR_CLAIMS_OF_GROUP: "waits for the claims of its group",
    Code.WAITS_FOR_CLAIMS_OF_PODS: lambda reason: (
        f"waits for the claims of its pods: {', '.join(map(text, reasons(reason['claims'])))}"
        + (f" and {reason['more']} more" if reason["more"] else "")
    ),
    Code.CLAIM_TO_BE_BOUND: "{claim} to be bound to volume {volume}",
    Code.CLAIM_TO_BE_PROVISIONED: "{claim} to be provisioned on node {node}",
    Code.CLAIM_TIMED_OUT: "claim {claim!r} was not bound in time",
    Code.CLAIM_GONE: "claim {claim!r} is gone",
    Code.CLAIM_DELETING: "claim {claim!r} is being deleted",
    Code.BOUND_VOLUME_OUT_OF_REACH: "the volume of claim {claim!r} cannot be reached from node {node}",
    Code.VOLUME_TAKEN: "volume {volume} for claim {claim!r} is not free any more",
    Code.VOLUME_NOT_MADE: "no volume could be made for claim {claim!r} on node {node}",
    Code.POD_OVER_OR_BOUND: "pod {pod} is over, or has a node already",
    Code.NODE_CLOSED: "node {node}: {why}",
    Code.VOLUMES_BOUND: "its volumes are bound",
}
