"""CycleBudget: how long a cycle may plan, and where the next one continues.

Rebuilding a plan of thousands of reservations takes seconds. The live scheduler must send binds and handle
events meanwhile, so a cycle plans for a limited time, and the next one continues from there. Without a timer
there is no limit, and decisions depend on the input alone, as in the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from fluence.queue.job import Order

_FIRST: Order = (-(1 << 62), 0, 0, 0, 0)
_WEIGHT = 0.2  # of the last pass in the estimated cost of a try


class Sweep(Enum):
    """A task that goes through the queue from front to back, over several cycles if necessary."""

    TRY = "try"  # jobs without a reservation
    REPAIR = "repair"  # jobs with a reservation whose resources are gone
    START = "start"  # jobs with a reservation that may be able to start now
    MOVE = "move"  # jobs with a reservation that may be able to move ahead


@dataclass(slots=True)
class SweepProgress:
    """The position of each sweep. If a sweep is requested again while it runs, it restarts only after it has
    reached the end. Otherwise jobs at the back of the queue would never get their turn."""

    _at: dict[Sweep, Order] = field(default_factory=dict)
    _again: set[Sweep] = field(default_factory=set)

    def want(self, *sweeps: Sweep) -> None:
        for sweep in sweeps:
            if self._at.setdefault(sweep, _FIRST) != _FIRST:
                self._again.add(sweep)

    def at(self, sweep: Sweep) -> Order | None:
        """Where the sweep continues; None: it was not requested."""
        return self._at.get(sweep)

    def stop(self, sweep: Sweep, before: Order) -> None:
        """The budget was spent before the job with this order."""
        self._at[sweep] = before

    def end(self, sweep: Sweep) -> None:
        """The sweep has reached the end of the queue."""
        self._at.pop(sweep, None)
        if sweep in self._again:
            self._again.discard(sweep)
            self._at[sweep] = _FIRST

    def done(self, *sweeps: Sweep) -> None:
        """These sweeps are not needed any more: another pass has done their work."""
        for sweep in sweeps:
            self._at.pop(sweep, None)
            self._again.discard(sweep)

    @property
    def is_amending(self) -> bool:
        """Whether a sweep over reservations is under way."""
        return any(sweep is not Sweep.TRY for sweep in self._at)

    def __bool__(self) -> bool:
        """Whether a sweep is under way."""
        return bool(self._at)


class CycleBudget:
    """``seconds`` per cycle for planning, measured by a timer; without either, there is no limit."""

    def __init__(self, seconds: float | None, timer: Callable[[], float] | None) -> None:
        self._seconds = seconds or 0.0
        self._timer = None if seconds is None else timer
        self._began = 0.0
        self._per_try = 0.0

    def begin(self) -> None:
        if self._timer is not None:
            self._began = self._timer()

    @property
    def is_limited(self) -> bool:
        return self._timer is not None

    @property
    def is_spent(self) -> bool:
        return self._timer is not None and self._timer() - self._began >= self._seconds

    @property
    def is_far_exceeded(self) -> bool:
        """Whether the budget is exceeded so far that even a rebuild must stop."""
        return self._timer is not None and self._timer() - self._began >= 2 * self._seconds

    def allows(self, tries: int) -> bool:
        """Whether this number of tries probably fits into the budget."""
        return self._timer is None or tries * self._per_try <= self._seconds

    def learn(self, tries: int) -> None:
        """Learn the cost of a try from the tries since `begin`."""
        if self._timer is not None and tries:
            cost = (self._timer() - self._began) / tries
            self._per_try += _WEIGHT * (cost - self._per_try) if self._per_try else cost
