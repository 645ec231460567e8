"""How much of every vertex is free, now and throughout a window: columns kept in step with the ledger.

The ledger knows who holds what and when. To ask it about each of a thousand nodes takes a thousand walks
along lists of spans; here the answer is one column that every change adds to or takes from::

    row        0        1      2       3         4
    type       cluster  node   cpu     memory    pods
    size       1        1      32000   2^37      110
    free       1        1      30500   2^37-…    109      now
    users      3        3      3       3         3        spans, shared ones included

A window looks ahead: what is free *throughout* it is the least that is free at any instant, and that changes
only where something starts inside the window. Where nothing does, the column of now is the answer.

An end is a plan. With ``keeps_overdue``, a job that runs past it holds what it has, now and at every later
time, until it is released or given another end: on a live cluster its pods are still there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from cachetools import LRUCache

from fluence.graph.graph import Ints, Rows
from fluence.graph.ledger import LedgerJob

if TYPE_CHECKING:
    from fluence.match.matcher import Matcher

_KEPT = 16  # windows

Event = tuple[int, int, int]  # time, -1 for an end or +1 for a start, job; what ends comes first


@dataclass(slots=True)
class FreeView:
    """What is free of each vertex, and how many touch it. The last cell stands for a vertex that is not
    there: nothing of it is free."""

    free: Ints
    users: Ints


class Availability:
    """The columns of one matcher's ledger."""

    def __init__(self, matcher: Matcher, *, keeps_overdue: bool = False) -> None:
        self._matcher = matcher
        self._ledger = matcher.ledger
        self._keeps_overdue = keeps_overdue
        self.now = 0
        self.view = FreeView(np.zeros(1, np.int64), np.zeros(1, np.int64))
        self.events: list[Event] = []  # after now, ascending
        self._windows: LRUCache[tuple[int, int], FreeView] = LRUCache(_KEPT)
        self._effects: dict[int, tuple[Rows, Ints]] = {}  # by job
        self._changes: _Changes | None = None  # of all events
        self._generation = -1

    # -- asking ----------------------------------------------------------------------------------------------

    def at(self, now: int) -> FreeView:
        """What is free at a time; it becomes this column's now."""
        self._matcher.refresh()
        if self._generation != self._ledger.generation or now < self.now:
            self._recount(now)
        elif now > self.now:
            self._advance(now)
        return self.view

    def throughout(self, end: int) -> FreeView:
        """What is free from now until a time."""
        key = (self.now, end)
        found = self._windows.get(key)
        if found is None:
            found = look_ahead(self, self.view, 0, end)
            if found is not self.view:
                self._windows[key] = found
        return found

    def effect(self, job: int) -> tuple[Rows, Ints]:
        """The vertices that a job touches, and how much it takes of each."""
        found = self._effects.get(job)
        if found is None:
            found = self._effects[job] = self._of(self._ledger.jobs[job])
        return found

    def changes(self, first: int, last: int) -> tuple[Rows, Ints, Ints]:
        """What some of the events do, in their order: vertices, what comes free, who comes."""
        if self._changes is None:
            self._changes = _Changes(self)
        return self._changes.between(first, last)

    # -- in step ---------------------------------------------------------------------------------------------

    def added(self, record: LedgerJob) -> None:
        """The ledger has just got a job, by one change."""
        self._follow(record, 1)

    def removing(self, record: LedgerJob) -> None:
        """The ledger is about to lose a job, by one change."""
        self._follow(record, -1)

    def _follow(self, record: LedgerJob, sign: int) -> None:
        # A removal is announced before the ledger counts it, an addition after.
        behind = 1 if sign > 0 else 0
        if self._generation != self._ledger.generation - behind:
            return  # somebody else changed the ledger: the next question counts anew
        self._generation += 1
        rows, taken = self._of(record)
        self._effects.pop(record.id, None)
        self._changes = None
        start, end = record.start, self._end(record)
        for event in ((start, 1, record.id), (end, -1, record.id)):
            if self.now < event[0] < self._matcher.horizon and start < end:
                if sign > 0:
                    insort(self.events, event)
                else:
                    del self.events[bisect_left(self.events, event)]
        if start <= self.now < end:
            _change(self.view, rows, taken, sign)
        for key, view in list(self._windows.items()):
            if start <= key[0] and end >= key[1]:
                _change(view, rows, taken, sign)
            elif start < key[1] and end > key[0]:
                del self._windows[key]

    # -- inside ----------------------------------------------------------------------------------------------

    def _of(self, record: LedgerJob) -> tuple[Rows, Ints]:
        ledger, spans = self._ledger, record.spans
        return ledger.vertex[spans], np.where(ledger.exclusive[spans], ledger.needs[spans], 0)

    def _end(self, record: LedgerJob) -> int:
        """When a job gives back what it has, as far as is known now."""
        overdue = self._keeps_overdue and not record.reserved and record.end <= self.now
        return max(self._matcher.horizon, record.end) if overdue else record.end

    def _advance(self, now: int) -> None:
        passed = bisect_right(self.events, (now, 1, 2**63))
        for _, sign, job in self.events[:passed]:
            if sign < 0 and self._keeps_overdue and not self._ledger.jobs[job].reserved:
                continue  # it is overdue
            _change(self.view, *self.effect(job), sign)
        del self.events[:passed]
        self._changes = None
        self.now = now
        self._windows.clear()

    def _recount(self, now: int) -> None:
        ledger, graph, horizon = self._ledger, self._matcher.graph, self._matcher.horizon
        free = np.zeros(graph.rows + 1, np.int64)
        free[:-1] = graph.size
        users = np.zeros(graph.rows + 1, np.int64)
        spans, rest = ledger.spans_in(now, now + 1, running=self._keeps_overdue)
        if len(rest):
            overdue = np.array(ledger.end, np.int64)[ledger.owner[rest]] <= now
            spans = np.concatenate((spans, rest[overdue]))
        rows = ledger.vertex[spans]
        np.subtract.at(free, rows, np.where(ledger.exclusive[spans], ledger.needs[spans], 0))
        np.add.at(users, rows, 1)
        self.view = FreeView(free, users)
        self.events = sorted(
            event
            for job in ledger.jobs.values()
            if job.start < job.end
            for event in ((job.start, 1, job.id), (job.end, -1, job.id))
            if now < event[0] < horizon
        )
        self.now = now
        self._windows.clear()
        self._effects.clear()
        self._changes = None
        self._generation = ledger.generation


