"""A Job that is no gang is an array: one row in every list, with counts. `expand` gives one per task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from fluence import names
from fluence.model.pod import Pod
from fluence.web import rows
from fluence.web.access import User
from fluence.web.cluster_rows import RESOURCES
from fluence.web.kept import KeptRows
from fluence.web.rows import Filter
from fluence.web.server import BASE, parse_query
from tests.unit.schedule import kit
from tests.unit.web.field import ALL, Field, Sees, gang


def tasks(name: str, count: int, *, done: int = 0, limit: str = "1h", **spec: Any) -> tuple[Any, list[Pod]]:
    """An indexed Job and the pods of those of its tasks that are not done."""
    more = {"completions": count, "parallelism": count, "completion_mode": "Indexed", **spec}
    job = kit.owner(name, namespace="physics", succeeded=done or None, **more)
    annotations = {names.DURATION: limit, names.USER: "ann"}
    pods = [
        kit.pod(f"{name}-{index}", namespace="physics", owner=job, cpu="32", annotations=annotations)
        for index in range(done, count)
    ]
    return job, pods


@pytest.fixture(scope="module")
def busy() -> Field:
    """Four nodes: four tasks of ten run, three are done, three wait, and a gang waits behind them."""
    field = Field()
    job, pods = tasks("sweep", 10, done=3)
    field.driver.set_owner(job)
    field.submit(pods)
    field.submit(gang("solver", 2, user="eve"))
    alone, pods = tasks("alone", 1)
    field.driver.set_owner(alone)
    field.submit(pods)
    return field


def items(field: Field, resource: str, reader: Any = ALL, **wanted: Any) -> list[dict[str, Any]]:
    made = RESOURCES[resource][1](field.snapshot(), reader, Filter(**wanted))
    return [msgspec.json.decode(row.text((), filling)) for row, filling in made]


COUNTS = {"size": 10, "waiting": 3, "running": 4, "done": 3}


def test_one_row_in_the_queue_at_the_place_of_its_next_task(busy: Field) -> None:
    queue = items(busy, "queue")
    assert [(row["position"], row["name"], row["kind"], row["pods"]) for row in queue] == [
        (1, "sweep", "Job", 10),
        (4, "solver", "Group", 2),
        (5, "alone", "Job", 1),
    ]
    sweep = queue[0]
    assert sweep["array"] == COUNTS
    assert "array" not in queue[2], "one pod is no array, and has the name of its Job"
    assert (sweep["gang"], sweep["requests"]) == ("physics/job:sweep", {"cpu": "96"})
    assert sweep["planned"]["from"] == sweep["expected"] == "2026-09-01T13:00:00Z"
    assert len(sweep["nodes"]) == 3
    assert [why["code"] for why in sweep["reasons"]]


def test_one_row_among_all_jobs_with_what_runs(busy: Field) -> None:
    first, *others = items(busy, "jobs")
    assert (first["name"], first["state"], first["array"]) == ("sweep", "running", COUNTS)
    assert first["nodes"] == ["n0", "n1", "n2", "n3"]
    assert (first["started"], first["planned"]["until"]) == ("2026-09-01T12:00:00Z", "2026-09-01T13:00:00Z")
    assert first["position"] == 1, "and its next task has a place in the queue"
    assert [row["name"] for row in others] == ["solver", "alone"]
    (waits,) = items(busy, "jobs", states=frozenset(("reserved",)), name="sweep")
    assert (waits["state"], waits["array"]) == ("reserved", COUNTS)


def test_one_row_in_the_plan_among_groups_and_on_a_node(busy: Field) -> None:
    plan = {row["name"]: row for row in items(busy, "plan")}
    assert len(plan) == len(items(busy, "plan"))
    assert (plan["sweep"]["from"][11:16], plan["sweep"]["until"][11:16]) == ("12:00", "14:00")
    assert (plan["sweep"]["array"], plan["sweep"]["pods"]) == (COUNTS, 7)
    groups = {row["name"]: row for row in items(busy, "groups")}
    sweep = groups["sweep"]
    assert (sweep["size"], sweep["waiting"], sweep["placed"], sweep["done"]) == (10, 3, 4, 3)
    assert [use["name"] for use in items(busy, "nodes")[0]["by"]] == ["sweep"]


@pytest.mark.parametrize("resource", ["queue", "jobs", "plan", "groups"])
def test_expanded_each_task_has_a_row(busy: Field, resource: str) -> None:
    shown = [row["name"] for row in items(busy, resource, expand=True) if row["name"].startswith("sweep")]
    assert len(shown) == (3 if resource == "queue" else 7)
    assert all(name.startswith("sweep-") for name in shown)
    asked = parse_query(f"{BASE}/{resource}", {"expand": "true"}, User("ann"))
    assert asked.wanted.expand


def test_of_anothers_array_each_place_is_taken_and_nothing_says_that_they_belong_together(
    busy: Field,
) -> None:
    queue = items(busy, "queue", Sees("biology"))
    assert [row["position"] for row in queue] == [1, 2, 3, 4, 5]
    assert all(set(row) == {"state", "position", "hidden"} for row in queue)


def test_one_array_by_its_name_and_one_task_by_that_of_its_pod(busy: Field) -> None:
    snapshot = busy.snapshot()
    for name in ("sweep", "job:sweep"):
        (found,) = rows.details(snapshot, "physics", name)
        assert (found.job.name, found.ahead, len(found.members)) == ("sweep", 0, 7)
    (task,) = rows.details(snapshot, "physics", "sweep-9")
    assert (task.job.name, [pod.name for pod in task.members]) == ("sweep-9", ["sweep-9"])
    assert len(rows.details(snapshot, "physics", "sweep", expand=True)) == 7
    (alone,) = rows.details(snapshot, "physics", "alone")
    assert alone.job.name == "alone" and alone.story, "the only task has the story of its Job"


def test_a_job_that_waits_for_another_is_expected_after_its_planned_end() -> None:
    field = Field(nodes=1)
    alone, pods = tasks("first", 1)
    field.driver.set_owner(alone)
    field.submit(pods)
    notes = {names.DEPENDS_ON: "afterok:first", names.DURATION: "1h"}
    field.submit([kit.pod("then", namespace="physics", cpu="32", annotations=notes)])
    field.now += 20_000
    field.settle()
    (row,) = items(field, "queue")
    assert (row["name"], row["state"], row.get("position")) == ("then", "gathering", None)
    assert row["expected"] >= "2026-09-01T13:00:00Z" and "noLaterThan" not in row
    assert row["reasons"][0]["message"] == "Waiting for first to succeed"


def test_a_job_that_is_refused_is_in_the_queue_with_its_reason() -> None:
    field = Field()
    loop = kit.pod("loop", namespace="physics", annotations={names.DEPENDS_ON: "afterok:loop"})
    field.submit([loop])
    (row,) = items(field, "queue")
    assert (row["name"], row["state"]) == ("loop", "refused")
    assert "It depends on itself" in row["reasons"][0]["message"]
    assert [row["state"] for row in items(field, "groups")] == ["refused"]
    (found,) = rows.details(field.snapshot(), "physics", "loop")
    assert found.job.reasons and [pod.name for pod in found.members] == ["loop"]
    assert items(field, "queue", Sees("biology")) == []


@pytest.mark.parametrize("resource", ["queue", "jobs", "plan", "groups"])
def test_kept_rows_follow_the_counts_of_the_job(resource: str) -> None:
    field, kept = Field(nodes=1), KeptRows()
    _, pods = tasks("sweep", 5, done=2)
    for done in (1, 2):
        field.driver.set_owner(tasks("sweep", 5, done=done)[0])
        field.submit(pods if done == 1 else ())
        ((row, filling),) = RESOURCES[resource][1](replace(field.snapshot(), kept=kept), ALL, Filter())
        shown = msgspec.json.decode(row.text((), filling))
        assert (shown["done"] if resource == "groups" else shown["array"]["done"]) == done
