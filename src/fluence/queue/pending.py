"""The waiting jobs: in the order of the queue, by due time, and by dependency.

`Pending` sorts them, and has columns that show which of them might fit. `DueTimes` is a heap of times; an
entry that is out of date is dropped when its time comes, or by `tidy`, so that there are never many more
entries than records. `Dependencies` has the jobs that wait for other jobs to end: afterok, afterany,
singleton.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from heapq import heapify, heappop, heappush

import numpy as np

from fluence.errors import NotFound
from fluence.graph.graph import Ints
from fluence.model.reason import Code, Reason
from fluence.queue.job import Dependency, JobRecord, Order, Submission

_CHUNK = 1024  # places that are compared at once


class Pending:
    """Records sorted by their order; ``shape`` and ``limit`` are columns over them."""

    def __init__(self) -> None:
        self.records: list[JobRecord] = []
        self._orders: list[Order] = []
        self._shape: Ints = np.zeros(16, np.int64)
        self._limit: Ints = np.zeros(16, np.int64)

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[JobRecord]:
        return iter(self.records)

    def __contains__(self, record: JobRecord) -> bool:
        place = bisect_left(self._orders, record.order)
        return place < len(self.records) and self.records[place] is record

    def before(self, order: Order) -> int:
        """How many records come before an order, or before all that begin with it."""
        return bisect_left(self._orders, order)

    def add(self, record: JobRecord) -> int:
        """Insert a record and return its place."""
        place, size = bisect_left(self._orders, record.order), len(self.records)
        if size == len(self._shape):
            self._shape, self._limit = np.resize(self._shape, 2 * size), np.resize(self._limit, 2 * size)
        for column, value in ((self._shape, record.shape), (self._limit, record.limit)):
            column[place + 1 : size + 1] = column[place:size]
            column[place] = value
        self.records.insert(place, record)
        self._orders.insert(place, record.order)
        return place

    def remove(self, record: JobRecord) -> int:
        """Remove a record and return the place that it had."""
        place, size = self.place(record), len(self.records)
        for column in (self._shape, self._limit):
            column[place : size - 1] = column[place + 1 : size]
        del self.records[place], self._orders[place]
        return place

    def exchange(self, orders: Mapping[JobRecord, Order]) -> None:
        """Exchange the places of some records: each gets a new order, and together they keep the same
        places."""
        places = sorted(self.place(record) for record in orders)
        for record, order in orders.items():
            record.order = order
        for place, record in zip(places, sorted(orders, key=lambda each: each.order), strict=True):
            self.records[place], self._orders[place] = record, record.order
            self._shape[place], self._limit[place] = record.shape, record.limit

    def reorder(self, records: list[JobRecord]) -> None:
        """The same records have new orders; ``records`` is the new sequence."""
        size = len(records)
        self.records, self._orders = records, [record.order for record in records]
        self._shape[:size] = [record.shape for record in records]
        self._limit[:size] = [record.limit for record in records]

    def reshape(self) -> None:
        """The shapes of the records have changed."""
        self._shape[: len(self.records)] = [record.shape for record in self.records]

    def place(self, record: JobRecord) -> int:
        """The place of a record."""
        if record not in self:
            raise KeyError(record.key)
        return bisect_left(self._orders, record.order)

    def first(self, order: Order) -> int:
        """The place of the first record that is not before this order."""
        return bisect_left(self._orders, order)

    def next_unblocked(self, place: int, end: int, blocked: Ints) -> int:
        """The first place from ``place`` on whose limit is shorter than the one that failed for its shape;
        else ``end``."""
        while place < end:
            stop = min(place + _CHUNK, end)
            open_ = self._limit[place:stop] < blocked[self._shape[place:stop]]
            first = int(open_.argmax())
            if open_[first]:
                return place + first
            place = stop
        return end


_FEW_ENTRIES = 64  # are not tidied


class DueTimes:
    """A heap of times with records. ``stands`` returns whether a time is still valid for a record."""

    def __init__(self, stands: Callable[[int, JobRecord], bool]) -> None:
        self._stands = stands
        self._heap: list[tuple[int, int, JobRecord]] = []
        self._limit = _FEW_ENTRIES

    def add(self, at: int, record: JobRecord) -> None:
        heappush(self._heap, (at, record.order[-1], record))

    def tidy(self) -> None:
        """Drop entries that are out of date, if there may be many. Do not call it during a pass that may be
        undone."""
        if len(self._heap) > self._limit:
            kept = {each[2]: each for each in self._heap if self._stands(each[0], each[2])}
            self._heap = list(kept.values())
            heapify(self._heap)
            self._limit = max(_FEW_ENTRIES, 2 * len(self._heap))

    def next(self) -> int | None:
        """The earliest time."""
        while self._heap and not self._stands(self._heap[0][0], self._heap[0][2]):
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop(self, now: int) -> JobRecord | None:
        """A record whose time has come."""
        at = self.next()
        return None if at is None or at > now else heappop(self._heap)[2]


class Dependencies:
    """The jobs that are held for their dependencies. The queue calls it when jobs are submitted and when they
    end."""

    def __init__(self, records: Mapping[str, JobRecord]) -> None:
        self.held: dict[str, JobRecord] = {}
        self._records = records
        # By the job that they wait for, then by key, so that a job that left and came back is there only
        # once.
        self._waiters: defaultdict[str, dict[str, JobRecord]] = defaultdict(dict)
        self._namesakes: defaultdict[tuple[str, str], dict[str, JobRecord]] = defaultdict(dict)

    def check(self, job: Submission) -> None:
        """Refuse a job that depends on an unknown job."""
        for dependency in job.after:
            if dependency.job and dependency.job not in self._records:
                raise NotFound(f"job {job.key} waits for {dependency.job}, which was never submitted")

    def add(self, record: JobRecord) -> None:
        self._namesakes[record.job.user, record.job.name][record.key] = record

    def forget(self, record: JobRecord) -> list[tuple[JobRecord, Reason]]:
        """Remove a job that is over; returns the jobs that needed its success and can never start."""
        key, hopeless = record.key, []
        for other in list(self.held.values()):
            mine = [each for each in other.job.after if each.job == key]
            if not record.succeeded and any(each.kind == "afterok" for each in mine):
                del self.held[other.key]
                hopeless.append((other, _failed(record)))
            elif mine:
                rest = tuple(each for each in other.job.after if each.job != key)
                other.job = replace(other.job, after=rest)
        namesakes = self._namesakes[record.job.user, record.job.name]
        namesakes.pop(key, None)
        if not namesakes:
            del self._namesakes[record.job.user, record.job.name]
        return hopeless

    def hold(self, record: JobRecord) -> Reason | None:
        """Hold a job while it must wait; returns the reason if it can never start."""
        blocker, hopeless = self._blocked_by(record)
        if blocker and hopeless is None:
            self.held[record.key] = record
            self._waiters[blocker][record.key] = record
        else:
            self.held.pop(record.key, None)
        return hopeless

    def released_by(self, record: JobRecord) -> list[JobRecord]:
        """The held jobs that waited for this one. The caller must hold or release each of them."""
        waiters = self._waiters.pop(record.key, {}).values()
        return [other for other in waiters if self.held.get(other.key) is other]

    def of(self, record: JobRecord) -> tuple[str, ...]:
        """The jobs that a job waits for."""
        return tuple(
            other.key
            for dependency in record.job.after
            for other in self._before(record, dependency)
            if not other.state.leaves_queue
        )

    def _blocked_by(self, record: JobRecord) -> tuple[str, Reason | None]:
        for dependency in record.job.after:
            for other in self._before(record, dependency):
                if dependency.kind == "afterok" and other.state.leaves_queue and not other.succeeded:
                    return other.key, _failed(other)
                if not other.state.leaves_queue:
                    return other.key, None
        return "", None

    def _before(self, record: JobRecord, dependency: Dependency) -> Iterable[JobRecord]:
        if dependency.job:
            return (self._records[dependency.job],)
        namesakes = self._namesakes.get((record.job.user, record.job.name), {})
        return (other for other in namesakes.values() if other.order[-1] < record.order[-1])


def _failed(record: JobRecord) -> Reason:
    return Reason.of(Code.DEPENDENCY_FAILED, job=record.key, phase=record.state.value)
