"""Queueing: holds new work until its turn. Jobs and objects of operators are suspended; everything else gets
a gate.

Objects with the label `fluxqueue.seen` are left alone, so nothing is queued twice. `operators` holds the
objects of operators.

An object is suspended and marked, and nothing else of it is changed: its pods get the gate when they are
created, and take over the placements that the object was released with. An object is held if the pods of all
its templates would be held. Any other object keeps running, and its pods wait one by one. A TrainJob has no
template: the scheduler sees from its JobSet whether its pods are ours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from fluence import names
from fluence.admission import cel, patch
from fluence.admission.patch import Incoming, Operation, Steps
from fluence.admission.rule import (
    ANNOTATIONS,
    CRITICAL,
    DOORS,
    JOBS,
    LABELS,
    POD,
    PODS,
    REPLICATED,
    TEMPLATE,
    AdmissionRule,
    Condition,
    Edit,
    Site,
)
from fluence.model.operators import OPERATORS, Operator

_MANAGERS: Final = ("", "kubernetes.io/job-controller")
_NEVER_QUEUED: Final = ("DaemonSet", "Node")
_MIRROR: Final = "kubernetes.io/config.mirror"
_CHARACTERS: Final = "abcdefghijklmnopqrstuvwxyz0123456789-."
_SEEN: Final = {names.SEEN: names.SEEN_YES}
_SEEN_CEL: Final = {names.SEEN: cel.quoted(names.SEEN_YES)}
_OWNERS: Final = cel.items("metadata", "ownerReferences")
_CONTROLS: Final = "o.?controller.orValue(false)"
_KIND: Final = cel.text("kind", of="o")

VARIABLES: Final = {
    "hasNoController": f"!{_OWNERS}.exists(o, {_CONTROLS})",
    "workload": (
        "request.?kind.?kind.orValue('').lowerAscii() + '-' + object.?metadata.?name.orValue('')"
        " + '-' + request.?namespace.orValue('')"
    ),
    # A label has at most 63 characters, so a longer name ends in a number that represents the rest.
    "selector": (
        "variables.workload.size() <= 63 ? variables.workload : variables.workload.substring(0, 50) + '-' + "
        "string(variables.workload.split('').transformList(i, l,\n"
        f"({cel.quoted(_CHARACTERS)}.indexOf(l) + 2) * ((i * 7919 + 104729) % 1000003)).sum() % 999999937)"
    ),
}


def queueing_rules(site: Site) -> tuple[AdmissionRule, ...]:
    workloads, is_new = (*JOBS, *REPLICATED), _is_new(site, TEMPLATE)
    opted_out = Condition(
        cel.every(_is_off_cel(POD), f"!{_is_off_cel(TEMPLATE)}", "variables.hasNoController"),
        lambda workload: (
            _is_off(workload, POD) and not _is_off(workload, TEMPLATE) and not _controllers(workload)
        ),
    )
    off = (*TEMPLATE, *ANNOTATIONS)
    pass_on = Edit(
        cel.set_entries(off, {names.QUEUE: cel.quoted(names.QUEUE_OFF)}),
        lambda workload: patch.set_entries(workload, off, {names.QUEUE: names.QUEUE_OFF}),
    )
    # A Deployment would create its ReplicaSet again and again if its template changed.
    replicated = Condition(
        cel.every(_is_in_cel(TEMPLATE), "variables.hasNoController"),
        lambda workload: _is_in(workload, TEMPLATE) and not _controllers(workload),
    )
    return (
        AdmissionRule("pass-on-opt-out", DOORS, workloads, is_new, opted_out, pass_on),
        AdmissionRule("suspend-job", DOORS, JOBS, is_new, _JOB, _suspend(site)),
        AdmissionRule("gate-template", DOORS, REPLICATED, is_new, replicated, _gate_template(site)),
        AdmissionRule("gate-pod", DOORS, PODS, _is_new(site, POD), _POD, _gate_pod(site)),
    )


def _controllers(incoming: Incoming) -> list[Any]:
    """The kinds of the controllers that own the object; there is at most one."""
    return [
        patch.text(owner, "kind")
        for owner in incoming.items("metadata", "ownerReferences")
        if patch.field(owner, "controller")
    ]


def _is_new(site: Site, at: Steps) -> Condition:
    """Whether an object is not queued yet, and no other scheduler binds its pods."""
    seen = [(*place, *LABELS, names.SEEN) for place in dict.fromkeys((POD, at))]
    scheduler = (*at, "spec", "schedulerName")
    ours = ("", names.KUBE_SCHEDULER, site.scheduler, *site.aliases)
    return Condition(
        " && ".join(
            [*(f"!{cel.has(*steps)}" for steps in seen), f"{cel.text(*scheduler)} in {cel.listed(ours)}"]
        ),
        lambda incoming: (
            not any(incoming.has(*steps) for steps in seen) and incoming.text(*scheduler) in ours
        ),
    )


def _is_off_cel(at: Steps) -> str:
    off = cel.quoted(names.QUEUE_OFF)
    return cel.either(*(f"{cel.text(*at, *place, names.QUEUE)} == {off}" for place in (LABELS, ANNOTATIONS)))


def _is_off(incoming: Incoming, at: Steps) -> bool:
    return any(incoming.text(*at, *place, names.QUEUE) == names.QUEUE_OFF for place in (LABELS, ANNOTATIONS))


def _is_in_cel(at: Steps) -> str:
    """Whether an object has not opted out and is not part of the cluster itself."""
    return cel.every(
        *(f"!{_is_off_cel(place)}" for place in dict.fromkeys((POD, at))),
        f"!({cel.text(*at, 'spec', 'priorityClassName')} in {cel.listed(CRITICAL)})",
    )


def _is_in(incoming: Incoming, at: Steps) -> bool:
    if _is_off(incoming, POD) or _is_off(incoming, at):
        return False
    return incoming.text(*at, "spec", "priorityClassName") not in CRITICAL


def _is_queued_job(job: Incoming) -> bool:
    return (
        _is_in(job, TEMPLATE)
        and not job.field("spec", "suspend")
        and job.text("spec", "managedBy") in _MANAGERS
        and all(kind == "CronJob" for kind in _controllers(job))
    )


def _is_queued_pod(pod: Incoming) -> bool:
    return (
        _is_in(pod, POD)
        and not pod.has("spec", "nodeName")
        and not pod.has(*ANNOTATIONS, _MIRROR)
        and not any(kind in _NEVER_QUEUED for kind in _controllers(pod))
    )


_JOB: Final = Condition(
    cel.every(
        _is_in_cel(TEMPLATE),
        "!object.?spec.?suspend.orValue(false)",  # suspended by its user: its pods wait when it is resumed
        f"{cel.text('spec', 'managedBy')} in {cel.listed(_MANAGERS)}",
        # Another controller may revert changes of its Jobs; their pods wait instead.
        f"(variables.hasNoController || {_OWNERS}.exists(o, {_CONTROLS} && {_KIND} == 'CronJob'))",
    ),
    _is_queued_job,
)
_POD: Final = Condition(
    cel.every(
        _is_in_cel(POD),
        f"!{cel.has('spec', 'nodeName')}",  # the server refuses a gate together with a node
        f"!{cel.has(*ANNOTATIONS, _MIRROR)}",
        f"!{_OWNERS}.exists(o, {_CONTROLS} && {_KIND} in {cel.listed(_NEVER_QUEUED)})",
    ),
    _is_queued_pod,
)


def _suspend(site: Site) -> Edit:
    take = _take(site, TEMPLATE)

    def operations(job: Incoming) -> list[Operation]:
        return [
            *patch.set_entries(job, LABELS, _SEEN),
            *patch.set_entries(job, (*TEMPLATE, *LABELS), _SEEN),
            patch.add(("spec", "suspend"), True),
            *take.operations(job),
        ]

    return Edit(
        cel.plus(
            cel.set_entries(LABELS, _SEEN_CEL),
            cel.set_entries((*TEMPLATE, *LABELS), _SEEN_CEL),
            cel.set_field(("spec", "suspend"), "true"),
            take.cel,
        ),
        operations,
    )


def _gate_template(site: Site) -> Edit:
    take, labels, spec = _take(site, TEMPLATE), (*TEMPLATE, *LABELS), (*TEMPLATE, "spec")

    def operations(workload: Incoming) -> list[Operation]:
        # A name that the server generates is not known yet.
        selector = {names.SELECTOR: _selector(workload)} if workload.text("metadata", "name") else {}
        return [
            *patch.set_entries(workload, LABELS, _SEEN),
            *patch.set_entries(workload, labels, {**_SEEN, **selector}),
            *patch.add_gate(workload, spec, names.GATE_FLUXQUEUE),
            *take.operations(workload),
        ]

    selector = cel.add(cel.quoted(patch.pointer(*labels, names.SELECTOR)), "variables.selector")
    return Edit(
        cel.plus(
            cel.set_entries(LABELS, _SEEN_CEL),
            cel.set_entries(labels, _SEEN_CEL),
            cel.if_else(f"{cel.text('metadata', 'name')} != ''", selector),
            cel.add_gate(spec, names.GATE_FLUXQUEUE),
            take.cel,
        ),
        operations,
    )


def _gate_pod(site: Site) -> Edit:
    take, spec = _take(site, POD), ("spec",)
    return Edit(
        cel.plus(cel.set_entries(LABELS, _SEEN_CEL), cel.add_gate(spec, names.GATE_FLUXQUEUE), take.cel),
        lambda pod: [
            *patch.set_entries(pod, LABELS, _SEEN),
            *patch.add_gate(pod, spec, names.GATE_FLUXQUEUE),
            *take.operations(pod),
        ],
    )


def _take(site: Site, at: Steps) -> Edit:
    """Set our scheduler's name, unless binding is delegated to kube-scheduler."""
    if site.delegate:
        return Edit(cel.NOTHING, lambda incoming: [])
    scheduler, bind = (*at, "spec", "schedulerName"), (*at, *ANNOTATIONS, names.BIND)
    claims = (*at, "spec", "resourceClaims")

    def operations(incoming: Incoming) -> list[Operation]:
        if incoming.text(*bind) == names.BIND_KUBE_SCHEDULER or incoming.items(*claims):
            return []
        return [patch.add(scheduler, site.scheduler)]

    is_delegated = cel.either(
        f"{cel.text(*bind)} == {cel.quoted(names.BIND_KUBE_SCHEDULER)}", f"{cel.items(*claims)}.size() > 0"
    )
    return Edit(
        cel.if_else(is_delegated, cel.NOTHING, cel.set_field(scheduler, cel.quoted(site.scheduler))),
        operations,
    )


