"""Messages about groups of pods, their labels and annotations, and advice."""

from __future__ import annotations

from decimal import Decimal

from fluence import names
from fluence.messages.rendering import Templates, all_of, be, values
from fluence.model.reason import Code, Reason, Value
from fluence.units import format_amount, spell_duration

# -- groups --------------------------------------------------------------------------------------------------


def _pods_gated(reason: Reason) -> str:
    gated = reason["gated"]
    return f"{gated} of {reason['pods']} pods {be(gated)} gated (spec.schedulingGates)"


_PRODUCED = {
    "quantum-submit": "announce its task",
    "started": "start",
    "finished": "finish",
}


def _waits_for_producer(reason: Reason) -> str:
    gated, step = reason["gated"], _PRODUCED[str(reason["kind"])]
    wait = "waits" if gated == 1 else "wait"
    return f"{gated} of {reason['pods']} pods {wait} for producer {reason['producer']} to {step}"


def _pods_missing(reason: Reason) -> str:
    params = values(reason)
    group, minimum = params["group"], params["minimum"]
    return f"Waiting for {minimum - params['pods']} of {minimum} pods of group {group} to be created"


def _owner_runs_too_few(reason: Reason) -> str:
    others, runs = values(reason)["others"], reason["runs"]
    owners = f"{reason['kind']} {reason['owner']}"
    owners += f" and {others} more run {runs}" if others else f" runs {runs}"
    return (
        f"{_pods_missing(reason)}, but {owners} at a time: increase that, create the other pods "
        f"of the group, "
        "or lower the size of the group"
    )


def _owner_is_ordered(reason: Reason) -> str:
    return (
        f"{_pods_missing(reason)}, but StatefulSet {reason['owner']} creates a pod only when the "
        f"one before it "
        "is ready (OrderedReady): create the StatefulSet again with podManagementPolicy: Parallel"
    )


def _unknown_annotation(reason: Reason) -> str:
    nearest = f": did you mean {reason['nearest']}?" if reason["nearest"] else ""
    return f"Unknown {reason['kind']} {reason['key']} is ignored{nearest}"


def _different_priorities(reason: Reason) -> str:
    priorities = all_of(reason["priorities"])
    return f"Its pods have different priorities ({priorities}): set one priorityClassName on all of them"


def _different_preemption_policies(reason: Reason) -> str:
    policies = all_of(reason["policies"])
    return f"Its pods have different preemption policies ({policies}): set the same one on all of them"


def _no_size(reason: Reason) -> str:
    size = reason["size"]
    pods = f"the {size} pods" if size != 1 else "the one pod"
    return (
        f"The group has no size, so it starts with {pods} created so far, once no new pod "
        f"appears: to start it "
        f'at once and always as a whole, add the annotation {reason["key"]}: "{size}"'
    )


def _different_sizes(reason: Reason) -> str:
    sizes = all_of(reason["sizes"])
    return (
        f"Its {reason['level']} have different group sizes ({sizes}), and the largest is used: set one size"
    )


def _jobspec_duration(reason: Reason) -> str:
    limit, given = _seconds(reason["limit"]), _seconds(reason["given"])
    return (
        f"Annotation {reason['key']} has a duration of {limit} s and annotation {reason['other']} one of "
        f"{given} s: remove one, or set the same duration in both"
    )


def _jobspec_more(reason: Reason) -> str:
    params = values(reason)
    resource = params["resource"]
    asked, requested = (format_amount(resource, params[key]) for key in ("asked", "requested"))
    return (
        f"Annotation {params['key']}: a slot requests {asked} {resource}, but a pod requests {requested}: "
        "increase the requests of the pods"
    )


def _seconds(milliseconds: Value) -> str:
    """Exact: two durations that differ must look different."""
    return str(Decimal(str(milliseconds)) / 1000)


# -- advice --------------------------------------------------------------------------------------------------


def _size_field(group: Value, key: Value) -> str:
    return f"minCount of PodGroup {group}" if group is not None else str(key)


def _some_would_fit(reason: Reason) -> str:
    field = _size_field(reason["group"], reason["key"])
    where = "on an empty cluster" if reason["empty"] else "now"
    return (
        f"{reason['some']} of {reason['needed']} pods would fit {where}: if these are enough, "
        f"set {field} to {reason['enough']}"
    )


