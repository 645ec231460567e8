"""Tables: jobs, the outbox and the gaps, in the newest revision, and how entries become rows of `jobs`.

The migrations in `migrations/versions` make them; a test compares the two. Times are milliseconds since 1970,
so that both databases keep them exactly.

A job may run more than once: a group whose pods have ended can get new ones. The start time tells its runs
apart. An entry belongs to the last run if that run has not started, or started at the same time; else the
last run is over and the entry begins the next one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec
import sqlalchemy as sa

from fluence.errors import InvalidInput
from fluence.model import hostlist
from fluence.model.job_state import JobEntry, JobState
from fluence.store import Writer

REVISIONS = ("0001", "0002")
"""All revisions, the oldest first; a test compares them with the modules."""

metadata = sa.MetaData()


def _words(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=False, server_default="")


def _amount(name: str, type_: type[sa.Integer] = sa.BigInteger) -> sa.Column[int]:
    return sa.Column(name, type_, nullable=False, server_default="0")


def _number() -> sa.Column[int]:
    return sa.Column("number", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True)


jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("job", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("run", sa.Integer, primary_key=True, autoincrement=False),
    _words("cluster"),
    _words("scheduler"),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("namespace", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("username", sa.Text, nullable=False),
    sa.Column("queue", sa.Text, nullable=False),
    _amount("priority"),
    sa.Column("pods", sa.Integer, nullable=False),
    _amount("minimum", sa.Integer),
    sa.Column("requests", sa.Text, nullable=False),  # JSON: of all pods
    sa.Column("walltime", sa.BigInteger),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("submitted", sa.BigInteger, nullable=False),
    sa.Column("no_later_than", sa.BigInteger),
    sa.Column("expected", sa.BigInteger),
    sa.Column("started", sa.BigInteger),
    sa.Column("ended", sa.BigInteger),
    _words("nodes"),  # in hostlist form
    _words("reason"),
    sa.Column("updated", sa.BigInteger, nullable=False),
    # -- since 0002 --
    _amount("cpu"),  # thousandths of a core, of all pods
    _amount("memory"),  # bytes
    _amount("gpus"),
    _words("devices"),  # that were its own, with commas between them
    _words("codes"),  # of the reasons, with commas between them
    _amount("broken", sa.Integer),  # promises
    sa.Index("jobs_submitted", "submitted"),
    sa.Index("jobs_ended", "ended"),
    sa.Index("jobs_user", "username", "ended"),
    sa.Index("jobs_open", "cluster", "scheduler", sqlite_where=sa.text("ended IS NULL"),
             postgresql_where=sa.text("ended IS NULL")),
)  # fmt: skip

# alembic's own.
version = sa.Table(
    "alembic_version", sa.MetaData(), sa.Column("version_num", sa.String(32), primary_key=True)
)

# Events for other programs, written in the same transaction as the job. A reader remembers the last number
# that it has seen.
outbox = sa.Table(
    "outbox",
    metadata,
    _number(),
    sa.Column("at", sa.BigInteger, nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("job", sa.BigInteger, nullable=False),
    sa.Column("run", sa.Integer, nullable=False),
    sa.Column("body", sa.Text, nullable=False),  # JSON
    sa.Index("outbox_at", "at"),
    sqlite_autoincrement=True,  # a number is never used again
)

# When the history could not be written, and how many entries were lost; since 0002.
gaps = sa.Table(
    "gaps",
    metadata,
    _number(),
    _words("cluster"),
    _words("scheduler"),
    sa.Column("began", sa.BigInteger, nullable=False),
    sa.Column("ended", sa.BigInteger, nullable=False),
    sa.Column("lost", sa.BigInteger, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sqlite_autoincrement=True,
)


Row: TypeAlias = dict[str, Any]

# Columns that an entry does not change if it has no value for them: after a restart promises are unknown, and
# the first entry of a later run has no reason for its wait.
_STICKY_FIELDS = ("no_later_than", "expected", "reason", "codes", "nodes", "devices")
_EVENTS = (
    ("submitted", "submitted"),
    ("promised", "no_later_than"),
    ("started", "started"),
    ("ended", "ended"),
)


@dataclass(slots=True)
class MergedRows:
    """The row to write."""

    rows: dict[tuple[int, int], Row] = field(default_factory=dict)  # by job and run
    events: list[Row] = field(default_factory=list)  # for the outbox


def merge(last: Mapping[int, Row], entries: Iterable[tuple[JobEntry, str]], writer: Writer) -> MergedRows:
    """Entries, each with its reasons as text, on top of the last run of each job (as a row)."""
    merged = MergedRows()
    runs = dict(last)
    for entry, text in entries:
        before = runs.get(entry.job)
        if before is not None and before["updated"] > entry.at:
            continue  # another leader has written since
        if before is not None and _is_known_end(before, entry):
            continue
        row = _row(entry, text, writer)
        if before is None:
            row["run"] = 1
        elif _is_same_run(before, entry):
            row = _on_top(before, row)
        else:
            row["run"] = before["run"] + 1
            if before["ended"] is None:
                _put(merged, before, lost(before, entry.submitted, entry.at))
            before = None
        _put(merged, before, row)
        runs[entry.job] = row
    return merged


def lost(row: Row, ended: int, at: int) -> Row:
    """A job that is over although its end was not observed: it ended after its start and before ``ended``."""
    began = row["started"] if row["started"] is not None else row["submitted"]
    return {**row, "state": JobState.UNKNOWN.value, "ended": max(began, ended), "updated": at}


def close(rows: Sequence[Row], at: int) -> MergedRows:
    """Close jobs that no longer exist."""
    merged = MergedRows()
    for row in rows:
        if row["updated"] <= at:
            _put(merged, row, lost(row, at, at))
    return merged


def _is_same_run(before: Row, entry: JobEntry) -> bool:
    return before["started"] is None or before["started"] == entry.started


def _is_known_end(before: Row, entry: JobEntry) -> bool:
    """An end that was seen stays, even if the pods show something else later."""
    over = before["ended"] is not None and before["state"] != JobState.UNKNOWN.value
    return over and entry.ended is not None and before["started"] == entry.started is not None


def _on_top(before: Row, row: Row) -> Row:
    kept = {name: before[name] for name in _STICKY_FIELDS if not row[name] and before[name]}
    if row["state"] == JobState.CANCELLED.value and row["started"] is None:
        # The reason of the withdrawal replaces the reason of the wait; the job has no nodes.
        kept = {name: value for name, value in kept.items() if name not in ("nodes", "devices")}
    return {
        **row,
        **kept,
        "run": before["run"],
        "submitted": min(before["submitted"], row["submitted"]),
        "broken": max(before["broken"], row["broken"]),
    }


def _put(merged: MergedRows, before: Row | None, row: Row) -> None:
    merged.rows[row["job"], row["run"]] = row
    for event, column in _EVENTS:
        at = row[column]
        if at is not None and (before is None or before[column] is None):
            body = {key: row[key] for key in ("key", "namespace", "name", "kind", "queue", "state", "pods")}
            body |= {"user": row["username"], "nodes": row["nodes"], column: at}
            merged.events.append(
                {
                    "at": row["updated"],
                    "event": event,
                    "job": row["job"],
                    "run": row["run"],
                    "body": msgspec.json.encode(body).decode(),
                }
            )


def _row(entry: JobEntry, text: str, writer: Writer) -> Row:
    asked = {name: min(value, (1 << 63) - 1) for name, value in entry.requests.items()}
    return {
        "job": entry.job,
        "run": 0,
        "cluster": writer.cluster,
        "scheduler": writer.scheduler,
        "key": _clean(entry.key),
        "namespace": entry.namespace,
        "name": entry.name,
        "kind": entry.kind,
        "username": _clean(entry.user),
        "queue": _clean(entry.queue),
        "priority": entry.priority,
        "pods": entry.pods,
        "minimum": entry.minimum,
        "requests": msgspec.json.encode(asked, order="sorted").decode(),
        "walltime": entry.limit,
        "state": entry.state.value,
        "submitted": entry.submitted,
        "no_later_than": entry.no_later_than,
        "expected": entry.expected,
        "started": entry.started,
        "ended": entry.ended,
        "nodes": names(entry.nodes),
        "reason": _clean(text),
        "updated": entry.at,
        "cpu": asked.get("cpu", 0),
        "memory": asked.get("memory", 0),
        "gpus": sum(value for name, value in asked.items() if name.endswith("/gpu")),
        "devices": ",".join(entry.devices),
        "codes": ",".join(reason.code.value for reason in entry.reasons),
        "broken": entry.broken,
    }


def names(nodes: Sequence[str]) -> str:
    """Names in hostlist form; those that it cannot write are listed."""
    try:
        return hostlist.encode(list(nodes))
    except InvalidInput:
        return ",".join(nodes)


def _clean(text: str) -> str:
    """Replace NUL characters and lone surrogates, which PostgreSQL cannot store."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
