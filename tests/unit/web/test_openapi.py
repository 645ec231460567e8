"""The OpenAPI document that is served: every path of it is answered as it says, and all that is answered is
in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fluence.names import PREFIX, VIEW_GROUP
from fluence.web.cluster_rows import RESOURCES
from fluence.web.openapi import document as openapi
from fluence.web.past_jobs import KINDS
from fluence.web.server import BASE
from tests.unit.web.field import Field, gang
from tests.unit.web.openapi_check import faults
from tests.unit.web.test_past_jobs import run, url
from tests.unit.web.test_server import Served
from tests.unit.web.test_whatif import ADMIN, asked, manifest

assert url  # a fixture

NAMES = {
    "queue": "mine",
    "jobs": "running",
    "groups": "mine",
    "plan": "running",
    "promises": "mine",
    "decisions": "running",
    "nodes": "n0",
}


def busy() -> Field:
    made = Field(nodes=2)
    made.submit(gang("running", 2, limit="2h", user="ann"))
    made.submit(gang("mine", 2, limit="1h"))
    made.submit(gang("theirs", 2, namespace="biology", limit="1h"))
    made.submit(gang("partial", 2, limit="1h", there=1))
    return made


def test_every_answer_is_as_the_document_says(url: Any) -> None:
    async def work(served: Served) -> None:
        _, document = await served.get(f"/openapi/v3{BASE}", "")
        assert document["openapi"] == "3.0.0"
        for path, operations in document["paths"].items():
            if "get" not in operations:
                continue  # a question, see below
            resource = path.removeprefix(f"{BASE}/").replace("namespaces/{namespace}/", "").partition("/")[0]
            if "{name}" in path and resource not in NAMES:
                continue  # of devices and settings there are none here
            query = "?by=user,state" if resource == "usage" else ""
            asked = path.format(namespace="physics", name=NAMES.get(resource, "")) + query
            for token in ("for-admin", "for-ann"):
                status, answer = await served.get(asked, token)
                assert status == 200, (asked, answer)
                assert faults(document, path, answer) == []
                assert answer["items"] or resource in ("devices", "settings"), asked

    run(url, work, busy())


def test_the_answer_to_a_question_is_as_the_document_says() -> None:
    told = asked(busy(), ADMIN, manifest("asked", 2))
    assert faults(openapi(), f"{BASE}/namespaces/{{namespace}}/whatif", told) == []


def test_every_resource_is_in_the_document_as_a_list_and_by_name(url: Any) -> None:
    async def work(served: Served) -> None:
        _, document = await served.get(f"/openapi/v3{BASE}", "")
        paths = set(document["paths"])
        everywhere = {"nodes", "devices", "settings"}
        assert {f"{BASE}/{resource}" for resource in (*RESOURCES, *KINDS)} <= paths
        for resource in RESOURCES:
            where = resource if resource in everywhere else f"namespaces/{{namespace}}/{resource}"
            assert {f"{BASE}/{where}", f"{BASE}/{where}/{{name}}"} <= paths, resource
        for path, operations in document["paths"].items():
            (operation,) = operations.values()
            named = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert named == {part[1:-1] for part in path.split("/") if part.startswith("{")}, path

    run(url, work, busy())


def test_a_parameter_of_the_document_is_taken_and_no_other(url: Any) -> None:
    values = {
        "limit": "5",
        "watch": "false",
        "expand": "true",
        "labelSelector": "a=b",
        "user": "ann",
        "state": "pending",
        "since": "2026-09-21T15:13:20Z",
        "until": "2026-09-21T15:13:20Z",
        "job": "1",
        "by": "user",
    }

    async def work(served: Served) -> None:
        _, document = await served.get(f"/openapi/v3{BASE}", "")
        for path in (f"{BASE}/{resource}" for resource in (*RESOURCES, *KINDS)):
            declared = {
                each["name"] for each in document["paths"][path]["get"]["parameters"] if each["in"] == "query"
            }
            needed = {"by": "user"} if path.endswith("usage") else {}
            for name in (*values, "name", "queue", "namespace", "scheduler"):
                query = {**needed, name: values.get(name, "x")}
                status, answer = await served.get(path, params=query)
                assert status == (200 if name in declared else 400), (path, name, answer)

    run(url, work, busy())


def test_the_role_of_the_manifests_is_for_every_resource_and_for_queues() -> None:
    text = (Path(__file__).parents[3] / "deploy" / "scheduler" / "view.yaml").read_text()
    bodies = {(body["kind"], body["metadata"]["name"]): body for body in yaml.safe_load_all(text) if body}
    rules = bodies["ClusterRole", "fluence-view-reader"]["rules"]
    allowed = {(group, each) for rule in rules for group in rule["apiGroups"] for each in rule["resources"]}
    read = {(VIEW_GROUP, resource) for resource in (*RESOURCES, *KINDS)} | {(PREFIX, "queues")}
    assert allowed == read | {(VIEW_GROUP, "whatif")}
    for rule in rules:
        asks = rule["resources"] == ["whatif"]
        assert rule["verbs"] == (["create"] if asks else ["get", "list", "watch"])
    subjects = bodies["ClusterRoleBinding", "fluence-view-reader"]["subjects"]
    assert [each["name"] for each in subjects] == ["system:authenticated"]
