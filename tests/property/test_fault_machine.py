"""An exception at any call inside the scheduler stops nobody: nothing starts in part, nothing leaks.

The machine is the scheduler's own (`test_scheduler_machine`), with one more rule: the next time that the
scheduler is called, one of the calls inside it raises. What must hold is the same as without faults.
"""

from __future__ import annotations

import math
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import rule

from fluence.schedule.cycle import Decisions
from fluence.schedule.events import Event
from tests.property.test_scheduler_machine import POLICIES, Machine
from tests.unit.schedule.driver import Driver

_INSIDE = tuple(
    f"{os.sep}fluence{os.sep}{room}{os.sep}" for room in ("cluster", "placer", "queue", "match", "graph")
)
_CYCLE = f"{os.sep}fluence{os.sep}schedule{os.sep}"
_GUARDS = ("scheduler.py", "step.py", "events.py", "events.py")  # these catch what the others raise


class Injected(Exception):
    """Made by the test."""


RAISED: Counter[str] = Counter()  # by function
_SOAK = int(os.environ.get("FLUENCE_FAULTS", "0"))
_FIRST = int(os.environ.get("FLUENCE_SEED", "0"))  # world


@contextmanager
def fault_at(call: int) -> Iterator[Callable[[], int]]:
    """Raise at one of the calls of the scheduler's own functions; yields how many calls are left until it."""
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
            where = f"{Path(name).name}: {frame.f_code.co_name}"
            RAISED[where] += 1
            raise Injected(where)

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield lambda: left
    finally:
        sys.settrace(before)


class FaultyDriver(Driver):
    """Armed, it fails once, at the call that it was told: in this run of the scheduler or a later one."""

    def __init__(self, **config: Any) -> None:
        super().__init__(strict=False, **config)
        self.armed: int | None = None

    def handle(self, *events: Event, decide: bool = False, now: int | None = None) -> Decisions:
        armed, self.armed = self.armed, None
        if armed is None:
            decisions = super().handle(*events, decide=decide, now=now)
        else:
            with fault_at(armed) as left:
                decisions = super().handle(*events, decide=decide, now=now)
            self.armed = left() if left() >= 0 else None
        for fault in decisions.faults:
            assert isinstance(fault.error, Injected), repr(fault.error)
        return decisions


CALLS = st.integers(0, 400) | st.integers(0, 5000)  # one cycle takes some hundreds of them, a few thousands


class FaultMachine(Machine):
    def fresh(self) -> Driver:
        return FaultyDriver(
            native=True, release_each=self.each, queue_policy=self.policy, backoff=(100, 1000)
        )

    @rule(call=CALLS)
    def fail_soon(self, call: int) -> None:
        assert isinstance(self.scheduler, FaultyDriver)
        self.scheduler.armed = call

    @rule(call=CALLS)
    def fail_in_a_cycle(self, call: int) -> None:
        self.fail_soon(call)
        self.cycle()


TestFaults = FaultMachine.TestCase
TestFaults.settings = settings(
    max_examples=30,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


class RandomWorld(FaultMachine):
    """The same without Hypothesis: it looks for small worlds, and faults need large ones."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng

    def pick(self, data: st.DataObject, some: Sequence[str]) -> str:
        return self.rng.choice(some)


def a_world_with_faults(seed: int) -> None:
    rng = random.Random(seed)
    data: Any = None
    machine = RandomWorld(rng)
    sizes = [rng.randint(1, 4) for _ in range(rng.randint(1, 4))]
    machine.begin(policy=rng.choice(POLICIES), each=rng.random() < 0.5, sizes=sizes, looks=None)
    fates = ("ok", "ok", "ok", "told later", "again", "lost", "impossible")
    steps: list[Callable[[], None]] = [
        *[lambda: _submit(machine, rng)] * 4,
        *[machine.cycle] * 4,
        *[lambda: machine.answer(data=data, fate=rng.choice(fates)) if machine.flight else None] * 4,
        *[lambda: machine.end(data=data, phase="Succeeded")] * 2,
        lambda: machine.wait(ms=rng.randint(1, 20_000)),
        lambda: machine.delete(data=data),
        lambda: machine.foreign(data=data, cpu=1, namespace="default"),
        lambda: machine.forge(data=data),
        lambda: machine.poison(data=data, cpu="1e30", placed=rng.random() < 0.3, size=2),
        lambda: machine.add_node(cpu=rng.randint(1, 4)),
        lambda: machine.cordon(data=data, closed=rng.random() < 0.5),
        lambda: machine.remove_node(data=data),
    ]
    for _ in range(60):
        if rng.random() < 0.5:
            machine.fail_soon(call=int(math.exp(rng.uniform(0, math.log(5000)))))
        rng.choice(steps)()
    machine.teardown()


def _submit(machine: FaultMachine, rng: random.Random) -> None:
    size = rng.choice((1, 1, 2, 3))
    limit = rng.choice((None, 5, 30))
    machine.submit(
        size=size,
        minimum=rng.randint(1, size),
        cpu=rng.randint(1, 3),
        mixed=rng.random() < 0.2,
        limit=limit,
        priority=rng.choice((0, 0, 5)),
        namespace="default",
    )


@pytest.mark.parametrize("seed", [40_104_292])
def test_worlds_that_make_explore_found(seed: int) -> None:
    """40104292: surplus pods that say that they take 1e30 cores could be ended."""
    a_world_with_faults(seed)


@pytest.mark.seeded
def test_faults_at_random_points_of_large_worlds(capsys: pytest.CaptureFixture[str]) -> None:
    """`make soak` asks for 10,000 faults."""
    wanted, seed = _SOAK or 150, _FIRST
    RAISED.clear()
    while RAISED.total() < wanted:
        try:
            a_world_with_faults(seed)
        except BaseException as error:
            error.add_note(f"in world {seed}")
            raise
        seed += 1
    with capsys.disabled():
        if _SOAK:
            worlds = seed - _FIRST
            print(
                f"\n{RAISED.total()} faults in {len(RAISED)} functions, in {worlds} worlds: nobody was harmed"
            )
