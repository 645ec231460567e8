"""The jobs that may start, in order, with the columns that tell which of them might fit."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import numpy as np

from fluence.graph.graph import Ints
from fluence.queue.job import JobRecord, Order

_CHUNK = 1024


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

    def add(self, record: JobRecord) -> int:
        """Put a record in its place and say which that is."""
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
        """Take a record out and say where it stood."""
        place, size = self.place(record), len(self.records)
        for column in (self._shape, self._limit):
            column[place : size - 1] = column[place + 1 : size]
        del self.records[place], self._orders[place]
        return place

    def reshape(self) -> None:
        """The shapes of the records have changed."""
        self._shape[: len(self.records)] = [record.shape for record in self.records]

    def place(self, record: JobRecord) -> int:
        """Where a record stands."""
        place = bisect_left(self._orders, record.order)
        if place == len(self.records) or self.records[place] is not record:
            raise KeyError(record.key)
        return place

    def first(self, order: Order) -> int:
        """The place of the first record that is not before this order."""
        return bisect_left(self._orders, order)

    def next_unblocked(self, place: int, end: int, blocked: Ints) -> int:
        """The first place from ``place`` on whose limit is shorter than what failed for its shape; else
        ``end``."""
        while place < end:
            stop = min(place + _CHUNK, end)
            open_ = self._limit[place:stop] < blocked[self._shape[place:stop]]
            first = int(open_.argmax())
            if open_[first]:
                return place + first
            place = stop
        return end
