"""View: joins a live scheduler, and gives snapshots of it to other threads on request.

Nothing is copied without a request. A snapshot is taken on the event loop of the scheduler, while no cycle
runs, and serves all requests within a quarter of a second, or some seconds longer if no object has changed
and no cycle has decided anything since. During a long cycle, the last snapshot is served.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import time
from dataclasses import fields
from typing import Final

import structlog

from fluence.errors import FluenceError
from fluence.live.scheduler import LiveScheduler
from fluence.model.node import Node
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import Changed, Event
from fluence.schedule.published_settings import DECIDING
from fluence.web.access import Reader
from fluence.web.kept import KeptRows
from fluence.web.snapshot import DecisionLog, Snapshot, take
from fluence.web.whatif import Forked, abandon, fork, work_out

log = structlog.get_logger("fluence.view")

FRESH_SECONDS: Final = 0.25
_UNCHANGED_SECONDS: Final = 5.0  # how long a snapshot is used while nothing happens
_KEPT_SECONDS: Final = 60.0  # without a request
_BUSY_SECONDS: Final = 1.0  # how long to wait for the scheduler's event loop


_SHOWN: Final = tuple(each.name for each in fields(Decisions) if each.name not in ("reminders", "roll"))


def _is_heartbeat(event: Event) -> bool:
    """Whether a node only reports that it is still alive."""
    if not isinstance(event, Changed) or not isinstance(event.old, Node) or not isinstance(event.new, Node):
        return False
    old, new = event.old, event.new
    return (
        old.is_ready == new.is_ready
        and old.labels == new.labels
        and old.spec == new.spec
        and old.status.allocatable == new.status.allocatable
        and old.status.capacity == new.status.capacity
    )


class Busy(FluenceError):
    """There is no snapshot yet."""


def _abandon(begun: concurrent.futures.Future[Forked]) -> None:
    if begun.exception() is None:
        abandon(*begun.result())


class View:
    """Create ``View(live)`` before the scheduler runs. Call ``await view.snapshot()`` on any one event
    loop."""

    def __init__(self, live: LiveScheduler) -> None:
        self.ready = asyncio.Event()
        self.ready.set()
        self.took = 0.0  # seconds that the last snapshot cost the scheduler
        self._live = live
        self._log = DecisionLog()
        self._number = 0
        self._last: Snapshot | None = None
        self._last_at = 0.0
        self._kept = KeptRows()
        self._happened = 0  # events and cycles, counted on the scheduler's event loop
        self._undecided = False  # something has changed since the last cycle
        self._last_happened = -1
        self._asked: concurrent.futures.Future[Snapshot] | None = None
        settings = live.settings
        self._settings = {name.replace("_", "-"): getattr(settings, name) for name in DECIDING}
        live.join(self)

    # -- beside the scheduler --------------------------------------------------------------------------------

    def changed(self, event: Event) -> None:
        """An object changed: the next snapshot shows it."""
        if not _is_heartbeat(event):
            self._happened += 1
            self._undecided = True

    def decided(self, decisions: Decisions) -> None:
        """A cycle has ended."""
        if self._undecided or any(getattr(decisions, name) for name in _SHOWN):
            self._happened += 1
            self._undecided = False
        self._log.note(decisions, self._live.now())
        if self._last is not None and time.monotonic() - self._last_at > _KEPT_SECONDS:
            self._last, self._kept = None, KeptRows()  # they hold pods and nodes that may be gone

    async def run(self) -> None:
        """Nothing to do without a request."""
        await asyncio.Event().wait()

    # -- for other threads -----------------------------------------------------------------------------------

    @property
    def leads(self) -> bool:
        return self._live.leads

    @property
    def scheduler(self) -> str:
        return self._live.settings.scheduler_name

    async def snapshot(self) -> Snapshot | None:
        """The current state, or the one before a long cycle; None if this replica does not lead and so has no
        plan."""
        if not self._live.leads:
            return None
        last = self._last
        if last is not None:
            quiet = self._happened == self._last_happened
            serves = _UNCHANGED_SECONDS if quiet else FRESH_SECONDS
            if time.monotonic() - self._last_at < serves:
                return last
        if self._asked is None or self._asked.done():
            self._asked = self._live.between_cycles(self._take)
        asked = self._asked
        await asyncio.wait({asyncio.wrap_future(asked)}, timeout=_BUSY_SECONDS)
        if asked.done() and not asked.cancelled():
            fault = asked.exception()
            if fault is None:
                last = self._last = asked.result()
            else:
                log.error("no snapshot for the view", exc_info=fault)
        if last is None:
            raise Busy("the scheduler is in a long cycle, and nothing was asked before: try again")
        return last

    async def ask(self, reader: Reader, namespace: str, body: bytes) -> Forked:
        """Have a copy of the scheduler, as it is between two cycles, answer a question about manifests."""
        live = self._live

        def begin() -> Forked:
            if not live.leads or live.scheduler.broken:
                raise Busy("the scheduler cannot be asked now: try again")
            now = live.now()
            return fork(
                lambda: work_out(
                    live.scheduler, live.untold, now, reader=reader, namespace=namespace, body=body
                )
            )

        begun = live.between_cycles(begin)
        try:
            async with asyncio.timeout(_BUSY_SECONDS):
                return await asyncio.shield(asyncio.wrap_future(begun))
        except BaseException as error:
            begun.add_done_callback(_abandon)
            if isinstance(error, TimeoutError):
                raise Busy("the scheduler is in a long cycle: try again") from None
            raise

    def _take(self) -> Snapshot:
        began = time.perf_counter()
        self._number += 1
        self._last_happened = self._happened
        live = self._live
        snapshot = take(
            live.scheduler,
            live.now(),
            number=self._number,
            decisions=self._log.entries,
            settings=self._settings,
            kept=self._kept,
        )
        self.took = time.perf_counter() - began
        self._last_at = time.monotonic()
        return snapshot
