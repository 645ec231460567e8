"""When a request could start: one pass over the events, so that a reservation need not search at each.

A reservation starts when some job starts or ends, as in Fluxion. For the vertices of the type that a request
asks for at the top, say nodes, the sweep keeps how much of each leaf type is held below each node. As the
window of the job moves from event to event, jobs enter on the right and leave on the left; a node counts
while it is short of nothing at any instant of the window. Only where enough nodes count is a search worth its
while::

    time   ──┬───────┬─────────────┬──────────►
    node0    │███████│             │             short until the second event
    node1    │       │▒▒▒▒▒▒▒▒▒▒▒▒▒│             held in part, enough is left
             [──── window ────)

The condition is necessary, not sufficient (which cores are free may change during the window), so the search
has the last word.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fluence.graph.columns import Ints, Mask
from fluence.graph.ledger import LedgerJob
from fluence.match.index import reachable
from fluence.match.request import Need
from fluence.match.tables import Index, JobEffects, Unsupported, VertexTable
from fluence.match.window import Window

_BEFORE_ALL = Window(-2, -1, allocate=False)  # a time in which nobody holds anything


@dataclass(slots=True)
class _Part:
    """What each vertex must have free of one leaf type right below it."""

    table: VertexTable
    held: Ints  # per row of the top table
    limit: Ints  # how much may be held


@dataclass(frozen=True, slots=True)
class _Effect:
    """What one job takes from the rows of the top table."""

    rows: Ints
    amounts: tuple[Ints, ...]  # per part
    blocks: Ints  # rows that nobody else can use


def possible_starts(
    index: Index,
    needs: tuple[Need, ...],
    times: list[int],
    *,
    duration: int,
    allowed: Mask | None,
) -> Iterator[int]:
    """Of some ascending times, those at which a search may succeed."""
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
        # Not whether a vertex serves when nobody holds anything: a slot of 1 to 5 cores takes 5 where it can,
        # and two of them may fit a half-empty node better than an empty one.
        self.serves = reachable(index, need, _BEFORE_ALL, allowed)
        rows = len(self.table.rows)
        self.parts: list[_Part] = []
        slot = need.slot
        if slot is not None:
            index.frame(self.table, tuple(child.type for child in slot.below))  # or leave it to the walk
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
        """(time, +1 or -1, job), what ends before what starts."""
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
        # An exclusive request minds anybody who touches the vertex; another one minds who has it.
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
