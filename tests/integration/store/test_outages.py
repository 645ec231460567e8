"""The writer of the history and databases that are slow, locked, full, read-only or killed.

Whatever a database does, `put` returns at once, no entry that fits into the backlog is lost, and what is lost
is told: by a metric while it lasts, by a row when it is over.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog
from sqlalchemy import event
from structlog.testing import capture_logs

from fluence.clock import SystemClock
from fluence.live.history_writer import HistoryWriter
from fluence.model.job_state import JobEntry, JobState, PastRun
from fluence.store import database, queries
from fluence.store.history_store import HistoryStore
from fluence.store.queries import JobFilter
from tests import stopwatch
from tests.integration.store.entries import entry, open_store, over, running
from tests.postgres import PostgresServer

_SOON_S = 120.0


class Counted:
    """The metrics that a writer keeps."""

    def __init__(self) -> None:
        self.written = self.lost = 0
        self.ups: list[bool] = []

    def history_written(self, count: int) -> None:
        self.written += count

    def history_lost(self, count: int) -> None:
        self.lost += count

    def history_is(self, *, up: bool, backlog: int) -> None:
        self.ups.append(up)


class Core:
    """What a scheduler is to the writer."""

    def __init__(self, database: str, **options: Any) -> None:
        self.database = database
        self.metrics = Counted()
        self.learned: list[Sequence[PastRun]] = []
        self.rolls = 0
        self.writer = HistoryWriter(
            lambda cluster: open_store(database), SystemClock(), every_s=0.05, **options
        )
        self.writer.learn, self.writer.call_roll = self.learned.append, self._roll
        self.writer.metrics = self.metrics

    def _roll(self) -> None:
        self.rolls += 1

    def put(self, *entries: JobEntry, roll: frozenset[int] | None = None, at: int = 0) -> float:
        """How long the core was held up, in seconds."""
        began = stopwatch.now()
        self.writer.put(entries, roll, at)
        return stopwatch.now() - began

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.writer.run())
        try:
            yield
            assert not task.done(), "a database ended the writer"
        finally:
            task.cancel()
            await asyncio.wait({task})

    async def until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + _SOON_S
        while not condition():
            seen = f"ups {self.metrics.ups[-5:]}, backlog {len(self.writer.backlog)}, rolls {self.rolls}"
            assert time.monotonic() < end, f"not within {_SOON_S} s: what is waited for; there is {seen}"
            await asyncio.sleep(0.02)

    async def down(self) -> None:
        await self.until(lambda: self.metrics.ups[-1:] == [False])

    async def up(self) -> None:
        await self.until(lambda: self.metrics.ups[-1:] == [True])

    async def written(self) -> None:
        await self.until(lambda: len(self.writer.backlog) == 0)
        await self.up()


def rows(database: str) -> dict[int, tuple[str, int | None]]:
    async def ask() -> dict[int, tuple[str, int | None]]:
        async with open_store(database) as store:
            return {
                row["job"]: (row["state"], row["ended"])
                for row in await queries.find_jobs(store, JobFilter())
            }

    return asyncio.run(ask())


def gaps(database: str) -> list[tuple[int, str]]:
    async def ask() -> list[tuple[int, str]]:
        async with open_store(database) as store:
            return [(row["lost"], row["reason"]) for row in await queries.find_gaps(store, JobFilter())]

    return asyncio.run(ask())


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock is not waited for as long as a scheduler would."""
    monkeypatch.setattr(database, "BUSY_S", 0.3)
    structlog.reset_defaults()


def test_it_is_written_and_read_back(database: str) -> None:
    core = Core(database)

    async def first() -> None:
        async with core.working():
            core.put(entry(1), running(2), over(3))
            await core.written()

    asyncio.run(first())
    assert rows(database) == {1: ("pending", None), 2: ("running", None), 3: ("completed", 5200)}
    assert core.learned == [[]]
    again = Core(database)

    async def second() -> None:
        async with again.working():
            again.put(running(2, at=9000), roll=frozenset({2}), at=9000)
            await again.until(lambda: bool(again.learned))
            await again.written()

    asyncio.run(second())
    assert [run.ended for run in again.learned[0]] == [5200]
    assert rows(database) == {1: ("unknown", 9000), 2: ("running", None), 3: ("completed", 5200)}
    assert core.rolls == again.rolls == 0 and gaps(database) == []


