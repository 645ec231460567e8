"""What is said of groups of pods, of their labels and annotations, and what would help them."""

from __future__ import annotations

from decimal import Decimal

from fluence import names
from fluence.messages.rendering import Templates, all_of, be, values
from fluence.model.reason import Code, Reason, Value
from fluence.units import format_amount, spell_duration

# -- groups --------------------------------------------------------------------------------------------------


def _pods_gated(reason: Reason) -> str:
    gated = reason["gated"]
    return f"{gated} of {reason['pods']} pods {be(gated)} held by scheduling gates"


_PRODUCED = {
    "quantum-submit": "announce its task",
    "started": "start",
    "finished": "finish",
}


def _waits_for_producer(reason: Reason) -> str:
    gated, part = reason["gated"], _PRODUCED[str(reason["kind"])]
    wait = "waits" if gated == 1 else "wait"
    return f"{gated} of {reason['pods']} pods {wait} for producer {reason['producer']} to {part}"


def _pods_missing(reason: Reason) -> str:
    pods = reason["pods"]
    return f"{pods} of {reason['minimum']} pods {be(pods)} there"


def _owner_runs_too_few(reason: Reason) -> str:
    others, runs = values(reason)["others"], reason["runs"]
    who = f"{reason['kind']} {reason['owner']}"
    who += f" and {others} more run {runs}" if others else f" runs {runs}"
    return (
        f"{_pods_missing(reason)}, and {who} at a time: raise that, create the others of its group, or lower "
        "the size"
    )


def _owner_is_ordered(reason: Reason) -> str:
    return (
        f"{_pods_missing(reason)}, and StatefulSet {reason['owner']} makes the next only when the one before "
        "it is ready (OrderedReady), so that they never gather: create it anew with podManagementPolicy: "
        "Parallel"
    )


def _unknown_annotation(reason: Reason) -> str:
    nearest = f": did you mean {reason['nearest']}?" if reason["nearest"] else ""
    return f"{reason['kind']} {reason['key']} is not known and not read{nearest}"


def _different_priorities(reason: Reason) -> str:
    found = all_of(reason["priorities"])
    return f"its pods have different priorities ({found}): set one priorityClassName on all of them"


def _different_preemption_policies(reason: Reason) -> str:
    found = all_of(reason["policies"])
    return f"its pods have different preemption policies ({found}): set one on all"


def _no_size(reason: Reason) -> str:
    size = reason["size"]
    there = f"the {size} pods that are" if size != 1 else "the one pod that is"
    return (
        f"the group names no size, so it starts with {there} there when nothing new comes: "
        f'to start it at once, and always as a whole, add the annotation {reason["key"]}: "{size}"'
    )


def _different_sizes(reason: Reason) -> str:
    found = all_of(reason["sizes"])
    return f"its {reason['level']} say different sizes, {found}: the largest is used; write one"


def _jobspec_duration(reason: Reason) -> str:
    limit, given = _seconds(reason["limit"]), _seconds(reason["given"])
    return (
        f"annotation {reason['key']} takes {limit} s and the annotation {reason['other']} says {given} s: "
        "write one of them, or the same in both"
    )


def _jobspec_more(reason: Reason) -> str:
    told = values(reason)
    resource = told["resource"]
    asked, requested = (format_amount(resource, told[each]) for each in ("asked", "requested"))
    return (
        f"annotation {told['key']}: a slot asks for {asked} {resource} and a pod requests {requested}: "
        "raise the pods' requests, which is what they are given"
    )


def _seconds(milliseconds: Value) -> str:
    """Exact: two durations that differ must look different."""
    return str(Decimal(str(milliseconds)) / 1000)


# -- advice --------------------------------------------------------------------------------------------------


def _where_the_size_stands(group: Value, key: Value) -> str:
    return f"minCount of PodGroup {group}" if group is not None else str(key)


def _some_would_fit(reason: Reason) -> str:
    where = _where_the_size_stands(reason["group"], reason["key"])
    return (
        f"{reason['some']} of {reason['needed']} pods would fit "
        f"{'if the cluster were empty' if reason['empty'] else 'now'}: if they are enough, "
        f"set {where} to {reason['enough']}"
    )


def _create_pods(reason: Reason) -> str:
    more, where = reason["more"], _where_the_size_stands(reason["group"], reason["key"])
    return f"create {more} more pod{'' if more == 1 else 's'} of it, or lower {where}"


def _invalid_devices(reason: Reason) -> str:
    told = values(reason)
    if told["key"] == names.DEVICES:
        return f"annotation {told['key']}={told['value']!r}: write per-pod, or shared"
    return f"annotation {told['key']}={told['value']!r} is not a number"


