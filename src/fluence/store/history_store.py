"""HistoryStore: writes the history of jobs and its gaps. Only the leader writes; others may read.

    async with HistoryStore(find_url(None), Writer(cluster, scheduler)) as store:
        await store.migrate()
        await store.write([(entry, "why it waits")])

Each write is one transaction with the jobs and their entries in the outbox. Every fault of a database is a
`HistoryUnavailable`, in one line and without a password.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DataError, IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from fluence.database_url import DatabaseUrl
from fluence.model.job_state import JobEntry
from fluence.store import HistoryUnavailable, Retention, Writer
from fluence.store.database import migrate, reading_engine, revision, writing_engine
from fluence.store.tables import MergedRows, Row, close, gaps, jobs, merge, outbox

_BATCH_ROWS = 1000  # deleted in one transaction, so that others do not wait long for the lock
_MIN_BATCH_ROWS = 50  # the fewest rows of one transaction
_ROW_BYTES = 300  # bytes of a row beside its longer texts


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was deleted."""

    jobs: int = 0
    events: int = 0
    size: int = 0  # bytes in use afterwards


async def prune(engine: AsyncEngine, keep: Retention, now: int) -> Pruned:
    """Delete jobs by age, then by size."""
    count = events = 0
    if keep.age_ms is not None:
        before = now - keep.age_ms
        async with engine.begin() as connection:
            events += (await connection.execute(sa.delete(outbox).where(outbox.c.at < before))).rowcount
            await connection.execute(sa.delete(gaps).where(gaps.c.ended < before))
        while gone := await _forget(engine, sa.and_(jobs.c.ended.is_not(None), jobs.c.ended < before)):
            count += gone
    used = await _used(engine)
    sizes: dict[str, int] | None = None
    while keep.size is not None and used > keep.size:
        gone_events = await _forget_events(engine)
        if not gone_events:
            sizes = await _sizes(engine) if sizes is None else sizes
            if not sizes:
                break  # the remaining jobs have not ended
            count += await _forget_of_largest(engine, sizes)
        events += gone_events
        used = await _used(engine)
    if engine.dialect.name == "sqlite" and (count or events):
        async with engine.connect() as connection:
            # Free pages go back to the disk. As a script: a plain statement would free one page and stop.
            raw = (await connection.get_raw_connection()).driver_connection
            assert raw is not None
            await raw.executescript("PRAGMA incremental_vacuum")
    return Pruned(count, events, used)


async def _sizes(engine: AsyncEngine) -> dict[str, int]:
    """The approximate size of the ended jobs of each namespace, in bytes."""
    texts = (jobs.c.key, jobs.c.username, jobs.c.queue, jobs.c.requests, jobs.c.nodes, jobs.c.reason)
    size = sum((sa.func.length(column) for column in (*texts, jobs.c.devices)), sa.literal(_ROW_BYTES))
    query = sa.select(jobs.c.namespace, sa.func.sum(size)).where(jobs.c.ended.is_not(None))
    async with engine.begin() as connection:
        rows = (await connection.execute(query.group_by(jobs.c.namespace))).all()
    return {namespace: int(total) for namespace, total in rows}