def _selector(workload: Incoming) -> str:
    """`<kind>-<name>-<namespace>`, as the policy's variable `selector` computes it."""
    name = f"{workload.kind.lower()}-{workload.text('metadata', 'name')}-{workload.namespace}"
    if len(name) <= 63:
        return name
    number = sum(
        (_CHARACTERS.find(letter) + 2) * ((index * 7919 + 104_729) % 1_000_003)
        for index, letter in enumerate(name)
    )
    return f"{name[:50]}-{number % 999_999_937}"


@dataclass(frozen=True, slots=True)
class Templates:
    """Where an object has pod templates: in one field, or in each entry of a list or a map."""

    at: Steps
    inside: Steps = ()
    by: str = ""  # list, map; "": the field itself

    def every(self, test: str) -> str:
        """Whether a test of a template `t` holds for all templates, as CEL."""
        if not self.by:
            return f"[{cel.entries(*self.at)}].all(t, {test})"
        each = f"[{cel.entries(*self.inside, of='e')}].all(t, {test})"
        if self.by == "list":
            return f"{cel.items(*self.at)}.all(e, {each})"
        return f"{cel.entries(*self.at)}.all(k, e, {each})"

    def of(self, incoming: Incoming) -> Iterator[Any]:
        """The templates."""
        found = incoming.field(*self.at)
        if not self.by:
            yield {} if found is None else found
            return
        entries = [] if found is None else found.values() if self.by == "map" else found
        for each in entries:
            inner = patch.field(each, *self.inside)
            yield {} if inner is None else inner


