"""An exception at any call inside the scheduler stops nobody: nothing starts in part, nothing leaks.

The machine is the scheduler's own (`test_scheduler_machine`), with one more rule: the next time that the
scheduler is called, one of the calls inside it raises. What must hold is the same as without faults.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import rule

from fluence.schedule.cycle import Decisions
from fluence.schedule.events import Event
from tests.property.test_scheduler_machine import Machine
from tests.unit.schedule.driver import Driver

_INSIDE = tuple(
    f"{os.sep}fluence{os.sep}{room}{os.sep}" for room in ("cluster", "placer", "queue", "match", "graph")
)
_CYCLE = f"{os.sep}fluence{os.sep}schedule{os.sep}"
_GUARDS = ("scheduler.py", "quarantine.py", "events.py", "actions.py")  # these catch what the others raise


class Injected(Exception):
    """Made by the test."""


@contextmanager
def fault_at(call: int) -> Iterator[None]:
    """Raise at one of the calls of the scheduler's own functions."""
    left = call

    def trace(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal left
        if event != "call" or left < 0:
            return
        name = frame.f_code.co_filename
        inside = any(each in name for each in _INSIDE) or (_CYCLE in name and not name.endswith(_GUARDS))
        if not inside or frame.f_code.co_name.startswith("<"):
            return
        left -= 1
        if left < 0:
            raise Injected(f"{Path(name).name}: {frame.f_code.co_name}")

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


class FaultyDriver(Driver):
    """Armed, it fails once, at the call that it was told."""

    def __init__(self, **config: Any) -> None:
        super().__init__(strict=False, **config)
        self.armed: int | None = None

    def handle(self, *events: Event, decide: bool = False, now: int | None = None) -> Decisions:
        armed, self.armed = self.armed, None
        if armed is None:
            decisions = super().handle(*events, decide=decide, now=now)
        else:
            with fault_at(armed):
                decisions = super().handle(*events, decide=decide, now=now)
        for fault in decisions.faults:
            assert isinstance(fault.error, Injected), repr(fault.error)
        return decisions


class FaultMachine(Machine):
    def fresh(self) -> Driver:
        return FaultyDriver(
            native=True, release_each=self.each, queue_policy=self.policy, backoff=(100, 1000)
        )

    @rule(call=st.integers(0, 400))
    def fail_soon(self, call: int) -> None:
        assert isinstance(self.scheduler, FaultyDriver)
        self.scheduler.armed = call

    @rule(call=st.integers(0, 400))
    def fail_in_a_cycle(self, call: int) -> None:
        self.fail_soon(call)
        self.cycle()


TestFaults = FaultMachine.TestCase
TestFaults.settings = settings(
    max_examples=int(os.environ.get("FLUENCE_FAULTS", "30")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
