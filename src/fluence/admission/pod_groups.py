"""Pod groups: a pod that names its gang by itself gets the field by which Kubernetes knows a group.

    a group label              <group>.fluence
    a group of Kueue, Volcano, KAI or YuniKorn
                               kueue.<group>.fluence, volcano.<group>.fluence, …
    a size, of a pod of a Job  job.<job>.fluence
    a pod of a JobSet, a RayCluster, a LeaderWorkerSet, an object of Kubeflow, a SparkApplication
                               jobset.<name>.fluence, raycluster.<name>.fluence,
                               leaderworkerset.<name>.<group>.fluence, pytorchjob.<name>.fluence,
                               sparkapplication.<name>.executors.fluence

The scheduler creates that PodGroup for each such gang, so that `kubectl get podgroups` lists it, and so that
kube-scheduler preempts all of it or nothing. A server without PodGroups drops the field.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from fluence import names
from fluence.admission import cel, patch
from fluence.admission.patch import Incoming, Operation, Steps
from fluence.admission.rule import (
    ANNOTATIONS,
    LABELS,
    POD_GROUPS,
    PODS,
    AdmissionRule,
    Condition,
    Edit,
    Site,
    concerns_us,
)
from fluence.model.operators import EXECUTORS, KUBEFLOW, LISTED, listing_names
from fluence.schedule.gangs.labels import SYSTEMS, YUNIKORN

# A label that is also a name of an object, short enough for the suffix.
_NAME: Final = "[a-z0-9]([-a-z0-9]{0,52}[a-z0-9])?"
_JOB: Final = "[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?"
_SIZE: Final = "0*([2-9]|[1-9][0-9]{1,5})"
_FIELDS: Final = [(*place, key) for place in (LABELS, ANNOTATIONS) for key in names.GROUP_NAMES]
# As `schedule.gangs.labels.other_group` reads them.
_OTHERS: Final = {
    **{
        system: [(*place, key) for place in (LABELS, ANNOTATIONS) for key in keys] for system, keys in SYSTEMS
    },
    YUNIKORN: [(*place, key) for key in names.YUNIKORN_APPLICATIONS for place in (LABELS, ANNOTATIONS)],
}
_TASK_GROUP: Final = (*ANNOTATIONS, names.YUNIKORN_TASK_GROUP)
_NOT_BLANK: Final = "[!-~]"
_SIZES: Final = [(*place, key) for place in (ANNOTATIONS, LABELS) for key in names.GROUP_SIZES]
# The server (1.37) refuses a pod of a PodGroup that has eviction responders.
_SET: Final = tuple(
    ("spec", name) for name in ("schedulingGroup", "workloadRef", "nodeName", "evictionResponders")
)


def _of_operator(kind: str, keys: tuple[str, ...]) -> str:
    values = [cel.text(*LABELS, key) for key in keys]
    there = cel.every(*(f"{value}.matches('^{_NAME}$')" for value in values))
    return cel.if_else(there, " + '.' + ".join((cel.quoted(kind), *values)), "''")


def _of_system(system: str, fields: Sequence[Steps]) -> str:
    # CEL takes a step by an identifier and one by an index for two types.
    texts = ", ".join(f"string({cel.text(*steps)})" for steps in fields)
    name = f"[{texts}].filter(x, x != '').map(x, {cel.quoted(f'{system}.')} + x)[?0].orValue('')"
    if system != YUNIKORN:
        return name
    return cel.if_else(f"{cel.text(*_TASK_GROUP)}.matches('{_NOT_BLANK}')", name, "''")


_KUBEFLOW_NAME: Final = cel.text(*LABELS, names.KUBEFLOW_JOB_NAME)
_SPARK_NAME: Final = cel.text(*LABELS, names.SPARK_APPLICATION)
_JOB_NAME: Final = (
    f"string({cel.items('metadata', 'ownerReferences')}"
    f".filter(o, o.?controller.orValue(false) && {cel.text('kind', of='o')} == 'Job')"
    f".map(o, {cel.text('name', of='o')})[?0].orValue(''))"
)

_KEYS: Final = (
    *(key for keys in LISTED.values() for key in keys),
    *(names.KUBEFLOW_OPERATOR, names.KUBEFLOW_JOB_NAME, names.SPARK_ROLE, names.SPARK_APPLICATION),
)

VARIABLES: Final = {
    "labelledGroup": cel.first(cel.text(*steps) for steps in _FIELDS),
    "otherGroup": cel.first(_of_system(system, fields) for system, fields in _OTHERS.items()),
    "declaredSize": cel.first(cel.text(*steps) for steps in _SIZES),
    "jobName": _JOB_NAME,
    "kubeflowKind": (
        f"{{{', '.join(f'{cel.quoted(key)}: {cel.quoted(kind)}' for key, kind in KUBEFLOW.items())}}}"
        f"[?{cel.text(*LABELS, names.KUBEFLOW_OPERATOR)}].orValue('')"
    ),
    "operatedGroup": cel.first(
        [
            *(_of_operator(kind, keys) for kind, keys in LISTED.items()),
            cel.if_else(
                cel.every("variables.kubeflowKind != ''", f"{_KUBEFLOW_NAME}.matches('^{_NAME}$')"),
                f"variables.kubeflowKind + '.' + {_KUBEFLOW_NAME}",
                "''",
            ),
            cel.if_else(
                cel.every(
                    f"{cel.text(*LABELS, names.SPARK_ROLE)} == 'executor'",
                    f"{_SPARK_NAME}.matches('^{_NAME}$')",
                ),
                f"'sparkapplication.' + {_SPARK_NAME} + '.{EXECUTORS}'",
                "''",
            ),
            cel.if_else(
                cel.every(
                    f"variables.declaredSize.matches('^{_SIZE}$')",
                    f"variables.jobName.matches('^{_JOB}$')",
                ),
                "'job.' + variables.jobName",
                "''",
            ),
        ]
    ),
    "listedGroup": cel.if_else(
        "variables.labelledGroup != ''",
        cel.if_else(f"variables.labelledGroup.matches('^{_NAME}$')", "variables.labelledGroup", "''"),
        cel.if_else(
            "variables.otherGroup != ''",
            cel.if_else(f"variables.otherGroup.matches('^[a-z]+[.]{_NAME}$')", "variables.otherGroup", "''"),
            "variables.operatedGroup",
        ),
    ),
}


def pod_group_rules(site: Site) -> tuple[AdmissionRule, ...]:
    named = Condition(
        cel.every(*(f"!{cel.has(*steps)}" for steps in _SET), "variables.listedGroup != ''"),
        lambda pod: not any(pod.has(*steps) for steps in _SET) and _group(pod) != "",
    )
    suffix = cel.quoted(names.POD_GROUP_SUFFIX)
    link = f"{{'podGroupName': variables.listedGroup + {suffix}}}"
    edit = Edit(cel.set_field(("spec", "schedulingGroup"), link), _link)
    return (AdmissionRule("name-pod-group", POD_GROUPS, PODS, concerns_us(site), named, edit),)


def _group(pod: Incoming) -> str:
    label = next((text for steps in _FIELDS if (text := pod.text(*steps))), "")
    if label:
        return label if re.fullmatch(_NAME, label) else ""
    other = _other(pod)
    if other:
        return other if re.fullmatch(f"[a-z]+[.]{_NAME}", other) else ""
    labels = {key: pod.text(*LABELS, key) for key in _KEYS}
    for parts in listing_names(labels):
        if all(re.fullmatch(_NAME, part) for part in parts):
            return ".".join(parts)
    size = next((text for steps in _SIZES if (text := pod.text(*steps))), "")
    job = _job(pod)
    return f"job.{job}" if re.fullmatch(_SIZE, size) and re.fullmatch(_JOB, job) else ""


def _other(pod: Incoming) -> str:
    for system, fields in _OTHERS.items():
        if system == YUNIKORN and not re.search(_NOT_BLANK, pod.text(*_TASK_GROUP)):
            continue
        name = patch.first(pod.text(*steps) for steps in fields)
        if name:
            return f"{system}.{name}"
    return ""


def _job(pod: Incoming) -> str:
    references = pod.items("metadata", "ownerReferences")
    jobs = (
        each for each in references if patch.field(each, "controller") and patch.text(each, "kind") == "Job"
    )
    return patch.first(patch.text(each, "name") for each in jobs)


def _link(pod: Incoming) -> list[Operation]:
    link = {"podGroupName": _group(pod) + names.POD_GROUP_SUFFIX}
    return [patch.add(("spec", "schedulingGroup"), link)]
