"""Messages about the queue: the plan, preemption, volumes, time limits, work that is held or depends on other
work.
"""

from __future__ import annotations

from fluence.messages.rendering import (
    Templates,
    all_of,
    clock,
    count,
    names,
    reasons,
    shown,
    stamp,
    text,
    texts,
    values,
)
from fluence.model.job_state import JobState
from fluence.model.reason import Code, Reason
from fluence.units import format_duration, spell_duration

CANNOT_HOLD = "It cannot start on this cluster as it is"  # ends messages that mean never
_NO_NODES = Reason.of(Code.GIVEN, text="No node of this cluster can be used")


def _subject(reason: Reason) -> str:
    """The namespace or user that a limit counts for; empty for all."""
    return f"namespace {reason['account']}" if reason["account"] else str(reason["user"])


def _user_limit(reason: Reason) -> str:
    most = reason["most"]
    subject = _subject(reason) or "its user"
    return f"Waiting for queue {reason['queue']}: {subject} has {most} of {most} jobs running or planned"


def _device_limit(reason: Reason) -> str:
    most, subject = reason["most"], _subject(reason)
    has = f"{subject} has " if subject else ""
    return f"Waiting for queue {reason['queue']}: {has}{most} of {most} {reason['type']} in use or planned"


def _limit_above_queue(reason: Reason) -> str:
    queue = f"queue {reason['queue']}" if reason["queue"] else "jobs without a queue"
    limit, most = (spell_duration(int(str(reason[key])) * 1000) for key in ("limit_s", "max_s"))
    return f"Its time limit of {limit} exceeds the maximum of {queue}, {most}: request less"


def _unknown_queue(reason: Reason) -> str:
    nearest = reason["nearest"]
    cure = f"did you mean {nearest}?" if nearest else _use(reason)
    return f"Queue {reason['queue']!r} does not exist: {cure}"


def _closed_queue(reason: Reason) -> str:
    nearest = reason["nearest"]
    cure = f"use {nearest}" if nearest else _use(reason)
    return f"Queue {reason['queue']!r} is closed to its namespace: {cure}"


def _use(reason: Reason) -> str:
    known = reason["known"]
    return f"use one of {names(known)}" if known else "no queue is open to its namespace"


def _quota(reason: Reason) -> str:
    """``Waiting for queue physics: nvidia.com/gpu 64 of 64 in use``. The request is added if less than that
    is free, and the time if the plan knows it."""
    params = values(reason)
    has = f"{params['user']} has " if "user" in params else ""
    until = params.get("until")
    time = "" if until is None else f" until {clock(until, dated=params['far'])}"
    use = f"{has}{params['resource']} {params['used']} of {params['limit']} in use{time}"
    wanted = "" if params["used"] == params["limit"] else f", {params['wanted']} requested"
    return f"Waiting for queue {params['queue']}: {use}{wanted}"


def _share(reason: Reason) -> str:
    """``physics has used 1.4 times its share this week, chem 0.6 times``. A share with weight 0 has no
    ratio."""
    params = values(reason)
    when = "this week" if params["week"] else "lately"
    if not params["ratio"]:
        return f"Queue {params['queue']} has weight 0, so {params['other']} comes first"
    return (
        f"{params['queue']} has used {params['ratio']} times its share {when}, "
        f"{params['other']} {params['other_ratio']} times"
    )


def _share_of_user(reason: Reason) -> str:
    params = values(reason)
    when = "this week" if params["week"] else "lately"
    return (
        f"Its user has used {params['ratio']} times the share of a user of queue {params['queue']} {when}, "
        f"the next one {params['other_ratio']} times"
    )


