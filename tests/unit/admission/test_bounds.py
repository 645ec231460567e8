"""Objects larger than rules look at: refused where they concern us, left alone where they do not."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from fluence import names
from fluence.admission import review
from fluence.admission.review import answer, busy, too_large
from fluence.admission.rule import MAX_CONTAINERS
from fluence.admission.scopes import AdmissionOptions, DoorMode, scopes
from fluence.errors import InvalidInput
from fluence.model.external_resources import BASE
from tests.unit.admission.objects import QPU, container, pod

SCOPES = {each.name: each for each in scopes(AdmissionOptions(doors=DoorMode.NAMESPACES))}
MANY = MAX_CONTAINERS + 1
MOST_ASKED = {f"{names.DEVICE_PREFIX}t{i}": "1" for i in range(review.MAX_RESOURCES)}
HEAD = (
    b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"705ab4f5-6393-11e8",'
    b'"kind":{"group":"","version":"v1","kind":"Pod"},"resource":{"group":"","version":"v1"'
)


def body(found: Any, **more: Any) -> bytes:
    kind = found.get("kind", "Pod") if isinstance(found, dict) else "Pod"
    request = {"uid": "u", "kind": {"kind": kind}, "operation": "CREATE", "object": found, **more}
    return msgspec.json.encode({"request": request})


def response(found: Any, scope: str = "pods", **more: Any) -> Any:
    return msgspec.json.decode(answer(body(found, **more), SCOPES[scope], BASE))["response"]


def devices(count: int) -> list[dict[str, Any]]:
    return [container(f"c{i}", limits={QPU: "1"}) for i in range(count)]


def test_a_pod_that_would_lose_its_variables_is_refused_by_name_field_and_cure() -> None:
    said = response(pod(*devices(MANY)))
    assert said["allowed"] is False and "patch" not in said
    assert said["status"]["code"] == 422
    assert said["status"]["message"] == (
        "Pod p: spec.containers: 257 containers and init containers, of which Fluence takes at most 256 in a "
        "pod; use several pods"
    )


def test_init_containers_count_too() -> None:
    found = pod(*devices(MANY - 1))
    assert response(found)["allowed"] is True
    found["spec"]["initContainers"] = devices(1)
    assert response(found)["allowed"] is False


def test_a_container_that_asks_for_too_many_resources_is_refused() -> None:
    found = pod(container(), container("d", limits={**MOST_ASKED, QPU: "1"}))
    assert response(found)["status"]["message"] == (
        "Pod p: spec.containers[1].resources.limits: 33 resources, of which Fluence takes at most 32 in a "
        "container; ask for fewer"
    )


def test_a_pod_that_would_start_before_its_turn_is_refused() -> None:
    found = pod(*(container(f"c{i}") for i in range(MANY)), scheduler="")
    assert response(found, "pods-held")["allowed"] is False


@pytest.mark.parametrize("values", [False, True])
def test_what_does_not_concern_us_passes_however_large(values: bool) -> None:
    found = pod(*devices(MANY), scheduler="other")
    if values:
        found["spec"]["tolerations"] = [{}] * review.MAX_VALUES
    assert response(found) == {"uid": "u", "allowed": True}
    assert response(found, "pods-held") == {"uid": "u", "allowed": True}


def test_a_pod_of_ours_that_no_rule_changes_passes() -> None:
    plain = pod(*(container(f"c{i}") for i in range(MANY)))
    assert response(plain) == {"uid": "u", "allowed": True}
    out = pod(*devices(MANY), scheduler="", labels={names.QUEUE: names.QUEUE_OFF})
    assert response(out, "pods-held") == {"uid": "u", "allowed": True}


def test_a_workload_is_refused_before_its_pods_are() -> None:
    job = {"kind": "Job", "metadata": {"generateName": "j-"}, "spec": {"template": pod(*devices(MANY))}}
    said = response(job, "workloads-held")
    assert said["status"]["message"].startswith("Job j-: spec.template.spec.containers: 257 containers")


def test_an_object_of_too_many_values_is_refused_without_being_read() -> None:
    found = pod(container(limits={QPU: "1"}, env=[{"name": "a"}] * review.MAX_VALUES))
    said = response(found)
    assert said["allowed"] is False
    assert said["status"]["message"].startswith("Pod p: it holds over 200000 values")
    held = {"kind": "Job", "metadata": {"name": "j"}, "spec": {"template": found}}
    assert response(held, "workloads-held")["status"]["message"].startswith("Job j: it holds over 200000 ")


@pytest.mark.parametrize("depth", [review.MAX_DEPTH, 900, 5000, 1_000_000])
def test_deep_json_is_said_in_one_line(depth: int) -> None:
    deep = body(pod(annotations="DEEP")).replace(b'"DEEP"', b"[" * depth + b"]" * depth)
    with pytest.raises(InvalidInput) as error:
        answer(deep, SCOPES["pods"], BASE)
    assert "\n" not in str(error.value) and len(str(error.value)) < 200


def test_a_name_that_the_server_will_refuse_costs_nothing() -> None:
    job = {"kind": "Deployment", "metadata": {"name": "a" * 1_000_000}, "spec": {"template": pod()}}
    began = time.process_time()
    assert response(job, "workloads-held") == {"uid": "u", "allowed": True}
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize("field", ["uid", "namespace", "operation"])
def test_a_review_with_a_text_that_no_server_sends_is_none(field: str) -> None:
    with pytest.raises(InvalidInput, match="is no AdmissionReview"):
        response(pod(), **{field: "x" * 10_000})


def test_a_review_that_is_not_read_to_its_end_is_refused_by_its_beginning() -> None:
    for said, code in ((too_large(HEAD), 422), (busy(HEAD), 429)):
        assert said is not None
        found = msgspec.json.decode(said)["response"]
        assert (found["uid"], found["allowed"]) == ("705ab4f5-6393-11e8", False)
        assert found["status"]["code"] == code
        assert found["status"]["message"].startswith("this Pod is ")
    assert too_large(b"x" * 5000) is None and busy(b'{"request":{"object":{"uid":"a"}}}') is None


@pytest.mark.parametrize(
    "found",
    [
        pod(*(container(f"c{i}", limits=MOST_ASKED) for i in range(MAX_CONTAINERS))),
        pod(container(limits={QPU: "1"}, env=[{"name": f"V{i}"} for i in range(60_000)])),
        pod(annotations={f"a{i}": "x" for i in range(60_000)}),
        pod(ownerReferences=[{"kind": "Job", "name": "j", "controller": True}] * 40_000),
    ],
    ids=["containers", "variables", "annotations", "owners"],
)
@pytest.mark.parametrize("scope", ["pods", "pods-held"])
def test_the_most_that_passes_is_answered_soon(found: Any, scope: str) -> None:
    asked = body(found)
    began = time.process_time()
    assert msgspec.json.decode(answer(asked, SCOPES[scope], BASE))["response"]["allowed"] is True
    assert time.process_time() - began < 1.5
