"""Due times: records by when something is due for them, the earliest first.

What is due moves, and records leave: an entry that is out of date is dropped when its time comes, or by
`tidy`, so that there are never many more of them than of records.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

from fluence.queue.job import JobRecord

_FEW = 64  # entries, with which nothing is done


class DueTimes:
    """``stands`` says whether a time is still that of a record."""

    def __init__(self, stands: Callable[[int, JobRecord], bool]) -> None:
        self._stands = stands
        self._heap: list[tuple[int, int, JobRecord]] = []
        self._most = _FEW

    def add(self, at: int, record: JobRecord) -> None:
        heappush(self._heap, (at, record.order[-1], record))

    def tidy(self) -> None:
        """Drop what is out of date, if that may be much. Not while records are being changed that may be
        changed back."""
        if len(self._heap) > self._most:
            kept = {each[2]: each for each in self._heap if self._stands(each[0], each[2])}
            self._heap = list(kept.values())
            heapify(self._heap)
            self._most = max(_FEW, 2 * len(self._heap))

    def next(self) -> int | None:
        """The earliest time."""
        while self._heap and not self._stands(self._heap[0][0], self._heap[0][2]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop(self, now: int) -> JobRecord | None:
        """A record whose time has come."""
        at = self.next()
        return None if at is None or at > now else heappop(self._heap)[2]
