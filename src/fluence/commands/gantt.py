"""Gantt: draws the plan as a chart for a terminal: one line per gang or per node, time from left to right.
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import groupby
from typing import Any, Final

import click

from fluence.commands.view import clean, hosts, pad, width
from fluence.commands.view_tables import HIDDEN, parse_time
from fluence.text import natural_key
from fluence.units import spell_duration

Row = Mapping[str, Any]

_FULL, _PLANNED, _OTHERS, _FREE = "█", "▒", "░", "·"
_TICKS: Final = (60, 300, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 7 * 86_400)  # seconds
_MIN_BAR: Final = 20
_MAX_LABEL: Final = 32


def chart(
    rows: Sequence[Row], now: datetime, *, columns: int, until: timedelta | None = None, by_node: bool = False
) -> str:
    """The plan from now on, up to ``until``, or until all work with an end has ended."""
    spans = [span for row in rows if (span := _span(row, now)) is not None]
    if not spans:
        return "nothing runs, and nothing is planned"
    ends = [end for _, _, end in spans if end is not None] + [start for _, start, _ in spans]
    seconds = until.total_seconds() if until is not None else max((max(ends) - now).total_seconds(), 60.0)
    lines = _by_node(spans) if by_node else _by_gang(spans)
    if not lines:
        return "no node is taken, and none is planned"
    label = min(_MAX_LABEL, max(width(title) for title, _, _ in lines))
    bar = max(_MIN_BAR, columns - label - 4)
    notes = [note for _, _, note in lines]
    if not by_node:
        bar = max(_MIN_BAR, bar - min(24, max(map(len, notes))) - 2)
    chart_lines = [f"{'':<{label}}  {_axis(now, seconds, bar)}"]
    for title, parts, note in lines:
        chart_lines.append(
            f"{pad(_fit(title, label), label)}  {_bar(parts, now, seconds, bar)}  {note}".rstrip()
        )
    legend = f"{_FULL} runs  {_PLANNED} planned  {_OTHERS} another namespace's"
    step = spell_duration(max(1, round(seconds / bar)) * 1000)
    return "\n".join([*chart_lines, "", f"{legend}; one character is {step}; times are UTC"])


_Span = tuple[Row, datetime, datetime | None]


def _span(row: Row, now: datetime) -> _Span | None:
    start, end = parse_time(row.get("from")), parse_time(row.get("until"))
    return None if start is None else (row, start, end)


def _by_gang(spans: Sequence[_Span]) -> list[tuple[str, list[_Span], str]]:
    lines = []
    for row, start, end in spans:
        title = HIDDEN if row.get("hidden") else f"{clean(row['namespace'])}/{clean(row['name'])}"
        names = row.get("nodes") or []
        text = hosts(names) if names else "-"
        lines.append((title, [(row, start, end)], text if len(text) <= 24 else f"{len(names)} nodes"))
    return lines


def _by_node(spans: Sequence[_Span]) -> list[tuple[str, list[_Span], str]]:
    nodes: dict[str, list[_Span]] = {}
    for span in spans:
        for node in span[0].get("nodes") or ():
            nodes.setdefault(node, []).append(span)
    return [(clean(node), nodes[node], "") for node in sorted(nodes, key=natural_key)]


def _bar(parts: Sequence[_Span], now: datetime, seconds: float, cells: int) -> str:
    marks = [(0, cells, _FREE, "")]  # from a cell until another; later marks cover earlier ones
    for row, start, end in parts:
        first = max(0, round((start - now).total_seconds() / seconds * cells))
        last = cells if end is None else round((end - now).total_seconds() / seconds * cells)
        last = min(cells, max(first + 1, last))
        runs = row.get("state") not in ("reserved", "pending")
        mark = _OTHERS if row.get("hidden") else _FULL if runs else _PLANNED
        color = "white" if row.get("hidden") else "green" if runs else "cyan"
        if first < last:
            marks = [
                *((at, min(to, first), old, shade) for at, to, old, shade in marks if at < first),
                (first, last, mark, color),
                *((max(at, last), to, old, shade) for at, to, old, shade in marks if to > last),
            ]
    return "".join(
        _styled("".join(mark * (to - at) for at, to, mark, _ in same), color)
        for color, same in groupby(marks, key=lambda mark: mark[3])
    )


@lru_cache(maxsize=4096)
def _styled(text: str, color: str) -> str:
    return click.style(text, fg=color) if color else click.style(text, dim=True)


def _axis(now: datetime, seconds: float, cells: int) -> str:
    """Times above the bars, as many as fit."""
    step = next((tick for tick in _TICKS if seconds / tick * 8 <= cells), _TICKS[-1])
    shown = list("now".ljust(cells))
    far = seconds > 86_400
    first = now.timestamp() // step * step + step
    taken = 4
    for number in range(int(seconds // step) + 1):
        at = first + number * step
        cell = round((at - now.timestamp()) / seconds * cells)
        moment = datetime.fromtimestamp(at, now.tzinfo)
        text = moment.strftime("%d %Hh" if far else "%H:%M")
        if cell < taken or cell + len(text) > cells:
            continue
        shown[cell : cell + len(text)] = list(text)
        taken = cell + len(text) + 1
    return "".join(shown).rstrip()


def _fit(text: str, room: int) -> str:
    return text if width(text) <= room else text[: room - 1] + "…"
