"""Job rows: how entries become rows of the table `jobs`, and what is new in them; pure.

A job may run more than once: a group whose pods have ended can get new ones. Its runs are told apart by when
they started. So an entry belongs to the last run if that has not started, or started just then; else the run
before is over, and this is the next one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from fluence.errors import InvalidInput
from fluence.model import hostlist
from fluence.model.job_entry import JobEntry, JobState

Row: TypeAlias = dict[str, Any]

# What an entry that does not know it leaves as it is: after a restart the promises are forgotten, the first
# entry of a later run says nothing of why it waited.
_KEPT = ("no_later_than", "expected", "reason", "codes", "nodes", "devices")
_EVENTS = (
    ("submitted", "submitted"),
    ("promised", "no_later_than"),
    ("started", "started"),
    ("ended", "ended"),
)


@dataclass(slots=True)
class MergedRows:
    """What is to be written."""

    rows: dict[tuple[int, int], Row] = field(default_factory=dict)  # by job and run
    events: list[Row] = field(default_factory=list)  # for the outbox


@dataclass(frozen=True, slots=True)
class Writer:
    """Whose entries they are: rows of others are never closed by it."""

    cluster: str = ""
    scheduler: str = ""


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
    """A job that is over, though nobody saw its end: not before it started, and not after ``ended``."""
    began = row["started"] if row["started"] is not None else row["submitted"]
    return {**row, "state": JobState.UNKNOWN.value, "ended": max(began, ended), "updated": at}


def close(rows: Sequence[Row], at: int) -> MergedRows:
    """Jobs that are no longer there."""
    merged = MergedRows()
    for row in rows:
        if row["updated"] <= at:
            _put(merged, row, lost(row, at, at))
    return merged


def _is_same_run(before: Row, entry: JobEntry) -> bool:
    return before["started"] is None or before["started"] == entry.started


def _is_known_end(before: Row, entry: JobEntry) -> bool:
    """An end that was seen stands, whatever is read from the pods later."""
    over = before["ended"] is not None and before["state"] != JobState.UNKNOWN.value
    return over and entry.ended is not None and before["started"] == entry.started is not None


def _on_top(before: Row, row: Row) -> Row:
    kept = {name: before[name] for name in _KEPT if not row[name] and before[name]}
    if row["state"] == JobState.CANCELLED.value and row["started"] is None:
        # Why it was withdrawn goes before why it waited; it has no nodes.
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
                    "body": json.dumps(body, separators=(",", ":")),
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
        "requests": json.dumps(asked, sort_keys=True),
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
    """PostgreSQL has no place for this character, and neither for half of one."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
