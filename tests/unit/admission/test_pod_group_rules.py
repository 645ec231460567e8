"""Pods that name their group by a label get the field of a PodGroup that the scheduler makes."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fluence import names
from fluence.admission.patch import Incoming, apply
from fluence.admission.pod_groups import pod_group_rules
from fluence.admission.review import admit
from fluence.admission.rule import DEFAULT_HANDLERS, POD_GROUPS, Site
from fluence.admission.scopes import AdmissionOptions, scopes
from fluence.model.pod import Pod, SchedulingGroup
from fluence.schedule.gangs.membership import membership
from tests.admission_objects import pod as random_pod


def patched(
    labels: dict[str, str],
    meta: dict[str, Any] | None = None,
    *,
    site: Site = Site(),  # noqa: B008
    lists: bool = True,
    **spec: Any,
) -> list[Any] | None:
    rule, _ = pod_group_rules(site)
    body = {
        "metadata": {"name": "a", "labels": labels, **(meta or {})},
        "spec": {"schedulerName": "fluence", **spec},
    }
    incoming = Incoming(body, "Pod", "default", {}, lists_gangs=lists)
    return rule.edit.operations(incoming) if rule.applies(incoming) else None


def test_a_label_becomes_the_field_of_a_pod_group_with_a_suffix() -> None:
    operation = (patched({names.GROUP_LABEL: "train"}) or [{}])[0]
    assert operation["path"] == "/spec/schedulingGroup"
    assert operation["value"] == {"podGroupName": "train.fluence"}


JOB = {"kind": "Job", "name": "train", "controller": True}


def of_a_job(size: str, **more: Any) -> dict[str, Any]:
    return {"ownerReferences": [{**JOB, **more}], "annotations": {names.GROUP_SIZE: size}}


def noted(annotations: dict[str, str]) -> dict[str, Any]:
    return {"annotations": annotations}


@pytest.mark.parametrize(
    ("labels", "meta", "name"),
    [
        ({names.JOBSET_NAME: "x"}, {}, "jobset.x"),
        ({names.RAY_CLUSTER: "x"}, {}, "raycluster.x"),
        ({names.LWS_NAME: "x", names.LWS_GROUP_INDEX: "1"}, {}, "leaderworkerset.x.1"),
        ({names.RAY_CLUSTER: "x", names.GROUP_LABEL: "g"}, {}, "g"),
        ({names.KUBEFLOW_OPERATOR: "mpi-operator", names.KUBEFLOW_JOB_NAME: "x"}, {}, "mpijob.x"),
        ({names.KUBEFLOW_OPERATOR: "tfjob-controller", names.KUBEFLOW_JOB_NAME: "x"}, {}, "tfjob.x"),
        (
            {names.SPARK_ROLE: "executor", names.SPARK_APPLICATION: "x"},
            {},
            "sparkapplication.x.executors",
        ),
        ({names.KUEUE_GROUP: "x"}, {}, "kueue.x"),
        ({names.KUEUE_GROUP: "x", names.GROUP_LABEL: "g"}, {}, "g"),
        ({names.KUEUE_GROUP: "x", names.RAY_CLUSTER: "y"}, {}, "kueue.x"),
        ({}, noted({names.GROUP_LABEL: "g"}), "g"),
        ({}, noted({names.VOLCANO_GROUPS[0]: "x"}), "volcano.x"),
        ({names.KAI_GROUP: "x"}, {}, "kai.x"),
        ({"applicationId": "x"}, noted({names.YUNIKORN_TASK_GROUP: "workers"}), "yunikorn.x"),
        ({}, of_a_job("4"), "job.train"),
        ({}, of_a_job("10"), "job.train"),
    ],
)
def test_pods_that_know_their_gang_name_it(labels: dict[str, str], meta: dict[str, Any], name: str) -> None:
    (operation,) = patched(labels, meta) or [{}]
    assert operation["value"] == {"podGroupName": f"{name}.fluence"}


@pytest.mark.parametrize(
    ("labels", "meta"),
    [
        ({names.LWS_NAME: "x"}, {}),
        ({names.RAY_CLUSTER: "Not_A_Name"}, {}),
        ({names.RAY_CLUSTER: "two.parts"}, {}),
        ({names.KUBEFLOW_OPERATOR: "mpi-operator"}, {}),
        ({names.KUBEFLOW_OPERATOR: "other", names.KUBEFLOW_JOB_NAME: "x"}, {}),
        ({names.SPARK_ROLE: "driver", names.SPARK_APPLICATION: "x"}, {}),
        ({names.RAY_CLUSTER: "x", names.GROUP_LABEL: "Upper_Case"}, {}),
        ({names.KUEUE_GROUP: "Not_A_Name", names.RAY_CLUSTER: "x"}, {}),
        ({}, noted({names.VOLCANO_GROUPS[0]: " "})),
        ({"applicationId": "x"}, {}),
        ({"applicationId": "x"}, noted({names.YUNIKORN_TASK_GROUP: " "})),
        ({}, of_a_job("1")),
        ({}, of_a_job("0")),
        ({}, of_a_job("many")),
        ({}, of_a_job("4", controller=False)),
        ({}, of_a_job("4", kind="ReplicaSet")),
        ({}, {"ownerReferences": [JOB]}),
    ],
)
def test_pods_that_do_not_know_it_name_none(labels: dict[str, str], meta: dict[str, Any]) -> None:
    assert patched(labels, meta) is None


@pytest.mark.parametrize(
    ("labels", "spec"),
    [
        ({}, {}),
        ({names.GROUP_LABEL: ""}, {}),
        ({names.GROUP_LABEL: "Upper_Case"}, {}),
        ({names.GROUP_LABEL: "x" * 60}, {}),
        ({names.GROUP_LABEL: "train"}, {"schedulingGroup": {"podGroupName": "mine"}}),
        ({names.GROUP_LABEL: "train"}, {"workloadRef": {"name": "mine"}}),
        ({names.GROUP_LABEL: "train"}, {"nodeName": "n"}),
        ({names.GROUP_LABEL: "train"}, {"evictionResponders": [{"name": "example.org/mine"}]}),
        ({names.GROUP_LABEL: "train"}, {"schedulerName": "default-scheduler"}),
    ],
)
def test_others_are_left_alone(labels: dict[str, str], spec: dict[str, Any]) -> None:
    assert patched(labels, **spec) is None


@pytest.mark.parametrize("seed", range(40))
def test_no_pod_waits_for_a_pod_group_that_admission_named(seed: int) -> None:
    """The gang of a pod is the same with the field as without it."""
    rng, named = random.Random(seed), 0
    for _ in range(25):
        body = random_pod(rng)
        body["metadata"].pop("ownerReferences", None)
        labels, meta = body["metadata"].pop("labels", {}), body["metadata"]
        for operation in patched(labels, meta) or ():
            named += 1
            plain = msgspec.convert(body | {"metadata": {**meta, "labels": labels}}, Pod)
            link = msgspec.convert(operation["value"], SchedulingGroup)
            listed = replace(plain, spec=replace(plain.spec, scheduling_group=link))
            found = [membership(each, (), None, find_group=lambda *_: None) for each in (plain, listed)]
            assert found[0].key == found[1].key, body
    assert named


def test_it_is_done_only_while_the_leader_says_so() -> None:
    assert POD_GROUPS in DEFAULT_HANDLERS
    assert patched({names.GROUP_LABEL: "train"}, lists=False) is None


def test_pods_that_kube_scheduler_binds_name_none() -> None:
    """It would wait for the PodGroup."""
    held = Site(queueing=True)
    labels = {names.GROUP_LABEL: "train", names.SEEN: names.SEEN_YES}
    assert patched(labels, site=held) is not None
    assert patched(labels, site=held, schedulerName=names.KUBE_SCHEDULER) is None


# -- what the template of a Job notes ------------------------------------------------------------------------


def noted_on(
    meta: dict[str, Any], template: dict[str, Any] | None = None, *, held: bool = False, **spec: Any
) -> str | None:
    """The note that a Job's template gets; None: it is left as it is."""
    _, rule = pod_group_rules(Site(queueing=held))
    spec = {"template": {"metadata": template or {}, "spec": {"schedulerName": "fluence"}}, **spec}
    job = Incoming({"metadata": {"name": "train", **meta}, "spec": spec}, "Job", "default", {})
    if not rule.applies(job):
        return None
    found = apply(job.object, rule.edit.operations(job))
    again = Incoming(found, "Job", "default", {})
    assert not rule.applies(again), "a second time must change nothing"
    note = found["spec"]["template"]["metadata"]["annotations"][names.LISTED_AS]
    assert isinstance(note, str)
    return note