def test_what_is_left_at_the_end_is_written(database: str) -> None:
    core = Core(database)

    async def work() -> None:
        async with core.working():
            await core.up()
            core.put(over(1))

    asyncio.run(work())
    assert rows(database) == {1: ("completed", 5200)}


def test_who_does_not_lead_writes_nothing(database: str) -> None:
    core = Core(database)
    core.writer.held = lambda: False

    async def work() -> None:
        async with core.working():
            core.put(over(1))
            await asyncio.sleep(0.3)
            assert len(core.writer.backlog) == 1
            core.writer.held = lambda: True
            await core.written()

    asyncio.run(work())


@asynccontextmanager
async def locked(database: str) -> AsyncIterator[None]:
    """Somebody else has the tables, and does not let go."""
    if database.startswith("sqlite"):
        other = sqlite3.connect(database.removeprefix("sqlite:///"), isolation_level=None)
        other.execute("BEGIN EXCLUSIVE")
        try:
            yield
        finally:
            other.execute("ROLLBACK")
            other.close()
    else:
        import asyncpg

        other = await asyncpg.connect(database)
        try:
            async with other.transaction():
                await other.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
                yield
        finally:
            await other.close()


def test_locked_nothing_waits_and_nothing_is_lost(database: str) -> None:
    core = Core(database)

    async def work() -> list[dict[str, Any]]:
        with capture_logs() as logs:
            async with core.working():
                core.put(running(1))
                await core.written()
                async with locked(database):
                    held_up = max(core.put(over(job)) for job in range(1, 200))
                    await core.down()
                    held_up = max(held_up, *(core.put(over(job)) for job in range(200, 400)))
                    await asyncio.sleep(0.5)
                await core.written()
        assert held_up < 0.1  # far less than the lock was held
        return [dict(each) for each in logs]

    logs = asyncio.run(work())
    assert {state for state, _ in rows(database).values()} == {"completed"} and len(rows(database)) == 399
    said = [each["event"] for each in logs]
    assert said.count("history is not written") == 1, said
    assert said.count("history is written again") == 1
    assert core.metrics.lost == 0 and gaps(database) == []
    assert core.rolls == 1


def test_more_than_fits_is_lost_and_told(database: str) -> None:
    core = Core(database, most=50)

    async def work() -> None:
        async with core.working():
            core.put(running(1))
            await core.written()
            async with locked(database):
                core.put(*(running(job) for job in range(1, 40)))
                await core.down()
                core.put(*(over(job) for job in range(1, 100)))
            await core.written()
            await core.until(lambda: core.rolls == 1)

    asyncio.run(work())
    assert core.metrics.lost == 49
    assert [lost for lost, _ in gaps(database)] == [49]
    assert len(rows(database)) == 50


def test_slow_nothing_waits(postgres: PostgresServer) -> None:
    database = postgres.database()
    core = Core(database)

    async def slow() -> None:
        import asyncpg

        other = await asyncpg.connect(database)
        await other.execute(
            "CREATE FUNCTION slow() RETURNS trigger AS 'BEGIN PERFORM pg_sleep(0.4); RETURN NULL; END' "
            "LANGUAGE plpgsql; CREATE TRIGGER slow AFTER INSERT ON jobs FOR EACH STATEMENT "
            "EXECUTE FUNCTION slow()"
        )
        await other.close()

    async def work() -> None:
        async with core.working():
            await core.up()
            await slow()
            for job in range(1, 6):
                assert core.put(over(job)) < 0.1
                await asyncio.sleep(0.1)
            await core.written()

    asyncio.run(work())
    assert len(rows(database)) == 5 and False not in core.metrics.ups


def test_killed_and_started_again(postgres: PostgresServer) -> None:
    database = postgres.database()
    core = Core(database)

    async def work() -> None:
        async with core.working():
            core.put(running(1), running(2))
            await core.written()
            postgres.kill()
            try:
                assert core.put(over(1), entry(3)) < 0.1
                await core.down()
            finally:
                postgres.start()
            await core.written()

    asyncio.run(work())
    assert rows(database) == {1: ("completed", 5200), 2: ("running", None), 3: ("pending", None)}
    assert core.rolls == 1


