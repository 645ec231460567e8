"""Queries of the history, for people and for the scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from fluence.model.job_state import JobState, PastRun
from fluence.store.history_store import HistoryStore
from fluence.store.tables import gaps, jobs, outbox

SUMS = {"user": jobs.c.username, "queue": jobs.c.queue, "namespace": jobs.c.namespace, "state": jobs.c.state}


SILENT_MS = 30 * 60_000
"""The time after which open jobs without a renewed entry belong to a cluster or scheduler that is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFilter:
    """A filter of jobs; an empty field matches all. Times are ms: a job matches if any part of it is in
    between."""

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
    now: int | None = None  # to compare the times of entries with; None: all count as recent
    before: tuple[int, int, int] | None = None  # submission, job and run of the row behind the newest

    @property
    def is_silent(self) -> sa.ColumnElement[bool]:
        """Whether a job has not ended, and its last entry is old."""
        if self.now is None:
            return sa.false()
        return sa.and_(jobs.c.ended.is_(None), jobs.c.updated < self.now - SILENT_MS)

    @property
    def state(self) -> sa.ColumnElement[Any]:
        return sa.case((self.is_silent, JobState.UNKNOWN.value), else_=jobs.c.state)

    def condition(self) -> sa.ColumnElement[bool]:
        conditions: list[sa.ColumnElement[bool]] = [sa.true()]
        for column, wanted in (
            (jobs.c.username, self.users),
            (jobs.c.namespace, self.namespaces),
            (jobs.c.queue, self.queues),
            (self.state, [value for state in self.states for value in state.stored_as]),
            (jobs.c.job, self.jobs),
        ):
            if wanted:
                conditions.append(column.in_(list(wanted)))
        if self.names:
            conditions.append(sa.or_(*(jobs.c.name.like(_pattern(item), escape="\\") for item in self.names)))
        if self.since is not None:
            conditions.append(sa.or_(jobs.c.ended.is_(None), jobs.c.ended >= self.since))
        if self.until is not None:
            conditions.append(jobs.c.submitted <= self.until)
        for column, one in ((jobs.c.cluster, self.cluster), (jobs.c.scheduler, self.scheduler)):
            if one is not None:
                conditions.append(column == one)
        if self.before is not None:
            place = sa.tuple_(jobs.c.submitted, jobs.c.job, jobs.c.run)
            conditions.append(place < sa.tuple_(*(sa.literal(part, sa.BigInteger) for part in self.before)))
        return sa.and_(*conditions)


def _pattern(text: str) -> str:
    for character in "\\%_":
        text = text.replace(character, f"\\{character}")
    return text.replace("*", "%")


async def find_jobs(
    store: HistoryStore, which: JobFilter, *, most: int | None = None
) -> list[Mapping[str, Any]]:
    """The jobs in the order of their submission; if there are too many, the newest. If the filter has a time,
    ``silent`` shows for jobs that have not ended whether their last entry is old."""
    silent = [] if which.now is None else [which.is_silent.label("silent")]
    rows = await store.ask(
        sa.select(jobs, *silent)
        .where(which.condition())
        .order_by(jobs.c.submitted.desc(), jobs.c.job.desc(), jobs.c.run.desc())
        .limit(most)
    )
    return rows[::-1]


async def find_namespaces(store: HistoryStore, cluster: str) -> frozenset[str]:
    """The namespaces of a cluster that have jobs."""
    rows = await store.ask(sa.select(jobs.c.namespace).where(jobs.c.cluster == cluster).distinct())
    return frozenset(row["namespace"] for row in rows)


def _spent(amount: sa.ColumnElement[Any], now: int, which: JobFilter) -> sa.ColumnElement[Any]:
    """Amount times milliseconds, of the part of each run since then."""
    since = which.since
    end = sa.func.coalesce(jobs.c.ended, sa.case((which.is_silent, jobs.c.updated), else_=now))
    begin: sa.ColumnElement[Any] = jobs.c.started
    if since is not None:
        begin = sa.case((jobs.c.started < since, since), else_=jobs.c.started)
    lasted = sa.case((sa.or_(jobs.c.started.is_(None), end < begin), 0), else_=end - begin)
    # As floats: sums of bytes times milliseconds are beyond 64 bits.
    return sa.func.coalesce(sa.func.sum(sa.cast(amount, sa.Float) * sa.cast(lasted, sa.Float)), 0.0)


async def sum_jobs(
    store: HistoryStore, which: JobFilter, by: Sequence[str], now: int
) -> list[Mapping[str, Any]]:
    """Jobs, their waits and their usage, by user, queue, namespace or state. Times are ms."""
    which = replace(which, now=now)
    columns = [(which.state if key == "state" else SUMS[key]).label(key) for key in by]
    waited = sa.case((jobs.c.started.is_not(None), jobs.c.started - jobs.c.submitted))
    return await store.ask(
        sa.select(
            *columns,
            sa.func.count().label("jobs"),
            sa.func.count(jobs.c.started).label("started"),
            *(
                sa.func.sum(sa.case((jobs.c.state == state.value, 1), else_=0)).label(state.value)
                for state in (JobState.COMPLETED, JobState.FAILED, JobState.TIMEOUT, JobState.CANCELLED)
            ),
            sa.func.avg(sa.cast(waited, sa.Float)).label("waited"),
            _spent(sa.literal(1), now, which).label("ran"),
            _spent(jobs.c.cpu, now, which).label("cpu"),
            _spent(jobs.c.gpus, now, which).label("gpus"),
        )
        .where(which.condition())
        .group_by(*columns)
        .order_by(*columns)
    )


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
            c.state.in_([state.value for state in _LEARNED]),
        )
        .order_by(c.ended.desc())
        .limit(most)
    )
    return [PastRun(*row.values()) for row in await store.ask(wanted)][::-1]


async def find_gaps(store: HistoryStore, which: JobFilter) -> list[Mapping[str, Any]]:
    """When the history could not be written."""
    wanted, since, until = sa.select(gaps).order_by(gaps.c.began), which.since, which.until
    for column, one in ((gaps.c.cluster, which.cluster), (gaps.c.scheduler, which.scheduler)):
        if one is not None:
            wanted = wanted.where(column == one)
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