_RAY: Final = (
    Templates(("spec", "headGroupSpec", "template")),
    Templates(("spec", "workerGroupSpecs"), ("template",), "list"),
)
_TEMPLATES: Final[dict[str, tuple[Templates, ...]]] = {
    "JobSet": (Templates(("spec", "replicatedJobs"), ("template", "spec", "template"), "list"),),
    "TrainJob": (),  # its runtime has them
    "RayCluster": _RAY,
    "RayJob": tuple(replace(each, at=("spec", "rayClusterSpec", *each.at[1:])) for each in _RAY),
    **{
        kind: (Templates(("spec", field), ("template",), "map"),)
        for kind, field in (
            ("MPIJob", "mpiReplicaSpecs"),
            ("PyTorchJob", "pytorchReplicaSpecs"),
            ("TFJob", "tfReplicaSpecs"),
            ("JAXJob", "jaxReplicaSpecs"),
            ("PaddleJob", "paddleReplicaSpecs"),
            ("XGBoostJob", "xgbReplicaSpecs"),
        )
    },
}
HELD: Final[dict[str, Operator]] = {each.kind: each for each in OPERATORS if each.holds}
"""The kinds of operators that can be held, by name."""
_SHUTS_DOWN: Final = ("spec", "shutdownAfterJobFinishes")
_CLUSTER, _SELECTOR = ("spec", "rayClusterSpec"), ("spec", "clusterSelector")
# KubeRay refuses other RayJobs that are suspended.
_ALSO: Final = {
    "RayJob": Condition(
        cel.every(f"{cel.field(*_SHUTS_DOWN)}.orValue(false)", cel.has(*_CLUSTER), f"!{cel.has(*_SELECTOR)}"),
        lambda found: bool(found.field(*_SHUTS_DOWN)) and found.has(*_CLUSTER) and not found.has(*_SELECTOR),
    )
}
_MARKED: Final = (*LABELS, names.SEEN)