def labelled(group: str) -> dict[str, Any]:
    return {"labels": {names.GROUP_LABEL: group}}


SIZED = noted({names.GROUP_SIZE: "4"})
HELD = {"labels": {names.SEEN: names.SEEN_YES}}


@pytest.mark.parametrize(
    ("meta", "template", "note"),
    [
        (SIZED, {}, names.LISTED_AS_JOB),
        (SIZED, {"annotations": {"mine": "x"}}, names.LISTED_AS_JOB),
        (labelled("g"), {}, "g"),
        (noted({names.GROUP_LABEL: "g"}), {}, "g"),
        (labelled("g"), SIZED, "g"),
        (labelled("g"), labelled("g"), None),
        (labelled("g"), labelled("h"), None),
        (labelled("Upper_Case"), {}, None),
        (SIZED, SIZED, None),
        (SIZED, labelled("g"), None),
        (noted({names.GROUP_SIZE: "1"}), {}, None),
        ({}, {}, None),
        ({**SIZED, "ownerReferences": [{**JOB, "kind": "CronJob"}]}, {}, names.LISTED_AS_JOB),
        ({**SIZED, "ownerReferences": [{**JOB, "kind": "JobSet"}]}, {}, None),
    ],
)
def test_a_job_notes_what_its_pods_do_not_know(
    meta: dict[str, Any], template: dict[str, Any], note: str | None
) -> None:
    assert noted_on(meta, template) == note


