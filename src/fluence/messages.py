"""The text of every reason, made at the edge: conditions, events, logs and the programs.

`text` is the only way from a `Reason` to English. A template names the parameters of its code; a list of
values is written with commas. Where a plain template will not do, a function makes the text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from decimal import Decimal

from fluence.model.reason import Code, Reason, Value

_NAMED = 5  # jobs that a text names

_Template = str | Callable[[Reason], str]


def text(reason: Reason) -> str:
    """What a user is told."""
    template = TEMPLATES[reason.code]
    if callable(template):
        return template(reason)
    return template.format_map({key: _shown(value) for key, value in reason.params})


def joined(reasons: Iterable[Reason]) -> str:
    """Several reasons in one line."""
    return "; ".join(map(text, reasons))


def _reasons(value: object) -> list[Reason]:
    assert isinstance(value, tuple)
    return [each for each in value if isinstance(each, Reason)]


def _names(value: object) -> str:
    """Some names, and how many more there are."""
    assert isinstance(value, tuple)
    shown = ", ".join(map(str, value[:_NAMED]))
    more = len(value) - _NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def _shown(value: Value) -> str | int | None:
    if isinstance(value, Reason):
        return text(value)
    return ", ".join(str(_shown(each)) for each in value) if isinstance(value, tuple) else value


def _all_of(value: Value) -> str:
    """`1 and 2`."""
    return " and ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _be(count: Value) -> str:
    return "is" if count == 1 else "are"


# -- groups --------------------------------------------------------------------------------------------------


def _pods_gated(reason: Reason) -> str:
    gated = reason["gated"]
    return f"{gated} of {reason['pods']} pods {_be(gated)} held by scheduling gates"


def _pods_missing(reason: Reason) -> str:
    pods = reason["pods"]
    return f"{pods} of {reason['minimum']} pods {_be(pods)} there"


def _owner_runs_too_few(reason: Reason) -> str:
    return (
        f"{_pods_missing(reason)}, and {reason['kind']} {reason['owner']} runs {reason['runs']} at a time: "
        "raise that or lower the size"
    )


def _different_priorities(reason: Reason) -> str:
    found = _all_of(reason["priorities"])
    return f"its pods have different priorities ({found}): set one priorityClassName on all of them"


def _different_preemption_policies(reason: Reason) -> str:
    found = _all_of(reason["policies"])
    return f"its pods have different preemption policies ({found}): set one on all"


def _different_sizes(reason: Reason) -> str:
    found = _all_of(reason["sizes"])
    return f"its {reason['level']} say different sizes, {found}: the largest is used; write one"


def _jobspec_duration(reason: Reason) -> str:
    limit, given = _seconds(reason["limit"]), _seconds(reason["given"])
    return (
        f"annotation {reason['key']} takes {limit} s and the annotation {reason['other']} says {given} s: "
        "write one of them, or the same in both"
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
        f"{reason['some']} of {reason['needed']} pods would fit now: if they are enough, "
        f"set {where} to {reason['enough']}"
    )


def _create_pods(reason: Reason) -> str:
    more, where = reason["more"], _where_the_size_stands(reason["group"], reason["key"])
    return f"create {more} more pod{'' if more == 1 else 's'} of it, or lower {where}"


TEMPLATES: dict[Code, _Template] = {
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
    Code.QUEUED_BEHIND_OTHERS: "jobs in front of it hold what it needs",
    Code.FIRST_IN_QUEUE: "it fits and is first: the next cycle starts it",
    Code.MUST_START_FIRST: lambda reason: (
        ("it would fit, but " if reason["fits"] else "") + f"{_names(reason['jobs'])} must start first"
    ),
    Code.BEYOND_DEPTH: "only the first {depth} jobs are looked at, and {ahead} are ahead of it",
    Code.DEPENDENCY: lambda reason: f"it waits for {_names(reason['jobs'])} to end",
    Code.DEPENDENCY_FAILED: "it waits for {job} to succeed, which is {phase}",
    Code.USER_LIMIT: lambda reason: (
        f"{reason['user'] or 'its user'} runs, or is promised, {reason['most']} jobs in queue "
        f"{reason['queue']!r}: no more are allowed"
    ),
    Code.LIMIT_ABOVE_QUEUE: lambda reason: (
        f"its limit of {reason['limit_s']} s is over the {reason['max_s']} s that queue "
        f"{reason['queue']!r} allows: ask for less"
    ),
    Code.CONSTRAINT_TOO_NARROW: lambda reason: (
        f"its constraint leaves too little: {joined(_reasons(reason['causes']))}"
    ),
    Code.IN_PHASE: "it is {phase}: {last}",
    Code.TOO_FEW_UNITS: "it asks for {units} {unit}s; this cluster has {total}",
    Code.UNITS_BUSY: "it needs {units} {unit}s and {free} of {total} are free",
    Code.UNITS_PROMISED: "{free} {unit}s are free, but only {most} of them for as long as it may run",
    Code.NO_EMPTY_CLUSTER: "no empty cluster could hold it: {cause}",
    Code.INVALID_REQUEST: "{fault}",
    Code.MATCHER_EXPLAINS: "{cause}",
    Code.CLUSTER_CANNOT_HOLD: lambda reason: (
        "the cluster as it is cannot hold it: "
        + (joined(_reasons(reason["causes"])) or "the cluster has no nodes for it")
    ),
    Code.GROUP_GONE: "the group is gone",
    Code.GROUP_CHANGED: "its group changed",
    Code.CLUSTER_CHANGED: "what the cluster could hold has changed",
    Code.NOT_BOUND: "none of its pods was bound",
    Code.NODE_CHANGED: "node {node} changed",
    Code.NODE_GONE: "node {node} is gone",
    Code.QUARANTINED: "Fluence cannot handle this {kind}: {error}; please report it",
    # Why a pod set waits for its volumes, or got none.
    Code.WAITS_FOR_ITS_CLAIMS: lambda reason: (
        f"waits for its {'claim' if len(_reasons(reason['claims'])) == 1 else 'claims'} "
        + ", ".join(map(text, _reasons(reason["claims"])))
    ),
    Code.WAITS_FOR_CLAIMS_OF_GROUP: "waits for the claims of its group",
    Code.WAITS_FOR_CLAIMS_OF_PODS: lambda reason: (
        f"waits for the claims of its pods: {', '.join(map(text, _reasons(reason['claims'])))}"
        + (f" and {reason['more']} more" if reason["more"] else "")
    ),
    Code.CLAIM_TO_BE_BOUND: "{claim} to be bound to volume {volume}",
    Code.CLAIM_TO_BE_PROVISIONED: "{claim} to be provisioned on node {node}",
    Code.CLAIM_TIMED_OUT: "claim {claim!r} was not bound in time",
    Code.CLAIM_GONE: "claim {claim!r} is gone",
    Code.CLAIM_DELETING: "claim {claim!r} is being deleted",
    Code.VOLUME_OUT_OF_REACH: "the volume of claim {claim!r} cannot be reached from node {node}",
    Code.VOLUME_TAKEN: "volume {volume} for claim {claim!r} is not free any more",
    Code.VOLUME_NOT_MADE: "no volume could be made for claim {claim!r} on node {node}",
    Code.POD_OVER_OR_BOUND: "pod {pod} is over, or has a node already",
    Code.NODE_CLOSED: "node {node}: {why}",
    Code.VOLUMES_BOUND: "its volumes are bound",
    # Why a promise was broken.
    Code.RESOURCES_LOST: "resources were lost",
    Code.RUNS_PAST_LIMIT: "job {job} runs past its limit",
    Code.OVERTAKEN: "jobs that came later were backfilled ahead of it",
    # -- groups: what a gang waits for --
    Code.OWNER_NOT_SEEN: "waits for its {kind} {name} to be seen",
    Code.POD_GROUP_NOT_SEEN: "waits for its PodGroup {group}",
    Code.POD_GROUP_OR_SIZE_MISSING: (
        "waits for its PodGroup {group}: create it, or say its size in group-size"
    ),
    Code.OWNER_SUSPENDED: "{kind} {owner} is suspended",
    Code.PODS_GATED: _pods_gated,
    Code.PODS_MISSING: _pods_missing,
    Code.OWNER_RUNS_TOO_FEW: _owner_runs_too_few,
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
        "leave schedulerName out, or delegate the binding"
    ),
    Code.DIFFERENT_PRIORITIES: _different_priorities,
    Code.GROUP_PRIORITY_DIFFERS: (
        "PodGroup {group} has priority {wanted} and its pods {given}: set one priorityClassName on both"
    ),
    Code.DIFFERENT_PREEMPTION_POLICIES: _different_preemption_policies,
    # -- groups: labels and annotations --
    Code.INVALID_GROUP_NAME: (
        "{kind} {key}={value!r} is not a valid name of a group: use letters, digits, '-', '_' and '.'"
    ),
    Code.INVALID_SIZE: (
        "{kind} {key}={value!r} is not a valid size: write a whole number from 1 to {maximum}"
    ),
    Code.GROUP_TOO_LARGE: (
        "PodGroup {group} wants {minimum} pods to start together: ask for at most {maximum}"
    ),
    Code.DIFFERENT_SIZES: _different_sizes,
    Code.SIZE_NOT_USED: "group-size {size} is not used: PodGroup {group} says {minimum}; change it there",
    Code.SIZE_WITHOUT_GROUP: (
        "group-size {size} is not used, since nothing says which pods belong together: add the label {key}"
    ),
    Code.NO_SIZE: "no size is said, so its pods start one by one: add the annotation group-size",
    Code.DIFFERENT_ANNOTATIONS: "its {level} say different things in {key}: {value!r} counts; write one",
    Code.INVALID_ANNOTATION: "annotation {error}",
    Code.INVALID_DURATION: (
        "annotation {key}={value!r} is not a valid duration: write seconds, or 2h30m; at most 100 years"
    ),
    Code.ANNOTATION_TOO_LONG: "annotation {key} has {size} bytes: write at most {most}",
    Code.TOO_MANY_EXCLUDED: (
        "annotation {key} names {given} nodes: name at most {most}, or say which nodes in constraints"
    ),
    Code.BACKEND_UNAVAILABLE: (
        "annotation {key}: backend {backend!r} is asked for, and this scheduler has none to give: "
        "remove the annotation, or name a scheduler that has"
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
    Code.POD_REFUSED: "pod {pod}: {why}",
    Code.GIVE_DURATION: (
        "say how long it takes in the annotation {key}: work with a limit may go ahead where it delays nobody"
    ),
    Code.NEVER_FITS: "as the cluster is, it never fits: ask for less, or for other nodes",
    Code.SOME_WOULD_FIT: _some_would_fit,
    Code.FITS_WITHOUT: "without its {field} it would fit now",
    Code.FITS_WITH_TOLERATIONS: (
        "it would fit now on nodes whose taints it does not tolerate: add tolerations if it may"
    ),
    Code.REMOVE_GATES: "its gates must be removed by whoever set them: {gates}",
    Code.UNSUSPEND: "set suspend: false on it",
    Code.CREATE_PODS: _create_pods,
}
