"""Who submitted what: the Python rules, the webhook's answers and the policies that are rendered."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest

from fluence import names
from fluence.admission.manifests import manifests, policies, webhook_configuration
from fluence.admission.review import admit, answer
from fluence.admission.scopes import AdmissionOptions, AdmissionScope, scopes
from fluence.admission.users import KINDS, NAME

KEY = names.SUBMITTED_BY
OPERATOR = "system:serviceaccount:ops:operator"
OPTIONS = AdmissionOptions(handlers=(), users=True, controllers=(OPERATOR,))


def scope() -> AdmissionScope:
    (found,) = scopes(OPTIONS)
    assert found.name == NAME
    return found


def job(**annotations: str) -> dict[str, Any]:
    template = {"metadata": {"annotations": dict(annotations)}, "spec": {}}
    return {"metadata": {"name": "j", "annotations": dict(annotations)}, "spec": {"template": template}}


def names_in(found: Any) -> list[str | None]:
    metas = [found["metadata"], found["spec"]["template"]["metadata"]]
    return [(meta.get("annotations") or {}).get(KEY) for meta in metas]


def admitted(found: Any, user: str, old: Any = None) -> Any:
    return admit(scope(), found, kind="Job", namespace="a", variables={}, user=user, old=old)


class TestNewObjects:
    @pytest.mark.parametrize("given", [{}, {KEY: "bob"}, {KEY: ""}, {"other": "x"}])
    def test_they_have_the_name_of_their_user(self, given: dict[str, str]) -> None:
        assert names_in(admitted(job(**given), "alice").object) == ["alice", "alice"]

    def test_a_template_without_metadata_has_it_too(self) -> None:
        found: Any = {"metadata": {}, "spec": {"template": {"spec": {}}}}
        assert names_in(admitted(found, "alice").object) == ["alice", "alice"]

    @pytest.mark.parametrize(
        "user",
        [
            "system:serviceaccount:kube-system:job-controller",
            "system:kube-controller-manager",
            "system:node:n1",
        ],
    )
    def test_what_kubernetes_itself_creates_is_left_alone(self, user: str) -> None:
        assert not admitted(job(**{KEY: "alice"}), user).patch
        assert not admitted(job(), user).patch

    def test_a_name_that_only_begins_like_that_of_a_controller_is_a_users(self) -> None:
        user = "system:serviceaccount:kube-system-2:job-controller"
        assert names_in(admitted(job(), user).object) == [user, user]

    def test_what_an_operator_creates_has_no_name(self) -> None:
        assert names_in(admitted(job(**{KEY: "bob"}), OPERATOR).object) == [None, None]
        assert not admitted(job(), OPERATOR).patch


class TestUpdates:
    @pytest.mark.parametrize("given", [{}, {KEY: "bob"}, {KEY: ""}])
    @pytest.mark.parametrize("user", ["alice", "bob", OPERATOR])
    def test_they_keep_the_name(self, given: dict[str, str], user: str) -> None:
        made = admitted(job(**given), user, old=job(**{KEY: "alice"}))
        assert names_in(made.object) == ["alice", "alice"]

    def test_an_object_without_a_name_gets_none(self) -> None:
        assert not admitted(job(), "alice", old=job()).patch


class TestTheWebhook:
    def reviewed(self, operation: str, found: Any, old: Any = None, user: str = "alice") -> Any:
        request: dict[str, Any] = {
            "uid": "1",
            "kind": {"kind": "Job"},
            "namespace": "a",
            "operation": operation,
            "userInfo": {"username": user, "groups": ["system:authenticated"]},
            "object": found,
            "oldObject": old,
        }
        body = msgspec.json.encode({"request": request})
        response = msgspec.json.decode(answer(body, scope(), {}))["response"]
        assert response["allowed"]
        return msgspec.json.decode(base64.b64decode(response["patch"])) if "patch" in response else []

    def test_it_writes_and_keeps_names(self) -> None:
        paths = {each["path"] for each in self.reviewed("CREATE", job())}
        key = KEY.replace("/", "~1")
        ends = (f"/metadata/annotations/{key}", f"/spec/template/metadata/annotations/{key}")
        assert paths == set(ends)
        values = {each["value"] for each in self.reviewed("UPDATE", job(), job(**{KEY: "carol"}), "bob")}
        assert values == {"carol"}
        assert self.reviewed("UPDATE", job(**{KEY: "carol"}), job(**{KEY: "carol"}), "bob") == []
        assert self.reviewed("DELETE", job()) == []

    def test_pods_with_many_containers_are_no_concern_of_these_rules(self) -> None:
        found = job()
        found["spec"]["template"]["spec"] = {"containers": [{"name": f"c{each}"} for each in range(300)]}
        assert self.reviewed("CREATE", found)

    def test_a_name_of_any_length_is_read(self) -> None:
        patch = self.reviewed("CREATE", job(), user="u" * 2000)
        assert {each["value"] for each in patch} == {"u" * 2000}

    def test_the_server_calls_it_for_updates_only_if_a_name_changes(self) -> None:
        (hook,) = webhook_configuration(OPTIONS, client={"url": "https://here"})["webhooks"]
        assert {each for rule in hook["rules"] for each in rule["operations"]} == {"CREATE", "UPDATE"}
        (condition,) = hook["matchConditions"]
        assert "!= oldObject.?metadata" in condition["expression"]
        assert hook["failurePolicy"] == "Ignore"


class TestThePolicies:
    def test_they_are_off_by_default(self) -> None:
        text = str(policies(AdmissionOptions(), namespace="a"))
        assert KEY not in text and "authorizer" not in text

    @pytest.mark.parametrize("by_webhook", [False, True])
    def test_the_same_policies_refuse_beside_policies_and_beside_the_webhook(self, by_webhook: bool) -> None:
        options = AdmissionOptions(handlers=(), users=True, queue_access=True)
        found = manifests(options, namespace="a", by_webhook=by_webhook)
        refusing = {
            each["metadata"]["name"]: each["spec"]
            for each in found
            if each["kind"] == "ValidatingAdmissionPolicy"
        }
        assert set(refusing) == {"fluence-users", "fluence-queue-access"}
        assert {spec["failurePolicy"] for spec in refusing.values()} == {"Fail"}
        resources = {
            plural
            for rule in refusing["fluence-users"]["matchConstraints"]["resourceRules"]
            for plural in rule["resources"]
        }
        assert {"pods", "cronjobs", "daemonsets", "replicationcontrollers", "jobsets"} <= resources
        assert len(resources) == len(KINDS)
        actions = [
            each["spec"]["validationActions"]
            for each in found
            if each["kind"] == "ValidatingAdmissionPolicyBinding"
        ]
        assert actions == [["Deny"], ["Deny"]]