def operator_rules(site: Site) -> tuple[AdmissionRule, ...]:
    """One rule for each kind."""
    return tuple(
        AdmissionRule(
            f"suspend-{kind.lower()}",
            DOORS,
            (kind,),
            _is_new_object(site, operator),
            _is_held(operator),
            _suspend_object(operator),
        )
        for kind, operator in HELD.items()
    )


def _is_object_off_cel(of: str) -> str:
    off = cel.quoted(names.QUEUE_OFF)
    return cel.either(*(f"{cel.text(*at, names.QUEUE, of=of)} == {off}" for at in (LABELS, ANNOTATIONS)))


def _is_object_off(value: Any) -> bool:
    return any(patch.text(value, *at, names.QUEUE) == names.QUEUE_OFF for at in (LABELS, ANNOTATIONS))


def _is_new_object(site: Site, operator: Operator) -> Condition:
    """Whether an object is not held yet, and all of its pods would be held."""
    ours = ("", names.KUBE_SCHEDULER, site.scheduler, *site.aliases)
    templates = _TEMPLATES[operator.kind]
    scheduler, priority = ("spec", "schedulerName"), ("spec", "priorityClassName")
    test = cel.every(
        f"{cel.text(*scheduler, of='t')} in {cel.listed(ours)}",
        f"!({cel.text(*priority, of='t')} in {cel.listed(CRITICAL)})",
        f"!{_is_object_off_cel('t')}",
    )

    def holds(found: Incoming) -> bool:
        return not found.has(*_MARKED) and all(
            patch.text(each, *scheduler) in ours
            and patch.text(each, *priority) not in CRITICAL
            and not _is_object_off(each)
            for place in templates
            for each in place.of(found)
        )

    return Condition(
        cel.every(f"!{cel.has(*_MARKED)}", *(place.every(test) for place in templates)),
        holds,
    )


def _is_held(operator: Operator) -> Condition:
    """Whether neither its user nor another controller decides when an object starts."""
    managers = ("", operator.controller)
    suspend, managed_by = ("spec", *operator.suspend), ("spec", *operator.managed_by)

    more = _ALSO.get(operator.kind, Condition("true", lambda found: True))

    def holds(found: Incoming) -> bool:
        if (
            not more.holds(found)
            or _is_object_off(found.object)
            or found.field(*suspend)
            or found.text(*managed_by) not in managers
        ):
            return False
        return not any(
            patch.field(owner, "controller") for owner in found.items("metadata", "ownerReferences")
        )

    return Condition(
        cel.every(
            f"!{_is_object_off_cel('object')}",
            f"!{cel.field(*suspend)}.orValue(false)",  # suspended by its user: its pods wait later
            f"{cel.text(*managed_by)} in {cel.listed(managers)}",
            "variables.hasNoController",  # its owner is held, or reverts changes
            *((more.cel,) if operator.kind in _ALSO else ()),
        ),
        holds,
    )


def _suspend_object(operator: Operator) -> Edit:
    into, field = ("spec", *operator.suspend[:-1]), operator.suspend[-1]

    def operations(found: Incoming) -> list[Operation]:
        return [
            *patch.set_entries(found, LABELS, {names.SEEN: names.SEEN_YES}),
            *patch.set_entries(found, into, {field: True}),
        ]

    return Edit(
        cel.plus(
            cel.set_entries(LABELS, {names.SEEN: cel.quoted(names.SEEN_YES)}),
            cel.set_entries(into, {field: "true"}),
        ),
        operations,
    )
