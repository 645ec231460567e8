"""Doors: what is held back, what is left alone, and with which labels."""

from typing import Any

import pytest

from fluence import names
from fluence.admission.scopes import AdmissionOptions, DoorMode
from tests.unit.admission.objects import QPU, admitted, container, pod, variables_of

SEEN = {names.SEEN: "yes"}
GATED = [{"name": "fluxqueue"}]


def workload(kind: str, *, template: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    inner = {"metadata": {"labels": {"app": "w"}}, "spec": {"containers": [container()]}, **(template or {})}
    return {"kind": kind, "metadata": {"name": "w"}, "spec": {"template": inner, **spec}}


def owner(kind: str, *, controller: bool = True) -> list[dict[str, Any]]:
    return [{"kind": kind, "name": "o", "uid": "u", "controller": controller}]


@pytest.mark.parametrize("meta", [{"name": "p"}, {"generateName": "p-", "name": None}])
def test_a_pod_is_gated_labelled_and_taken(meta: dict[str, Any]) -> None:
    made = admitted(pod(scheduler="default-scheduler", **meta), held=True).object
    assert made["spec"]["schedulingGates"] == GATED
    assert made["metadata"]["labels"] == SEEN
    assert made["spec"]["schedulerName"] == "fluence"


def test_without_doors_nothing_is_held() -> None:
    assert not admitted(pod(scheduler="")).patch
    assert not admitted(workload("Job")).patch


def test_a_job_is_suspended_and_its_pods_are_not_held_again() -> None:
    made = admitted(workload("Job"), held=True).object
    assert made["spec"]["suspend"] is True
    assert made["metadata"]["labels"] == SEEN
    template = made["spec"]["template"]
    assert template["metadata"]["labels"] == {"app": "w", **SEEN}
    assert template["spec"]["schedulerName"] == "fluence"
    assert "schedulingGates" not in template["spec"]
    assert not admitted({"kind": "Pod", **template}, held=True).patch


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "StatefulSet"])
def test_templates_are_gated_and_their_pods_can_be_selected(kind: str) -> None:
    made = admitted(workload(kind), held=True).object
    template = made["spec"]["template"]
    assert template["spec"]["schedulingGates"] == GATED
    assert template["metadata"]["labels"] == {"app": "w", **SEEN, names.SELECTOR: f"{kind.lower()}-w-ns"}
    assert made["metadata"]["labels"] == SEEN
    assert not admitted({"kind": "Pod", **template}, held=True).patch
    assert not admitted(made, held=True).patch


def test_a_long_name_is_a_label_all_the_same() -> None:
    values = set()
    for name in ("x" * 60, "x" * 61, "x" * 59 + "y", "x" * 59 + "z", "x." * 50 + "x"):
        found = workload("StatefulSet")
        found["metadata"]["name"] = name
        value = admitted(found, held=True).object["spec"]["template"]["metadata"]["labels"][names.SELECTOR]
        assert len(value) <= 63
        assert value[-1].isalnum()
        values.add(value)
    assert len(values) == 5


def test_a_name_that_is_not_made_yet_selects_nothing() -> None:
    found = workload("Deployment")
    found["metadata"] = {"generateName": "w-"}
    labels = admitted(found, held=True).object["spec"]["template"]["metadata"]["labels"]
    assert labels == {"app": "w", **SEEN}


@pytest.mark.parametrize("where", ["labels", "annotations"])
@pytest.mark.parametrize("kind", ["Job", "Deployment", "ReplicaSet", "StatefulSet"])
def test_a_workload_that_opted_out_tells_its_pods(kind: str, where: str) -> None:
    found = workload(kind)
    found["metadata"][where] = {names.QUEUE: "off"}
    made = admitted(found, held=True)
    assert made.rules == ("pass-on-opt-out",)
    assert not admitted({"kind": "Pod", **made.object["spec"]["template"]}, held=True).patch


@pytest.mark.parametrize("where", ["labels", "annotations"])
def test_a_pod_that_opted_out_is_left_alone_and_a_queue_is_not_off(where: str) -> None:
    assert not admitted(pod(scheduler="", **{where: {names.QUEUE: "off"}}), held=True).patch
    assert admitted(pod(scheduler="", **{where: {names.QUEUE: "debug"}}), held=True).patch


@pytest.mark.parametrize(
    ("meta", "spec"),
    [
        ({"labels": SEEN}, {}),
        ({"ownerReferences": owner("DaemonSet")}, {}),
        ({"ownerReferences": owner("Node")}, {}),
        ({"annotations": {"kubernetes.io/config.mirror": "x"}}, {}),
        ({}, {"nodeName": "n"}),
        ({}, {"priorityClassName": "system-node-critical"}),
        ({}, {"schedulerName": "volcano"}),
    ],
    ids=["seen", "daemonset", "static", "mirror", "bound", "critical", "another scheduler"],
)
def test_pods_that_are_never_held(meta: dict[str, Any], spec: dict[str, Any]) -> None:
    found = pod(scheduler="", **meta)
    found["spec"] |= spec
    assert not admitted(found, held=True).patch


def test_pods_of_an_owner_that_is_not_held_are_held_themselves() -> None:
    for kind in ("Job", "ReplicaSet", "JobSet"):
        assert admitted(pod(scheduler="", ownerReferences=owner(kind)), held=True).rules == ("gate-pod",)


def test_what_another_controller_looks_after_is_left_to_it() -> None:
    for kind, by in (("ReplicaSet", "Deployment"), ("Job", "JobSet"), ("StatefulSet", "Operator")):
        found = workload(kind)
        found["metadata"]["ownerReferences"] = owner(by)
        assert not admitted(found, held=True).patch


def test_a_job_of_a_cronjob_is_held() -> None:
    found = workload("Job")
    found["metadata"]["ownerReferences"] = owner("CronJob")
    assert admitted(found, held=True).object["spec"]["suspend"]


@pytest.mark.parametrize("spec", [{"suspend": True}, {"managedBy": "example.org/queue"}])
def test_a_job_that_somebody_else_holds_is_left_alone(spec: dict[str, Any]) -> None:
    assert not admitted(workload("Job", **spec), held=True).patch


@pytest.mark.parametrize(
    ("meta", "spec"),
    [
        ({"annotations": {names.BIND: "kube-scheduler"}}, {}),
        ({}, {"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}),
    ],
)
def test_what_is_delegated_keeps_its_scheduler(meta: dict[str, Any], spec: dict[str, Any]) -> None:
    found = pod(scheduler="default-scheduler", **meta)
    found["spec"] |= spec
    made = admitted(found, held=True).object
    assert made["spec"]["schedulerName"] == "default-scheduler"
    assert made["spec"]["schedulingGates"] == GATED


def test_a_site_may_delegate_all() -> None:
    options = AdmissionOptions(doors=DoorMode.NAMESPACES, delegate=True)
    made = admitted(pod(scheduler=""), options=options, held=True).object
    assert "schedulerName" not in made["spec"]


def test_what_is_held_is_told_its_backend_whoever_binds_it() -> None:
    for meta in ({}, {"annotations": {names.BIND: "kube-scheduler"}}):
        found = pod(container(limits={QPU: 1}), scheduler="", **meta)
        made = admitted(found, held=True)
        assert made.rules == ("gate-pod", "copy-device-limits", "hand-over-backend")
        assert "QRMI_BACKEND" in variables_of(made.object)
