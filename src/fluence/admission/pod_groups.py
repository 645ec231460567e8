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
kube-scheduler preempts all of it or nothing. The field is set only while the HandOff says so
(`names.LISTS_GANGS`): the leader asks the server which PodGroups it has. A server without PodGroups drops the
field. Pods that kube-scheduler binds do not get it: they would wait for the PodGroup.

A Job whose size or label is only on the Job itself, or that is held, notes in its template what its pods do
not know. The field itself in the template would keep a group from being split for a quantum computer, and
would be set even where the HandOff says no when the pods are created.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from fluence import names
from fluence.admission import cel, patch
from fluence.admission.coordination import PODS_OF_JOB, pods_of_job
from fluence.admission.patch import Incoming, Operation, Steps
from fluence.admission.rule import (
    ANNOTATIONS,
    JOBS,
    LABELS,
    POD,
    POD_GROUPS,
    PODS,
    TEMPLATE,
    AdmissionRule,
    Condition,
    Edit,
    Site,
    concerns_us,
)
from fluence.model.operators import EXECUTORS, KUBEFLOW, LISTED, listing_names
from fluence.schedule.gangs.size import SYSTEMS, YUNIKORN

# A label that is also a name of an object, short enough for the suffix.
_NAME: Final = "[a-z0-9]([-a-z0-9]{0,52}[a-z0-9])?"
_JOB: Final = "[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?"
_SIZE: Final = "0*([2-9]|[1-9][0-9]{1,5})"
_FIELDS: Final = [(*place, key) for place in (LABELS, ANNOTATIONS) for key in names.GROUP_NAMES]
# As `schedule.gangs.size.other_group` reads them.
_OTHERS: Final = {
    **{
        system: [(*place, key) for place in (LABELS, ANNOTATIONS) for key in keys] for system, keys in SYSTEMS
    },
    YUNIKORN: [(*place, key) for key in names.YUNIKORN_APPLICATIONS for place in (LABELS, ANNOTATIONS)],
}
_TASK_GROUP: Final = (*ANNOTATIONS, names.YUNIKORN_TASK_GROUP)
_NOT_BLANK: Final = "[!-~]"
_SIZES: Final = [(*place, key) for place in (ANNOTATIONS, LABELS) for key in names.GROUP_SIZES]
_NOTE: Final = (*ANNOTATIONS, names.LISTED_AS)
_IS_ON: Final = f"{cel.text(*ANNOTATIONS, names.LISTS_GANGS, of='params')} == 'true'"
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
    "isUsersJob": (
        f"!{cel.items('metadata', 'ownerReferences')}.exists(o, o.?controller.orValue(false)"
        f" && {cel.text('kind', of='o')} != 'CronJob')"
    ),
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
    "notedGroup": cel.text(*_NOTE),
    "ownGroup": cel.first(
        [
            "variables.operatedGroup",
            cel.if_else(
                cel.every(
                    f"variables.notedGroup == {cel.quoted(names.LISTED_AS_JOB)}",
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
            f"variables.notedGroup.matches('^{_NAME}$')",
            "variables.notedGroup",
            cel.if_else(
                "variables.otherGroup != ''",
                cel.if_else(
                    f"variables.otherGroup.matches('^[a-z]+[.]{_NAME}$')", "variables.otherGroup", "''"
                ),
                "variables.ownGroup",
            ),
        ),
    ),
    "templateGroup": cel.first(cel.text(*TEMPLATE, *steps) for steps in _FIELDS),
    # What the template of a Job is to note: nothing if its pods know their gang.
    "note": cel.if_else(
        "variables.labelledGroup != ''",
        cel.if_else(
            cel.every("variables.templateGroup == ''", f"variables.labelledGroup.matches('^{_NAME}$')"),
            "variables.labelledGroup",
            "''",
        ),
        cel.if_else(
            cel.every(
                "variables.templateGroup == '' && variables.templateSize == ''",
                cel.either(
                    f"variables.declaredSize.matches('^{_SIZE}$')",
                    f"({cel.text(*LABELS, names.SEEN)} == {cel.quoted(names.SEEN_YES)} && {PODS_OF_JOB} > 1)",
                ),
            ),
            cel.quoted(names.LISTED_AS_JOB),
            "''",
        ),
    ),
}


def pod_group_rules(site: Site) -> tuple[AdmissionRule, ...]:
    named = Condition(
        cel.every(
            _IS_ON,
            _is_ours_cel(site),
            *(f"!{cel.has(*steps)}" for steps in _SET),
            "variables.listedGroup != ''",
        ),
        lambda pod: (
            pod.lists_gangs
            and _is_ours(site, pod)
            and not any(pod.has(*steps) for steps in _SET)
            and _group(pod) != ""
        ),
    )
    suffix = cel.quoted(names.POD_GROUP_SUFFIX)
    link = f"{{'podGroupName': variables.listedGroup + {suffix}}}"
    edit = Edit(cel.set_field(("spec", "schedulingGroup"), link), _link)
    into = (*TEMPLATE, *ANNOTATIONS)
    # Another controller may revert changes of its Jobs. The template of a Job never changes later.
    noted = Condition(
        cel.every(
            _is_ours_cel(site, TEMPLATE),
            "variables.isUsersJob",
            f"!(variables.note in ['', {cel.text(*into, names.LISTED_AS)}])",
        ),
        lambda job: (
            _is_ours(site, job, TEMPLATE)
            and _is_users_job(job)
            and _note(job) not in ("", job.text(*into, names.LISTED_AS))
        ),
    )
    write = Edit(
        cel.set_entries(into, {names.LISTED_AS: "variables.note"}),
        lambda job: patch.set_entries(job, into, {names.LISTED_AS: _note(job)}),
    )
    return (
        AdmissionRule("name-pod-group", POD_GROUPS, PODS, concerns_us(site), named, edit),
        AdmissionRule("note-gang", POD_GROUPS, JOBS, concerns_us(site, TEMPLATE), noted, write),
    )


def _is_ours_cel(site: Site, at: Steps = POD) -> str:
    """Whether we bind the pods: work that is held concerns us, but kube-scheduler may bind it."""
    return f"{cel.text(*at, 'spec', 'schedulerName')} in {cel.listed((site.scheduler, *site.aliases))}"


def _is_ours(site: Site, incoming: Incoming, at: Steps = POD) -> bool:
    return incoming.text(*at, "spec", "schedulerName") in (site.scheduler, *site.aliases)


def _is_users_job(job: Incoming) -> bool:
    references = job.items("metadata", "ownerReferences")
    return all(
        patch.text(each, "kind") == "CronJob" for each in references if patch.field(each, "controller")
    )


def _note(job: Incoming) -> str:
    label, in_template = _named(job), _named(job, TEMPLATE)
    if label:
        return label if not in_template and re.fullmatch(_NAME, label) else ""
    if in_template or _size(job, TEMPLATE):
        return ""
    is_held = job.text(*LABELS, names.SEEN) == names.SEEN_YES and pods_of_job(job) > 1
    return names.LISTED_AS_JOB if is_held or re.fullmatch(_SIZE, _size(job)) else ""


def _named(incoming: Incoming, at: Steps = POD) -> str:
    return patch.first(incoming.text(*at, *steps) for steps in _FIELDS)


def _size(incoming: Incoming, at: Steps = POD) -> str:
    return patch.first(incoming.text(*at, *steps) for steps in _SIZES)


def _group(pod: Incoming) -> str:
    label, note = _named(pod), pod.text(*_NOTE)
    if label:
        return label if re.fullmatch(_NAME, label) else ""
    if re.fullmatch(_NAME, note):
        return note
    other = _other(pod)
    if other:
        return other if re.fullmatch(f"[a-z]+[.]{_NAME}", other) else ""
    labels = {key: pod.text(*LABELS, key) for key in _KEYS}
    for parts in listing_names(labels):
        if all(re.fullmatch(_NAME, part) for part in parts):
            return ".".join(parts)
    job, is_known = _job(pod), re.fullmatch(_SIZE, _size(pod)) or note == names.LISTED_AS_JOB
    return f"job.{job}" if is_known and re.fullmatch(_JOB, job) else ""


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