GROUPS: Templates = {
    # -- groups: what a gang waits for --
    Code.OWNER_NOT_SEEN: "waits for its {kind} {name} to be seen",
    Code.GROUP_SETTLES: lambda reason: (
        "its group names no size, so it starts when nothing new has come for "
        f"{spell_duration(values(reason)['quiet'])}"
    ),
    Code.POD_GROUP_NOT_SEEN: "waits for its PodGroup {group}",
    Code.POD_GROUP_OR_SIZE_MISSING: (
        "waits for its PodGroup {group}: create it, or say its size in group-size"
    ),
    Code.OWNER_SUSPENDED: "{kind} {owner} is suspended",
    Code.PODS_GATED: _pods_gated,
    Code.WAITS_FOR_PRODUCER: _waits_for_producer,
    Code.UNKNOWN_DEPENDENCY: "annotation {key}={value!r} is not known: write one of {kinds}",
    Code.GATE_OF_OTHERS: "annotation {key}: gate {gate} is opened by its own controller; use one of your own",
    Code.FOREIGN_PRODUCER: (
        "annotation {key}={value!r} names a producer in another namespace: name one in {namespace}"
    ),
    # -- gates --
    Code.PRODUCER_ANNOUNCED: "gate {gate} is opened: producer {producer} has announced task {task}",
    Code.PRODUCER_STARTED: "gate {gate} is opened: producer {producer} has started",
    Code.PRODUCER_FINISHED: "gate {gate} is opened: producer {producer} has finished",
    Code.PRODUCER_SILENT: lambda reason: (
        f"gate {reason['gate']} is opened without a task: producer {reason['producer']} has announced none "
        f"within {spell_duration(values(reason)['limit'])}"
    ),
    Code.PRODUCER_ENDED: (
        "gate {gate} is opened without a task: producer {producer} has ended and announced none"
    ),
    Code.PRODUCER_GONE: "gate {gate} is opened: producer {producer} is gone",
    Code.GATE_NOT_OPENED: "gate {gate} could not be opened yet: {error}",
    Code.PODS_MISSING: _pods_missing,
    Code.OWNER_RUNS_TOO_FEW: _owner_runs_too_few,
    Code.OWNER_IS_ORDERED: _owner_is_ordered,
    # -- groups: why a gang is refused --
    Code.OTHER_SCHEDULER: (
        "some of its pods name another scheduler ({others}): set schedulerName: {scheduler} on all of them"
    ),
    Code.TOPOLOGY_NEEDS_GANG: (
        "PodGroup {group}: spec.schedulingConstraints.topology ({key}) needs a gang, since the pods of a "
        "basic group start one by one: set schedulingPolicy.gang"
    ),
    Code.SHARED_CLAIMS: (
        "PodGroup {group} shares resource claims ({claims}), which only kube-scheduler allocates: "
        "leave schedulerName out"
    ),
    Code.DIFFERENT_PRIORITIES: _different_priorities,
    Code.GROUP_PRIORITY_DIFFERS: (
        "PodGroup {group} has priority {wanted} and its pods {given}: set one priorityClassName on both"
    ),
    Code.FLUX_JOB_DELETED: (
        "its FluxJob was deleted, so {what} stays held: remove the annotation {key} from it to queue it again"
    ),
    Code.DIFFERENT_PREEMPTION_POLICIES: _different_preemption_policies,
    # -- groups: labels and annotations --
    Code.INVALID_GROUP_NAME: (
        "{kind} {key}={value!r} is not a valid name of a group: use letters, digits, '-', '_' and '.'"
    ),
    Code.INVALID_SIZE: (
        "{kind} {key}={value!r} is not a valid size: write a whole number from 1 to {maximum}"
    ),
    Code.NO_APPLICATION: (
        "annotation {key} needs the name of the application, which all pods of the gang share: add the label "
        "{label}"
    ),
    Code.INVALID_TASK_GROUPS: (
        "annotation {key} is not a valid list of task groups: write a JSON list in which each task group has "
        "a name of its own and a minMember of at least 1, at most {maximum} pods in all"
    ),
    Code.GROUP_TOO_LARGE: (
        "PodGroup {group} wants {minimum} pods to start together: ask for at most {maximum}"
    ),
    Code.CLUSTER_HOLDS_FEWER: (
        "{pods} pods are to run at a time, and an empty cluster could hold {most} of them: lower the "
        "parallelism or the replicas, or add nodes"
    ),
    Code.TOO_MANY_HELD_PODS: (
        "{pods} pods are to run at a time, and a workload that is held may have {most}: lower the "
        "parallelism or the replicas, or split it"
    ),
    Code.NAMESPACE_HOLDS_TOO_MANY: (
        "{others} pods of other held workloads of this namespace are in the queue, and with the {pods} "
        "of this one there would be more than {most}: it is queued when some of them have started"
    ),
    Code.DIFFERENT_SIZES: _different_sizes,
    Code.SIZE_NOT_USED: "group-size {size} is not used: PodGroup {group} says {minimum}; change it there",
    Code.SIZE_WITHOUT_GROUP: (
        "group-size {size} is not used, since nothing says which pods belong together: add the label {key}"
    ),
    Code.NO_SIZE: _no_size,
    Code.DIFFERENT_ANNOTATIONS: "its {level} say different things in {key}: {value!r} counts; write one",
    Code.INVALID_ANNOTATION: "annotation {error}",
    Code.INVALID_DURATION: (
        "annotation {key}={value!r} is not a valid duration: write seconds, or 2h30m; at most 100 years"
    ),
    Code.UNKNOWN_ANNOTATION: _unknown_annotation,
    Code.LABEL_NOT_READ: "label {key} is not read: write it as an annotation",
    Code.ANNOTATION_TOO_LONG: "annotation {key} has {size} bytes: write at most {most}",
    Code.TOO_MANY_EXCLUDED: (
        "annotation {key} names {given} nodes: name at most {most}, or say which nodes in constraints"
    ),
    Code.INVALID_DEVICES: _invalid_devices,
    Code.TOO_MANY_TERMS: "{given} annotations require-, min- and max-: write at most {most}",
    Code.REQUIRE_WITHOUT_DEVICE: (
        "{keys} is said of devices, and no pod asks for one: add a resource fluxion.flux-framework.org/<type>"
    ),
    Code.JOBSPEC_SLOTS: (
        "annotation {key} asks for {slots} slots and the gang has {pods} pods, of which {minimum} start "
        "together: ask for one slot per pod"
    ),
    Code.JOBSPEC_LEVEL: (
        "annotation {key}: {part} asks for {type!r}, and counts per {type} are not kept: "
        "write one slot on top, with cores, memory and devices in it"
    ),
    Code.JOBSPEC_NO_SLOT: "annotation {key}: {part} is {type!r}: put it into a slot, one per pod",
    Code.JOBSPEC_SEVERAL_SLOTS: (
        "annotation {key}: {part} has {slots} slots, and a gang has one kind: write one slot, one per pod"
    ),
    Code.JOBSPEC_NESTED: (
        "annotation {key}: {part} puts resources below {type!r}: write all that a slot has side by side"
    ),
    Code.JOBSPEC_RANGE: "annotation {key}: {part} is a range, and a gang has one size: write a number",
    Code.JOBSPEC_EXCLUSIVE: (
        "annotation {key}: {part} is not supported: remove it, and for whole nodes name a policy such as "
        "lonodex in the annotation policy"
    ),
    Code.JOBSPEC_RESOURCE: (
        "annotation {key} asks for {type!r}, which is not a resource that its pods request: "
        "request it there, or ask for core, memory or what they request"
    ),
    Code.JOBSPEC_UNIT: (
        "annotation {key}: {part}={unit!r} is not a valid unit of {type}: write B, kB, MB, GB, TB, KiB, MiB, "
        "GiB or TiB"
    ),
    Code.JOBSPEC_NO_UNIT: "annotation {key}: {part}: {type!r} is counted and has no unit: remove it",
    Code.JOBSPEC_MORE: _jobspec_more,
    Code.JOBSPEC_TOO_LARGE: "annotation {key}: {part} asks for more {type} than any node has: ask for less",
    Code.JOBSPEC_DEPENDENCIES: (
        "annotation {key}: {part} is not supported: remove it, and create the pods when they may start"
    ),
    Code.JOBSPEC_TOO_LONG: (
        "annotation {key}: {part}={value!r} is not a valid duration: ask for at most 100 years"
    ),
    Code.JOBSPEC_DURATION: _jobspec_duration,
    Code.JOBSPEC_QUEUE: (
        "annotation {key} names the queue {queue!r} and the annotation {other} the queue {given!r}: name one"
    ),
    # -- advice --
    Code.GIVE_DURATION: (
        "say how long it takes in the annotation {key}: work with a limit may go ahead where it delays nobody"
    ),
    Code.NEVER_FITS: "as the cluster is, it never fits: ask for less",
    Code.SOME_WOULD_FIT: _some_would_fit,
    Code.FITS_WITHOUT: "without its {field} it would fit now",
    Code.FITS_WITH_TOLERATIONS: (
        "it would fit now on nodes whose taints it does not tolerate: add tolerations if it may"
    ),
    Code.HOLDS_WITHOUT: "without its {field} the cluster could hold it",
    Code.HOLDS_WITH_TOLERATIONS: (
        "the cluster could hold it on nodes whose taints it does not tolerate: add tolerations if it may"
    ),
    Code.ANNOUNCE_TASK: (
        "the producer announces its task by `fluence task announce ID` in its container, or by the "
        "annotation {key} on its pod ({producer})"
    ),
    Code.REMOVE_GATES: "its gates must be removed by whoever set them: {gates}",
    Code.UNSUSPEND: "set suspend: false on it",
    Code.CREATE_PODS: _create_pods,
}
