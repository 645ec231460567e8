"""Reviews: whatever is asked, objects are allowed, and changed as the rules say."""

import base64
from typing import Any

import msgspec
import pytest

from fluence import names
from fluence.admission.patch import apply
from fluence.admission.review import answer
from fluence.admission.scopes import AdmissionOptions, scopes
from fluence.errors import InvalidInput
from fluence.model.external_resources import BASE
from tests.unit.admission.objects import QPU, admitted, container, pod

PODS = scopes(AdmissionOptions())[0]


def asked(found: Any, **more: Any) -> Any:
    request = {"uid": "u-1", "kind": {"kind": "Pod"}, "operation": "CREATE", "object": found, **more}
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return msgspec.json.decode(answer(msgspec.json.encode(body), PODS, BASE))


def test_the_answer_is_the_patch_of_the_rules() -> None:
    found = pod(container(limits={QPU: "1"}))
    said = asked(found)
    assert (said["kind"], said["apiVersion"]) == ("AdmissionReview", "admission.k8s.io/v1")
    response = said["response"]
    assert (response["uid"], response["allowed"], response["patchType"]) == ("u-1", True, "JSONPatch")
    patch = msgspec.json.decode(base64.b64decode(response["patch"]))
    assert apply(found, patch) == admitted(found).object


def test_a_dry_run_is_answered_like_any_other() -> None:
    found = pod(container(limits={QPU: "1"}))
    assert asked(found, dryRun=True) == asked(found)


def test_what_is_not_ours_gets_no_patch() -> None:
    for said in (asked(pod(scheduler="other")), asked(pod(), operation="UPDATE"), asked(None)):
        assert said["response"] == {"uid": "u-1", "allowed": True}


def test_its_maker_is_warned() -> None:
    found = pod(container(limits={QPU: "1"}), annotations={names.COORDINATION: "shared"})
    assert "needs an index" in asked(found)["response"]["warnings"][0]


@pytest.mark.parametrize("containers", [7, "c", [7], [None], [{"resources": {"limits": [1]}}]])
def test_an_odd_object_is_left_to_the_server(containers: Any) -> None:
    found = pod()
    found["spec"]["containers"] = containers
    assert asked(found)["response"]["allowed"] is True


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"\xff", b'{"request": 1}'])
def test_what_is_no_review_is_said_in_one_line(body: bytes) -> None:
    with pytest.raises(InvalidInput, match="is no AdmissionReview"):
        answer(body, PODS, BASE)
