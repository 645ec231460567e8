"""When a snapshot is taken: on request, and again only after something has happened."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from typing import Any

import pytest

from fluence.schedule.cycle import Decisions
from fluence.schedule.events import Changed
from fluence.schedule.settings import SchedulerSettings
from fluence.web import view as view_module
from fluence.web.view import View
from tests.unit.schedule.test_promised_starts import node
from tests.unit.web.field import Field, gang


class Live:
    """The scheduler of a field, as a view knows it."""

    def __init__(self, field: Field) -> None:
        self.field = field
        self.scheduler = field.driver.scheduler
        self.settings = SchedulerSettings()
        self.leads = True

    def join(self, companion: Any) -> None:
        self.companion = companion

    def now(self) -> int:
        return self.field.now

    def between_cycles(self, work: Callable[[], Any]) -> concurrent.futures.Future[Any]:
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        done.set_result(work())
        return done


def test_a_snapshot_serves_until_something_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_module, "FRESH_SECONDS", 0.0)
    field = Field(nodes=1)
    view = View(Live(field))  # type: ignore[arg-type]

    async def work() -> None:
        first = await view.snapshot()
        assert first is not None and first.number == 1
        assert await view.snapshot() is first, "nothing has happened"
        view.changed(Changed(node("n9"), node("n9")))
        view.decided(Decisions())
        assert await view.snapshot() is first, "a heartbeat, and a cycle that decided nothing"
        view.changed(Changed(None, node("n9")))
        second = await view.snapshot()
        assert second is not None and second.number == 2
        field.submit(gang("a", 1))
        view.decided(Decisions())
        third = await view.snapshot()
        assert third is not None and len(third.sets) == 1, "the cycle after a change counts, too"
        monkeypatch.setattr(view_module, "_UNCHANGED_SECONDS", 0.0)
        assert await view.snapshot() is not third, "and not for ever"

    asyncio.run(work())