def test_gone_from_the_start_and_there_later(tmp_path: Path) -> None:
    folder = tmp_path / "volume"
    folder.write_text("no folder")  # nothing can be made there
    database = f"sqlite:///{folder / 'history.db'}"
    core = Core(database)

    async def work() -> None:
        async with core.working():
            core.put(over(1))
            await core.down()
            folder.unlink()
            await core.written()

    asyncio.run(work())
    assert rows(database) == {1: ("completed", 5200)}


@pytest.fixture
def pragmas(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What every connection to a file is told before it is used."""
    told: list[str] = []
    made = database.writing_engine

    def tells(connection: Any, *_: object) -> None:
        for each in told:
            connection.execute(f"PRAGMA {each}")

    def watched(url: Any) -> Any:
        found = made(url)
        event.listen(found.sync_engine, "checkout", tells)
        return found

    monkeypatch.setattr("fluence.store.history_store.writing_engine", watched)
    return told


@pytest.mark.parametrize(
    ("broken", "whole", "words"),
    [
        ("max_page_count=1", "max_page_count=1000000", "full"),  # as on a full disk; 1: what it has, no more
        ("query_only=1", "query_only=0", "readonly"),
    ],
)
def test_full_or_read_only_file(
    tmp_path: Path, pragmas: list[str], broken: str, whole: str, words: str
) -> None:
    core = Core(f"sqlite:///{tmp_path / 'history.db'}")

    async def work() -> None:
        async with core.working():
            core.put(running(1))
            await core.written()
            pragmas[:] = [broken]
            core.put(*(over(job) for job in range(1, 500)))
            await core.down()
            pragmas[:] = [whole]
            await core.written()

    with capture_logs() as logs:
        asyncio.run(work())
    assert words in next(each["reason"] for each in logs if each["event"] == "history is not written")
    assert len(rows(core.database)) == 499
    assert core.rolls == 1


def test_read_only_server(postgres: PostgresServer) -> None:
    database = postgres.database()
    core = Core(database)
    name = database.rpartition("/")[2]

    async def work() -> None:
        async with core.working():
            core.put(running(1))
            await core.written()
            await postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
            await postgres.execute(
                f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
            )
            core.put(over(1), over(2))
            await core.down()
            await postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = off")
            await core.written()

    with capture_logs() as logs:
        asyncio.run(work())
    assert "read-only" in next(each["reason"] for each in logs if each["event"] == "history is not written")
    assert rows(database) == {1: ("completed", 5200), 2: ("completed", 5200)}


def test_an_entry_that_a_database_refuses_holds_up_no_other(database: str) -> None:
    core = Core(database)

    async def work() -> None:
        async with core.working():
            core.put(over(1), over(2, priority=1 << 70), over(3))
            await core.written()

    asyncio.run(work())
    assert set(rows(database)) == {1, 3}
    assert core.metrics.lost == 1
    assert [lost for lost, _ in gaps(database)] == [1]


def test_a_history_that_was_deleted_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    core = Core(f"sqlite:///{path}")

    async def work() -> None:
        async with core.working():
            core.put(running(1))
            await core.written()
            for each in tmp_path.iterdir():
                each.unlink()
            core.put(over(1))
            await core.until(lambda: core.rolls == 1)
            await core.written()

    asyncio.run(work())
    assert rows(core.database) == {1: ("completed", 5200)}


def test_states_cover_what_a_store_reads(database: str) -> None:
    """Every state can be written and found again by it."""

    async def work() -> list[str]:
        async with open_store(database) as store:
            await store.migrate()
            found = []
            for number, state in enumerate(JobState, start=1):
                await store.write([(entry(number, state=state), "")])
                found += await _states(store, state)
            return found

    assert asyncio.run(work()) == [state.value for state in JobState]


async def _states(store: HistoryStore, state: JobState) -> list[str]:
    return [row["state"] for row in await queries.find_jobs(store, JobFilter(states=[state]))]
