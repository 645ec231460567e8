"""History report: what `history` prints: columns, sums and events; also pruning and migrating.

Jobs and sums come from the view API, with the rights of the user, or from a database. It does not load numpy,
and loads SQL only if a database is read.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from fluence import event_loop
from fluence.commands import view
from fluence.database_url import DatabaseUrl, find_url
from fluence.errors import FluenceError, InvalidInput
from fluence.model.job_state import JobState
from fluence.units import amount, format_amount, parse_duration, parse_quantity, parse_rfc3339, spell_duration

if TYPE_CHECKING:
    from fluence.store.history_store import HistoryStore

Row: TypeAlias = Mapping[str, Any]


T = TypeVar("T")

_PATIENCE_S = 5.0  # for a server to identify its cluster
_IDENTITY = "kube-system"  # the namespace whose uid identifies the cluster


def show(
    *,
    database: str | None,
    output: str,
    fields: str | None,
    sums: Sequence[str],
    since: str | None,
    until: str | None,
    cluster: str | None,
    all_clusters: bool,
    kubeconfig: str | None,
    context: str | None,
    me: bool,
    users: Sequence[str],
    **filters: Any,
) -> None:
    """The jobs, or sums of them."""
    if fields == "help":
        click.echo("\n".join(view.columns(fields_table())))
        return
    if all_clusters and (cluster or kubeconfig or context):
        raise click.UsageError(
            "--all-clusters is all of them: leave out --cluster, --kubeconfig and --context"
        )
    if sums:
        columns = sum_fields(sums, fields)
    else:
        columns = chosen_fields(fields, wide=output in ("wide", "csv"), every=output in ("json", "yaml"))
    now = datetime.now(UTC)
    filters["since"], filters["until"] = moment(since, now, "--since"), moment(until, now, "--until")
    filters["users"] = [*users, "@me"] if me else users
    now_ms = int(now.timestamp() * 1000)
    found = None
    if not (database or cluster or all_clusters):
        found = _of_scheduler(kubeconfig, context, sums, **filters)
    if found is None:
        if me:
            raise FluenceError("--me needs a scheduler that answers: name the user with --user")
        note = ""
        if not all_clusters and cluster is None:
            cluster, note = _own_cluster(kubeconfig, context)
        found = _of_database(database, cluster, sums, now_ms, **filters)
        if note:
            click.echo(f"note: {note}", err=True)
    _show(*found, columns, now_ms, output, sums=bool(sums), cluster=cluster)


def _show(
    rows: Sequence[Row],
    gaps: Sequence[Row],
    columns: Sequence[HistoryField],
    now_ms: int,
    output: str,
    *,
    sums: bool,
    cluster: str | None,
) -> None:
    if output in ("json", "yaml"):
        found = [{each.name: each.data(row, now_ms) for each in columns} for row in rows]
        value = {"sums" if sums else "jobs": found, "gaps": [gap_data(each) for each in gaps]}
        click.echo(view.data(value, output))
        return
    if output == "csv":
        _csv([each.name for each in columns], [[each.data(row, now_ms) for each in columns] for row in rows])
    elif rows:
        cells = [[view.clean(each.text(row, now_ms)) for each in columns] for row in rows]
        click.echo(view.table([each.name.upper() for each in columns], cells))
    else:
        click.echo("no jobs" if cluster is None else f"no jobs of cluster {cluster}; -A lists all", err=True)
    for each in gaps:
        told = gap_data(each)
        why = f": {view.clean(told['reason'])}" if told["reason"] else ""
        click.echo(
            f"note: {told['lost']} entries are missing, from {told['began']} to {told['ended']}{why}",
            err=True,
        )


# -- from a database -----------------------------------------------------------------------------------------


def _of_database(
    database: str | None,
    cluster: str | None,
    sums: Sequence[str],
    now: int,
    *,
    states: Sequence[str],
    limit: int,
    **filters: Any,
) -> tuple[list[Row], list[Row]]:
    from fluence.store import queries

    which = queries.JobFilter(cluster=cluster, now=now, states=[JobState(each) for each in states], **filters)

    async def ask(store: HistoryStore) -> tuple[list[Row], list[Row]]:
        gaps = await queries.find_gaps(store, which)
        if sums:
            return await queries.sum_jobs(store, which, sums, now), gaps
        return await queries.find_jobs(store, which, most=limit or None), gaps

    return _read(database, ask)


# -- from the scheduler --------------------------------------------------------------------------------------


def _of_scheduler(
    kubeconfig: str | None, context: str | None, sums: Sequence[str], *, limit: int, **filters: Any
) -> tuple[list[Row], list[Row]] | None:
    """The answer of the view API; None if there is no cluster, or a database on this machine is used
    instead."""
    from fluence.commands.view_api import Unanswered, ViewClient
    from fluence.kube.errors import Misconfigured

    try:
        client = ViewClient.of(kubeconfig, context)
    except Misconfigured:
        if kubeconfig is not None or context is not None:
            raise
        return None
    query = _query(**filters)
    try:
        if sums:
            items, page = client.items("usage", None, {**query, "by": ",".join(sums)})
            return [_sum_row(item) for item in items], [_gap_row(gap) for gap in page.get("gaps", ())]
        items, page = client.items("history", None, query, most=limit or None)
    except Unanswered as error:
        if error.status in (400, 401):
            raise
        path = find_url(None).path
        if path is None or not path.exists():
            raise FluenceError(
                f"the history cannot be read: the scheduler does not answer ({error}); if you may read its "
                "database, name it with --database"
            ) from None
        click.echo(f"note: the scheduler does not answer ({error}); shown is the history at {path}", err=True)
        return None
    left_out = page["metadata"].get("uncheckedNamespaces")
    if left_out:
        click.echo(f"note: {left_out} namespaces are too many to ask about: name one with -n", err=True)
    return [_job_row(item) for item in reversed(items)], [_gap_row(gap) for gap in page.get("gaps", ())]


_PARAMETERS = {
    "users": "user",
    "namespaces": "namespace",
    "queues": "queue",
    "states": "state",
    "names": "name",
    "jobs": "job",
}


def _query(
    *, since: int | None, until: int | None, scheduler: str | None, **lists: Sequence[str | int]
) -> dict[str, str]:
    """The filters as parameters of the view API."""
    query = {}
    for name, values in lists.items():
        texts = [str(value) for value in values]
        if any("," in text for text in texts):
            raise InvalidInput(f"a comma in {_PARAMETERS[name]} needs --database")
        if texts:
            query[_PARAMETERS[name]] = ",".join(texts)
    for name, at in (("since", since), ("until", until)):
        if at is not None:
            query[name] = _iso(at) or ""
    if scheduler is not None:
        query["scheduler"] = scheduler
    return query


def _at(text: str | None) -> int | None:
    at = None if text is None else parse_rfc3339(text)
    return None if at is None else at // 1000


def _job_row(item: Mapping[str, Any]) -> Row:
    """Convert a row of the API to one of the database."""
    asked = {name: amount(name, parse_quantity(text)) for name, text in item.get("requests", {}).items()}
    limit = item.get("limit")
    return {
        **{name: item.get(name, "") for name in ("namespace", "name", "kind", "queue", "nodes", "reason")},
        **{name: item.get(name, 0) for name in ("run", "priority", "pods", "minimum", "broken")},
        **{name: item.get(name, "") for name in ("scheduler", "cluster", "state")},
        "job": int(item["id"]),
        "key": item.get("gang", ""),
        "username": item.get("user", ""),
        "requests": json.dumps(asked, sort_keys=True),
        "cpu": asked.get("cpu", 0),
        "memory": asked.get("memory", 0),
        "gpus": sum(value for name, value in asked.items() if name.endswith("/gpu")),
        "walltime": None if limit is None else limit * 1000,
        "submitted": _at(item["submitted"]),
        "no_later_than": _at(item.get("noLaterThan")),
        **{name: _at(item.get(name)) for name in ("expected", "started", "ended")},
        "updated": _at(item.get("seen")),
        "silent": item.get("lost", False),
        "devices": ",".join(item.get("devices", ())),
        "codes": ",".join(item.get("codes", ())),
    }


def _sum_row(item: Mapping[str, Any]) -> Row:
    wait = item.get("wait")
    counts = ("jobs", "started", "completed", "failed", "timeout", "cancelled")
    return {
        **{name: item.get(name, "") for name in ("user", "queue", "namespace", "state")},
        **{name: item.get(name, 0) for name in counts},
        "waited": None if wait is None else wait * 1000,
        "ran": item.get("ran", 0) * 1000,
        "cpu": item.get("cpu", 0) * 1_000_000,
        "gpus": item.get("gpu", 0) * 1000,
    }


def _gap_row(gap: Mapping[str, Any]) -> Row:
    return {
        "began": _at(gap["began"]),
        "ended": _at(gap["ended"]),
        "lost": gap["lost"],
        "reason": "",
        "scheduler": "",
        "cluster": "",
    }


# -- which cluster -------------------------------------------------------------------------------------------


def _own_cluster(kubeconfig: str | None, context: str | None) -> tuple[str | None, str]:
    """The name of the cluster of the kubeconfig, as the scheduler writes it, and why it is unknown. Without
    any kubeconfig, all clusters are meant."""
    from fluence.kube.access import find_access
    from fluence.kube.errors import KubeError, Misconfigured

    try:
        access = find_access(kubeconfig=kubeconfig, context=context)
    except Misconfigured:
        if kubeconfig is not None or context is not None:
            raise
        return None, ""
    from fluence.kube.client import Client  # slow to import, and not needed without a kubeconfig
    from fluence.kube.resource import NAMESPACES

    async def ask() -> str:
        async with asyncio.timeout(_PATIENCE_S), Client(access) as client:
            page = await client.list(NAMESPACES, field_selector=f"metadata.name={_IDENTITY}")
            return "".join(namespace.metadata.uid for namespace in page.items or ())

    try:
        return event_loop.run(ask), ""
    except TimeoutError:
        why = f"{access.server} does not answer"
    except KubeError as error:
        why = str(error)
    return (
        None,
        f"which cluster the kubeconfig names is not known, and jobs of all clusters are listed: {why}",
    )


def show_events(*, database: str | None, after: int, limit: int) -> None:
    """Print the outbox."""
    from fluence.store import queries

    async def ask(store: HistoryStore) -> list[Mapping[str, Any]]:
        return await queries.read_outbox(store, after, limit)

    for row in _read(database, ask):
        body = json.loads(row["body"])
        head = {key: row[key] for key in ("number", "at", "event", "job", "run")}
        click.echo(json.dumps({**head, **body}, ensure_ascii=False))


def prune_now(*, database: str | None, age_s: float | None, size: int | None) -> None:
    """Delete old jobs."""
    from fluence.store import Retention
    from fluence.store.history_store import HistoryStore

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
    """Migrate to another revision."""
    from fluence.store.history_store import HistoryStore

    async def work() -> str:
        url = find_url(database)
        async with HistoryStore(url) as store:
            return f"{url}: revision {await store.migrate(to) or 'base'}"

    click.echo(event_loop.run(work))


def moment(text: str | None, now: datetime, option: str) -> int | None:
    """A point in time in ms: a date, a date and a time (UTC), or how long ago."""
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
    from fluence.store.history_store import HistoryStore

    async def work() -> T:
        async with HistoryStore(find_url(database), reads=True) as store:
            await _check(store)
            return await ask(store)

    return event_loop.run(work)


async def _check(store: HistoryStore) -> None:
    from fluence.store.tables import REVISIONS

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


@dataclass(frozen=True, slots=True)
class HistoryField:
    """A column: its value in a row at a time, and how a table shows it."""

    name: str
    about: str
    data: Callable[[Row, int], Any]
    show: Callable[[Any], str] = str

    def text(self, row: Row, now: int) -> str:
        value = self.data(row, now)
        return "-" if value is None or value == "" else self.show(value)


def _iso(at: Any) -> str | None:
    return None if at is None else datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds")


def _short(text: str) -> str:
    return f"{text[:10]} {text[11:19]}"


def _seconds(value: float) -> str:
    return spell_duration(round(value) * 1000) if value >= 1 else "0s"


def _state(row: Row, now: int) -> str:
    """The state of a row. A job without a recent entry is not shown as running."""
    return JobState.UNKNOWN.value if row["silent"] else str(row["state"])


def _wait(row: Row, now: int) -> float | None:
    end = row["started"] if row["started"] is not None else row["ended"]
    now = row["updated"] if row["silent"] else now
    return float(max(0, (now if end is None else end) - row["submitted"])) / 1000


def _elapsed(row: Row, now: int) -> float | None:
    if row["started"] is None:
        return None
    now = row["updated"] if row["silent"] else now
    return float(max(0, (now if row["ended"] is None else row["ended"]) - row["started"])) / 1000


def _column(name: str, about: str, column: str = "", show: Callable[[Any], str] = str) -> HistoryField:
    return HistoryField(name, about, lambda row, now: row[column or name], show)


def _time(name: str, about: str, column: str = "") -> HistoryField:
    return HistoryField(name, about, lambda row, now: _iso(row[column or name]), _short)


FIELDS = {
    each.name: each
    for each in (
        _column("namespace", "its namespace"),
        _column("name", "of the workload: the Job, the Deployment, … or the pod"),
        _column("user", "whose it is", "username"),
        _column("queue", "its queue"),
        HistoryField("state", "where it is, or how it ended", _state),
        _column("pods", "how many pods"),
        _time("submitted", "when it came"),
        HistoryField("wait", "how long it waited, or waits; seconds", _wait, _seconds),
        HistoryField("elapsed", "how long it ran, or runs; seconds", _elapsed, _seconds),
        _column("nodes", "where it ran, in hostlist form"),
        _column("job", "its id: that of the annotation jobid"),
        _column("run", "which run of this job, from 1"),
        _column("kind", "of the workload"),
        HistoryField(
            "cpu", "cores of all pods", lambda row, now: row["cpu"] / 1000, lambda value: f"{value:g}"
        ),
        _column("memory", "of all pods; bytes", show=lambda value: format_amount("memory", value)),
        _column("gpus", "of all pods"),
        HistoryField(
            "requests", "all that its pods ask for", lambda row, now: json.loads(row["requests"]), json.dumps
        ),
        HistoryField(
            "limit",
            "its walltime; seconds",
            lambda row, now: None if row["walltime"] is None else row["walltime"] / 1000,
            _seconds,
        ),
        _column("priority", "its priority"),
        _time("no-later-than", "the first start that it was promised", "no_later_than"),
        _time("expected", "the first start that was expected"),
        _column("broken", "promises that were not kept"),
        _time("started", "when it started"),
        _time("ended", "when it ended"),
        _column("devices", "devices that were its own"),
        _column("reason", "why it waited, as it was told last"),
        _column("codes", "the same as codes"),
        _column("key", "of the group in the scheduler"),
        _column("scheduler", "which scheduler"),
        _column("cluster", "which cluster"),
    )
}
_TABLE = ("namespace", "name", "user", "queue", "state", "pods", "submitted", "wait", "elapsed", "nodes")
_WIDE = (
    *_TABLE,
    *("job", "run", "kind", "cpu", "gpus", "limit", "no-later-than", "expected", "started", "ended"),
    *("devices", "reason"),
)


def chosen_fields(text: str | None, *, wide: bool, every: bool) -> list[HistoryField]:
    """The requested columns, or those of the output format."""
    if text is None:
        return list(FIELDS.values()) if every else [FIELDS[each] for each in (_WIDE if wide else _TABLE)]
    return _named(text, FIELDS)


def _named(text: str, known: Mapping[str, HistoryField]) -> list[HistoryField]:
    names = [each.strip() for each in text.split(",") if each.strip()]
    for name in names:
        if name not in known:
            raise InvalidInput(
                f"no column is called {name[:40]!r}: there are {', '.join(known)}", where="--format"
            )
    if not names:
        raise InvalidInput(f"no column is named: there are {', '.join(known)}", where="--format")
    return [known[name] for name in names]


def fields_table() -> list[list[str]]:
    """All columns and their meanings."""
    return [[each.name, each.about] for each in FIELDS.values()]


def _hours(name: str, about: str, column: str, divisor: int) -> HistoryField:
    return HistoryField(
        name, about, lambda row, now: round(row[column] / divisor, 3), lambda value: f"{value:.2f}"
    )


def sum_fields(by: Sequence[str], text: str | None) -> list[HistoryField]:
    """The columns of sums."""
    every = [
        *(_column(each, f"by {each}") for each in dict.fromkeys(by)),
        _column("jobs", "how many"),
        _column("started", "of them"),
        *(_column(each, "of them") for each in ("completed", "failed", "timeout", "cancelled")),
        HistoryField(
            "wait",
            "mean of those that started; seconds",
            lambda row, now: None if row["waited"] is None else round(float(row["waited"]) / 1000, 3),
            _seconds,
        ),
        _hours("hours", "that they ran", "ran", 3_600_000),
        _hours("cpu-hours", "that they held", "cpu", 3_600_000_000),
        _hours("gpu-hours", "that they held", "gpus", 3_600_000),
    ]
    return every if text is None else _named(text, {each.name: each for each in every})


def gap_data(row: Row) -> dict[str, Any]:
    """The gaps in the history, for people and programs."""
    return {
        "began": _iso(row["began"]),
        "ended": _iso(row["ended"]),
        "lost": row["lost"],
        "reason": row["reason"],
        "scheduler": row["scheduler"],
        "cluster": row["cluster"],
    }
