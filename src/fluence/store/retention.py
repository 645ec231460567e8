"""Retention: jobs that ended long ago are forgotten, and the oldest of too many; those that run never are.

Of too many, the namespace that takes the most room loses its oldest first: one namespace cannot push out the
history of another that takes less.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from fluence.store.tables import gaps, jobs, outbox

_STEP = 1000  # rows that are deleted at once: nobody waits long for the lock
_LEAST = 50  # and at least so many
_ROW = 300  # bytes of a row beside its longer texts


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
    sizes: dict[str, int] | None = None
    while keep.size is not None and used > keep.size:
        gone_events = await _forget_events(engine)
        if not gone_events:
            sizes = await _sizes(engine) if sizes is None else sizes
            if not sizes:
                break  # what is left has not ended
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
    """About how many bytes of jobs that have ended each namespace has."""
    texts = (jobs.c.key, jobs.c.username, jobs.c.queue, jobs.c.requests, jobs.c.nodes, jobs.c.reason)
    size = sum((sa.func.length(each) for each in (*texts, jobs.c.devices)), sa.literal(_ROW))
    query = sa.select(jobs.c.namespace, sa.func.sum(size)).where(jobs.c.ended.is_not(None))
    async with engine.begin() as connection:
        found = (await connection.execute(query.group_by(jobs.c.namespace))).all()
    return {namespace: int(total) for namespace, total in found}


async def _forget_of_largest(engine: AsyncEngine, sizes: dict[str, int]) -> int:
    """The oldest jobs of the namespace that takes most room, until it is about as large as the next."""
    largest, *others = sorted(sizes, key=lambda each: -sizes[each])
    ended = sa.and_(jobs.c.ended.is_not(None), jobs.c.namespace == largest)
    async with engine.begin() as connection:
        rows = await connection.scalar(sa.select(sa.func.count()).select_from(jobs).where(ended)) or 0
    ahead = sizes[largest] - (sizes[others[0]] if others else 0)
    each = max(1, sizes[largest] // max(1, rows))
    gone = await _forget(engine, ended, most=max(_LEAST, min(_STEP, ahead // each)))
    sizes[largest] -= gone * each
    if gone == rows:
        del sizes[largest]
    return gone


async def _forget(engine: AsyncEngine, which: sa.ColumnElement[bool], *, most: int = _STEP) -> int:
    oldest = sa.select(jobs.c.job, jobs.c.run).where(which).order_by(jobs.c.ended).limit(most)
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
