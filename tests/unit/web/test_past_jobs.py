"""The history by the view API: each user reads the jobs of namespaces whose pods they may list, in pages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from fluence.database_url import DatabaseUrl, parse_url
from fluence.model.job_state import JobState
from fluence.store import Writer
from fluence.store.history_store import HistoryStore
from fluence.web import past_jobs
from fluence.web.past_jobs import PastJobs
from fluence.web.server import BASE
from tests.integration.store.entries import entry, over, running
from tests.unit.web.field import Field
from tests.unit.web.test_server import Served, serving

T0 = 1_790_000_000_000  # 2026-09-21 14:13:20
HOUR = 3_600_000


@pytest.fixture
def url(tmp_path: Path) -> DatabaseUrl:
    """Two namespaces of this cluster, and one job of another cluster that has the same database."""
    made = parse_url(str(tmp_path / "history.db"))

    async def fill() -> None:
        async with HistoryStore(made, Writer("here", "fluence")) as store:
            await store.migrate()
            times = {"submitted": T0, "started": T0 + 60_000}
            await store.write(
                [
                    (over(1, at=T0 + HOUR, namespace="physics", **times), "too few cores"),  # type: ignore[arg-type]
                    (over(2, at=T0 + HOUR, namespace="biology", user="bob", **times), ""),  # type: ignore[arg-type]
                    (running(3, at=T0 + HOUR, namespace="physics", user="ann", **times), ""),
                    (entry(4, at=T0 + HOUR, submitted=T0 + 9, namespace="physics", name="other"), ""),
                    (
                        over(5, at=T0 + HOUR, namespace="physics", state=JobState.FAILED, **times),
                        "",
                    ),
                ]
            )
            await store.add_gap(T0, T0 + 1000, 7, f"the history at {made}: database is locked")
        async with HistoryStore(made, Writer("elsewhere", "fluence")) as store:
            await store.write([(over(6, at=T0 + HOUR, namespace="physics", submitted=T0), "")])

    asyncio.run(fill())
    return made


def run(url: DatabaseUrl, work: Callable[[Served], Awaitable[None]], field: Field | None = None) -> None:
    def opened() -> HistoryStore:
        return HistoryStore(url, reads=True)

    async def inside() -> None:
        history = PastJobs(opened, lambda: "here", lambda: T0 + HOUR + 1000)
        async with serving(field or Field(1), history) as served:
            await work(served)

    asyncio.run(inside())


def ids(body: Any) -> list[str]:
    return [row["id"] for row in body["items"]]


def test_users_read_the_history_of_namespaces_whose_pods_they_may_list(url: DatabaseUrl) -> None:
    async def work(served: Served) -> None:
        status, body = await served.get(f"{BASE}/history")
        assert (status, body["kind"], ids(body)) == (200, "PastJobList", ["4", "5", "3", "2", "1"])
        status, body = await served.get(f"{BASE}/history", "for-ann")
        assert (status, ids(body)) == (200, ["4", "5", "3", "1"])
        assert "biology" not in str(body) and "bob" not in str(body)
        assert ids((await served.get(f"{BASE}/namespaces/physics/history", "for-ann"))[1]) == [
            *("4", "5", "3", "1")
        ]
        for path in (
            f"{BASE}/namespaces/biology/history",
            f"{BASE}/history?namespace=biology",
            f"{BASE}/history?user=bob",
            f"{BASE}/history?job=2",
        ):
            assert (await served.get(path, "for-ann"))[1]["items"] == [], path
        assert (await served.get(f"{BASE}/history", "for-none"))[0] == 403

    run(url, work)


def test_a_row_has_what_the_database_has(url: DatabaseUrl) -> None:
    async def work(served: Served) -> None:
        (row,) = (await served.get(f"{BASE}/history?job=1"))[1]["items"]
        assert row == {
            "id": "1",
            "run": 1,
            "state": "completed",
            "namespace": "physics",
            "name": "sim-1",
            "kind": "Job",
            "gang": "lab/job:sim-1",
            "user": "ada",
            "queue": "batch",
            "pods": 2,
            "minimum": 2,
            "requests": {"cpu": "3", "memory": "1Gi", "nvidia.com/gpu": "2"},
            "nodes": "n[1-2]",
            "limit": 60,
            "submitted": "2026-09-21T14:13:20.000Z",
            "started": "2026-09-21T14:14:20.000Z",
            "ended": "2026-09-21T15:13:20.000Z",
            "reason": "too few cores",
            "scheduler": "fluence",
            "cluster": "here",
        }

    run(url, work)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("user=@me", ["3"]),
        ("user=ada,ann&state=completed,running", ["3", "1"]),
        ("name=sim-*", ["5", "3", "1"]),
        ("name=oth*,sim-1", ["4", "1"]),
        ("queue=none", []),
        ("since=2026-09-21T15:13:20.001Z", ["4", "3"]),
        ("until=2026-09-21T14:13:20.005Z", ["5", "3", "1"]),
        ("job=1,4,6", ["4", "1"]),
        ("scheduler=another", []),
    ],
)
def test_filters(url: DatabaseUrl, query: str, found: list[str]) -> None:
    async def work(served: Served) -> None:
        assert ids((await served.get(f"{BASE}/history?{query}", "for-ann"))[1]) == found

    run(url, work)


def test_pages_go_back_in_time_and_have_no_row_twice(url: DatabaseUrl) -> None:
    async def work(served: Served) -> None:
        found, token = list[str](), ""
        while True:
            _, body = await served.get(f"{BASE}/history?limit=2&continue={token}", "for-ann")
            found += ids(body)
            token = body["metadata"].get("continue", "")
            if not token:
                break
        assert found == ["4", "5", "3", "1"]

    run(url, work)


def test_sums(url: DatabaseUrl) -> None:
    async def work(served: Served) -> None:
        _, body = await served.get(f"{BASE}/usage?by=user", "for-ann")
        assert body["kind"] == "UsageList"
        ran = 3540.0
        assert body["items"] == [
            {
                "user": "ada",
                "jobs": 3,
                "started": 2,
                "completed": 1,
                "failed": 1,
                "wait": 60.0,
                "ran": 2 * ran,
                "cpu": 6 * ran,
                "gpu": 4 * ran,
            },
            {
                "user": "ann",
                "jobs": 1,
                "started": 1,
                "wait": 60.0,
                "ran": ran + 1,
                "cpu": 3 * (ran + 1),
                "gpu": 2 * (ran + 1),
            },
        ]
        _, body = await served.get(f"{BASE}/usage?by=namespace,state&user=bob")
        assert [(row["namespace"], row["state"]) for row in body["items"]] == [("biology", "completed")]

    run(url, work)


def test_what_is_missing_is_told_without_where_it_is_kept(url: DatabaseUrl) -> None:
    async def work(served: Served) -> None:
        _, body = await served.get(f"{BASE}/history", "for-ann")
        assert body["gaps"] == [
            {"began": "2026-09-21T14:13:20.000Z", "ended": "2026-09-21T14:13:21.000Z", "lost": 7}
        ]

    run(url, work)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("history?watch=true", 400),
        ("history?limit=x", 400),
        ("history?continue=1.1", 400),
        ("history?continue=h.1.2", 400),
        (f"history?continue=h.{'9' * 30}.1.1", 400),
        ("history?since=yesterday", 400),
        ("history?job=x", 400),
        (f"history?job={'9' * 30}", 400),
        (f"history?name={'*a' * 9}", 400),
        ("history?state=lost", 400),
        ("history?labelSelector=a%3Db", 400),
        ("history?by=user", 400),
        ("usage", 400),
        ("usage?by=password", 400),
        ("queue?since=2026-09-21T15:13:20Z", 400),
        ("namespaces/physics/history/sim-1", 404),
    ],
)
def test_a_wrong_query_is_refused_in_one_line(url: DatabaseUrl, path: str, status: int) -> None:
    async def work(served: Served) -> None:
        found, body = await served.get(f"{BASE}/{path}", "for-ann")
        assert (found, body["kind"]) == (status, "Status") and "\n" not in body["message"], body

    run(url, work)


def test_a_database_that_does_not_answer_says_nothing_of_itself(
    url: DatabaseUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert url.path is not None

    async def gone(served: Served) -> None:
        status, body = await served.get(f"{BASE}/history")
        assert (status, body["reason"]) == (503, "ServiceUnavailable")
        assert str(url) not in body["message"] and "history" in body["message"]
        assert (await served.get(f"{BASE}/queue"))[0] == 200

    url.path.write_bytes(b"no database" * 1000)
    run(url, gone)
    url.path.unlink()
    run(url, gone)


def test_a_slow_database_is_asked_once_at_a_time_and_delays_nothing_else(
    url: DatabaseUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(past_jobs, "PATIENCE_S", 0.2)
    asked = 0

    class Slow(HistoryStore):
        async def ask(self, question: Any) -> Any:
            nonlocal asked
            asked += 1
            await asyncio.sleep(3600)

    async def inside() -> None:
        slow = PastJobs(lambda: Slow(url, reads=True), lambda: "here", lambda: T0)
        async with serving(Field(1), slow) as served:
            answers = await asyncio.gather(*(served.get(f"{BASE}/history") for _ in range(5)))
            assert [status for status, _ in answers] == [503] * 5
            assert (await served.get(f"{BASE}/queue"))[0] == 200
        assert asked == 1

    asyncio.run(inside())


def test_without_a_history_that_is_said() -> None:
    async def inside() -> None:
        async with serving(Field(1)) as served:
            status, body = await served.get(f"{BASE}/history")
            assert status == 404 and "history: false" in body["message"]

    asyncio.run(inside())


def test_only_the_leader_answers(url: DatabaseUrl) -> None:
    async def work(served: Served) -> None:
        served.view.leads = False
        assert (await served.get(f"{BASE}/history"))[0] == 503

    run(url, work)