@pytest.mark.parametrize(("parallelism", "completions", "note"), [(4, 4, "job."), (4, 1, None), (1, 4, None)])
def test_a_held_job_of_several_pods_notes_that_it_is_a_gang(
    parallelism: int, completions: int, note: str | None
) -> None:
    counts: dict[str, Any] = {"parallelism": parallelism, "completions": completions}
    assert noted_on(HELD, held=True, **counts) == note
    assert noted_on({}, held=True, **counts) is None


def test_a_job_that_kube_scheduler_binds_notes_nothing() -> None:
    spec = {"schedulerName": names.KUBE_SCHEDULER}
    marked = {"metadata": HELD, "spec": spec}
    assert noted_on({**SIZED, **HELD}, held=True, template=None, parallelism=4) is not None
    _, rule = pod_group_rules(Site(queueing=True))
    job = {"metadata": {**SIZED, **HELD}, "spec": {"template": marked, "parallelism": 4}}
    assert not rule.applies(Incoming(job, "Job", "default", {}))


@pytest.mark.parametrize(
    ("note", "labels", "name"),
    [
        ("g", {}, "g"),
        ("g", {names.GROUP_LABEL: "mine"}, "mine"),
        ("g", {names.KUEUE_GROUP: "x"}, "g"),
        (names.LISTED_AS_JOB, {}, "job.train"),
        (names.LISTED_AS_JOB, {names.KUEUE_GROUP: "x"}, "kueue.x"),
        (names.LISTED_AS_JOB, {names.JOBSET_NAME: "x"}, "jobset.x"),
    ],
)
def test_pods_of_such_a_job_name_the_gang(note: str, labels: dict[str, str], name: str) -> None:
    meta = {"ownerReferences": [JOB], "annotations": {names.LISTED_AS: note}}
    (operation,) = patched(labels, meta) or [{}]
    assert operation["value"] == {"podGroupName": f"{name}.fluence"}


def test_a_group_that_is_split_for_a_quantum_computer_is_listed_as_it_is_split() -> None:
    """The note does not keep it from being split, as the field in the template would."""
    (scope,) = (each for each in scopes(AdmissionOptions()) if each.name == "pods")
    pod = {
        "metadata": {
            "name": "a",
            "ownerReferences": [JOB],
            "annotations": {
                names.COORDINATION: "shared",
                names.GROUP_SIZE: "4",
                names.COMPLETION_INDEX: "0",
                names.LISTED_AS: names.LISTED_AS_JOB,
            },
        },
        "spec": {
            "schedulerName": "fluence",
            "containers": [{"name": "c", "resources": {"limits": {f"{names.DEVICE_PREFIX}qpu": "1"}}}],
        },
    }
    made = admit(scope, pod, kind="Pod", namespace="default", variables={}, lists_gangs=True)
    assert made.rules == ("copy-device-limits", "split-producer", "name-pod-group")
    assert made.object["spec"]["schedulingGroup"] == {"podGroupName": "train-producer.fluence"}
