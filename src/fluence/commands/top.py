"""Top: the queue and the plan on the whole screen of a terminal, drawn again whenever one of them changes.

Each of the two is a stream of the view API with its own connection and thread. A stream that ends is
restarted. The main thread draws the screen, and an interrupt ends it.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from datetime import datetime
from queue import Empty, SimpleQueue
from shutil import get_terminal_size
from typing import Any, Final

import click

from fluence.commands import gantt, view_tables
from fluence.commands.view_api import Unanswered, ViewClient
from fluence.kube.access import Access

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
    chart = gantt.chart(planned["items"][: lines - half], now, columns=size.columns)
    return f"{click.style(head, bold=True)}\n\n{table}\n\n{chart}"
