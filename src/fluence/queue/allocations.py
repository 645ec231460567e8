"""Allocations: which task holds what, from when until when, and which reservations there are.

The planners of all kinds keep them here, and the queue asks here whose end has passed: a job's end is kept
in one place, `Allocation.end`, with one index of ends. The ledger and the timelines of the planners are kept
in step with it. What a scheduling pass adds and removes can be undone until it is settled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

Undo = Callable[[], object]

# What was done: a task that was added, reservations that were dropped, and how the planner undoes its part.
_Step = tuple["Allocation | None", "dict[str, Allocation] | None", Undo | None]

_STALE = 1000  # entries of the index that may be out of date before it is made anew


@dataclass(slots=True, eq=False)
class Allocation:
    """What one task holds, or will hold if it is a reservation. Times are milliseconds."""

    task: str
    request: Hashable
    start: int
    end: int  # by its limit, moved on while it runs past that
    reserved: bool = False  # it is for later
    number: int = -1  # of the job in the matcher's ledger; -1: not in it yet
    units: int = 0  # where only counts are planned


@dataclass(slots=True)
class Allocations:
    """The tasks that hold resources, by name, and those that will."""

    running: dict[str, Allocation] = field(default_factory=dict)
    reserved: dict[str, Allocation] = field(default_factory=dict)
    _steps: list[_Step] = field(default_factory=list)  # since it was settled
    _ends: list[tuple[int, int, Allocation]] = field(default_factory=list)  # a heap; some are out of date
    _serial: int = 0

    def __contains__(self, task: str) -> bool:
        return task in self.running or task in self.reserved

    def add(self, allocation: Allocation, undo: Undo | None = None) -> None:
        """A task has resources now, or will; ``undo`` takes back what the planner did for it besides."""
        if allocation.reserved:
            self.reserved[allocation.task] = allocation
        else:
            self.running[allocation.task] = allocation
            self._note_end(allocation)
        self._steps.append((allocation, None, undo))

    def drop(self, allocation: Allocation, undo: Undo | None = None) -> None:
        """Give up a reservation; ``undo`` makes it again."""
        del self.reserved[allocation.task]
        self._steps.append((None, {allocation.task: allocation}, undo))

    def drop_all(self) -> None:
        """Give up all reservations, where the planner undoes that by itself."""
        dropped = dict(self.reserved)
        self.reserved.clear()
        self._steps.append((None, dropped, None))

    def finish(self, allocation: Allocation) -> None:
        """A running task is over; nothing undoes that."""
        del self.running[allocation.task]

    def extend(self, allocation: Allocation, end: int) -> None:
        """A task that runs has its resources until then."""
        if end != allocation.end:
            allocation.end = end
            self._note_end(allocation)

    # -- taking back -----------------------------------------------------------------------------------------

    def mark(self) -> int:
        """A moment to which `undo` can go back."""
        return len(self._steps)

    def undo(self, mark: int) -> None:
        """Take back what was added and dropped since the mark, the last first."""
        while len(self._steps) > mark:
            added, dropped, undo = self._steps.pop()
            if added is not None:
                del (self.reserved if added.reserved else self.running)[added.task]
            if dropped is not None:
                self.reserved.update(dropped)
            if undo is not None:
                undo()

    def settle(self) -> None:
        """What was done stays."""
        self._steps.clear()

    # -- ends ------------------------------------------------------------------------------------------------

    def next_end(self) -> int | None:
        """When the next running task reaches its end."""
        while self._ends and not self._is_current(self._ends[0]):
            heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def overdue(self, now: int) -> list[Allocation]:
        """The running tasks whose end has come; each is told once, until it is extended."""
        found: dict[Allocation, None] = {}  # NB an end that was moved away and back is in the index twice
        while (end := self.next_end()) is not None and end <= now:
            found[heappop(self._ends)[2]] = None
        return list(found)

    def _note_end(self, allocation: Allocation) -> None:
        if len(self._ends) > 2 * len(self.running) + _STALE:
            self._ends = [each for each in self._ends if self._is_current(each)]
            heapify(self._ends)
        self._serial += 1
        heappush(self._ends, (allocation.end, self._serial, allocation))

    def _is_current(self, item: tuple[int, int, Allocation]) -> bool:
        end, _, allocation = item
        return allocation.end == end and self.running.get(allocation.task) is allocation
