"""Pruning filters: how much of each counted type is in use below each vertex, and by which job.

`find` shows it (`agfilter=true`, `jobid-span=…`), a partial cancel depends on it, and a walk uses it in the
few cases in which a filter changes the result. All of it is computed from the columns of the ledger.

`RootFilter` is the filter at the root as in Fluxion 0.54. It decides at which times Fluxion tries to start a
reservation. `Matcher(bug_compatible=True)`, which `fluence resource-query` uses, follows it. Without it,
every start and end of a job is a candidate, which is what Fluxion intends, and does while the graph does not
change. The filter has one plan per counted type: how much of the type is left below the root after each
event. Fluxion finds candidates by amount, in a second tree over the events of the first type. When vertices
are attached or removed, it corrects the amounts but not that tree. So an event is found by its old amount
until a job that spans it is added or removed, or a search has visited it. The plan has no events of jobs that
the filter does not count, or of jobs from before the first type was attached.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fluence.graph.columns import Ints, Mask, Rows, Tree
from fluence.graph.filters import Filters
from fluence.graph.graph import ResourceGraph
from fluence.graph.ledger import Ledger
from fluence.match.request import Window


def usage_at(
    graph: ResourceGraph, tree: Tree, ledger: Ledger, filters: Filters, *, now: int | None
) -> dict[int, dict[str, tuple[int, int]]]:
    """Per vertex and counted type: how much is in use at a time, and the total."""
    running = [job.spans for job in ledger.jobs.values() if now is not None and job.start <= now < job.end]
    held = np.concatenate(running) if running else np.empty(0, np.int32)
    inside = tree.order
    inner = inside[tree.end[inside] - tree.pre[inside] > 1]
    return _usage(graph, tree, ledger, filters, held, inner.tolist())


def usage_of(
    graph: ResourceGraph, tree: Tree, ledger: Ledger, filters: Filters, *, job: int
) -> dict[int, dict[str, tuple[int, int]]]:
    """The same for one job, at the vertices whose filter counts it."""
    record = ledger.jobs.get(job)
    if record is None:
        return {}
    vertices = counting(graph, tree, filters, ledger.vertex[record.spans])
    return _usage(graph, tree, ledger, filters, record.spans, vertices)


def counting(graph: ResourceGraph, tree: Tree, filters: Filters, touched: Rows) -> list[int]:
    """The vertices of a job whose filter counts the job: they count some type, and the job touches a type
    below them that any filter counts."""
    is_counted = np.array([filters.counts(code) for code in range(len(graph.types))], np.bool_)
    places = np.sort(tree.pre[touched[is_counted[graph.type[touched]]]])
    below = np.searchsorted(places, tree.end[touched]) - np.searchsorted(places, tree.pre[touched] + 1)
    return [row for row in touched[below > 0].tolist() if filters.types(int(graph.type[row]))]


def _usage(
    graph: ResourceGraph, tree: Tree, ledger: Ledger, filters: Filters, held: Rows, vertices: list[int]
) -> dict[int, dict[str, tuple[int, int]]]:
    rows, needs, size = ledger.vertex[held], ledger.needs[held], graph.size[ledger.vertex[held]]
    taken = np.where(ledger.exclusive[held], np.where(needs > 0, size, 0), size - needs)
    sums: dict[int, tuple[Ints, Ints]] = {}  # per type, before each place in preorder: in use, and total
    usage: dict[int, dict[str, tuple[int, int]]] = {}
    for vertex in vertices:
        types = filters.types(int(graph.type[vertex]))
        if not types:
            continue
        low, high = int(tree.pre[vertex]) + 1, int(tree.end[vertex])
        of = usage[vertex] = {}
        for code in types:
            if code not in sums:
                used = np.zeros(graph.rows, np.int64)
                np.add.at(used, rows, np.where(graph.type[rows] == code, taken, 0))
                total = np.where(graph.type == code, graph.size, 0)
                sums[code] = (_before(used[tree.order]), _before(total[tree.order]))
            in_use, there = sums[code]
            of[graph.types.words[code]] = (int(in_use[high] - in_use[low]), int(there[high] - there[low]))
    return usage


class FilterCheck:
    """Whether the filters of a graph leave enough for the minimum of a need, in one window.

    Filters follow from the graph, so most searches do not need them. They matter in two cases: if slots are
    alternatives, Fluxion's minimum is not the minimum of each alternative; and a filter can count slots,
    although no graph has any.
    """

    def __init__(
        self, graph: ResourceGraph, tree: Tree, ledger: Ledger, filters: Filters, window: Window
    ) -> None:
        self._graph, self._tree, self._filters = graph, tree, filters
        jobs = (
            []
            if window.empty
            else [job for job in ledger.jobs.values() if job.start < window.end and window.start < job.end]
        )
        spans = np.concatenate([job.spans for job in jobs]) if jobs else np.empty(0, np.int32)
        rows = ledger.vertex[spans]
        size = graph.size[rows]
        self._place, self._type = tree.pre[rows], graph.type[rows]
        self._taken = np.where(ledger.exclusive[spans], size, size - ledger.needs[spans])
        lengths = [len(job.spans) for job in jobs]
        self._start = np.repeat([max(job.start, window.start) for job in jobs], lengths)
        self._end = np.repeat([job.end for job in jobs], lengths)
        self._totals: dict[int, Ints] = {}

    def leaves(self, vertex: int, amounts: Mapping[int, int]) -> bool:
        """Whether a vertex has these amounts left of each type that it counts, during the whole window."""
        tree = self._tree
        low, high = int(tree.pre[vertex]) + 1, int(tree.end[vertex])
        if low == high:
            return True
        for code in self._filters.types(int(self._graph.type[vertex])):
            amount = amounts.get(code, 0)
            if amount and amount > self._total(code, low, high) - self._most(code, low, high):
                return False
        return True

    def _total(self, code: int, low: int, high: int) -> int:
        sums = self._totals.get(code)
        if sums is None:
            graph, order = self._graph, self._tree.order
            sums = self._totals[code] = _before(np.where(graph.type[order] == code, graph.size[order], 0))
        return int(sums[high] - sums[low])

    def _most(self, code: int, low: int, high: int) -> int:
        """The largest amount in use at any instant."""
        mine = (self._type == code) & (self._place >= low) & (self._place < high)
        if not mine.any():
            return 0
        start, end, taken = self._start[mine], self._end[mine], self._taken[mine]
        return max(int(taken[(start <= time) & (time < end)].sum()) for time in np.unique(start).tolist())


def _before(column: Ints) -> Ints:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(column)))


@dataclass(slots=True)
class _Event:
    """A time at which the amount that is left changes."""

    left: int
    jobs: int  # the number of jobs that start or end here; time 0 counts as one
    found_by: int | None  # the amount by which a search finds it; None while it is not in the tree


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
        self._out: list[_Event] = []  # removed from the tree

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
        """A job frees an amount; a job with nothing left is removed from the plan."""
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
        """Vertices were added or removed. The tree by amount does not change."""
        change, self.total = total - self.total, total
        for event in self._events.values():
            event.left = max(event.left + change, 0)

    def candidates(self, after: int, duration: int, amount: int) -> Iterator[int]:
        """The events from a time on at which an amount is left for a duration. Each visited event is removed
        from the tree."""
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
        """Whether an amount is left during a whole window."""
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
        """Vertices were added or removed; a new type starts without jobs."""
        graph, old = self._graph, self._plans
        self._root = tree.root
        inside = tree.order[tree.order != tree.root]
        self._plans = {}
        for type_ in self._filters.types(int(graph.type[tree.root])):
            total = int(graph.size[inside[graph.type[inside] == type_]].sum())
            plan = self._plans[type_] = old.get(type_) or _Plan(total)
            plan.resize(total)

    def add(self, job: int, start: int, end: int, *, rows: Rows, needs: Ints, exclusive: Mask) -> None:
        """A job was placed. A job without any counted type is ignored."""
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
        """A job freed some vertices that it held exclusively."""
        amounts = self._amounts(rows, needs)
        for type_, plan in self._plans.items():
            plan.reduce(job, amounts.get(type_, 0))

    def starts(self, after: int, duration: int, amounts: Mapping[int, int]) -> Iterator[int]:
        """The times from ``after`` on at which Fluxion searches for a start, ascending."""
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
