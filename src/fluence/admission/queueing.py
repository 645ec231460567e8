"""Queueing: holds new work until its turn. Jobs are suspended; everything else gets a scheduling gate.

Objects with the label `fluxqueue.seen` are left alone, so nothing is queued twice. `operators` holds the
objects of operators.
"""

from __future__ import annotations

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
