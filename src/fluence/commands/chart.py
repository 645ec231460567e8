"""Chart: the plan as a chart for a terminal, and with the queue on the whole screen, drawn again after each
change.

Each of the two is a stream of the view API with its own connection and thread. A stream that ends is
restarted. The main thread draws the screen, and an interrupt ends it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import groupby
from queue import Empty, SimpleQueue
from shutil import get_terminal_size
from typing import Any, Final

import click

from fluence.commands import view_tables
from fluence.commands.view import clean, hosts, pad, width
from fluence.commands.view_api import Unanswered, ViewClient
from fluence.commands.view_tables import HIDDEN, parse_time
from fluence.kube.access import Access
from fluence.units import natural_key, spell_duration

Row = Mapping[str, Any]

_FULL, _PLANNED, _OTHERS, _FREE = "█", "▒", "░", "·"
_TICKS: Final = (60, 300, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 7 * 86_400)  # seconds
_MIN_BAR: Final = 20
_MAX_LABEL: Final = 32


def plan_chart(
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


_AGAIN_SECONDS: Final = 2.0  # before a stream is restarted
_MAX_LINES: Final = 200  # rows to request: more than a screen shows
_ENTER: Final = "\x1b[?1049h\x1b[?25l"  # the alternate screen, without a cursor
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_FINAL: Final = (400, 401, 403)  # errors that repeating does not change


class Screen:
    """What is shown: the last page of each stream, and the errors."""

    def __init__(self, access: Access, namespace: str | None, interval: float) -> None:
        self._access = access
        self._namespace = namespace
        self._interval = interval
        self._events: SimpleQueue[tuple[str, dict[str, Any] | Unanswered]] = SimpleQueue()
        self._pages: dict[str, dict[str, Any]] = {}
        self._faults: dict[str, Unanswered] = {}

    def run(self) -> None:
        """Draw until an interrupt. Raises `Unanswered` if the API refuses."""
        for resource in ("queue", "plan"):
            threading.Thread(target=self._follow, args=(resource,), daemon=True).start()
        click.echo(_ENTER, nl=False)
        try:
            while True:
                self._wait()
                self._draw()
        except KeyboardInterrupt:
            pass
        finally:
            click.echo(_LEAVE, nl=False)
            sys.stdout.flush()

    def _follow(self, resource: str) -> None:
        client = ViewClient(self._access)
        while True:
            try:
                for page in client.events(resource, self._namespace, {"limit": str(_MAX_LINES)}):
                    self._events.put((resource, page))
            except Unanswered as error:
                self._events.put((resource, error))
                if error.status in _FINAL:
                    return
            client.close()
            time.sleep(_AGAIN_SECONDS)

    def _wait(self) -> None:
        """Wait for an event and those that follow at once; at most for the interval, so that the clock
        moves."""
        timeout: float | None = self._interval
        try:
            while True:
                resource, event = self._events.get(timeout=timeout)
                timeout = 0.05
                if isinstance(event, Unanswered):
                    if event.status in _FINAL:
                        raise event
                    self._faults[resource] = event
                else:
                    self._pages[resource] = event
                    self._faults.pop(resource, None)
        except Empty:
            pass

    def _draw(self) -> None:
        text = self._text(view_tables.now_utc())
        click.echo("\x1b[H" + text.replace("\n", "\x1b[K\n") + "\x1b[K\x1b[J", nl=False)
        sys.stdout.flush()

    def _text(self, now: datetime) -> str:
        if self._faults:
            return f"{next(iter(self._faults.values()))}\ntrying again"
        if len(self._pages) < 2:
            return "waiting for the scheduler"
        return picture(self._pages["queue"], self._pages["plan"], now, namespaces=self._namespace is None)


def picture(
    waiting: Mapping[str, Any], planned: Mapping[str, Any], now: datetime, *, namespaces: bool
) -> str:
    """The screen, from two pages."""
    size = get_terminal_size()
    lines = max(4, size.lines - 8)
    half = max(3, lines // 2)
    rows = view_tables.folded(waiting["items"])[:half]
    count = len(waiting["items"]) + waiting["metadata"].get("remainingItemCount", 0)
    head = f"{waiting['metadata']['scheduler']}  {now:%H:%M:%S} UTC  {count} wait"
    shown = view_tables.queue_columns(now, wide=False, namespaces=namespaces)
    table = view_tables.render(view_tables.with_arrays(shown, rows), rows, room=size.columns)
    chart = plan_chart(planned["items"][: lines - half], now, columns=size.columns)
    return f"{click.style(head, bold=True)}\n\n{table}\n\n{chart}"