QUEUE: Templates = {
    # What happens to a job in the queue.
    Code.SUBMITTED: "submitted",
    Code.FOUND_RUNNING: "found running",
    Code.WAS_RUNNING: "was already running",
    Code.PLANNED: "got a place in the plan",
    Code.UNPLANNED: "lost its place in the plan",
    Code.TAKEN_OUT_OF_PLAN: "removed from the plan",
    Code.BACKFILLED: "backfilled ahead of jobs that must wait",
    Code.ITS_TURN: "first in the queue, and it fits",
    Code.RESOURCES_BOUND: "resources were bound",
    Code.ENDED: "ended",
    Code.FAILED: "failed",
    Code.CANCELLED_BY_USER: "cancelled by its user",
    Code.GIVEN: "{text}",
    # Why a job waits in the queue, or never starts.
    Code.QUEUED_BEHIND_OTHERS: "It fits, but jobs ahead of it must start first",
    Code.FIRST_IN_QUEUE: "It fits and is first in the queue: the next cycle starts it",
    Code.MUST_START_FIRST: lambda reason: (
        ("It fits, but " if reason["fits"] else "") + f"{names(reason['jobs'])} must start first"
    ),
    Code.BEYOND_DEPTH: "{ahead} jobs are ahead of it, and the scheduler considers only the first {depth}",
    Code.DEPENDENCY: lambda reason: f"Waiting for {names(reason['jobs'])} to end",
    Code.DEPENDENCY_FAILED: lambda reason: (
        f"It needs {reason['job']} to succeed, which is {JobState(str(reason['phase'])).phase}"
    ),
    Code.USER_LIMIT: _user_limit,
    Code.DEVICE_LIMIT: _device_limit,
    Code.ARRAY_LIMIT: (
        "Waiting for its array {array}: {most} of {most} pods are running or planned (annotation max-running)"
    ),
    Code.LIMIT_ABOVE_QUEUE: _limit_above_queue,
    Code.UNKNOWN_QUEUE: _unknown_queue,
    Code.QUEUE_IS_INNER: lambda reason: (
        f"Queue {reason['queue']} takes no jobs: use a queue below it, such as {names(reason['queues'])}"
    ),
    Code.QUEUE_CLOSED: _closed_queue,
    Code.QUEUE_STOPPED: "Waiting for queue {queue}, which is stopped",
    Code.QUEUES_CHANGED: "the queues or their limits were changed",
    Code.SHARE_USED: _share,
    Code.SHARE_OF_USER_USED: _share_of_user,
    Code.QUOTA_IN_USE: _quota,
    Code.QUOTA_OF_USER: _quota,
    Code.QUOTA_TOO_SMALL: (
        "It requests {resource} {wanted}, and the limit of queue {queue} is {limit}: request less"
    ),
    Code.CONSTRAINT_TOO_NARROW: lambda reason: (
        f"Too few resources satisfy its constraint: {texts(reasons(reason['causes']))}"
    ),
    Code.IN_PHASE: lambda reason: f"It is {JobState(str(reason['phase'])).phase}: {shown(reason['last'])}",
    Code.TOO_FEW_UNITS: "Insufficient {unit}s: {units} requested, this cluster has {total}",
    Code.UNITS_BUSY: "Insufficient {unit}s: {units} requested, {free} of {total} free",
    Code.UNITS_PROMISED: "{free} {unit}s are free, but only {most} of them for as long as it may run",
    Code.NO_EMPTY_CLUSTER: "It would not fit on an empty cluster: {cause}",
    Code.INVALID_REQUEST: "{fault}",
    Code.MATCHER_EXPLAINS: "{cause}",
    Code.CLUSTER_CANNOT_HOLD: lambda reason: texts(
        (*(reasons(reason["causes"]) or (_NO_NODES,)), Reason.of(Code.GIVEN, text=CANNOT_HOLD))
    ),
    Code.GROUP_GONE: "the group was deleted",
    Code.GROUP_CHANGED: "the group changed",
    Code.CLUSTER_CHANGED: "the capacity of the cluster changed",
    Code.NOT_BOUND: "none of its pods was bound",
    Code.NODE_CHANGED: "node {node} changed",
    Code.NODE_GONE: "node {node} was removed",
    Code.ROOM_TAKEN: "node {node}: another pod took the capacity",
    Code.DEVICE_LOST: "{type} {backend} was removed, is offline, or is in use by another job",
    Code.QUARANTINED: "Fluence cannot handle this {kind}: {error}; please report it",
    # Why a promise was broken.
    Code.RESOURCES_LOST: "resources were lost",
    Code.RUNS_PAST_LIMIT: "job {job} exceeded its time limit",
    Code.OVERTAKEN: "later jobs were backfilled ahead of it",
    Code.RESTARTED: "the scheduler was restarted, and it no longer fits by the promised time",
}

VOLUMES: Templates = {
    # Why a pod set waits for its volumes, or got none.
    Code.WAITS_FOR_ITS_CLAIMS: lambda reason: (
        f"Waiting for persistentvolumeclaim {', '.join(map(text, reasons(reason['claims'])))}"
    ),
    Code.WAITS_FOR_CLAIMS_OF_GROUP: "Waiting for the PersistentVolumeClaims of its group",
    Code.WAITS_FOR_CLAIMS_OF_PODS: lambda reason: (
        f"Waiting for persistentvolumeclaim {', '.join(map(text, reasons(reason['claims'])))}"
        + (f" and {reason['more']} more" if reason["more"] else "")
    ),
    Code.CLAIM_TO_BE_BOUND: "{claim} to be bound to volume {volume}",
    Code.CLAIM_TO_BE_PROVISIONED: "{claim} to be provisioned on node {node}",
    Code.CLAIM_TIMED_OUT: 'persistentvolumeclaim "{claim}" was not bound in time',
    Code.CLAIM_GONE: 'persistentvolumeclaim "{claim}" was deleted',
    Code.CLAIM_DELETING: 'persistentvolumeclaim "{claim}" is being deleted',
    Code.BOUND_VOLUME_OUT_OF_REACH: (
        'the volume of persistentvolumeclaim "{claim}" cannot be attached to node {node}'
    ),
    Code.VOLUME_TAKEN: 'volume {volume} for persistentvolumeclaim "{claim}" is no longer available',
    Code.VOLUME_NOT_MADE: 'no volume could be provisioned for persistentvolumeclaim "{claim}" on node {node}',
    Code.POD_OVER_OR_BOUND: "pod {pod} has ended or already has a node",
    Code.NODE_CLOSED: "node {node}: {why}",
    Code.VOLUMES_BOUND: "volumes are bound",
}


