"""Messages about preemption: running work that ends for work of higher priority."""

from __future__ import annotations

from fluence.messages.rendering import Templates, count, names, values
from fluence.messages.times import stamp
from fluence.model.reason import Code, Reason
from fluence.units import format_duration


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
