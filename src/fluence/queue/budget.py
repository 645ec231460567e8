"""CycleBudget: how long a cycle may plan, and where the next one goes on.

A plan of thousands of reservations takes seconds to make anew. The live scheduler has binds to send and
events to take in, so a cycle plans for a while, keeps what it has, and the next one goes on from there.
Without a timer there is no end to it, and what is decided follows from the input alone: so it is in the
simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from fluence.queue.job import Order

_FIRST: Order = (-(1 << 62), 0, 0, 0)
_WEIGHT = 0.2  # of the last pass, in what a try is thought to cost


class Sweep(Enum):
    """What goes through the queue from front to back, over several cycles if need be."""

    TRY = "try"  # jobs without a reservation
    REPAIR = "repair"  # jobs with one whose place is gone
    START = "start"  # jobs with one, which may be able to start now
    MOVE = "move"  # the same, to give them an earlier one


@dataclass(slots=True)
class SweepProgress:
    """Where each sweep is. One that is wanted again while it is under way begins anew after its end, not
    before: else those at the back would never have their turn."""

    _at: dict[Sweep, Order] = field(default_factory=dict)
    _again: set[Sweep] = field(default_factory=set)

    def want(self, *sweeps: Sweep) -> None:
        for sweep in sweeps:
            if self._at.setdefault(sweep, _FIRST) != _FIRST:
                self._again.add(sweep)

    def at(self, sweep: Sweep) -> Order | None:
        """Where to go on; None: it is not wanted."""
        return self._at.get(sweep)

    def stop(self, sweep: Sweep, before: Order) -> None:
        """Out of time, before the job with this order."""
        self._at[sweep] = before

    def end(self, sweep: Sweep) -> None:
        """All had their turn."""
        self._at.pop(sweep, None)
        if sweep in self._again:
            self._again.discard(sweep)
            self._at[sweep] = _FIRST

    def done(self, *sweeps: Sweep) -> None:
        """What they are for has been done by other means."""
        for sweep in sweeps:
            self._at.pop(sweep, None)
            self._again.discard(sweep)

    @property
    def is_amending(self) -> bool:
        """Whether reservations wait for their turn."""
        return any(sweep is not Sweep.TRY for sweep in self._at)

    def __bool__(self) -> bool:
        """Whether a sweep is under way."""
        return bool(self._at)


class CycleBudget:
    """``seconds`` for planning per cycle, by a timer; without either there is no end to it."""

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
        """Whether even work that should not be cut short has taken too long."""
        return self._timer is not None and self._timer() - self._began >= 2 * self._seconds

    def allows(self, tries: int) -> bool:
        """Whether so many tries will probably be made in time."""
        return self._timer is None or tries * self._per_try <= self._seconds

    def learn(self, tries: int) -> None:
        """So many tries were made since it began."""
        if self._timer is not None and tries:
            cost = (self._timer() - self._began) / tries
            self._per_try += _WEIGHT * (cost - self._per_try) if self._per_try else cost
