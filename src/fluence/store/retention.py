"""Retention: jobs that ended long ago are forgotten, and the oldest of too many; those that run never are."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from fluence.store.tables import gaps, jobs, outbox

_STEP = 1000  # rows that are deleted at once: nobody waits long for the lock


@dataclass(frozen=True, slots=True)
class Retention:
    """How long, and how much; None: no bound."""

    age_ms: int | None = None
    size: int | None = None  # bytes


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was forgotten."""

    jobs: int = 0
    events: int = 0
    size: int = 0  # bytes that are in use now


async def prune(engine: AsyncEngine, keep: Retention, now: int) -> Pruned:
    """Forget by age, then by size."""
    count = events = 0
    if keep.age_ms is not None:
        before = now - keep.age_ms
        async with engine.begin() as connection:
            events += (await connection.execute(sa.delete(outbox).where(outbox.c.at < before))).rowcount
            await connection.execute(sa.delete(gaps).where(gaps.c.ended < before))
        while gone := await _forget(engine, sa.and_(jobs.c.ended.is_not(None), jobs.c.ended < before)):
            count += gone
    used = await _used(engine)
    while keep.size is not None and used > keep.size:
        gone_events = await _forget_events(engine)
        gone = 0 if gone_events else await _forget(engine, jobs.c.ended.is_not(None))
        if not gone and not gone_events:
            break  # what is left has not ended
        events, count = events + gone_events, count + gone
        used = await _used(engine)
    if engine.dialect.name == "sqlite" and (count or events):
        async with engine.connect() as connection:
            # Free pages go back to the disk. As a script: a plain statement would free one page and stop.
            raw = (await connection.get_raw_connection()).driver_connection
            assert raw is not None
            await raw.executescript("PRAGMA incremental_vacuum")
    return Pruned(count, events, used)


async def _forget(engine: AsyncEngine, which: sa.ColumnElement[bool]) -> int:
    oldest = sa.select(jobs.c.job, jobs.c.run).where(which).order_by(jobs.c.ended).limit(_STEP)
    async with engine.begin() as connection:
        found = (await connection.execute(oldest)).all()
        if found:
            statement = sa.delete(jobs).where(
                jobs.c.job == sa.bindparam("a_job"), jobs.c.run == sa.bindparam("a_run")
            )
            await connection.execute(statement, [{"a_job": job, "a_run": run} for job, run in found])
    return len(found)


async def _forget_events(engine: AsyncEngine) -> int:
    """The oldest events, while there are more of them than a job of each: who reads them is long past."""
    async with engine.begin() as connection:
        many = await connection.scalar(sa.select(sa.func.count()).select_from(outbox))
        if not many or many <= _STEP:
            return 0
        last = sa.select(outbox.c.number).order_by(outbox.c.number).offset(_STEP - 1).limit(1)
        upto = await connection.scalar(last)
        return (await connection.execute(sa.delete(outbox).where(outbox.c.number <= upto))).rowcount


async def _used(engine: AsyncEngine) -> int:
    """Bytes of rows. What a database keeps for new ones does not count: it comes free later, or never."""
    async with engine.begin() as connection:
        if engine.dialect.name == "sqlite":
            return await _pages(connection)
        total = 0
        for table in (jobs, outbox):
            each = sa.text(f"SELECT COALESCE(SUM(pg_column_size(t.*)), 0) FROM {table.name} t")
            total += int((await connection.execute(each)).scalar_one())
        return total


async def _pages(connection: AsyncConnection) -> int:
    async def pragma(name: str) -> int:
        return int((await connection.exec_driver_sql(f"PRAGMA {name}")).scalar_one())

    return (await pragma("page_count") - await pragma("freelist_count")) * await pragma("page_size")