async def _forget_of_largest(engine: AsyncEngine, sizes: dict[str, int]) -> int:
    """Delete the oldest jobs of the largest namespace, until it is about as large as the next one."""
    largest, *others = sorted(sizes, key=lambda namespace: -sizes[namespace])
    ended = sa.and_(jobs.c.ended.is_not(None), jobs.c.namespace == largest)
    async with engine.begin() as connection:
        rows = await connection.scalar(sa.select(sa.func.count()).select_from(jobs).where(ended)) or 0
    ahead = sizes[largest] - (sizes[others[0]] if others else 0)
    row_size = max(1, sizes[largest] // max(1, rows))
    gone = await _forget(engine, ended, most=max(_MIN_BATCH_ROWS, min(_BATCH_ROWS, ahead // row_size)))
    sizes[largest] -= gone * row_size
    if gone == rows:
        del sizes[largest]
    return gone


async def _forget(engine: AsyncEngine, which: sa.ColumnElement[bool], *, most: int = _BATCH_ROWS) -> int:
    oldest = sa.select(jobs.c.job, jobs.c.run).where(which).order_by(jobs.c.ended).limit(most)
    async with engine.begin() as connection:
        rows = (await connection.execute(oldest)).all()
        if rows:
            statement = sa.delete(jobs).where(
                jobs.c.job == sa.bindparam("a_job"), jobs.c.run == sa.bindparam("a_run")
            )
            await connection.execute(statement, [{"a_job": job, "a_run": run} for job, run in rows])
    return len(rows)


async def _forget_events(engine: AsyncEngine) -> int:
    """Delete the oldest events, which their readers have seen; returns how many."""
    async with engine.begin() as connection:
        many = await connection.scalar(sa.select(sa.func.count()).select_from(outbox))
        if not many or many <= _BATCH_ROWS:
            return 0
        last = sa.select(outbox.c.number).order_by(outbox.c.number).offset(_BATCH_ROWS - 1).limit(1)
        upto = await connection.scalar(last)
        return (await connection.execute(sa.delete(outbox).where(outbox.c.number <= upto))).rowcount


async def _used(engine: AsyncEngine) -> int:
    """The size of all rows in bytes. Space that the database keeps for new rows does not count: it is freed
    later, or never."""
    async with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            return await _pages(connection)
        total = 0
        for table in (jobs, outbox):
            query = sa.text(f"SELECT COALESCE(SUM(pg_column_size(t.*)), 0) FROM {table.name} t")
            total += int((await connection.execute(query)).scalar_one())
        return total


async def _pages(connection: AsyncConnection) -> int:
    async def pragma(name: str) -> int:
        return int((await connection.exec_driver_sql(f"PRAGMA {name}")).scalar_one())

    return (await pragma("page_count") - await pragma("freelist_count")) * await pragma("page_size")


_DRIVERS = ("asyncpg", "sqlite3", "aiosqlite", "alembic")
_REMEMBERED = 20_000  # jobs, some 1 kB each
_BATCH_IDS = 400  # ids in one query: databases limit the number of parameters


class HistoryStore:
    """A connection to the history. ``reads``: for reading only; the database is not created."""

    def __init__(self, url: DatabaseUrl, writer: Writer | None = None, *, reads: bool = False) -> None:
        self.url = url
        self.writer = writer or Writer()
        self._written: dict[int, Row] = {}  # the last runs that this writer has written, the latest last
        with _faults(url):
            self.engine = reading_engine(url) if reads else writing_engine(url)

    @property
    def is_gone(self) -> bool:
        """Whether its file was deleted: SQLite would still write to a deleted file."""
        return self.url.path is not None and not self.url.path.exists()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.engine.dispose()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """One transaction; an error in it rolls back all of it."""
        with _faults(self.url):
            async with self.engine.begin() as connection:
                yield connection

    async def migrate(self, to: str = "head") -> str | None:
        """Migrate the tables to a revision; returns the revision."""
        async with self.transaction() as connection:
            return await connection.run_sync(migrate, to)

    async def revision(self) -> str | None:
        """The revision of the tables; None: there are no tables."""
        async with self.transaction() as connection:
            return await connection.run_sync(revision)

    # -- writing ---------------------------------------------------------------------------------------------

    async def write(self, entries: Sequence[tuple[JobEntry, str]]) -> int:
        """Write entries, each with its reasons as text; returns how many rows changed."""
        async with self.transaction() as connection:
            numbers = {entry.job for entry, _ in entries}
            last = {number: self._written[number] for number in numbers if number in self._written}
            last |= await _last_runs(connection, numbers - last.keys())
            merged = merge(last, entries, self.writer)
            await _save(connection, merged)
        self._remember(merged)
        return len(merged.rows)

    def forget_written(self) -> None:
        """Another writer may have written since: read the rows again."""
        self._written.clear()

    def _remember(self, merged: MergedRows) -> None:
        """Most jobs are written again soon: when they start, and when they end."""
        for row in merged.rows.values():
            self._written.pop(row["job"], None)
            self._written[row["job"]] = row
        for number in list(self._written)[: max(0, len(self._written) - _REMEMBERED)]:
            del self._written[number]

    async def call_roll(self, there: Collection[int], at: int) -> int:
        """End the open jobs of this writer that no longer exist, and return their number."""
        async with self.transaction() as connection:
            mine = sa.and_(jobs.c.cluster == self.writer.cluster, jobs.c.scheduler == self.writer.scheduler)
            open_jobs = await connection.execute(
                sa.select(jobs.c.job, jobs.c.run).where(mine, jobs.c.ended.is_(None))
            )
            gone = [job for job, _ in open_jobs if job not in there]
            closed = MergedRows()
            for some in _slices(gone):
                rows = await connection.execute(
                    sa.select(jobs).where(mine, jobs.c.ended.is_(None), jobs.c.job.in_(some))
                )
                part = close([dict(row) for row in rows.mappings()], at)
                closed.rows |= part.rows
                closed.events += part.events
            await _save(connection, closed)
        self._remember(closed)
        return len(closed.rows)

    async def renew(self, at: int) -> None:
        """Mark the open jobs of this writer as present at this time. So readers can distinguish them from
        jobs of a cluster that is gone."""
        mine = sa.and_(jobs.c.cluster == self.writer.cluster, jobs.c.scheduler == self.writer.scheduler)
        async with self.transaction() as connection:
            await connection.execute(
                sa.update(jobs).where(mine, jobs.c.ended.is_(None), jobs.c.updated < at).values(updated=at)
            )

    async def add_gap(self, began: int, ended: int, count: int, reason: str) -> None:
        """Record that entries are missing."""
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
        """Delete jobs that are too old, and the oldest jobs if there are too many."""
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
    if connection.dialect.name == "sqlite":
        await _save_plainly(connection, merged)
        return
    if merged.rows:
        statement = postgresql.insert(jobs)
        changed = {
            column.name: statement.excluded[column.name]
            for column in jobs.c
            if column.name not in ("job", "run")
        }
        statement = statement.on_conflict_do_update(
            index_elements=["job", "run"],
            set_=changed,
            where=jobs.c.updated <= statement.excluded.updated,  # a leader that lost its lease may write late
        )
        await connection.execute(statement, list(merged.rows.values()))
    if merged.events:
        await connection.execute(sa.insert(outbox), merged.events)


_COLUMNS = tuple(column.name for column in jobs.c)
_UPSERT = (
    f"INSERT INTO jobs ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))}) "
    f"ON CONFLICT (job, run) DO UPDATE SET {', '.join(f'{name} = excluded.{name}' for name in _COLUMNS[2:])} "
    "WHERE jobs.updated <= excluded.updated"
)
_in_order = itemgetter(*_COLUMNS)
_EVENT = ("at", "event", "job", "run", "body")
_ADD_EVENT = f"INSERT INTO outbox ({', '.join(_EVENT)}) VALUES ({', '.join('?' * len(_EVENT))})"


async def _save_plainly(connection: AsyncConnection, merged: MergedRows) -> None:
    """The same on SQLite, by tuples: SQLAlchemy's handling of parameters costs more than SQLite's writing."""
    if merged.rows:
        await connection.exec_driver_sql(_UPSERT, [_in_order(row) for row in merged.rows.values()])
    if merged.events:
        in_order = itemgetter(*_EVENT)
        await connection.exec_driver_sql(_ADD_EVENT, [in_order(event) for event in merged.events])


def _slices(numbers: Sequence[int]) -> list[Sequence[int]]:
    return [numbers[at : at + _BATCH_IDS] for at in range(0, len(numbers), _BATCH_IDS)]


class _faults:
    """Turn faults of a database, its driver or the connection into our exception."""

    def __init__(self, url: DatabaseUrl) -> None:
        self._url = url

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, fault: BaseException | None, _: object) -> None:
        if not isinstance(fault, Exception):
            return
        refused = _is_refusal(fault)
        known = isinstance(fault, (SQLAlchemyError, OSError, asyncio.TimeoutError))
        # SQLAlchemy does not wrap exceptions of drivers while they connect.
        if refused or known or type(fault).__module__.startswith(_DRIVERS):
            text = f"the history at {self._url}: {one_line(fault)}"
            raise HistoryUnavailable(text, is_refusal=refused) from None


def _is_refusal(fault: BaseException | None) -> bool:
    """Whether the database rejected the values; SQLAlchemy wraps the exception of the driver."""
    seen: set[int] = set()
    while fault is not None and id(fault) not in seen:
        seen.add(id(fault))
        if isinstance(fault, (DataError, IntegrityError, OverflowError, UnicodeError)):
            return True
        if type(fault).__name__ == "DataError" or str(getattr(fault, "sqlstate", ""))[:2] in ("22", "23"):
            return True
        fault = getattr(fault, "orig", None) or fault.__cause__
    return False


def one_line(fault: BaseException) -> str:
    """The message of a driver, without SQLAlchemy's statement and link."""
    origin = getattr(fault, "orig", None) or fault
    text = " ".join(str(origin).split()) or type(origin).__name__
    return text.rpartition(">: ")[2][:300]
