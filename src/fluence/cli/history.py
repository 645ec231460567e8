"""`fluence history`: lists and sums what the store has, forgets, and migrates. It loads no numpy."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from fluence import event_loop
from fluence.cli import history_fields, view
from fluence.errors import FluenceError, InvalidInput
from fluence.model.job_entry import JobState
from fluence.store import queries
from fluence.store.history_store import HistoryStore
from fluence.store.queries import JobFilter
from fluence.store.retention import Retention
from fluence.store.tables import REVISIONS
from fluence.store.urls import DatabaseUrl, find_url
from fluence.units import parse_duration

T = TypeVar("T")


def show(
    *,
    database: str | None,
    output: str,
    fields: str | None,
    sums: Sequence[str],
    limit: int,
    since: str | None,
    until: str | None,
    states: Sequence[str],
    **filters: Any,
) -> None:
    """The jobs, or sums of them."""
    if fields == "help":
        click.echo("\n".join(view.columns(history_fields.table())))
        return
    now = datetime.now(UTC)
    which = JobFilter(
        since=moment(since, now, "--since"),
        until=moment(until, now, "--until"),
        states=[JobState(each) for each in states],
        **filters,
    )
    now_ms = int(now.timestamp() * 1000)

    async def ask(store: HistoryStore) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
        gaps = await queries.find_gaps(store, which.since, which.until)
        if sums:
            return await queries.sum_jobs(store, which, sums, now_ms), gaps
        return await queries.find_jobs(store, which, most=limit or None), gaps

    rows, gaps = _read(database, ask)
    if sums:
        columns = history_fields.sums(sums, fields)
    else:
        columns = history_fields.chosen(
            fields, wide=output in ("wide", "csv"), every=output in ("json", "yaml")
        )
    if output in ("json", "yaml"):
        found = [{each.name: each.data(row, now_ms) for each in columns} for row in rows]
        value = {"sums" if sums else "jobs": found, "gaps": [history_fields.gap(each) for each in gaps]}
        click.echo(view.data(value, output))
        return
    if output == "csv":
        _csv([each.name for each in columns], [[each.data(row, now_ms) for each in columns] for row in rows])
    elif rows:
        cells = [[view.clean(each.text(row, now_ms)) for each in columns] for row in rows]
        click.echo(view.table([each.name.upper() for each in columns], cells))
    else:
        click.echo("no jobs", err=True)
    for each in gaps:
        told = history_fields.gap(each)
        click.echo(
            f"note: {told['lost']} entries are missing, from {told['began']} to {told['ended']}: "
            f"{view.clean(told['reason'])}",
            err=True,
        )


def show_events(*, database: str | None, after: int, limit: int) -> None:
    """The outbox."""
    import json

    async def ask(store: HistoryStore) -> list[Mapping[str, Any]]:
        return await queries.read_outbox(store, after, limit)

    for row in _read(database, ask):
        body = json.loads(row["body"])
        head = {key: row[key] for key in ("number", "at", "event", "job", "run")}
        click.echo(json.dumps({**head, **body}, ensure_ascii=False))


def prune_now(*, database: str | None, age_s: float | None, size: int | None) -> None:
    """Forget."""
    keep = Retention(None if age_s is None else int(age_s * 1000), None if size is None else size << 20)
    now = int(datetime.now(UTC).timestamp() * 1000)

    async def work() -> str:
        async with HistoryStore(_existing(find_url(database))) as store:
            await _check(store)
            gone = await store.prune(keep, now)
            return (
                f"{gone.jobs} jobs and {gone.events} events forgotten; {gone.size / (1 << 20):.1f} MiB in use"
            )

    click.echo(event_loop.run(work))


def migrate_to(*, database: str | None, to: str) -> None:
    """Another revision."""

    async def work() -> str:
        url = find_url(database)
        async with HistoryStore(url) as store:
            return f"{url}: revision {await store.migrate(to) or 'base'}"

    click.echo(event_loop.run(work))


def moment(text: str | None, now: datetime, option: str) -> int | None:
    """A point in time: a date, a date and a time (UTC), or how long ago; in ms."""
    if text is None:
        return None
    ago = parse_duration(text) if not text.isdecimal() else None
    try:
        if text in ("now", "today"):
            at = now if text == "now" else now.replace(hour=0, minute=0, second=0, microsecond=0)
        elif ago is not None:
            at = now - timedelta(milliseconds=ago)
        else:
            at = datetime.fromisoformat(text)
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        return int(at.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"{option} {text[:40]!r} is no time: write 2h, 7d, today, 2026-11-16 or 2026-11-16T08:30"
        ) from None


def _read(database: str | None, ask: Callable[[HistoryStore], Awaitable[T]]) -> T:
    async def work() -> T:
        async with HistoryStore(find_url(database), reads=True) as store:
            await _check(store)
            return await ask(store)

    return event_loop.run(work)


async def _check(store: HistoryStore) -> None:
    found, needed = await store.revision(), REVISIONS[-1]
    if found is None or found in REVISIONS[:-1]:
        raise FluenceError(
            f"the history at {store.url} has revision {found or 'base'}, and this program needs {needed}: "
            "run fluence history migrate"
        )


def _existing(url: DatabaseUrl) -> DatabaseUrl:
    if url.path is not None and not url.path.exists():
        raise FluenceError(f"no history at {url}: name it with --database")
    return url


def _csv(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(titles)
    for row in rows:
        writer.writerow(["" if cell is None else cell for cell in row])
    sys.stdout.write(text.getvalue())