def _tolerations(reason: Reason) -> str:
    taints = tuple(f"{{{taint}}}" for taint in values(reason)["taints"])
    if len(taints) == 1:
        return f"the taint {taints[0]}: add a toleration if it may use them"
    return f"the taints {all_of(taints)}: add tolerations if it may use them"


def _create_pods(reason: Reason) -> str:
    more, field = reason["more"], _size_field(reason["group"], reason["key"])
    return f"create {more} more pod{'' if more == 1 else 's'} of the group, or lower {field}"


def _invalid_devices(reason: Reason) -> str:
    params = values(reason)
    choices = {names.DEVICES: "per-pod or shared", names.MISSING_VARIABLES: "warn, hold or ignore"}
    if params["key"] in choices:
        return f"Annotation {params['key']}={params['value']!r} is invalid: use {choices[params['key']]}"
    return f"Annotation {params['key']}={params['value']!r} is not a number"


def _variables_missing(reason: Reason) -> str:
    params = values(reason)
    containers = params["containers"]
    subject = f"Container{'s' if len(containers) > 1 else ''} {', '.join(containers)}"
    then = f"held (annotation {names.MISSING_VARIABLES})" if params["held"] else "the pod is not held for it"
    return (
        f"{subject}: no variable has the name of its backend (QRMI_BACKEND, FLUXION_BACKEND), because "
        f"admission did not set it; {then}. Ask an administrator to run `fluence doctor`, then create the "
        "pod again"
    )


