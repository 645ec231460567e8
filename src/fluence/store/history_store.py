"""HistoryStore: writes the history: entries, who is there, gaps. One leader writes; anybody may read.

    async with HistoryStore(find_url(None), Writer(cluster, scheduler)) as store:
        await store.migrate()
        await store.write([(entry, "why it waits")])

What is written is one transaction: the jobs and what the outbox says of them. Every fault of a database is a
`HistoryUnavailable`, in one line and without a password.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from fluence.errors import FluenceError
from fluence.model.job_entry import JobEntry
from fluence.store.engine import reading_engine, writing_engine
from fluence.store.job_rows import MergedRows, Row, Writer, close, merge
from fluence.store.retention import Pruned, Retention, prune
from fluence.store.tables import gaps, jobs, outbox, version
from fluence.store.urls import DatabaseUrl

_DRIVERS = ("asyncpg", "sqlite3", "aiosqlite", "alembic")
_AT_ONCE = 400  # ids in one question: a database has a bound for parameters


class HistoryUnavailable(FluenceError):
    """The database does not do what it was asked for. ``is_refusal``: it would not do it later either."""

    def __init__(self, message: str, *, is_refusal: bool = False) -> None:
        super().__init__(message)
        self.is_refusal = is_refusal


class HistoryStore:
    """A connection to the history. ``reads``: it is only looked at, and never made."""

    def __init__(self, url: DatabaseUrl, writer: Writer | None = None, *, reads: bool = False) -> None:
        self.url = url
        self.writer = writer or Writer()
        with _faults(url):
            self.engine = reading_engine(url) if reads else writing_engine(url)

    @property
    def is_gone(self) -> bool:
        """Whether its file was deleted: SQLite would go on writing to what nobody can find."""
        return self.url.path is not None and not self.url.path.exists()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.engine.dispose()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """One transaction; a fault in it undoes all of it."""
        with _faults(self.url):
            async with self.engine.begin() as connection:
                yield connection

    async def migrate(self, to: str = "head") -> str | None:
        """Bring the tables to a revision; returns it."""
        from fluence.store import schema  # it takes a while to load, and who only reads needs none of it

        async with self.transaction() as connection:
            return await connection.run_sync(schema.migrate, to)

    async def revision(self) -> str | None:
        """What the tables have; None: there are none."""
        async with self.transaction() as connection:
            if not await connection.run_sync(lambda sync: sa.inspect(sync).has_table(version.name)):
                return None
            found: str | None = await connection.scalar(sa.select(version.c.version_num))
            return found

    # -- writing ---------------------------------------------------------------------------------------------

    async def write(self, entries: Sequence[tuple[JobEntry, str]]) -> int:
        """Write entries, each with its reasons as text; returns how many rows changed."""
        async with self.transaction() as connection:
            last = await _last_runs(connection, {entry.job for entry, _ in entries})
            merged = merge(last, entries, self.writer)
            await _save(connection, merged)
        return len(merged.rows)

    async def call_roll(self, there: Collection[int], at: int) -> int:
        """End the jobs of this writer that are open and not there: nobody saw how; returns how many."""
        async with self.transaction() as connection:
            mine = sa.and_(jobs.c.cluster == self.writer.cluster, jobs.c.scheduler == self.writer.scheduler)
            found = await connection.execute(
                sa.select(jobs.c.job, jobs.c.run).where(mine, jobs.c.ended.is_(None))
            )
            gone = [job for job, _ in found if job not in there]
            closed = MergedRows()
            for some in _slices(gone):
                rows = await connection.execute(
                    sa.select(jobs).where(mine, jobs.c.ended.is_(None), jobs.c.job.in_(some))
                )
                part = close([dict(row) for row in rows.mappings()], at)
                closed.rows |= part.rows
                closed.events += part.events
            await _save(connection, closed)
        return len(closed.rows)

    async def add_gap(self, began: int, ended: int, count: int, reason: str) -> None:
        """Say that entries are missing."""
        values = {
            "cluster": self.writer.cluster,
            "scheduler": self.writer.scheduler,
            "began": began,
            "ended": ended,
            "lost": count,
            "reason": reason,
        }
        async with self.transaction() as connection:
            await connection.execute(sa.insert(gaps).values(**values))

    async def prune(self, keep: Retention, now: int) -> Pruned:
        """Forget what is too old, and the oldest of what is too much."""
        with _faults(self.url):
            return await prune(self.engine, keep, now)

    # -- reading ---------------------------------------------------------------------------------------------

    async def ask(self, question: sa.Select[Any]) -> list[Mapping[str, Any]]:
        """The rows of an answer."""
        async with self.transaction() as connection:
            return list((await connection.execute(question)).mappings())


async def _last_runs(connection: AsyncConnection, numbers: Collection[int]) -> dict[int, Row]:
    """The last run of each of some jobs."""
    last: dict[int, Row] = {}
    for some in _slices(sorted(numbers)):
        newest = (
            sa.select(jobs.c.job, sa.func.max(jobs.c.run).label("run"))
            .where(jobs.c.job.in_(some))
            .group_by(jobs.c.job)
            .subquery()
        )
        same = sa.and_(jobs.c.job == newest.c.job, jobs.c.run == newest.c.run)
        for row in (await connection.execute(sa.select(jobs).join(newest, same))).mappings():
            last[row["job"]] = dict(row)
    return last


async def _save(connection: AsyncConnection, merged: MergedRows) -> None:
    if merged.rows:
        insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
        statement = insert(jobs)
        changed = {
            each.name: statement.excluded[each.name] for each in jobs.c if each.name not in ("job", "run")
        }
        statement = statement.on_conflict_do_update(
            index_elements=["job", "run"],
            set_=changed,
            where=jobs.c.updated <= statement.excluded.updated,  # a leader that lost its lease comes late
        )
        await connection.execute(statement, list(merged.rows.values()))
    if merged.events:
        await connection.execute(sa.insert(outbox), merged.events)


def _slices(numbers: Sequence[int]) -> list[Sequence[int]]:
    return [numbers[at : at + _AT_ONCE] for at in range(0, len(numbers), _AT_ONCE)]


class _faults:
    """Faults of a database, of its driver or of the way to it, as one of ours."""

    def __init__(self, url: DatabaseUrl) -> None:
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, _: object) -> None:
        if not isinstance(fault, Exception):
            return
        refused = _is_refusal(fault)
        known = isinstance(fault, (SQLAlchemyError, OSError, asyncio.TimeoutError))
        # What drivers raise while they connect is not SQLAlchemy's.
        if refused or known or type(fault).__module__.startswith(_DRIVERS):
            text = f"the history at {self._url}: {said(fault)}"
            raise HistoryUnavailable(text, is_refusal=refused) from None


def _is_refusal(fault: BaseException | None) -> bool:
    """Whether it is the values that a database does not take; SQLAlchemy hides what a driver raised."""
    seen: set[int] = set()
    while fault is not None and id(fault) not in seen:
        seen.add(id(fault))
        if isinstance(fault, (DataError, IntegrityError, OverflowError, UnicodeError)):
            return True
        if type(fault).__name__ == "DataError" or str(getattr(fault, "sqlstate", ""))[:2] in ("22", "23"):
            return True
        fault = getattr(fault, "orig", None) or fault.__cause__
    return False


def said(fault: BaseException) -> str:
    """What a driver says, without SQLAlchemy's statement and link."""
    origin = getattr(fault, "orig", None) or fault
    text = " ".join(str(origin).split()) or type(origin).__name__
    return text.rpartition(">: ")[2][:300]
