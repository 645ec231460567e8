"""Allocations: the running and the reserved tasks of a planner, by name.

An `Allocation` is a task's handle to its job in the ledger (`fluence.graph.ledger`), which has its times. All
planners keep their allocations here, with one index of ends, in which the queue finds the tasks whose end has
passed. Changes by a scheduling pass can be undone until they are settled. If there are quotas, `QuotaBook`
follows each change.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from fluence.graph.ledger import LedgerJob

if TYPE_CHECKING:
    from fluence.queue.quota import QuotaBook

_STALE_ENDS = 1000  # entries of the index of ends that may be out of date before it is rebuilt


@dataclass(slots=True, eq=False)
class Allocation:
    """The resources of one task, now or, for a reservation, in the future."""

    task: str
    request: Hashable
    job: LedgerJob  # in the ledger; while only counts are planned, not yet in it
    units: int = 0  # used by planners with counts

    @property
    def start(self) -> int:
        return self.job.start

    @property
    def end(self) -> int:
        """The end by its limit, or later if it exceeds the limit."""
        return self.job.end

    @property
    def reserved(self) -> bool:
        """Whether it is a reservation."""
        return self.job.reserved

    @property
    def number(self) -> int:
        """The number of its job in the ledger; -1: it is not in the ledger yet."""
        return self.job.id


@dataclass(slots=True)
class Allocations:
    """The allocations of one planner."""

    running: dict[str, Allocation] = field(default_factory=dict)
    reserved: dict[str, Allocation] = field(default_factory=dict)
    _steps: list[tuple[Allocation, bool]] = field(default_factory=list)  # added or dropped, not settled yet
    _ends: list[tuple[int, int, Allocation]] = field(default_factory=list)  # a heap; some are out of date
    _serial: int = 0
    quotas: QuotaBook | None = None

    def __contains__(self, task: str) -> bool:
        return task in self.running or task in self.reserved

    def add(self, allocation: Allocation) -> None:
        """Add a running task or a reservation."""
        if allocation.reserved:
            self.reserved[allocation.task] = allocation
        else:
            self.running[allocation.task] = allocation
            self.note_end(allocation)
        self._steps.append((allocation, True))
        if self.quotas is not None:
            self.quotas.added(allocation)

    def drop(self, allocation: Allocation) -> None:
        """Give up a reservation."""
        del self.reserved[allocation.task]
        self._steps.append((allocation, False))
        if self.quotas is not None:
            self.quotas.removed(allocation)

    def drop_all(self) -> None:
        """Give up all reservations."""
        self._steps.extend((allocation, False) for allocation in self.reserved.values())
        if self.quotas is not None:
            for allocation in self.reserved.values():
                self.quotas.removed(allocation)
        self.reserved.clear()

    def finish(self, allocation: Allocation) -> None:
        """A running task is over. This cannot be undone."""
        del self.running[allocation.task]
        if self.quotas is not None:
            self.quotas.removed(allocation)

    # -- undoing ---------------------------------------------------------------------------------------------

    def mark(self) -> int:
        """A position to which `undo` can return."""
        return len(self._steps)

    def undo(self, mark: int) -> None:
        """Undo what was added and dropped since the mark, the last first."""
        while len(self._steps) > mark:
            allocation, was_added = self._steps.pop()
            if not was_added:
                self.reserved[allocation.task] = allocation
            else:
                del (self.reserved if allocation.reserved else self.running)[allocation.task]
            if self.quotas is not None:
                (self.quotas.removed if was_added else self.quotas.added)(allocation)

    def settle(self) -> None:
        """Keep all changes: they cannot be undone any more."""
        self._steps.clear()

    # -- ends ------------------------------------------------------------------------------------------------

    def next_end(self) -> int | None:
        """When the next running task reaches its end."""
        while self._ends and not self._is_current(self._ends[0]):
            heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def overdue(self, now: int) -> list[Allocation]:
        """The running tasks whose end has passed; each is returned only once, unless it is extended."""
        overdue: dict[Allocation, None] = {}  # NB an end that was moved away and back is in the index twice
        while (end := self.next_end()) is not None and end <= now:
            overdue[heappop(self._ends)[2]] = None
        return list(overdue)

    def note_end(self, allocation: Allocation) -> None:
        """The end of a running task has changed."""
        if len(self._ends) > 2 * len(self.running) + _STALE_ENDS:
            self._ends = [entry for entry in self._ends if self._is_current(entry)]
            heapify(self._ends)
        self._serial += 1
        heappush(self._ends, (allocation.end, self._serial, allocation))
        if self.quotas is not None:
            self.quotas.moved(allocation)

    def _is_current(self, entry: tuple[int, int, Allocation]) -> bool:
        end, _, allocation = entry
        return allocation.end == end and self.running.get(allocation.task) is allocation
