"""Profile: all starts and ends after now, as columns; the changes of one vertex are adjacent.

    row     7      7      7      9      9     …
    time    10:00  10:30  11:00  10:00  12:00 …     ascending within a row, ends before starts
    freed   +4000  −8000  +8000  +1     +1    …
    users   −1     +1     −1     −1     −1    …

`Availability` updates it with the ledger. What is free at a later time or during a window, and when a gang
might fit, are then a few operations on whole columns, for any number of planned jobs. `WindowSweep` evaluates
windows in the order of their starts, in one pass over the profile.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fluence.graph.graph import Ints, Mask, Rows


@dataclass(slots=True)
class FreeView:
    """The free amount of each vertex, and the number of jobs that touch it. The last cell represents a
    missing vertex; nothing of it is free."""

    free: Ints
    users: Ints


@dataclass(frozen=True, slots=True)
class JobChange:
    """The start (+1) or end (-1) of a job: its time, distinct vertices, and amounts."""

    job: int
    time: int
    sign: int
    rows: Rows
    taken: Ints


class Profile:
    """The known changes in the future."""

    def __init__(self, changes: list[JobChange]) -> None:
        lengths = np.array([len(each.rows) for each in changes], np.int64)
        rows = np.concatenate([np.empty(0, np.int32), *(each.rows for each in changes)])
        taken = np.concatenate([np.empty(0, np.int64), *(each.taken for each in changes)])
        times, signs, jobs = (
            np.repeat(np.array([getattr(each, name) for each in changes], np.int64), lengths)
            for name in ("time", "sign", "job")
        )
        by = np.lexsort((signs, times, rows))
        self.rows, self.times, self.jobs = rows[by], times[by], jobs[by]
        self.freed, self.users = (-signs * taken)[by], signs[by]
        self.starts = sum(each.sign > 0 for each in changes)

    # -- in step ---------------------------------------------------------------------------------------------

    def add(self, change: JobChange) -> None:
        """Add a change."""
        order = np.argsort(change.rows, kind="stable")
        rows = change.rows[order]
        at = self._places(rows, change.time, after=change.sign > 0)
        size = len(self.rows) + len(rows)
        new = at + np.arange(len(rows))
        old = np.ones(size, np.bool_)
        old[new] = False
        for name, values in (
            ("rows", rows),
            ("times", change.time),
            ("jobs", change.job),
            ("freed", -change.sign * change.taken[order]),
            ("users", change.sign),
        ):
            before: Ints = getattr(self, name)
            after = np.empty(size, before.dtype)
            after[old] = before
            after[new] = values
            setattr(self, name, after)
        self.starts += change.sign > 0

    def remove(self, job: int, starts: int) -> None:
        """Remove a job, with its number of future starts (one or none)."""
        self._keep(self.jobs != job)
        self.starts -= starts

    def pass_by(self, now: int, starts: int) -> None:
        """Drop the changes up to a time, with this number of starts."""
        self._keep(self.times > now)
        self.starts -= starts

    def _keep(self, some: Mask) -> None:
        self.rows, self.times, self.jobs = self.rows[some], self.times[some], self.jobs[some]
        self.freed, self.users = self.freed[some], self.users[some]

    def _places(self, rows: Rows, time: int, *, after: bool) -> Ints:
        """The position of the change of each row: a binary search in all rows at once."""
        low = np.searchsorted(self.rows, rows, "left")
        high = np.searchsorted(self.rows, rows, "right")
        while (open_ := low < high).any():
            middle = (low + high) // 2
            found = self.times[np.where(open_, middle, 0)]
            earlier = open_ & (found <= time if after else found < time)
            low = np.where(earlier, middle + 1, low)
            high = np.where(open_ & ~earlier, middle, high)
        return low

    # -- asking ----------------------------------------------------------------------------------------------

    def at(self, view: FreeView, time: int) -> FreeView:
        """What will be free at a time, given what is free now."""
        passed = self.times <= time
        rows = self.rows[passed]
        free, users = view.free.copy(), view.users.copy()
        np.add.at(free, rows, self.freed[passed])
        np.add.at(users, rows, self.users[passed])
        return FreeView(free, users)

    def throughout(self, view: FreeView, time: int, end: int) -> FreeView:
        """What is free from a time until another, given what is free at the first: the minimum over all
        instants, which can only change when a job starts."""
        if not self.starts:
            return view
        inside = (self.times > time) & (self.times < end)
        starts = inside & (self.users > 0)
        if not starts.any():
            return view
        # Ends after the last start do not change the minimum.
        inside &= self.times <= int(self.times[starts].max())
        rows, freed, users = self.rows[inside], self.freed[inside], self.users[inside]
        begins = np.flatnonzero(np.concatenate(([True], rows[1:] != rows[:-1])))
        least = FreeView(view.free.copy(), view.users.copy())
        own = rows[begins]
        least.free[own] += np.minimum(_lowest(freed, begins), 0)
        least.users[own] -= np.minimum(_lowest(-users, begins), 0)
        return least

    def overbooked(self, view: FreeView) -> set[int]:
        """The future jobs with a vertex that will be overcommitted."""
        free = self.heights()[0] + view.free[self.rows]
        short = free < 0
        if not short.any():
            return set()
        found: set[int] = set()
        for row in np.unique(self.rows[short]).tolist():
            some = slice(*np.searchsorted(self.rows, [row, row + 1]).tolist())
            times, jobs, users, lack = self.times[some], self.jobs[some], self.users[some], short[some]
            ends = dict(zip(jobs[users < 0].tolist(), times[users < 0].tolist(), strict=True))
            until = np.append(times[1:], 1 << 62)
            bad = np.flatnonzero(lack)
            for job, start in zip(jobs[users > 0].tolist(), times[users > 0].tolist(), strict=True):
                inside = (times[bad] < ends.get(job, 1 << 62)) & (until[bad] > start)
                if inside.any():
                    found.add(job)
        return found

    def heights(self) -> tuple[Ints, Ints]:
        """After each change of a row: how much more is free than now, and how many more jobs touch it."""
        if not len(self.rows):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        begins = np.flatnonzero(np.concatenate(([True], self.rows[1:] != self.rows[:-1])))
        lengths = np.diff(np.append(begins, len(self.rows)))

        def walk(steps: Ints) -> Ints:
            heights = np.cumsum(steps)
            found: Ints = heights - np.repeat(heights[begins] - steps[begins], lengths)
            return found

        return walk(self.freed), walk(self.users)


class SlotsOverTime:
    """The largest number of pods that fit by one pool or kind of device, over time. Nodes are counted
    separately, so it is an upper bound: if it is too low, the pods do not fit; otherwise a search must
    decide."""

    def __init__(self, profile: Profile, view: FreeView, where: Ints, amount: int, most: int) -> None:
        """``where``: for each row of the graph, the number of its pool if it counts, or less than 0."""
        first = np.flatnonzero(where >= 0)
        self._first = int(_seats(view.free[first], amount, most).sum())
        inside = np.flatnonzero(where[profile.rows] >= 0)
        rows, freed = profile.rows[inside], profile.freed[inside]
        times = profile.times[inside]
        begins = np.concatenate(([True], rows[1:] != rows[:-1])) if len(rows) else np.empty(0, np.bool_)
        heights = np.cumsum(freed)
        at = np.flatnonzero(begins)
        lengths = np.diff(np.append(at, len(rows)))
        free = heights - np.repeat(heights[at] - freed[at], lengths) + view.free[rows]
        seats = _seats(free, amount, most)
        before = np.concatenate(([0], seats[:-1])) if len(seats) else seats
        before = np.where(begins, _seats(view.free[rows], amount, most), before)
        by = np.argsort(times, kind="stable")
        times = times[by]
        last = np.concatenate((times[1:] != times[:-1], [True])) if len(times) else np.empty(0, np.bool_)
        self._times = times[last]
        self._seats = self._first + np.cumsum((seats - before)[by])[last]

    def suffice(self, wanted: int, starts: Ints, ends: Ints) -> Mask:
        """The windows in which this number of pods fits at every instant."""
        short = np.concatenate(([self._first < wanted], self._seats < wanted))
        counted = np.concatenate(([0], np.cumsum(short)))
        first = np.searchsorted(self._times, starts, "right")  # the number at the start
        last = np.searchsorted(self._times, ends, "left")
        found: Mask = counted[np.maximum(last, first) + 1] == counted[first]
        return found


def _seats(free: Ints, amount: int, most: int) -> Ints:
    return np.clip(free // amount, 0, most)


def _lowest(steps: Ints, begins: Ints) -> Ints:
    """The minimum of each of several walks from 0, which are concatenated in ``steps``."""
    heights = np.cumsum(steps)  # the sum over all walks may overflow, but not within one walk
    before = heights[begins] - steps[begins]
    lengths = np.diff(np.append(begins, len(steps)))
    return np.asarray(np.minimum.reduceat(heights - np.repeat(before, lengths), begins))


class WindowSweep:
    """``view``: what is free now. Query the windows in the order of their starts."""

    def __init__(self, profile: Profile, view: FreeView) -> None:
        order = np.argsort(profile.times, kind="stable")
        self._times, self._rows = profile.times[order], profile.rows[order]
        self._freed, self._users = profile.freed[order], profile.users[order]
        self._view = FreeView(view.free.copy(), view.users.copy())
        self._passed = 0
        # The free amounts and users right after each start: between starts they are not worse.
        starts = order[self._users > 0]
        self._start_times, self._start_rows = profile.times[starts], profile.rows[starts]
        free, users = profile.heights()
        self._left = free[starts] + view.free[self._start_rows]
        self._there = users[starts] + view.users[self._start_rows]

    def throughout(self, time: int, end: int) -> FreeView:
        """What is free from a time until another; the caller may change the result."""
        upto = int(np.searchsorted(self._times, time, "right"))
        some = slice(self._passed, upto)
        np.add.at(self._view.free, self._rows[some], self._freed[some])
        np.add.at(self._view.users, self._rows[some], self._users[some])
        self._passed = upto
        first = int(np.searchsorted(self._start_times, time, "right"))
        last = int(np.searchsorted(self._start_times, end, "left"))
        found = FreeView(self._view.free.copy(), self._view.users.copy())
        np.minimum.at(found.free, self._start_rows[first:last], self._left[first:last])
        np.maximum.at(found.users, self._start_rows[first:last], self._there[first:last])
        return found