def _overrun(reason: Reason) -> str:
    limit, since = values(reason)["limit"], values(reason)["since"]
    return f"exceeded its time limit of {spell_duration(limit)} at {stamp(since)}"


def _limit_passed(reason: Reason) -> str:
    ends = values(reason)["ends"]
    then = "it keeps running" if ends is None else f"it will be ended at {stamp(ends)}"
    return f"The job {_overrun(reason)}: {then}"


def _holder(reason: Reason) -> str:
    params = values(reason)
    more = f" and {params['more']} more of its group" if params["more"] else ""
    return f"{_kind(params['kind'])} {params['namespace']}/{params['name']}{more}"


def _holders(reason: Reason, one: str, several: str) -> str:
    """Work of other namespaces is only counted: ``1 pod of another namespace that has no time limit``."""
    kinds = values(reason)["holders"]
    counts = all_of(tuple(count(number, _kind(kind)) for kind, number in kinds))
    if sum(number for _, number in kinds) == 1:
        return f"{counts} of another namespace that {one}"
    return f"{counts} of other namespaces that {several}"


def _kind(kind: str) -> str:
    return "pod" if kind == "Pod" else kind


LIMITS: Templates = {
    Code.WAITS_FOR_OVERRUN: lambda reason: f"Waiting for {_holder(reason)}, which {_overrun(reason)}",
    Code.WAITS_FOR_OVERRUN_OF_OTHERS: lambda reason: (
        f"Waiting for {_holders(reason, 'exceeded its time limit', 'exceeded their time limits')}"
    ),
    Code.WAITS_FOR_UNLIMITED: lambda reason: f"Waiting for {_holder(reason)}, which has no time limit",
    Code.WAITS_FOR_UNLIMITED_OF_OTHERS: lambda reason: (
        f"Waiting for {_holders(reason, 'has no time limit', 'have no time limit')}"
    ),
    Code.LIMIT_PASSED: _limit_passed,
    Code.ENDED_AT_LIMIT: lambda reason: f"The job {_overrun(reason)} and is ended",
    Code.NOT_ENDED_AT_LIMIT: lambda reason: (
        f"The job {_overrun(reason)} and could not be ended yet: {reason['error']}"
    ),
}


_EVENTS = {
    "after": "to start",
    "afterany": "to end",
    "afterok": "to succeed",
    "afternotok": "to fail",
}
_OUTCOMES = {
    "succeeded": "succeeded",
    "failed": "failed",
    "gone": "was deleted before its outcome was seen",
}
_FAULTS = {
    "mixed": "mixes ',' and '?'",
    "type": "has the unknown type {part!r}",
    "no-name": "has no name after {part!r}",
    "name": "has an invalid name in {part!r}",
    "many": "has more than {part} terms",
}


def _waits(reason: Reason) -> str:
    if reason["kind"] == "singleton":
        series = f" of series {reason['job']}" if reason["job"] else " of its series"
        return f"Waiting for earlier work{series} to end"
    return f"Waiting for {reason['job']} {_EVENTS[str(reason['kind'])]}"


def _several(reason: Reason) -> str:
    causes = [text(cause) for cause in reasons(reason["causes"])]
    return ("One of: " + "; ".join(causes)) if reason["any"] else ". ".join(causes)


def _never(reason: Reason) -> str:
    job, outcome = reason["job"], _OUTCOMES[str(reason["outcome"])]
    return (
        f"{job} {outcome}, so {reason['kind']}:{job} never holds: delete it, or change the annotation "
        f"{reason['key']}"
    )


def _cycle(reason: Reason) -> str:
    jobs = reason["jobs"]
    assert isinstance(jobs, tuple)
    path = " -> ".join(map(str, jobs))
    return f"It depends on itself ({path}): change the annotation {reason['key']} of one of them"


