"""Pods that name their group by a label get the field of a PodGroup that the scheduler makes."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fluence import names
from fluence.admission.patch import Incoming
from fluence.admission.pod_groups import pod_group_rules
from fluence.admission.rule import DEFAULT_HANDLERS, HANDLERS, POD_GROUPS, Site
from fluence.model.pod import Pod, SchedulingGroup
from fluence.schedule.gangs.membership import membership
from tests.admission_objects import pod as random_pod


def patched(labels: dict[str, str], meta: dict[str, Any] | None = None, **spec: Any) -> list[Any] | None:
    (rule,) = pod_group_rules(Site())
    body = {
        "metadata": {"name": "a", "labels": labels, **(meta or {})},
        "spec": {"schedulerName": "fluence", **spec},
    }
    incoming = Incoming(body, "Pod", "default", {})
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


def test_it_is_not_done_unless_asked_for() -> None:
    assert POD_GROUPS in HANDLERS and POD_GROUPS not in DEFAULT_HANDLERS
