"""The history in SQLite and in PostgreSQL: written, read, pruned and migrated alike."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from fluence.errors import Conflict
from fluence.model.job_state import JobState, PastRun
from fluence.model.reason import Code, Reason
from fluence.store import HistoryUnavailable, Retention, Writer, queries, tables
from fluence.store.database import alembic_config
from fluence.store.history_store import HistoryStore
from fluence.store.queries import JobFilter
from tests.integration.store.entries import entry, open_store, over, running

T = TypeVar("T")
Row = dict[str, Any]


def run(database: str, work: Callable[[HistoryStore], Awaitable[T]], *, to: str = "head") -> T:
    async def whole() -> T:
        async with open_store(database) as store:
            await store.migrate(to)
            return await work(store)

    return asyncio.run(whole())


async def all_jobs(store: HistoryStore, **which: Any) -> list[Row]:
    return [dict(row) for row in await queries.find_jobs(store, JobFilter(**which))]


async def select(store: HistoryStore, text: str) -> list[Row]:
    async with store.transaction() as connection:
        return [dict(row) for row in (await connection.execute(sa.text(text))).mappings()]


def test_a_job_is_one_row_from_its_submission_to_its_end(database: str) -> None:
    why = (Reason.of(Code.QUEUED_BEHIND_OTHERS),)

    async def work(store: HistoryStore) -> list[Row]:
        await store.write([(entry(no_later_than=900, expected=300, reasons=why), "queued behind others")])
        await store.write([(running(), "")])
        await store.write([(over(devices=("/c/n1/gpu0",), broken=1), "")])
        return await all_jobs(store)

    (row,) = run(database, work)
    assert row == {
        "job": 1,
        "run": 1,
        "cluster": "cluster-1",
        "scheduler": "fluence",
        "key": "lab/job:sim-1",
        "namespace": "lab",
        "name": "sim-1",
        "kind": "Job",
        "username": "ada",
        "queue": "batch",
        "priority": 0,
        "pods": 2,
        "minimum": 2,
        "requests": '{"cpu":3000,"memory":1073741824,"nvidia.com/gpu":2}',
        "walltime": 60_000,
        "state": "completed",
        "submitted": 50,
        "no_later_than": 900,  # a scheduler that was started again knows no promises
        "expected": 300,
        "started": 200,
        "ended": 5200,
        "nodes": "n[1-2]",
        "reason": "queued behind others",
        "updated": 5200,
        "cpu": 3000,
        "memory": 1 << 30,
        "gpus": 2,
        "devices": "/c/n1/gpu0",
        "codes": "QueuedBehindOthers",
        "broken": 1,
    }


def test_the_same_again_changes_nothing(database: str) -> None:
    async def work(store: HistoryStore) -> tuple[list[Row], list[Row], int]:
        for each in (entry(), running(), over()):
            await store.write([(each, "")])
        before = await all_jobs(store)
        for each in (entry(), running(), over()):  # a leader that lost its lease comes late
            await store.write([(each, "")])
        return before, await all_jobs(store), len(await queries.read_outbox(store, 0, 100))

    before, after, events = run(database, work)
    assert before == after
    assert events == 3


def test_a_job_that_runs_again_is_another_run(database: str) -> None:
    async def work(store: HistoryStore) -> list[Row]:
        await store.write([(over(), ""), (entry(at=6000, submitted=6000), "")])
        await store.write([(running(at=7000, started=7000, submitted=6000), "")])
        return await all_jobs(store)

    first, second = run(database, work)
    assert (first["run"], first["state"], first["started"], first["ended"]) == (1, "completed", 200, 5200)
    assert (second["run"], second["state"], second["started"], second["ended"]) == (2, "running", 7000, None)


def test_a_run_whose_end_nobody_saw_is_closed_by_the_next(database: str) -> None:
    async def work(store: HistoryStore) -> list[Row]:
        await store.write([(running(), "")])
        await store.write([(entry(at=9000, submitted=8000), "")])
        return await all_jobs(store)

    first, second = run(database, work)
    assert (first["state"], first["ended"]) == ("unknown", 8000)
    assert (second["run"], second["state"]) == (2, "pending")


def test_who_was_cancelled_and_comes_again_is_the_same_run(database: str) -> None:
    async def work(store: HistoryStore) -> list[Row]:
        await store.write(
            [(entry(), ""), (entry(at=150, state=JobState.CANCELLED, ended=150), "group changed")]
        )
        await store.write([(running(), "")])
        return await all_jobs(store)

    (row,) = run(database, work)
    assert (row["run"], row["state"], row["ended"]) == (1, "running", None)


def test_the_roll_ends_whom_nobody_saw_end(database: str) -> None:
    async def work(store: HistoryStore) -> tuple[int, list[Row]]:
        await store.write([(running(job), "") for job in range(1, 6)])
        await store.write([(over(2), ""), (running(5, at=9001), "")])
        async with open_store(database, Writer("cluster-2", "fluence")) as other:
            await other.write([(running(77), "")])
        return await store.call_roll({1}, 9000), await all_jobs(store)

    closed, rows = run(database, work)
    assert closed == 2
    found = {row["job"]: (row["state"], row["ended"]) for row in rows}
    assert found == {
        1: ("running", None),
        2: ("completed", 5200),
        3: ("unknown", 9000),
        4: ("unknown", 9000),
        5: ("running", None),  # it was seen after the roll was called
        77: ("running", None),  # another cluster's
    }


def test_a_job_that_was_closed_as_unknown_and_is_found_running_goes_on(database: str) -> None:
    async def work(store: HistoryStore) -> list[Row]:
        await store.write([(running(), "")])
        await store.call_roll([], 9000)
        await store.write([(running(at=9500), "")])
        return await all_jobs(store)

    (row,) = run(database, work)
    assert (row["run"], row["state"], row["ended"]) == (1, "running", None)


def test_an_end_that_was_seen_stands_and_an_unknown_one_is_corrected(database: str) -> None:
    async def work(store: HistoryStore) -> list[Row]:
        await store.write([(over(1), ""), (running(2), "")])
        await store.call_roll([], 9000)
        late = [over(job, at=20_000, state=JobState.FAILED) for job in (1, 2)]  # read from their pods
        await store.write([(each, "") for each in late])
        return await all_jobs(store)

    one, two = run(database, work)
    assert (one["state"], one["ended"]) == ("completed", 5200)
    assert (two["state"], two["ended"]) == ("failed", 20_000)


def test_thousands_at_once(database: str) -> None:
    async def work(store: HistoryStore) -> tuple[int, int]:
        await store.write([(running(job), "") for job in range(1, 3001)])
        await store.write([(over(job), "") for job in range(1, 2001)])
        return await store.call_roll([], 9000), len(await all_jobs(store))

    assert run(database, work) == (1000, 3000)


def test_texts_that_a_database_does_not_like_are_kept_all_the_same(database: str) -> None:
    async def work(store: HistoryStore) -> list[Row]:
        odd = replace(
            over(), user="a\x00b\ud800'; DROP TABLE jobs; --", nodes=("n[1", ""), requests={"x": 1 << 70}
        )
        await store.write([(odd, "100% :name \x00 'quoted' \U0001f600")])
        return await all_jobs(store)

    (row,) = run(database, work)
    assert row["username"] == "a\N{REPLACEMENT CHARACTER}b?'; DROP TABLE jobs; --"
    assert row["reason"] == "100% :name \N{REPLACEMENT CHARACTER} 'quoted' \U0001f600"


def test_what_a_database_cannot_hold_is_refused_as_that(database: str) -> None:
    async def work(store: HistoryStore) -> bool:
        with pytest.raises(HistoryUnavailable) as fault:
            await store.write([(replace(over(), priority=1 << 70), "")])
        assert "\n" not in str(fault.value)
        return fault.value.is_refusal

    assert run(database, work)


# -- what others read ----------------------------------------------------------------------------------------


def test_the_outbox_says_what_happened_in_its_order(database: str) -> None:
    async def work(store: HistoryStore) -> tuple[list[Row], list[Row]]:
        await store.write([(entry(), "")])
        await store.write([(entry(at=120, no_later_than=900), ""), (running(2), "")])
        await store.write([(over(), "")])
        found = [dict(row) for row in await queries.read_outbox(store, 0, 100)]
        rest = [dict(row) for row in await queries.read_outbox(store, found[1]["number"], 2)]
        return found, rest

    found, rest = run(database, work)
    said = [(row["event"], row["job"], row["run"]) for row in found]
    assert said == [
        ("submitted", 1, 1),
        ("promised", 1, 1),
        ("submitted", 2, 1),
        ("started", 2, 1),
        ("started", 1, 1),
        ("ended", 1, 1),
    ]
    numbers = [row["number"] for row in found]
    assert numbers == sorted(set(numbers))
    assert rest == found[2:4]
    assert json.loads(found[-1]["body"])["ended"] == 5200


def test_fluxqueues_tables_are_there(database: str) -> None:
    async def work(store: HistoryStore) -> tuple[list[Row], list[Row]]:
        reserved = entry(
            2, state=JobState.RESERVED, name="web", kind="StatefulSet", submitted=1_700_000_000_123
        )
        await store.write([(entry(), ""), (reserved, ""), (running(3), ""), (over(4), "")])
        pending = await select(store, "SELECT * FROM pending_queue ORDER BY name")
        return pending, await select(store, "SELECT * FROM reservations")

    pending, reservations = run(database, work)
    columns = "jobspec namespace flux_job_name name type reservation duration created_at size"
    assert " ".join(pending[0]) == columns
    assert [(row["name"], row["flux_job_name"], row["type"], row["reservation"]) for row in pending] == [
        ("sim-1", "sim-1-job", 1, 0),
        ("web", "web-statefulset", 4, 1),
    ]
    assert (pending[0]["duration"], pending[0]["size"], pending[0]["namespace"]) == (60, 2, "lab")
    assert str(pending[1]["created_at"]).startswith("2023-11-14 22:13:20.123")
    resources = json.loads(pending[0]["jobspec"])["resources"]
    assert (resources[0]["type"], resources[0]["count"]) == ("node", 2)
    assert resources[0]["with"][0]["with"] == [{"type": "core", "count": 2}]
    assert reservations == [{"name": "web", "flux_id": 2}]


def test_filters(database: str) -> None:
    async def work(store: HistoryStore) -> dict[str, list[int]]:
        await store.write(
            [
                (over(1, user="ada", queue="batch"), ""),
                (over(2, user="bob", queue="debug", name="100%_x", state=JobState.FAILED), ""),
                (running(3, user="bob", namespace="other", submitted=9000), ""),
            ]
        )

        async def ask(**which: Any) -> list[int]:
            return [row["job"] for row in await all_jobs(store, **which)]

        return {
            "user": await ask(users=["bob"]),
            "users": await ask(users=["ada", "bob"]),
            "namespace": await ask(namespaces=["other"]),
            "queue": await ask(queues=["debug"]),
            "state": await ask(states=[JobState.FAILED, JobState.RUNNING]),
            "name": await ask(names=["sim*"]),
            "literal": await ask(names=["100%_*"]),
            "no pattern": await ask(names=["sim-_"]),
            "job": await ask(jobs=[2]),
            "since": await ask(since=5201),
            "until": await ask(until=100),
            "cluster": await ask(cluster="cluster-2"),
            "all": await ask(users=["bob"], queues=["batch"], states=[JobState.RUNNING]),
        }

    assert run(database, work) == {
        "user": [2, 3],
        "users": [1, 2, 3],
        "namespace": [3],
        "queue": [2],
        "state": [2, 3],
        "name": [1, 3],
        "literal": [2],
        "no pattern": [],
        "job": [2],
        "since": [3],
        "until": [1, 2],
        "cluster": [],
        "all": [3],
    }


def test_sums(database: str) -> None:
    async def work(store: HistoryStore) -> list[Row]:
        await store.write(
            [
                (over(1, user="ada"), ""),  # ran for 5 s with 3 cores and 2 GPUs, waited for 150 ms
                (over(2, user="ada", state=JobState.FAILED), ""),
                (running(3, user="bob", requests={"cpu": 1000, "memory": 1 << 62}), ""),
                (entry(4, user="eve"), ""),
            ]
        )
        return [dict(row) for row in await queries.sum_jobs(store, JobFilter(), ["user"], 10_200)]

    ada, bob, eve = run(database, work)
    assert ada == {
        "user": "ada",
        "jobs": 2,
        "started": 2,
        "completed": 1,
        "failed": 1,
        "timeout": 0,
        "cancelled": 0,
        "waited": 150.0,
        "ran": 10_000.0,
        "cpu": 30_000_000.0,
        "gpus": 20_000.0,
    }
    assert (bob["jobs"], bob["ran"], eve["started"], eve["waited"]) == (1, 10_000.0, 0, None)


def test_the_last_runs_are_read_back_in_their_order(database: str) -> None:
    async def work(store: HistoryStore) -> list[PastRun]:
        await store.write([(over(job, at=5000 + job, no_later_than=900), "") for job in (3, 1, 2)])
        await store.write([(over(9, state=JobState.CANCELLED), ""), (running(8), "")])
        await store.write([(running(7), "")])
        await store.call_roll([8], 9000)  # nobody knows how long 7 ran
        return await queries.past_runs(store, 2)

    assert run(database, work) == [
        PastRun("ada", "batch", "lab", 60_000, 900, 0, 200, 5002),
        PastRun("ada", "batch", "lab", 60_000, 900, 0, 200, 5003),
    ]


# -- retention -----------------------------------------------------------------------------------------------


def test_what_ended_long_ago_is_forgotten_and_what_runs_is_not(database: str) -> None:
    async def work(store: HistoryStore) -> tuple[int, list[int], int, int]:
        await store.write([(over(1, at=1000), ""), (over(2, at=90_000), ""), (running(3), "")])
        await store.add_gap(1, 2, 3, "gone")
        gone = await store.prune(Retention(age_ms=50_000), 100_000)
        left = [row["job"] for row in await all_jobs(store)]
        events = await queries.read_outbox(store, 0, 100)
        return gone.jobs, left, len(events), len(await queries.find_gaps(store, JobFilter()))

    assert run(database, work) == (1, [2, 3], 3, 0)


def test_the_oldest_go_when_there_are_too_many(database: str) -> None:
    async def work(store: HistoryStore) -> tuple[int, list[int], int, int]:
        for at in range(0, 6000, 500):
            await store.write([(over(job + 1, at=10_000 + job), "x" * 200) for job in range(at, at + 500)])
        await store.write([(running(9999), "")])
        full = (await store.prune(Retention(), 0)).size
        gone = await store.prune(Retention(size=full // 4), 0)
        return full, sorted(row["job"] for row in await all_jobs(store)), gone.size, gone.jobs

    full, left, size, gone = run(database, work)
    assert size <= full // 4 and gone > 1000
    assert left[-1] == 9999
    assert left[:-1] == list(range(gone + 1, 6001))  # the newest are left


def test_the_jobs_of_one_namespace_push_out_none_of_another(database: str) -> None:
    async def work(store: HistoryStore) -> tuple[list[str], int, int]:
        await store.write([(over(job + 1, at=100 + job, namespace="good"), "x" * 200) for job in range(200)])
        for at in range(1000, 5000, 500):
            jobs = range(at, at + 500)
            await store.write([(over(job, at=10_000 + job, namespace="evil"), "x" * 200) for job in jobs])
        full = (await store.prune(Retention(), 0)).size
        gone = await store.prune(Retention(size=full // 4), 0)
        return [row["namespace"] for row in await all_jobs(store)], full, gone.size

    left, full, size = run(database, work)
    assert size <= full // 4
    assert left.count("good") == 200  # though they are the oldest
    assert left.count("evil") > 200


def test_a_file_gets_smaller(tmp_path: Path) -> None:
    path = tmp_path / "history.db"

    async def work(store: HistoryStore) -> tuple[int, int]:
        for at in range(0, 4000, 500):
            await store.write([(over(job + 1, at=10_000 + job), "x" * 500) for job in range(at, at + 500)])
        await store.close()
        before = path.stat().st_size
        await store.prune(Retention(age_ms=1), 1_000_000)
        await store.close()
        return before, path.stat().st_size

    before, after = run(str(path), work)
    assert after < before / 4


# -- migrations ----------------------------------------------------------------------------------------------


def test_the_tables_are_those_of_the_revisions(database: str) -> None:
    async def work(store: HistoryStore) -> list[Any]:
        async with store.transaction() as connection:
            return await connection.run_sync(
                lambda sync: compare_metadata(MigrationContext.configure(sync), tables.metadata)
            )

    assert run(database, work) == []
    script = ScriptDirectory.from_config(alembic_config())
    assert tuple(each.revision for each in script.walk_revisions())[::-1] == tables.REVISIONS


OLD_JOB = """INSERT INTO jobs (job, run, cluster, scheduler, key, namespace, name, kind, username, queue,
  pods, requests, walltime, state, submitted, started, ended, nodes, updated)
  VALUES (:job, 1, 'cluster-1', 'fluence', 'lab/a', 'lab', 'a', 'Job', 'ada', 'batch', 2,
  :requests, 60000, 'completed', 50, 200, 5200, 'n[1-2]', 5200)"""


def test_an_older_history_is_taken_over_with_its_jobs_and_given_back(database: str) -> None:
    async def work(store: HistoryStore) -> tuple[list[Row], list[Row], list[Row]]:
        asked = json.dumps({"cpu": 3000, "memory": 5, "nvidia.com/gpu": 2})
        async with store.transaction() as connection:
            values = [{"job": job, "requests": asked} for job in range(1, 2502)]
            await connection.execute(sa.text(OLD_JOB), values)
        before = await select(store, "SELECT * FROM jobs ORDER BY job")
        assert await store.migrate() == "0002"
        new = await all_jobs(store)
        await store.write([(running(job=9999), "")])
        assert await store.migrate("0001") == "0001"
        back = await select(store, "SELECT * FROM jobs WHERE job < 9999 ORDER BY job")
        (last,) = await select(store, "SELECT state FROM jobs WHERE job = 9999")
        assert last == {"state": "running"}
        return before, new, back

    before, new, back = run(database, work, to="0001")
    assert len(before) == 2501 and before == back
    assert {(row["cpu"], row["memory"], row["gpus"], row["codes"], row["broken"]) for row in new} == {
        (3000, 5, 2, "", 0)
    }
    assert [{key: row[key] for key in before[0]} for row in sorted(new, key=lambda row: row["job"])] == before


def test_all_the_way_back_and_forth(database: str) -> None:
    async def work(store: HistoryStore) -> list[str | None]:
        return [await store.migrate(to) for to in ("base", "0001", "0002", "base", "head", "head")]

    assert run(database, work) == [None, "0001", "0002", None, "0002", "0002"]


def test_a_later_release_has_been_here(database: str) -> None:
    async def work(store: HistoryStore) -> None:
        async with store.transaction() as connection:
            await connection.execute(sa.text("ALTER TABLE jobs ADD COLUMN later TEXT NOT NULL DEFAULT ''"))
            await connection.execute(sa.text("UPDATE alembic_version SET version_num = '0099'"))
        assert await store.migrate() == "0099"
        await store.write([(over(), "")])  # this release goes on writing
        with pytest.raises(Conflict, match="later release"):
            await store.migrate("0001")
        async with store.transaction() as connection:
            await connection.execute(sa.text("UPDATE alembic_version SET version_num = '0002'"))
        with pytest.raises(Conflict, match="no revision 0077"):
            await store.migrate("0077")

    run(database, work)


def test_two_leaders_migrate_at_once(database: str) -> None:
    async def both() -> list[str | None]:
        async with open_store(database) as one, open_store(database) as other:
            return list(await asyncio.gather(one.migrate(), other.migrate()))

    assert asyncio.run(both()) == ["0002", "0002"]


def test_a_leader_that_leads_again_reads_what_others_wrote_meanwhile(database: str) -> None:
    """It remembers what it has written, so that it need not ask; another leader ended the job."""

    async def work(store: HistoryStore) -> list[Row]:
        await store.write([(running(), "")])
        async with HistoryStore(store.url, store.writer) as other:
            await other.write([(over(), "")])
        store.forget_written()
        await store.write([(running(started=9_000, submitted=8_000, at=9_000), "")])
        return await all_jobs(store)

    rows = sorted(run(database, work), key=lambda row: int(row["run"]))
    assert [(row["run"], row["started"], row["ended"] is None) for row in rows] == [
        (1, rows[0]["started"], False),
        (2, 9_000, True),
    ]