def _invalid(reason: Reason) -> str:
    fault = _FAULTS[str(reason["fault"])].format(part=reason["part"])
    return (
        f"Annotation {reason['key']}={reason['value']!r} {fault}: use after, afterany, afterok or "
        "afternotok with a name, such as afterok:NAME, or singleton; separate terms with ',' if all must "
        "hold, or with '?' if one is enough"
    )


ELIGIBILITY: Templates = {
    Code.HELD_BY_USER: "{kind} {what} is held: remove its annotation {key} to release it",
    Code.WAITS_FOR_DEPENDENCIES: _several,
    Code.WAITS_FOR_DEPENDENCY: _waits,
    Code.DEPENDENCY_UNKNOWN: (
        "Waiting for {job}: there is no Job, group or pod of this name in namespace {namespace}"
    ),
    Code.DEPENDENCY_NEVER_SATISFIED: _never,
    Code.DEPENDENCY_CYCLE: _cycle,
    Code.INVALID_DEPENDENCY: _invalid,
    Code.INVALID_MAX_RUNNING: (
        "Annotation {key}={value!r} is not a valid number of pods: use a whole number from 1 to {most}"
    ),
    Code.INVALID_PRIORITY: (
        "Annotation {key}={value!r} is not a valid priority: use a whole number from -{most} to {most}"
    ),
}


def _nodes(reason: Reason) -> str:
    on = values(reason)["on"]
    return f"node {on[0]}" if len(on) == 1 else f"nodes {names(on)}"


def _off(reason: Reason) -> str:
    queue = values(reason)["queue"]
    return f"Preemption is off for queue {queue}" if queue else "Preemption is off"


def _preempting(reason: Reason) -> str:
    told = values(reason)
    kind = "" if told.get("reclaims") else " of lower priority"
    start = f" for a start at {stamp(told['at'])}" if told.get("at") else ""
    return f"Preempting {count(told['pods'], 'pod')}{kind} on {_nodes(reason)}{start}"


def _not_needed(reason: Reason) -> str:
    told = values(reason)
    start = f"It does not preempt: by the time limits of running work it starts at {stamp(told['at'])}"
    if not told.get("earlier"):
        return f"{start}, before victims would have ended"
    end = f", which end by themselves by {stamp(told['end'])}" if told.get("end") else ""
    others = count(told["victims"], "other")
    return f"{start}. It would start at {stamp(told['earlier'])} if {others} were ended{end}"


def _lost(reason: Reason) -> str:
    seconds = values(reason)["lost"] // 1000
    return f"; {format_duration(seconds)} of its work is lost" if seconds else ""


def _preempted(reason: Reason) -> str:
    told = values(reason)
    by = f"pod {told['namespace']}/{told['pod']} of priority {told['priority']}"
    return f"Preempted by {by}; its own priority is {told['own']}{_lost(reason)}"


def _preempted_for_others(reason: Reason) -> str:
    told = values(reason)
    by = f"a pod of another namespace of priority {told['priority']}"
    return f"Preempted by {by}; its own priority is {told['own']}{_lost(reason)}"


def _planned(reason: Reason) -> str:
    return f"It is to end at {stamp(values(reason)['at'])} for other work: save what it has done"


def _reclaimed(reason: Reason) -> str:
    return f"Preempted for work within the guarantee of queue {values(reason)['queue']}{_lost(reason)}"


PREEMPTION: Templates = {
    Code.PREEMPTING: _preempting,
    Code.WAITS_FOR_ENDING: lambda reason: f"Waiting for pods to terminate on {_nodes(reason)}",
    Code.PREEMPTED: _preempted,
    Code.PREEMPTED_FOR_OTHERS: _preempted_for_others,
    Code.PREEMPTION_PLANNED: _planned,
    Code.PREEMPTION_WITHDRAWN: "It does not end for other work after all",
    Code.NOT_PREEMPTED: "It is to end for work of higher priority and could not be ended yet: {error}",
    Code.PREEMPTION_IS_OFF: _off,
    Code.PREEMPTION_NEVER: "It does not preempt: its preemptionPolicy is Never",
    Code.PREEMPTION_NOT_NEEDED: _not_needed,
    Code.NO_VICTIMS: (
        "Preemption does not help: it does not fit without the pods below priority {priority} either"
    ),
    Code.QUOTA_NOT_FREED: (
        "Preemption does not help: the quota of queue {queue} is in use by work that it may not end"
    ),
    Code.RECLAIMED: _reclaimed,
    Code.DRAINED: "Ended because queue {queue} is drained",
    Code.GANG_ENDED: "Ended because the rest of its gang was preempted",
    Code.VICTIMS_PROTECTED: (
        "Preemption does not help: PodDisruptionBudgets protect the pods below priority {priority}"
    ),
}
