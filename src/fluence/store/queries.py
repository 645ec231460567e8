"""Queries: what people and the scheduler ask of the history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from fluence.model.job_entry import JobState, PastRun
from fluence.store.history_store import HistoryStore
from fluence.store.tables import gaps, jobs, outbox

SUMS = {"user": jobs.c.username, "queue": jobs.c.queue, "namespace": jobs.c.namespace, "state": jobs.c.state}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """Which jobs; what is empty holds for all. Times are ms: a job counts if any of it lies between."""

    users: Sequence[str] = ()
    namespaces: Sequence[str] = ()
    queues: Sequence[str] = ()
    states: Sequence[JobState] = ()
    names: Sequence[str] = ()  # with * for anything
    jobs: Sequence[int] = ()
    since: int | None = None
    until: int | None = None
    cluster: str | None = None
    scheduler: str | None = None

    def condition(self) -> sa.ColumnElement[bool]:
        told: list[sa.ColumnElement[bool]] = [sa.true()]
        for column, wanted in (
            (jobs.c.username, self.users),
            (jobs.c.namespace, self.namespaces),
            (jobs.c.queue, self.queues),
            (jobs.c.state, [each.value for each in self.states]),
            (jobs.c.job, self.jobs),
        ):
            if wanted:
                told.append(column.in_(list(wanted)))
        if self.names:
            told.append(sa.or_(*(jobs.c.name.like(_pattern(each), escape="\\") for each in self.names)))
        if self.since is not None:
            told.append(sa.or_(jobs.c.ended.is_(None), jobs.c.ended >= self.since))
        if self.until is not None:
            told.append(jobs.c.submitted <= self.until)
        for column, one in ((jobs.c.cluster, self.cluster), (jobs.c.scheduler, self.scheduler)):
            if one is not None:
                told.append(column == one)
        return sa.and_(*told)


def _pattern(text: str) -> str:
    for each in "\\%_":
        text = text.replace(each, f"\\{each}")
    return text.replace("*", "%")


async def find_jobs(
    store: HistoryStore, which: JobFilter, *, most: int | None = None
) -> list[Mapping[str, Any]]:
    """The jobs in the order of their submission; of too many, the newest."""
    found = await store.ask(
        sa.select(jobs)
        .where(which.condition())
        .order_by(jobs.c.submitted.desc(), jobs.c.job.desc(), jobs.c.run.desc())
        .limit(most)
    )
    return found[::-1]


def _spent(amount: sa.ColumnElement[Any], now: int, since: int | None) -> sa.ColumnElement[Any]:
    """Amount times milliseconds, of the part of each run since then."""
    end = sa.func.coalesce(jobs.c.ended, now)
    begin: sa.ColumnElement[Any] = jobs.c.started
    if since is not None:
        begin = sa.case((jobs.c.started < since, since), else_=jobs.c.started)
    lasted = sa.case((sa.or_(jobs.c.started.is_(None), end < begin), 0), else_=end - begin)
    # As floats: sums of bytes times milliseconds are beyond 64 bits.
    return sa.func.coalesce(sa.func.sum(sa.cast(amount, sa.Float) * sa.cast(lasted, sa.Float)), 0.0)


async def sum_jobs(
    store: HistoryStore, which: JobFilter, by: Sequence[str], now: int
) -> list[Mapping[str, Any]]:
    """Jobs, their waits and what they used, by user, queue, namespace or state. Times are ms."""
    columns = [SUMS[each].label(each) for each in by]
    waited = sa.case((jobs.c.started.is_not(None), jobs.c.started - jobs.c.submitted))
    return await store.ask(
        sa.select(
            *columns,
            sa.func.count().label("jobs"),
            sa.func.count(jobs.c.started).label("started"),
            *(
                sa.func.sum(sa.case((jobs.c.state == each.value, 1), else_=0)).label(each.value)
                for each in (JobState.COMPLETED, JobState.FAILED, JobState.TIMEOUT, JobState.CANCELLED)
            ),
            sa.func.avg(sa.cast(waited, sa.Float)).label("waited"),
            _spent(sa.literal(1), now, which.since).label("ran"),
            _spent(jobs.c.cpu, now, which.since).label("cpu"),
            _spent(jobs.c.gpus, now, which.since).label("gpus"),
        )
        .where(which.condition())
        .group_by(*columns)
        .order_by(*columns)
    )


async def usage(store: HistoryStore, since: int, now: int, *, cluster: str | None = None) -> dict[str, float]:
    """CPU milliseconds by user since then, of jobs that ended and of those that run: for fair share."""
    which = JobFilter(since=since, cluster=cluster)
    rows = await sum_jobs(store, which, ["user"], now)
    return {row["user"]: row["cpu"] / 1000 for row in rows if row["started"]}


_LEARNED = (JobState.COMPLETED, JobState.FAILED, JobState.TIMEOUT)


async def past_runs(store: HistoryStore, most: int) -> list[PastRun]:
    """The last runs of this writer whose ends were seen, the oldest first."""
    c = jobs.c
    wanted = (
        sa.select(c.username, c.queue, c.namespace, c.walltime, c.no_later_than, c.broken, c.started, c.ended)
        .where(
            c.cluster == store.writer.cluster,
            c.scheduler == store.writer.scheduler,
            c.started.is_not(None),
            c.ended.is_not(None),
            c.state.in_([each.value for each in _LEARNED]),
        )
        .order_by(c.ended.desc())
        .limit(most)
    )
    return [PastRun(*row.values()) for row in await store.ask(wanted)][::-1]


async def find_gaps(store: HistoryStore, since: int | None, until: int | None) -> list[Mapping[str, Any]]:
    """When the history could not be written."""
    wanted = sa.select(gaps).order_by(gaps.c.began)
    if since is not None:
        wanted = wanted.where(gaps.c.ended >= since)
    if until is not None:
        wanted = wanted.where(gaps.c.began <= until)
    return await store.ask(wanted)


async def read_outbox(store: HistoryStore, after: int, most: int) -> list[Mapping[str, Any]]:
    """The events behind a number, in the order in which they were written."""
    return await store.ask(
        sa.select(outbox).where(outbox.c.number > after).order_by(outbox.c.number).limit(most)
    )
