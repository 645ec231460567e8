"""What readers see of a scheduler: all of their own work, and of others' only that a place is taken."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fluence.web import rows
from fluence.web.access import User
from fluence.web.cluster_rows import RESOURCES
from fluence.web.kept import KeptRows
from fluence.web.rows import Filter
from fluence.web.server import make_page, parse_query
from fluence.web.view import Snapshot
from tests.unit.web.field import ALL, NOW, Field, Sees, gang

BASE = "/apis/view.fluence.flux-framework.org/v1"


@pytest.fixture(scope="module")
def busy() -> Field:
    """One runs on all nodes, three wait: two of physics, one of biology; one has not gathered."""
    field = Field()
    field.submit(gang("running", 4, limit="2h", user="ann"))
    field.submit(gang("first", 2, limit="1h", user="ann"))
    field.submit(gang("other", 4, namespace="biology", limit="1h", user="bob"))
    field.submit(gang("last", 4, limit="30m", user="eve"))
    field.submit(gang("never", 9))
    field.now = NOW + 20_000
    field.submit(gang("partial", 3, there=2))
    return field


def items(field: Field, resource: str, reader: Any = ALL, **wanted: Any) -> list[dict[str, Any]]:
    made = RESOURCES[resource][1](field.snapshot(), reader, Filter(**wanted))
    return [msgspec.json.decode(row.text((), filling)) for row, filling in made]


def test_the_queue_has_those_that_wait_in_order_then_those_that_are_not_in_it(busy: Field) -> None:
    queue = items(busy, "queue")
    assert [(row.get("position"), row["name"], row["state"]) for row in queue] == [
        (1, "first", "reserved"),
        (2, "other", "reserved"),
        (3, "last", "reserved"),
        (None, "never", "unschedulable"),
        (None, "partial", "gathering"),
    ]
    first = queue[0]
    assert first["planned"] == {"from": "2026-09-01T14:00:00Z", "until": "2026-09-01T15:00:00Z"}
    assert first["noLaterThan"] >= first["planned"]["from"]
    assert len(first["nodes"]) == 2
    assert (first["user"], first["pods"], first["minimum"], first["limit"]) == ("ann", 2, 2, 3600)
    assert first["requests"] == {"cpu": "64"}
    assert first["reasons"][0]["code"] and first["reasons"][0]["message"]


def test_of_others_only_the_place_in_the_queue_is_seen(busy: Field) -> None:
    queue = items(busy, "queue", Sees("physics"))
    assert queue[1] == {"state": "reserved", "position": 2, "hidden": True}
    assert [row.get("name") for row in queue] == ["first", None, "last", "never", "partial"]


@pytest.mark.parametrize("resource", sorted(RESOURCES))
def test_nothing_of_another_namespace_is_in_any_resource(busy: Field, resource: str) -> None:
    for reader in (Sees("physics"), Sees()):
        text = str(items(busy, resource, reader))
        for word in ("other", "biology", "bob"):
            assert word not in text, (resource, word)


@pytest.mark.parametrize("resource", sorted(RESOURCES))
def test_rows_that_were_made_for_an_administrator_are_not_shown_to_others(busy: Field, resource: str) -> None:
    snapshot = busy.snapshot()

    def read(reader: Any, taken: Snapshot) -> list[bytes]:
        return [row.text((), filling) for row, filling in RESOURCES[resource][1](taken, reader, Filter())]

    for reader in (ALL, Sees("physics"), Sees("biology"), Sees(), ALL):
        assert read(reader, snapshot) == read(reader, replace(snapshot, kept=KeptRows())), reader


@pytest.mark.parametrize(
    "wanted",
    [{"namespace": "biology"}, {"name": "other"}, {"users": frozenset(("bob",))}, {"queue": ""}],
    ids=lambda wanted: next(iter(wanted)),
)
def test_a_filter_does_not_say_whether_a_hidden_row_matches(busy: Field, wanted: dict[str, Any]) -> None:
    """Else a name, an owner or a queue could be guessed."""
    for resource in RESOURCES:
        shown = items(busy, resource, Sees("physics"), **wanted)
        assert not [row for row in shown if row.get("hidden")], resource


def test_hidden_rows_are_chosen_by_their_state(busy: Field) -> None:
    reader = Sees("physics")
    assert [row["name"] for row in items(busy, "plan", reader, states=frozenset(("running",)))] == ["running"]
    assert items(busy, "jobs", reader, states=frozenset(("running",)))[0]["name"] == "running"
    assert len(items(busy, "jobs", reader, states=frozenset(("running",)))) == 1
    assert len(items(busy, "queue", reader, states=frozenset(("reserved",)))) == 3


def test_filters(busy: Field) -> None:
    def names(**wanted: Any) -> list[str]:
        return [row["name"] for row in items(busy, "jobs", **wanted)]

    assert names(users=frozenset(("ann",))) == ["running", "first"]
    assert names(states=frozenset(("running",))) == ["running"]
    assert names(namespace="biology") == ["other"]
    query = parse_query(
        f"{BASE}/jobs", {"labelSelector": "fluence.flux-framework.org/group in (last)"}, User("ann")
    )
    assert names(labels=query.wanted.labels) == ["last"]
    query = parse_query(f"{BASE}/jobs", {"user": "@me"}, User("system:serviceaccount:physics:ann"))
    assert names(users=query.wanted.users) == ["running", "first"]


def test_the_plan_has_who_where_from_when_until_when(busy: Field) -> None:
    plan = items(busy, "plan")
    assert [(row["name"], row["state"], row["from"][11:16], row["until"][11:16]) for row in plan] == [
        ("running", "running", "12:00", "14:00"),
        ("first", "reserved", "14:00", "15:00"),
        ("other", "reserved", "15:00", "16:00"),
        ("last", "reserved", "16:00", "16:30"),
    ]
    assert plan[0]["nodes"] == ["n0", "n1", "n2", "n3"]
    hidden = items(busy, "plan", Sees("physics"))[2]
    assert hidden == {
        "state": "reserved",
        "from": "2026-09-01T15:00:00Z",
        "until": "2026-09-01T16:00:00Z",
        "nodes": ["n0", "n1", "n2", "n3"],
        "hidden": True,
    }


def test_nodes_say_what_is_free_and_who_has_the_rest(busy: Field) -> None:
    nodes = items(busy, "nodes")
    assert [row["name"] for row in nodes] == ["n0", "n1", "n2", "n3"]
    cpu = next(amount for amount in nodes[0]["amounts"] if amount["resource"] == "cpu")
    assert cpu == {"resource": "cpu", "size": "32", "taken": "32", "free": "0"}
    assert nodes[0]["by"] == [
        {"namespace": "physics", "name": "running", "pods": 1, "until": "2026-09-01T14:00:00Z"}
    ]
    (first,) = items(busy, "queue", name="first")
    assert {row["name"] for row in nodes if row["next"] == "2026-09-01T14:00:00Z"} == set(first["nodes"])
    assert items(busy, "nodes", Sees())[0]["by"] == [{"pods": 1, "hidden": True}]
    assert [row["name"] for row in items(busy, "nodes", name="n2")] == ["n2"]


def test_groups_count_their_pods(busy: Field) -> None:
    found = {row["name"]: row for row in items(busy, "groups")}
    assert (found["running"]["placed"], found["running"]["size"]) == (4, 4)
    assert (found["partial"]["state"], found["partial"]["waiting"], found["partial"]["size"]) == (
        "gathering",
        2,
        3,
    )


def test_one_job_has_its_story_its_pods_and_its_reasons(busy: Field) -> None:
    snapshot = busy.snapshot()
    (found,) = rows.find_job(snapshot, "physics", "last")
    told = msgspec.json.decode(msgspec.json.encode(rows.detail(snapshot, found)))
    assert told["ahead"] == 2
    assert [step["state"] for step in told["story"]][:2] == ["pending", "reserved"]
    assert [pod["name"] for pod in told["members"]] == ["last-0", "last-1", "last-2", "last-3"]
    assert {pod["node"] for pod in told["members"]} == {"n0", "n1", "n2", "n3"}
    assert rows.find_job(snapshot, "physics", "last-2") == [found], "by the name of a pod"
    assert rows.find_job(snapshot, "physics", "other") == []


def test_decisions_are_told_the_latest_first(busy: Field) -> None:
    (decision,) = items(busy, "decisions")
    assert (decision["decision"], decision["name"], decision["pods"]) == ("started", "running", 4)
    assert decision["nodes"] == ["n0", "n1", "n2", "n3"]


def test_pages_are_parts_of_one_list(busy: Field) -> None:
    snapshot, whole = busy.snapshot(), [row["name"] for row in items(busy, "queue")]
    seen: list[str] = []
    offset = 0
    while True:
        query = parse_query(f"{BASE}/queue", {"limit": "2"}, User("ann"))
        page = make_page(snapshot, ALL, query, offset)
        seen += [row["name"] for row in msgspec.json.decode(msgspec.json.encode(page))["items"]]
        if not page.metadata.continue_:
            break
        assert page.metadata.remaining_item_count == len(whole) - len(seen)
        offset = int(page.metadata.continue_.partition(".")[2])
    assert seen == whole


def test_a_snapshot_stays_as_it_was(busy: Field) -> None:
    """It is read by another thread while cycles run."""
    field = Field(nodes=2)
    field.submit(gang("a", 2, limit="1h"))
    field.submit(gang("b", 2, limit="1h"))
    snapshot = field.snapshot()

    def shown(snapshot: Snapshot) -> list[list[bytes]]:
        return [
            [row.text((), filling) for row, filling in RESOURCES[name][1](snapshot, ALL, Filter())]
            for name in RESOURCES
        ]

    before = shown(snapshot)
    for pod in gang("a", 2, limit="1h"):
        field.driver.remove_pod(pod)
    field.now += 60_000
    field.submit(gang("c", 1, limit="1h"))
    assert [row["name"] for row in items(field, "queue")] != ["b"]
    assert shown(snapshot) == before
    assert shown(replace(snapshot, kept=KeptRows())) == before, "what was derived is derived once more"


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("lab/train", ("lab", "Group", "train")),
        ("lab/job:train", ("lab", "Job", "train")),
        ("lab/volcano:train", ("lab", "Group", "volcano:train")),
        ("lab/jobset:train", ("lab", "JobSet", "train")),
        ("lab/jobset:train/workers@2", ("lab", "JobSet", "train/workers")),
        ("lab/leaderworkerset:llm/0", ("lab", "LeaderWorkerSet", "llm/0")),
    ],
)
def test_a_gang_is_named_by_the_object_that_its_user_wrote(key: str, wanted: tuple[str, str, str]) -> None:
    assert rows.name_of(key) == wanted
