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
from typing import TYPE_CHECKING

import numpy as np
from cachetools import LRUCache

from fluence.graph.graph import Ints, Rows
from fluence.graph.ledger import LedgerJob
from fluence.placer.profile import FreeView, JobChange, Profile

if TYPE_CHECKING:
    from fluence.match.matcher import Matcher

_KEPT = 16  # windows

Event = tuple[int, int, int]  # time, -1 for an end or +1 for a start, job; what ends comes first


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
        self._profile: Profile | None = None  # of all events
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
            found = self.profile.throughout(self.view, self.now, end)
            if found is not self.view:
                self._windows[key] = found
        return found

    def effect(self, job: int) -> tuple[Rows, Ints]:
        """The vertices that a job touches, and how much it takes of each."""
        found = self._effects.get(job)
        if found is None:
            found = self._effects[job] = self._of(self._ledger.jobs[job])
        return found

    @property
    def profile(self) -> Profile:
        """All events, as columns."""
        if self._profile is None:
            self._profile = Profile(
                [JobChange(job, time, sign, *self.effect(job)) for time, sign, job in self.events]
            )
        return self._profile

    def ends(self) -> Ints:
        """The times at which something ends, ascending."""
        return np.array(list(dict.fromkeys(time for time, sign, _ in self.events if sign < 0)), np.int64)

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
        start, end = record.start, self._end(record)
        events = [
            event
            for event in ((start, 1, record.id), (end, -1, record.id))
            if self.now < event[0] < self._matcher.horizon and start < end
        ]
        for event in events:
            if sign > 0:
                insort(self.events, event)
            else:
                del self.events[bisect_left(self.events, event)]
        if self._profile is not None and events:
            if sign > 0:
                for time, change, job in events:
                    self._profile.add(JobChange(job, time, change, rows, taken))
            else:
                self._profile.remove(record.id, sum(change > 0 for _, change, _ in events))
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
        if self._profile is not None and passed:
            self._profile.pass_by(now, sum(sign > 0 for _, sign, _ in self.events[:passed]))
        del self.events[:passed]
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
        self._profile = None
        self._generation = ledger.generation


def _change(view: FreeView, rows: Rows, taken: Ints, sign: int) -> None:
    """A job comes (+1) or goes (-1); it touches no vertex twice."""
    if sign > 0:
        view.free[rows] -= taken
        view.users[rows] += 1
    else:
        view.free[rows] += taken
        view.users[rows] -= 1
