"""Profile: all that begins and ends after now, as columns; the changes of one vertex stand together.

    row     7      7      7      9      9     …
    time    10:00  10:30  11:00  10:00  12:00 …     ascending within a row, ends before starts
    freed   +4000  −8000  +8000  +1     +1    …
    users   −1     +1     −1     −1     −1    …

`Availability` keeps it in step with the ledger. What is free at a later time, what is free throughout a
window, and when there could be enough seats are then a few operations on whole columns, however many jobs
are planned.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fluence.graph.graph import Ints, Mask, Rows


@dataclass(slots=True)
class FreeView:
    """What is free of each vertex, and how many touch it. The last cell stands for a vertex that is not
    there: nothing of it is free."""

    free: Ints
    users: Ints


@dataclass(frozen=True, slots=True)
class JobChange:
    """A job begins (+1) or ends (-1): when, and what it takes of which vertices, each once."""

    job: int
    time: int
    sign: int
    rows: Rows
    taken: Ints


class Profile:
    """The changes that are known to come."""

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
        """Something is to come that was not known."""
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
        """A job leaves, with so many starts (one or none) that were to come."""
        self._keep(self.jobs != job)
        self.starts -= starts

    def pass_by(self, now: int, starts: int) -> None:
        """Time goes on, past so many starts."""
        self._keep(self.times > now)
        self.starts -= starts

    def _keep(self, some: Mask) -> None:
        self.rows, self.times, self.jobs = self.rows[some], self.times[some], self.jobs[some]
        self.freed, self.users = self.freed[some], self.users[some]

    def _places(self, rows: Rows, time: int, *, after: bool) -> Ints:
        """Where the change of each row belongs: a binary search in all rows at once."""
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
        """What is free from a time until another, given what is free at the first: the least of all instants
        between, which changes only where something starts."""
        if not self.starts:
            return view
        inside = (self.times > time) & (self.times < end)
        starts = inside & (self.users > 0)
        if not starts.any():
            return view
        # What ends after the last start frees nothing that the window could use.
        inside &= self.times <= int(self.times[starts].max())
        rows, freed, users = self.rows[inside], self.freed[inside], self.users[inside]
        begins = np.flatnonzero(np.concatenate(([True], rows[1:] != rows[:-1])))
        least = FreeView(view.free.copy(), view.users.copy())
        own = rows[begins]
        least.free[own] += np.minimum(_lowest(freed, begins), 0)
        least.users[own] -= np.minimum(_lowest(-users, begins), 0)
        return least

    def overbooked(self, view: FreeView) -> set[int]:
        """The jobs that begin later and then have a vertex of which more is taken than there is."""
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
        """After each change of a row: how much more of it is free than now, and how many more are there."""
        if not len(self.rows):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        begins = np.flatnonzero(np.concatenate(([True], self.rows[1:] != self.rows[:-1])))
        lengths = np.diff(np.append(begins, len(self.rows)))

        def walk(steps: Ints) -> Ints:
            heights = np.cumsum(steps)
            found: Ints = heights - np.repeat(heights[begins] - steps[begins], lengths)
            return found

        return walk(self.freed), walk(self.users)


class SeatsOverTime:
    """How many seats there are in all, at most, of one pool or kind of device: a number per time. Each node
    counts by itself, so it is a bound from above: where it is too low there are too few, and where it is not
    a search has the last word."""

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
        """In which windows there are so many seats at every instant."""
        short = np.concatenate(([self._first < wanted], self._seats < wanted))
        counted = np.concatenate(([0], np.cumsum(short)))
        first = np.searchsorted(self._times, starts, "right")  # the number that holds at the start
        last = np.searchsorted(self._times, ends, "left")
        found: Mask = counted[np.maximum(last, first) + 1] == counted[first]
        return found


def _seats(free: Ints, amount: int, most: int) -> Ints:
    return np.clip(free // amount, 0, most)


def _lowest(steps: Ints, begins: Ints) -> Ints:
    """How low each of some walks gets, which stand one after the other in ``steps``, from 0."""
    heights = np.cumsum(steps)  # over all walks it may wrap around; within one it never gets that far
    before = heights[begins] - steps[begins]
    lengths = np.diff(np.append(begins, len(steps)))
    return np.asarray(np.minimum.reduceat(heights - np.repeat(before, lengths), begins))
