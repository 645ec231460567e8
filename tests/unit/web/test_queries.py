"""Paths and queries: what is asked for, and what is refused in one line."""

from __future__ import annotations

import pytest

from fluence.model.meta import Requirement
from fluence.web.access import Refused, User
from fluence.web.openapi import MAX_COLUMNS_LIMIT, MAX_LIMIT
from fluence.web.selectors import parse_selector
from fluence.web.server import DEFAULT_LIMIT, parse_query

BASE = "/apis/view.fluence.flux-framework.org/v1"
ANN = User("ann")


def test_a_path_names_resource_namespace_and_name() -> None:
    query = parse_query(f"{BASE}/namespaces/physics/jobs/train", {}, ANN)
    assert (query.resource, query.namespace, query.name, query.limit) == (
        "jobs",
        "physics",
        "train",
        DEFAULT_LIMIT,
    )
    assert query.wanted.namespace == "physics"
    assert parse_query(f"{BASE}/queue", {"limit": "999999999999"}, ANN).limit == MAX_LIMIT
    assert parse_query(f"{BASE}/queue", {"watch": "true"}, ANN).watch
    narrow = parse_query(f"{BASE}/queue", {"columns": "name,noLaterThan,name", "limit": "999999"}, ANN)
    assert (narrow.columns, narrow.limit) == (("name", "noLaterThan"), MAX_COLUMNS_LIMIT)


@pytest.mark.parametrize(
    ("path", "given", "status", "words"),
    [
        ("/apis/batch/v1/jobs", {}, 404, "no such resource"),
        (f"{BASE}/secrets", {}, 404, "no such resource"),
        (f"{BASE}/queue/a/b", {}, 404, "no such resource"),
        (f"{BASE}/../../../api/v1/pods", {}, 404, "no such resource"),
        (f"{BASE}/namespaces/physics/nodes", {}, 404, "not in namespaces"),
        (f"{BASE}/jobs/train", {}, 400, "in which namespace"),
        (f"{BASE}/queue", {"limit": "0"}, 400, "limit"),
        (f"{BASE}/queue", {"limit": "ten"}, 400, "limit"),
        (f"{BASE}/queue", {"colour": "red"}, 400, "no such parameter"),
        (f"{BASE}/queue", {"labelSelector": "a=(b"}, 400, "not a requirement"),
        (f"{BASE}/queue", {"columns": "name,__class__"}, 400, "queue have no __class__; there are state"),
    ],
)
def test_what_cannot_be_understood_is_refused(
    path: str, given: dict[str, str], status: int, words: str
) -> None:
    with pytest.raises(Refused, match=words) as refusal:
        parse_query(path, given, ANN)
    assert refusal.value.status == status


def test_selectors_are_those_of_kubectl() -> None:
    assert parse_selector("a=b, c!=d,e in (f, g),h notin (i),j,!k") == (
        Requirement("a", "In", ["b"]),
        Requirement("c", "NotIn", ["d"]),
        Requirement("e", "In", ["f", "g"]),
        Requirement("h", "NotIn", ["i"]),
        Requirement("j", "Exists"),
        Requirement("k", "DoesNotExist"),
    )
    assert parse_selector("") == ()
    with pytest.raises(ValueError, match="more than 64"):
        parse_selector(",".join("a" for _ in range(100)))
