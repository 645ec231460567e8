"""Coordination: splits a group that shares a quantum computer into its producer and its consumers.

The pod with index 0 submits the task; it is in a group of its own, `<group>-producer`. The others request no
device and wait behind a gate until the task is announced. A policy sees one object, so a pod must carry its
index and the size of its group; a Job or StatefulSet writes the size on its template.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from fluence import names
from fluence.admission import cel, patch
from fluence.admission.patch import Incoming, Operation, Steps
from fluence.admission.rule import (
    ANNOTATIONS,
    LABELS,
    POD,
    PODS,
    QUANTUM,
    TEMPLATE,
    AdmissionRule,
    AdmissionWarning,
    Condition,
    Edit,
    Site,
    concerns_us,
)

SHARED: Final = "shared"
QUANTUM_RESOURCES: Final = tuple(f"{names.DEVICE_PREFIX}{name}" for name in ("qpu", "qubit"))
ROLE_VARIABLE: Final = "FLUENCE_COORDINATION_ROLE"
TASK_VARIABLE: Final = "FLUENCE_QUANTUM_JOB_ID"
_SUFFIX: Final = "-producer"
_READY: Final = names.GATES[0]
_SIDES: Final = ("limits", "requests")
_INDEX: Final = "[0-9]{1,9}"
_SIZE: Final = "[1-9][0-9]{0,5}"
_GROUP: Final = f"[A-Za-z0-9]([A-Za-z0-9._-]{{0,{63 - len(_SUFFIX) - 2}}}[A-Za-z0-9])?"

_INDEX_FIELDS: Final = [
    (*place, key) for key in (names.COMPLETION_INDEX, names.POD_INDEX) for place in (ANNOTATIONS, LABELS)
]
# In the order of `schedule.gangs.size.declared_size`: annotations first.
_SIZE_FIELDS: Final = [(*place, key) for place in (ANNOTATIONS, LABELS) for key in names.GROUP_SIZES]
_GROUP_FIELDS: Final = [(*place, key) for place in (LABELS, ANNOTATIONS) for key in names.GROUP_NAMES]
_ROLE: Final = (*ANNOTATIONS, names.COORDINATION_ROLE)
_OWNERS: Final = ("Job", "StatefulSet")

_ASKS: Final = cel.either(
    *(cel.has("resources", side, key, of="c") for side in _SIDES for key in QUANTUM_RESOURCES)
)
_OWNER: Final = (
    f"string({cel.items('metadata', 'ownerReferences')}"
    f".filter(o, o.?controller.orValue(false) && {cel.text('kind', of='o')} in {cel.listed(_OWNERS)})"
    f".map(o, {cel.text('name', of='o')})[?0].orValue(''))"
)

VARIABLES: Final = {
    "shared": cel.every(
        f"{cel.text(*ANNOTATIONS, names.COORDINATION)} == {cel.quoted(SHARED)}",
        f"!{cel.has('spec', 'nodeName')}",  # the server refuses a gate together with a node
        cel.exists_container(_ASKS),
    ),
    "index": cel.first(cel.text(*steps) for steps in _INDEX_FIELDS),
    "size": cel.first(cel.text(*steps) for steps in _SIZE_FIELDS),
    "templateSize": cel.first(cel.text(*TEMPLATE, *steps) for steps in _SIZE_FIELDS),
    "group": cel.first([*(cel.text(*steps) for steps in _GROUP_FIELDS), _OWNER]),
    "splits": cel.every(
        "variables.shared",
        f"{cel.text(*_ROLE)} == ''",
        f"!{cel.has('spec', 'schedulingGroup')}",
        f"!{cel.has('spec', 'workloadRef')}",
        f"variables.index.matches('^{_INDEX}$')",
        f"variables.size.matches('^{_SIZE}$')",
        "int(variables.size) > 1",
        f"variables.group.matches('^{_GROUP}$')",
    ),
}


def coordination_rules(site: Site) -> tuple[AdmissionRule, ...]:
    leads = Condition(
        "variables.splits && int(variables.index) == 0", lambda pod: _splits(pod) and int(_index(pod)) == 0
    )
    follows = Condition(
        "variables.splits && int(variables.index) != 0", lambda pod: _splits(pod) and int(_index(pod)) != 0
    )
    return (
        *(_sized(site, kind) for kind in _OWNERS),
        AdmissionRule("split-producer", QUANTUM, PODS, concerns_us(site), leads, Edit(_PRODUCER, _producer)),
        AdmissionRule(
            "split-consumer", QUANTUM, PODS, concerns_us(site), follows, Edit(_CONSUMER, _consumer)
        ),
    )


def coordination_warnings(site: Site) -> tuple[AdmissionWarning, ...]:
    concerns = concerns_us(site)
    is_left = Condition(
        f"{concerns.cel} && variables.shared && {cel.text(*_ROLE)} == ''",
        lambda pod: concerns.holds(pod) and _is_shared(pod) and pod.text(*_ROLE) == "",
    )
    message = (
        f"{names.COORDINATION}: shared has no effect on this pod: it needs an index (an Indexed Job or a "
        f"StatefulSet), a group of at most 54 characters and a {names.GROUP_SIZE} over 1; it starts by itself"
    )
    return (AdmissionWarning("not-shared", QUANTUM, PODS, is_left, message),)


def _is_shared(pod: Incoming) -> bool:
    return (
        pod.text(*ANNOTATIONS, names.COORDINATION) == SHARED
        and not pod.has("spec", "nodeName")
        and any(_asks(container) for _, container in pod.containers())
    )


def _asks(container: Any) -> bool:
    return any(
        patch.field(container, "resources", side, key) is not None
        for side in _SIDES
        for key in QUANTUM_RESOURCES
    )


def _splits(pod: Incoming) -> bool:
    return (
        _is_shared(pod)
        and pod.text(*_ROLE) == ""
        and not pod.has("spec", "schedulingGroup")
        and not pod.has("spec", "workloadRef")
        and _matches(_index(pod), _INDEX)
        and _matches(_size(pod), _SIZE)
        and int(_size(pod)) > 1
        and _matches(_group(pod), _GROUP)
    )


def _matches(value: str, pattern: str) -> bool:
    return re.fullmatch(pattern, value, re.ASCII) is not None


def _index(pod: Incoming) -> str:
    return patch.first(pod.text(*steps) for steps in _INDEX_FIELDS)


def _size(incoming: Incoming, at: Steps = POD) -> str:
    return patch.first(incoming.text(*at, *steps) for steps in _SIZE_FIELDS)


def _group(pod: Incoming) -> str:
    """The name in a label or annotation, otherwise that of the Job or StatefulSet that created the pod."""
    owner = next(
        (
            patch.text(reference, "name")
            for reference in pod.items("metadata", "ownerReferences")
            if patch.field(reference, "controller") and patch.field(reference, "kind") in _OWNERS
        ),
        "",
    )
    return patch.first([*(pod.text(*steps) for steps in _GROUP_FIELDS), owner])


_PRODUCER: Final = cel.plus(
    cel.set_entries(LABELS, {names.GROUP_LABEL: f"variables.group + {cel.quoted(_SUFFIX)}"}),
    cel.set_entries(ANNOTATIONS, {names.COORDINATION_ROLE: "'producer'", names.GROUP_SIZE: "'1'"}),
    cel.add_variables(cel.listed([ROLE_VARIABLE]), cel.variable("n", "'producer'")),
)


def _producer(pod: Incoming) -> list[Operation]:
    return [
        *patch.set_entries(pod, LABELS, {names.GROUP_LABEL: _group(pod) + _SUFFIX}),
        *patch.set_entries(pod, ANNOTATIONS, {names.COORDINATION_ROLE: "producer", names.GROUP_SIZE: "1"}),
        *patch.add_variables(pod, {ROLE_VARIABLE: patch.variable(ROLE_VARIABLE, "producer")}),
    ]


def _drops(at: str) -> str:
    return cel.plus(
        *(
            cel.if_else(
                cel.has("resources", side, key, of="c"),
                cel.remove(f"{at} + {cel.quoted(patch.pointer('resources', side, key))}"),
            )
            for side in _SIDES
            for key in QUANTUM_RESOURCES
        )
    )


_CONSUMER: Final = cel.plus(
    cel.set_entries(LABELS, {names.GROUP_LABEL: "variables.group"}),
    cel.set_entries(
        ANNOTATIONS,
        {
            names.COORDINATION_ROLE: "'consumer'",
            names.GROUP_SIZE: "string(int(variables.size) - 1)",
            names.DEPENDS_ON_KIND: "'quantum-submit'",
            names.DEPENDS_ON_PRODUCER: f"variables.group + {cel.quoted(_SUFFIX)}",
            names.DEPENDS_ON_GATE: cel.quoted(_READY),
        },
    ),
    cel.add_gate(("spec",), _READY),
    cel.if_else(
        f"{cel.text('spec', 'priorityClassName')} == ''",
        cel.plus(
            cel.set_field(("spec", "priorityClassName"), cel.quoted(names.QUANTUM_CLASS)),
            cel.drop_field("spec", "priority"),  # the server's default; the server computes it again
        ),
    ),
    cel.in_containers(_drops, where=_ASKS),
    cel.add_variables(
        cel.listed([ROLE_VARIABLE, TASK_VARIABLE]),
        cel.if_else(
            f"n == {cel.quoted(ROLE_VARIABLE)}",
            cel.variable("n", "'consumer'"),
            cel.variable_from_annotation("n", cel.quoted(names.QUANTUM_JOB_ID)),
        ),
    ),
)


def _consumer(pod: Incoming) -> list[Operation]:
    group = _group(pod)
    operations = [
        *patch.set_entries(pod, LABELS, {names.GROUP_LABEL: group}),
        *patch.set_entries(
            pod,
            ANNOTATIONS,
            {
                names.COORDINATION_ROLE: "consumer",
                names.GROUP_SIZE: str(int(_size(pod)) - 1),
                names.DEPENDS_ON_KIND: "quantum-submit",
                names.DEPENDS_ON_PRODUCER: group + _SUFFIX,
                names.DEPENDS_ON_GATE: _READY,
            },
        ),
        *patch.add_gate(pod, ("spec",), _READY),
    ]
    if pod.text("spec", "priorityClassName") == "":
        operations.append(patch.add(("spec", "priorityClassName"), names.QUANTUM_CLASS))
        if pod.has("spec", "priority"):
            operations.append(patch.remove(("spec", "priority")))
    for steps, container in pod.containers():
        operations += [
            patch.remove((*steps, "resources", side, key))
            for side in _SIDES
            for key in QUANTUM_RESOURCES
            if patch.field(container, "resources", side, key) is not None
        ]
    variables = {
        ROLE_VARIABLE: patch.variable(ROLE_VARIABLE, "consumer"),
        TASK_VARIABLE: patch.variable_from_annotation(TASK_VARIABLE, names.QUANTUM_JOB_ID),
    }
    return operations + patch.add_variables(pod, variables)


def _sized(site: Site, kind: str) -> AdmissionRule:
    """Write the size of a shared group on the template: a pod does not know how many siblings it has."""
    shared = (*TEMPLATE, *ANNOTATIONS, names.COORDINATION)
    when = Condition(
        f"{cel.text(*shared)} == {cel.quoted(SHARED)} && variables.templateSize == ''",
        lambda workload: workload.text(*shared) == SHARED and _size(workload, TEMPLATE) == "",
    )
    counted, count = _COUNTS[kind]
    size = cel.if_else(f"variables.size.matches('^{_SIZE}$')", "variables.size", f"string({counted})")
    into = (*TEMPLATE, *ANNOTATIONS)

    def operations(workload: Incoming) -> list[Operation]:
        declared = _size(workload)
        value = declared if _matches(declared, _SIZE) else str(count(workload))
        return patch.set_entries(workload, into, {names.GROUP_SIZE: value})

    edit = Edit(cel.set_entries(into, {names.GROUP_SIZE: size}), operations)
    name = f"size-shared-{kind.lower()}"
    return AdmissionRule(name, QUANTUM, (kind,), concerns_us(site, TEMPLATE), when, edit)


def pods_of_job(job: Incoming) -> int:
    """How many pods a Job has at a time. The server sets a missing `parallelism` to 1, regardless of the
    completions."""
    parallelism, completions = (job.field("spec", name) for name in ("parallelism", "completions"))
    parallelism = 1 if parallelism is None else parallelism
    return parallelism if completions is None else min(parallelism, completions)


def _pods_of_set(workload: Incoming) -> int:
    replicas = workload.field("spec", "replicas")
    return 1 if replicas is None else replicas


PODS_OF_JOB: Final = (
    "[object.?spec.?parallelism.orValue(1), object.?spec.?completions.orValue(2147483647)].min()"
)
_COUNTS: Final[dict[str, tuple[str, Callable[[Incoming], int]]]] = {
    "Job": (PODS_OF_JOB, pods_of_job),
    "StatefulSet": ("object.?spec.?replicas.orValue(1)", _pods_of_set),
}
