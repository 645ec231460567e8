"""The free amount of every vertex, now and during a window, as columns that follow the ledger.

The ledger has the allocations and their times. Asking it about a thousand nodes takes a thousand walks along
lists of spans. Here the free amounts are one column, which every change updates::

    row        0        1      2       3         4
    type       cluster  node   cpu     memory    pods
    size       1        1      32000   2^37      110
    free       1        1      30500   2^37-…    109      now
    users      3        3      3       3         3        spans, shared ones included

The amount that is free *throughout* a window is the smallest amount at any instant. It differs from the
current amount only if an allocation starts inside the window.

The end of a job is only planned. With ``keeps_overdue``, a job past its end keeps its resources, now and at
all later times, until it is released or gets another end: on a live cluster its pods are still there.

`LedgerColumns` turns placements and devices into columns of the ledger: vertices, amounts, and whether each
is exclusive.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from cachetools import LRUCache

from fluence.graph.graph import Ints, Rows
from fluence.graph.ledger import LedgerJob
from fluence.match.matcher import Matcher
from fluence.model.external_resources import DeviceGrant
from fluence.placer.backends import BackendTable
from fluence.placer.node_table import NodeTable
from fluence.placer.placer import Columns, PodPlacement
from fluence.placer.profile import FreeView, JobChange, Profile
from fluence.units import MAX_AMOUNT

if TYPE_CHECKING:
    from fluence.match.matcher import Matcher


_MAX_WINDOWS = 16

Event = tuple[int, int, int]  # time, -1 for an end or +1 for a start, job; ends come first


class Availability:
    """The columns of one matcher's ledger."""

    def __init__(self, matcher: Matcher, *, keeps_overdue: bool = False) -> None:
        self._matcher = matcher
        self._ledger = matcher.ledger
        self._keeps_overdue = keeps_overdue
        self.now = 0
        self.view = FreeView(np.zeros(1, np.int64), np.zeros(1, np.int64))
        self.events: list[Event] = []  # after now, ascending
        self._windows: LRUCache[tuple[int, int], FreeView] = LRUCache(_MAX_WINDOWS)
        self._effects: dict[int, tuple[Rows, Ints]] = {}  # by job
        self._profile: Profile | None = None  # of all events
        self._generation = -1
        self._ledger.watchers.append(self._follow)

    # -- asking ----------------------------------------------------------------------------------------------

    def at(self, now: int) -> FreeView:
        """What is free at a time, which becomes the current time of the columns."""
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
        """The vertices of a job, and the amount that it takes of each."""
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
        """The times at which jobs end, ascending."""
        return np.array(list(dict.fromkeys(time for time, sign, _ in self.events if sign < 0)), np.int64)

    # -- in step ---------------------------------------------------------------------------------------------

    def _follow(self, record: LedgerJob, sign: int) -> None:
        """A job was added to the ledger (+1), or is about to be removed (-1)."""
        behind = 1 if sign > 0 else 0
        if self._generation != self._ledger.generation - behind:
            return  # other spans or rows have changed too: the next query counts again
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
        """When a job frees its resources, as known now."""
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
    """Add (+1) or remove (-1) a job; it touches no vertex twice."""
    if sign > 0:
        view.free[rows] -= taken
        view.users[rows] += 1
    else:
        view.free[rows] += taken
        view.users[rows] -= 1


class LedgerColumns:
    """Columns for the ledger of one matcher."""

    def __init__(self, matcher: Matcher, table: NodeTable, backends: BackendTable) -> None:
        self._matcher = matcher
        self._table = table
        self._backends = backends

    def of(
        self,
        placements: Iterable[PodPlacement],
        grants: Sequence[DeviceGrant],
        *,
        whole: bool,
        uses_node: bool,
        view: FreeView,
    ) -> Columns:
        """The vertices, amounts and exclusive flags of placements; nodes that are gone do not count."""
        graph = self._matcher.graph
        taken: dict[int, int] = {}
        used: dict[int, None] = {}
        for placement in placements:
            node = self._table.position.get(placement.node)
            if node is None:
                continue
            used[node] = None
            for type_, amount in placement.needs.items():
                pool = self._table.pools.get(type_)
                if pool is not None and amount:
                    row = int(pool[node])
                    taken[row] = taken.get(row, 0) + amount
            for row in placement.devices:
                taken[row] = taken.get(row, 0) + 1
        taken.pop(graph.rows, None)  # a resource that the node does not have
        if whole and used:
            for row, amount in self._table.rest(list(used), view):
                taken[row] = max(amount, taken.get(row, 0))
        way: dict[int, bool] = {}  # nodes and all vertices above them; whether exclusive
        for node in used if uses_node else ():
            first, *above = self._table.way(node)
            way[first] = whole
            way.update(dict.fromkeys(above, False))
        devices, above_devices = self._backends.held(grants)
        taken.update(devices)
        for row in above_devices:
            way.setdefault(row, False)
        # The requests of running pods can be arbitrarily large; they are capped.
        amounts = np.array([min(amount, MAX_AMOUNT) for amount in taken.values()], np.int64)
        return (
            np.array([*taken, *way], np.int32),
            np.concatenate((amounts, graph.size[[*way]])),
            np.array([*(True for _ in taken), *way.values()], np.bool_),
        )