GROUPS: Templates = {
    # -- groups: what a gang waits for --
    Code.OWNER_NOT_SEEN: "Waiting for {kind} {name}, which owns the pod",
    Code.GROUP_SETTLES: lambda reason: (
        "The group has no size, so it starts when no new pod has appeared for "
        f"{spell_duration(values(reason)['quiet'])}"
    ),
    Code.POD_GROUP_NOT_SEEN: "Waiting for PodGroup {group}",
    Code.POD_GROUP_OR_SIZE_MISSING: (
        "Waiting for PodGroup {group}: create it, or set the size of the group in the annotation group-size"
    ),
    Code.OWNER_SUSPENDED: "{kind} {owner} is suspended",
    Code.PODS_GATED: _pods_gated,
    Code.WAITS_FOR_PRODUCER: _waits_for_producer,
    Code.UNKNOWN_DEPENDENCY: "Annotation {key}={value!r} is invalid: use one of {kinds}",
    Code.GATE_OF_OTHERS: (
        "Annotation {key}: gate {gate} belongs to another controller: use a gate of your own"
    ),
    Code.FOREIGN_PRODUCER: (
        "Annotation {key}={value!r} names a producer in another namespace: use one in {namespace}"
    ),
    # -- gates --
    Code.PRODUCER_ANNOUNCED: "Gate {gate} was removed: producer {producer} has announced task {task}",
    Code.PRODUCER_STARTED: "Gate {gate} was removed: producer {producer} has started",
    Code.PRODUCER_FINISHED: "Gate {gate} was removed: producer {producer} has finished",
    Code.PRODUCER_SILENT: lambda reason: (
        f"Gate {reason['gate']} was removed without a task: producer {reason['producer']} announced no task "
        f"within {spell_duration(values(reason)['limit'])}"
    ),
    Code.PRODUCER_ENDED: (
        "Gate {gate} was removed without a task: producer {producer} ended and announced no task"
    ),
    Code.PRODUCER_GONE: "Gate {gate} was removed: producer {producer} was deleted",
    Code.GATE_NOT_OPENED: "Gate {gate} could not be removed yet: {error}",
    Code.PODS_MISSING: _pods_missing,
    Code.OWNER_RUNS_TOO_FEW: _owner_runs_too_few,
    Code.OWNER_IS_ORDERED: _owner_is_ordered,
    # -- groups: why a gang is refused --
    Code.OTHER_SCHEDULER: (
        "Some of its pods have another schedulerName ({others}): set schedulerName: {scheduler} "
        "on all of them"
    ),
    Code.TOPOLOGY_NEEDS_GANG: (
        "PodGroup {group}: spec.schedulingConstraints.topology ({key}) requires a gang, because "
        "the pods of a "
        "basic group start one by one: set schedulingPolicy.gang"
    ),
    Code.SHARED_CLAIMS: (
        "PodGroup {group} shares ResourceClaims ({claims}), which only kube-scheduler allocates: "
        "remove schedulerName"
    ),
    Code.DIFFERENT_PRIORITIES: _different_priorities,
    Code.DIFFERENT_SUBMITTERS: (
        "Its pods were created by different users ({users}), and a group counts for one user: give the pods "
        "of each user a group of their own"
    ),
    Code.GROUP_PRIORITY_DIFFERS: (
        "PodGroup {group} has priority {wanted} and its pods have {given}: set one priorityClassName on both"
    ),
    Code.FLUX_JOB_DELETED: (
        "Its FluxJob was deleted, so {what} stays held: remove its annotation {key} to queue it again"
    ),
    Code.DIFFERENT_PREEMPTION_POLICIES: _different_preemption_policies,
    # -- groups: labels and annotations --
    Code.INVALID_GROUP_NAME: lambda reason: (
        f"{str(reason['kind']).capitalize()} {reason['key']}={reason['value']!r} is not a valid group name: "
        "use letters, digits, '-', '_' and '.'"
    ),
    Code.INVALID_SIZE: lambda reason: (
        f"{str(reason['kind']).capitalize()} {reason['key']}={reason['value']!r} is not a valid size: "
        f"use a whole number from 1 to {reason['maximum']}"
    ),
    Code.NO_APPLICATION: (
        "Annotation {key} requires an application ID, which all pods of the gang share: add the label {label}"
    ),
    Code.INVALID_TASK_GROUPS: (
        "Annotation {key} is not a valid list of task groups: use a JSON list in which each task group has "
        "a unique name and a minMember of at least 1, with at most {maximum} pods in total"
    ),
    Code.GROUP_TOO_LARGE: (
        "PodGroup {group} requires {minimum} pods to start together: the maximum is {maximum}"
    ),
    Code.OWNER_TOO_LARGE: (
        "{kind} {owner} requires {minimum} pods to start together: the maximum is {maximum}"
    ),
    Code.CLUSTER_HOLDS_FEWER: (
        "{pods} pods must run at a time, but only {most} of them fit on an empty cluster: lower the "
        "parallelism or the replicas, or add nodes"
    ),
    Code.TOO_MANY_HELD_PODS: (
        "{pods} pods must run at a time, but a held workload may have at most {most}: lower the "
        "parallelism or the replicas, or split it"
    ),
    Code.NAMESPACE_HOLDS_TOO_MANY: (
        "Held workloads of this namespace have {others} pods in the queue, and the {pods} of this one would "
        "exceed the maximum of {most}: it is queued when some of them have started"
    ),
    Code.DIFFERENT_SIZES: _different_sizes,
    Code.SIZE_NOT_USED: (
        "The annotation group-size {size} is ignored: PodGroup {group} requires {minimum} pods; "
        "change it there"
    ),
    Code.SIZE_WITHOUT_GROUP: (
        "The annotation group-size {size} is ignored, because the pod names no group: add the label {key}"
    ),
    Code.NO_SIZE: _no_size,
    Code.OWNER_SIZE_UNKNOWN: (
        "{kind} {owner} does not define how many of its pods start together, so each pod starts as it fits: "
        "add the label {label} and the annotation {key} to its pod templates, with one name and the number "
        "of pods"
    ),
    Code.OWNER_NOT_READ: (
        "The scheduler cannot read {kind} {owner}, so each of its pods starts as it fits: let the account of "
        "the scheduler list and watch {resource}, or add the label {label} and the annotation {key} to the "
        "pod templates, with one name and the number of pods"
    ),
    Code.DIFFERENT_ANNOTATIONS: (
        "Its {level} have different values of {key}, and {value!r} is used: set one value"
    ),
    Code.INVALID_ANNOTATION: "Annotation {error}",
    Code.INVALID_DURATION: (
        "Annotation {key}={value!r} is not a valid duration: use seconds or 2h30m, at most 100 years"
    ),
    Code.UNKNOWN_ANNOTATION: _unknown_annotation,
    Code.LABEL_NOT_READ: "Label {key} is ignored: make it an annotation",
    Code.ANNOTATION_TOO_LONG: "Annotation {key} has {size} bytes: the maximum is {most}",
    Code.TOO_MANY_EXCLUDED: (
        "Annotation {key} names {given} nodes, and the maximum is {most}: use a constraint instead"
    ),
    Code.INVALID_DEVICES: _invalid_devices,
    Code.INVALID_SPREAD: "Annotation {key}='{value}' is invalid: use true or false",
    Code.TOO_MANY_TERMS: "{given} annotations require-*, min-* and max-*: the maximum is {most}",
    Code.REQUIRE_WITHOUT_DEVICE: (
        "{keys} applies to external resources, but no pod requests one: request the resource "
        "fluxion.flux-framework.org/<type>"
    ),
    Code.VARIABLES_MISSING: _variables_missing,
    Code.JOBSPEC_SLOTS: (
        "Annotation {key} requests {slots} slots, but the gang has {pods} pods ({minimum} start together): "
        "request one slot per pod"
    ),
    Code.JOBSPEC_LEVEL: (
        "Annotation {key}: {part} requests {type!r}, which is not supported: put one slot at the top, with "
        "cores, memory and devices in it"
    ),
    Code.JOBSPEC_NO_SLOT: "Annotation {key}: {part} is {type!r}: put it in a slot, with one slot per pod",
    Code.JOBSPEC_SEVERAL_SLOTS: (
        "Annotation {key}: {part} has {slots} kinds of slots, but a gang has one: use one, with "
        "one slot per pod"
    ),
    Code.JOBSPEC_NESTED: (
        "Annotation {key}: {part} nests resources below {type!r}: list the resources of a slot side by side"
    ),
    Code.JOBSPEC_RANGE: "Annotation {key}: {part} is a range, but a gang has one size: use a number",
    Code.JOBSPEC_EXCLUSIVE: (
        "Annotation {key}: {part} is not supported: remove it; for whole nodes, set the "
        "annotation policy to one "
        "such as lonodex"
    ),
    Code.JOBSPEC_RESOURCE: (
        "Annotation {key} requests {type!r}, which its pods do not: request it in the pods, or use core, "
        "memory or a resource that the pods request"
    ),
    Code.JOBSPEC_UNIT: (
        "Annotation {key}: {part}={unit!r} is not a valid unit of {type}: use B, kB, MB, GB, TB, KiB, MiB, "
        "GiB or TiB"
    ),
    Code.JOBSPEC_NO_UNIT: "Annotation {key}: {part}: {type!r} has no unit: remove it",
    Code.JOBSPEC_MORE: _jobspec_more,
    Code.JOBSPEC_TOO_LARGE: "Annotation {key}: {part} requests more {type} than any node has: request less",
    Code.JOBSPEC_DEPENDENCIES: (
        "Annotation {key}: {part} is not supported: remove it, and create the pods when they may start"
    ),
    Code.JOBSPEC_TOO_LONG: (
        "Annotation {key}: {part}={value!r} is not a valid duration: use at most 100 years"
    ),
    Code.JOBSPEC_DURATION: _jobspec_duration,
    Code.JOBSPEC_QUEUE: (
        "Annotation {key} names queue {queue!r} and annotation {other} queue {given!r}: use one queue"
    ),
    Code.WORK_NOT_HELD: (
        "This namespace is labelled {label}, but {kind} {name} was not held: admission holds no work here. "
        "Have an administrator set admission.doors: namespaces, or remove the label"
    ),
    # -- advice --
    Code.GIVE_DURATION: (
        "set its time limit in the annotation {key}: a job with a limit can be backfilled if it "
        "delays no other"
    ),
    Code.NEVER_FITS: "it does not fit even on an empty cluster: request less",
    Code.SOME_WOULD_FIT: _some_would_fit,
    Code.FITS_WITHOUT: "it would fit now without its {field}",
    Code.FITS_WITH_TOLERATIONS: lambda reason: f"it would fit now on nodes with {_tolerations(reason)}",
    Code.HOLDS_WITHOUT: "the cluster could hold it without its {field}",
    Code.HOLDS_WITH_TOLERATIONS: lambda reason: (
        f"the cluster could hold it on nodes with {_tolerations(reason)}"
    ),
    Code.ANNOUNCE_TASK: (
        "the producer announces its task with `fluence task announce ID` in its container, or with the "
        "annotation {key} on its pod ({producer})"
    ),
    Code.REMOVE_GATES: "its scheduling gates must be removed by the controllers that set them: {gates}",
    Code.UNSUSPEND: "set suspend: false on it",
    Code.CREATE_PODS: _create_pods,
}
