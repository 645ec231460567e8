"""The pruning filter at the root as Fluxion 0.54 keeps it: at which times it tries to start a reservation.

`Matcher(bug_compatible=True)`, on which `fluence resource-query` runs, asks this filter which times to try.
Without it every start and end of a job is a candidate, which is what Fluxion means to do and does as long as
the graph stays as it is. The filter has one plan per counted type: how much of the type is left below the
root from each event on. Fluxion finds candidates by amount, in a second tree over the events of the first
type. When vertices are attached or removed, it corrects the amounts and leaves that tree as it is, so that an
event is found by its amount from before until a job is added or removed across it, or a search has met it.
Events of jobs that the filter does not count, and of jobs from before the first type was attached, are not
there at all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fluence.graph.columns import Ints, Mask, Rows
from fluence.graph.filters import Filters
from fluence.graph.graph import ResourceGraph
from fluence.graph.tree import Tree


@dataclass(slots=True)
class _Event:
    """A time from which on another amount is left."""

    left: int
    jobs: int  # that start or end here; the beginning of time counts as one
    found_by: int | None  # the amount by which the search finds it; None while it is taken out of the tree


@dataclass(frozen=True, slots=True)
class _Span:
    start: int
    end: int
    amount: int


class _Plan:
    """How much of one type is left below the root, over time."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._times = [0]
        self._events = {0: _Event(total, 1, total)}
        self._spans: dict[int, _Span] = {}
        self._out: list[_Event] = []  # taken out of the tree

    def __contains__(self, job: int) -> bool:
        return job in self._spans

    def add(self, job: int, start: int, end: int, amount: int) -> None:
        self._put_back()
        for time in (start, end):
            if time not in self._events:
                left = self._events[self._times[bisect_right(self._times, time) - 1]].left
                self._events[time] = _Event(left, 0, left)
                insort(self._times, time)
            self._events[time].jobs += 1
        self._spans[job] = _Span(start, end, amount)
        self._take(start, end, amount)

    def remove(self, job: int) -> None:
        span = self._spans.pop(job, None)
        if span is None:
            return
        self._put_back()
        self._take(span.start, span.end, -span.amount)
        for time in (span.start, span.end):
            event = self._events[time]
            event.jobs -= 1
            if not event.jobs:
                del self._events[time]
                self._times.remove(time)

    def reduce(self, job: int, amount: int) -> None:
        """A job gives back an amount; a job that has nothing left leaves the plan."""
        span = self._spans.get(job)
        if span is None:
            return
        if amount == span.amount:
            self.remove(job)
        elif 0 < amount < span.amount:
            self._put_back()
            self._spans[job] = _Span(span.start, span.end, span.amount - amount)
            self._take(span.start, span.end, -amount)

    def resize(self, total: int) -> None:
        """Vertices came or went. The tree by amount stays as it was."""
        change, self.total = total - self.total, total
        for event in self._events.values():
            event.left = max(event.left + change, 0)

    def candidates(self, after: int, duration: int, amount: int) -> Iterator[int]:
        """The events from a time on at which an amount is left for a duration; each is taken out of the tree
        as it is met."""
        if amount > self.total:
            return
        self._put_back()
        events = self._events
        for time in self._times:
            event = events[time]
            if event.found_by is None or event.found_by < amount:
                continue
            event.found_by = None
            self._out.append(event)
            if time >= after and self.has(time, duration, amount):
                yield time

    def has(self, start: int, duration: int, amount: int) -> bool:
        """Whether an amount is left throughout a window."""
        if amount == 0 or amount > self.total:
            return amount == 0
        first = bisect_right(self._times, start) - 1
        last = bisect_left(self._times, start + duration)
        events = self._events
        return all(amount <= events[time].left for time in self._times[first:last])

    def _take(self, start: int, end: int, amount: int) -> None:
        for time in self._times[bisect_left(self._times, start) : bisect_left(self._times, end)]:
            event = self._events[time]
            event.left -= amount
            event.found_by = event.left

    def _put_back(self) -> None:
        for event in self._out:
            event.found_by = event.left
        self._out.clear()


class RootFilter:
    """The plans of the types that the root counts, in the order of the filter."""

    def __init__(self, graph: ResourceGraph, filters: Filters, tree: Tree) -> None:
        self._graph = graph
        self._filters = filters
        self._plans: dict[int, _Plan] = {}
        self.reshaped(tree)

    def reshaped(self, tree: Tree) -> None:
        """Vertices came or went; a type that is new starts with no job."""
        graph, old = self._graph, self._plans
        self._root = tree.root
        inside = tree.order[tree.order != tree.root]
        self._plans = {}
        for type_ in self._filters.types(int(graph.type[tree.root])):
            total = int(graph.size[inside[graph.type[inside] == type_]].sum())
            plan = self._plans[type_] = old.get(type_) or _Plan(total)
            plan.resize(total)

    def add(self, job: int, start: int, end: int, *, rows: Rows, needs: Ints, exclusive: Mask) -> None:
        """A job was placed. One that touches nothing which is counted anywhere leaves no trace."""
        size = self._graph.size[rows]
        below = rows != self._root
        counted = self._amounts(rows[below], np.where(exclusive, size, size - needs)[below])
        if counted:
            for type_, plan in self._plans.items():
                plan.add(job, start, end, counted.get(type_, 0))

    def remove(self, job: int) -> None:
        """A job is gone."""
        for plan in self._plans.values():
            plan.remove(job)

    def reduce(self, job: int, rows: Rows, needs: Ints) -> None:
        """A job gave back some vertices that it had for itself."""
        amounts = self._amounts(rows, needs)
        for type_, plan in self._plans.items():
            plan.reduce(job, amounts.get(type_, 0))

    def starts(self, after: int, duration: int, amounts: Mapping[int, int]) -> Iterator[int]:
        """The times from one on at which Fluxion searches for a start, ascending."""
        if not self._plans:
            return
        (first, plan), *others = self._plans.items()
        for time in plan.candidates(after, duration, amounts.get(first, 0)):
            if all(other.has(time, duration, amounts.get(type_, 0)) for type_, other in others):
                yield time

    def _amounts(self, rows: Rows, amounts: Ints) -> dict[int, int]:
        """How much of each counted type there is among some vertices."""
        types = self._graph.type[rows]
        return {
            type_: int(amounts[types == type_].sum())
            for type_ in np.unique(types).tolist()
            if self._filters.counts(type_)
        }