class _Changes:
    """All events of a room one after the other, as three columns."""

    def __init__(self, room: Availability) -> None:
        parts = [room.effect(job) for _, _, job in room.events]
        lengths = np.array([len(rows) for rows, _ in parts], np.int64)
        signs = np.repeat(np.array([sign for _, sign, _ in room.events], np.int64), lengths)
        self._offsets = np.concatenate(([0], np.cumsum(lengths)))
        self._rows = np.concatenate([rows for rows, _ in parts])
        self._freed = -signs * np.concatenate([taken for _, taken in parts])
        self._users = signs

    def between(self, first: int, last: int) -> tuple[Rows, Ints, Ints]:
        some = slice(self._offsets[first], self._offsets[last])
        return self._rows[some], self._freed[some], self._users[some]


def look_ahead(room: Availability, view: FreeView, first: int, end: int) -> FreeView:
    """What is free from a view's time until ``end``; ``first`` is the first event after that time."""
    last = bisect_left(room.events, (end, -2, 0), first)
    while last > first and room.events[last - 1][1] < 0:
        last -= 1  # what ends after the last start frees nothing that the window could use
    if last == first:
        return view
    rows, freed, users = room.changes(first, last)
    if not len(rows):
        return view  # of jobs whose nodes are gone: they hold nothing
    order = np.argsort(rows, kind="stable")  # the events of each vertex, one after the other
    rows = rows[order]
    begins = np.flatnonzero(np.concatenate(([True], rows[1:] != rows[:-1])))
    least = FreeView(view.free.copy(), view.users.copy())
    own = rows[begins]
    least.free[own] += np.minimum(_lowest(freed[order], begins), 0)
    least.users[own] -= np.minimum(_lowest(-users[order], begins), 0)
    return least


def _lowest(steps: Ints, begins: Ints) -> Ints:
    """How low each of some walks gets, which stand one after the other in ``steps``, from 0."""
    heights = np.cumsum(steps)  # over all walks it may wrap around; within one it never gets that far
    before = heights[begins] - steps[begins]
    lengths = np.diff(np.append(begins, len(steps)))
    return np.asarray(np.minimum.reduceat(heights - np.repeat(before, lengths), begins))


class FreeTimes:
    """The times at which more becomes free, one after the other, with what is free then."""

    def __init__(self, room: Availability) -> None:
        self._room = room
        self._next = 0
        self.time = room.now
        self.view = FreeView(room.view.free.copy(), room.view.users.copy())

    def step(self) -> Rows | None:
        """Go to the next time at which something ends; says which vertices changed. None: nothing ends."""
        events, at = self._room.events, self._next
        while at < len(events) and events[at][1] > 0:
            at += 1
        if at == len(events):
            return None
        self.time = events[at][0]
        last = bisect_right(events, (self.time, 1, 2**63), at)
        touched = []
        for _, sign, job in events[self._next : last]:
            rows, taken = self._room.effect(job)
            _change(self.view, rows, taken, sign)
            touched.append(rows)
        self._next = last
        return np.concatenate(touched)

    def throughout(self, end: int) -> FreeView:
        """What is free from this time until another."""
        return look_ahead(self._room, self.view, self._next, end)


def _change(view: FreeView, rows: Rows, taken: Ints, sign: int) -> None:
    """A job comes (+1) or goes (-1); it touches no vertex twice."""
    if sign > 0:
        view.free[rows] -= taken
        view.users[rows] += 1
    else:
        view.free[rows] += taken
        view.users[rows] -= 1
