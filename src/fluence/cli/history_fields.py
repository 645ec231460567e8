"""The columns of `fluence history`: what each says, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias

from fluence.errors import InvalidInput
from fluence.units import format_amount, spell_duration

Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HistoryField:
    """A column: its value of a row at a time, and how a table shows it."""

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


def _wait(row: Row, now: int) -> float | None:
    end = row["started"] if row["started"] is not None else row["ended"]
    return float(max(0, (now if end is None else end) - row["submitted"])) / 1000


def _elapsed(row: Row, now: int) -> float | None:
    if row["started"] is None:
        return None
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
        _column("state", "where it is, or how it ended"),
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


def chosen(text: str | None, *, wide: bool, every: bool) -> list[HistoryField]:
    """The columns that were asked for, or those of the output."""
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


def table() -> list[list[str]]:
    """All columns and what they say."""
    return [[each.name, each.about] for each in FIELDS.values()]


def _hours(name: str, about: str, column: str, divisor: int) -> HistoryField:
    return HistoryField(
        name, about, lambda row, now: round(row[column] / divisor, 3), lambda value: f"{value:.2f}"
    )


def sums(by: Sequence[str], text: str | None) -> list[HistoryField]:
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


def gap(row: Row) -> dict[str, Any]:
    """What is missing, for people and programs."""
    return {
        "began": _iso(row["began"]),
        "ended": _iso(row["ended"]),
        "lost": row["lost"],
        "reason": row["reason"],
        "scheduler": row["scheduler"],
        "cluster": row["cluster"],
    }
