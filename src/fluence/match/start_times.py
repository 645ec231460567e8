"""The first time at which a request fits, for operations that reserve.

A reservation starts when some job starts or ends, as in Fluxion. One sweep over these events skips those at
which a search cannot succeed. For the vertices of the top type of the request, for example nodes, the sweep
tracks how much of each leaf type is held below each node. As the window of the job moves from event to event,
jobs enter on the right and leave on the left. A node counts if it has enough at every instant of the window.
A search is made only if enough nodes count::

    time   ──┬───────┬─────────────┬──────────►
    node0    │███████│             │             short until the second event
    node1    │       │▒▒▒▒▒▒▒▒▒▒▒▒▒│             held in part, enough is left
             [──── window ────)

The condition is necessary, not sufficient (which cores are free may change during the window), so the search
decides. A bug-compatible matcher also skips the times that Fluxion does not try (`RootFilter`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from errno import EBUSY, ENOENT
from itertools import chain

import numpy as np

from fluence.graph.columns import Ints, Mask
from fluence.graph.ledger import LedgerJob
from fluence.match.filter_usage import RootFilter
from fluence.match.index import reachable
from fluence.match.request import Found, Need, Request, Window
from fluence.match.tables import Index, JobEffects, Unsupported, VertexTable
from fluence.match.window_search import WindowSearch

_FEW_JOBS = 64


def earliest(
    search: WindowSearch,
    root_filter: RootFilter | None,
    request: Request,
    *,
    now: int,
    duration: int,
    begin: int | None = None,
) -> tuple[int, Found]:
    """The first time from now on at which a search succeeds, and its result. ``begin``: the earliest time."""
    first = now if begin is None else max(now, begin)
    later = [time for time in search.ledger.times() if time > first]
    if root_filter is not None:
        return _earliest_in_fluxion(
            search, root_filter, request, now=now, first=first, later=later, duration=duration
        )
    # With many jobs, one search now is cheaper than a sweep over all of them.
    at_once = [first] if len(search.ledger.jobs) > _FEW_JOBS else []
    rest = later if at_once else [first, *later]
    for time in chain(at_once, _possible(search, request, rest, duration)):
        found = search.find(request, Window(time, time + duration, allocate=time == now))
        if found.selection is not None:
            if time == first:
                return first, found
            # Fluxion tries one more event before it stops, and that sets its errno.
            return time, replace(found, obstacle=ENOENT if time == later[-1] else EBUSY)
    return first, Found(None)


def _earliest_in_fluxion(
    search: WindowSearch,
    root_filter: RootFilter,
    request: Request,
    *,
    now: int,
    first: int,
    later: list[int],
    duration: int,
) -> tuple[int, Found]:
    """The same among the times that Fluxion tries. Each tried time changes the state of its filter."""
    found = search.find(request, Window(first, first + duration, allocate=first == now))
    if found.selection is not None:
        return first, found
    tried = root_filter.starts(first + 1, duration, request.minimum)
    for time in _common(tried, _possible(search, request, later, duration)):
        found = search.find(request, Window(time, time + duration, allocate=False))
        if found.selection is not None:
            return time, replace(found, obstacle=ENOENT if next(tried, None) is None else EBUSY)
    return first, Found(None)


def _possible(search: WindowSearch, request: Request, times: list[int], duration: int) -> Iterable[int]:
    """The times at which a search may succeed."""
    if len(times) < 2 or not search.uses_index or search.has_siblings(request):
        return times
    allowed = search.allowed_by(request.constraint)
    return possible_starts(search.index, request.needs, times, duration=duration, allowed=allowed)


def _common(tried: Iterator[int], possible: Iterable[int]) -> Iterator[int]:
    """The times that are in both, which are ascending; all of ``tried`` are consumed."""
    others = iter(possible)
    other = next(others, None)
    for time in tried:
        while other is not None and other < time:
            other = next(others, None)
        if time == other:
            yield time


_BEFORE_ALL = Window(-2, -1, allocate=False)  # a window without allocations


@dataclass(slots=True)
class _Part:
    """The amount of one leaf type that each vertex must have free directly below it."""

    table: VertexTable
    held: Ints  # per row of the top table
    limit: Ints  # how much may be held


@dataclass(frozen=True, slots=True)
class _Effect:
    """The effect of one job on the rows of the top table."""

    rows: Ints
    amounts: tuple[Ints, ...]  # per part
    blocks: Ints  # rows that no other job can use


def possible_starts(
    index: Index,
    needs: tuple[Need, ...],
    times: list[int],
    *,
    duration: int,
    allowed: Mask | None,
) -> Iterator[int]:
    """The times, out of some ascending ones, at which a search may succeed."""
    sweep = None
    if len(needs) == 1 and not needs[0].is_slot and index.is_regular:
        try:
            sweep = _Sweep(index, needs[0], allowed)
        except Unsupported:
            sweep = None
    if sweep is None:
        yield from times
    else:
        yield from sweep.run(times, duration)


class _Sweep:
    def __init__(self, index: Index, need: Need, allowed: Mask | None) -> None:
        self.index, self.need = index, need
        self.table = index.table(need.type)
        # Do not test whether a vertex serves in an empty graph: a slot of 1 to 5 cores takes 5 if it can, so
        # two slots may fit on a half-empty node but not on an empty one.
        self.serves = reachable(index, need, _BEFORE_ALL, allowed)
        rows = len(self.table.rows)
        self.parts: list[_Part] = []
        slot = need.slot
        if slot is not None:
            index.frame(self.table, tuple(child.type for child in slot.below))  # may raise Unsupported
        times = slot.count.min if slot is not None else 1
        for child in slot.below if slot is not None else need.below:
            if child.below:
                continue
            table = index.table(child.type)
            at, there = index.groups(self.table, table)
            total = np.where(there, table.total[at], 0) if len(table.total) else np.zeros(rows, np.int64)
            part = _Part(table, np.zeros(rows, np.int64), total - times * child.count.min)
            self.serves = self.serves & (part.limit >= 0)
            self.parts.append(part)
        parts = (part.table.type for part in self.parts)
        self.effects: JobEffects[_Effect] = index.effects((need.type, need.exclusive, *parts))
        self.blocked = np.zeros(rows, np.int64)
        self.short = np.zeros(rows, np.bool_)  # at the right end of the window
        self.shortages = np.zeros(rows, np.int64)  # in the window
        self.over: deque[tuple[int, Ints]] = deque()  # shortages that end, by time

    def run(self, times: list[int], duration: int) -> Iterator[int]:
        events = self._events()
        at = 0
        for time in times:
            while at < len(events) and events[at][0] < time + duration:
                self._apply(*events[at])
                at += 1
            while self.over and self.over[0][0] <= time:
                self.shortages[self.over.popleft()[1]] -= 1
            free = self.serves & (self.shortages == 0)
            amount = int(free.sum()) if self.table.is_unit else int(self.table.size[free].sum())
            if amount >= self.need.count.min:
                yield time

    def _events(self) -> list[tuple[int, int, LedgerJob]]:
        """(time, +1 or -1, job), ends before starts."""
        events = [
            event
            for job in self.index.ledger.jobs.values()
            for event in ((job.start, 1, job), (job.end, -1, job))
        ]
        return sorted(events, key=lambda event: event[:2])

    def _apply(self, time: int, sign: int, job: LedgerJob) -> None:
        effect = self.effects.of(job, self._effect)
        rows = effect.rows
        if not len(rows):
            return
        self.blocked[effect.blocks] += sign
        short = self.blocked[rows] > 0
        for part, amounts in zip(self.parts, effect.amounts, strict=True):
            part.held[rows] += sign * amounts
            short |= part.held[rows] > part.limit[rows]
        was = self.short[rows]
        self.short[rows] = short
        self.shortages[rows[short & ~was]] += 1
        ended = rows[was & ~short]
        if len(ended):
            self.over.append((time, ended))

    def _effect(self, job: LedgerJob) -> _Effect:
        index, graph, ledger = self.index, self.index.graph, self.index.ledger
        rows = ledger.vertex[job.spans]
        alone = ledger.exclusive[job.spans] & (ledger.needs[job.spans] > 0)
        types = graph.type[rows]
        own = types == self.table.type
        # Any use of the vertex blocks an exclusive request; only exclusive use blocks other requests.
        blocks = index.place[rows[own if self.need.exclusive else own & alone]].astype(np.int64)
        touched = np.zeros(len(self.table.rows), np.bool_)
        touched[blocks] = True
        amounts: list[Ints] = []
        for part in self.parts:
            mine = rows[alone & (types == part.table.type)]
            above = index.tree.parent[mine]
            inside = (above >= 0) & (graph.type[above] == self.table.type)
            at = index.place[above[inside]].astype(np.int64)
            weights = (
                None if part.table.is_unit else ledger.needs[job.spans][alone & (types == part.table.type)]
            )
            held = np.bincount(
                at, weights=None if weights is None else weights[inside], minlength=len(self.table.rows)
            ).astype(np.int64)
            touched |= held > 0
            amounts.append(held)
        found = np.flatnonzero(touched)
        return _Effect(found, tuple(held[found] for held in amounts), blocks)
