"""How many of some interchangeable units are free, from now on: a step function of time.

Units that nothing tells apart need not be named before a job starts: intervals can be given units in the
order of their starts whenever enough are free at each instant (an interval graph is perfect). So a plan needs
counts alone, and finds starts that a plan of named units misses.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping


class Timeline:
    """``free[i]`` units are free from ``times[i]`` until ``times[i + 1]``; the last step lasts for ever."""

    __slots__ = ("free", "times")

    def __init__(self, now: int, free: int) -> None:
        self.times = [now]
        self.free = [free]

    @classmethod
    def filled(cls, now: int, free: int, until: Mapping[int, int]) -> Timeline:
        """A line on which units are taken from now on: so many until each of these times."""
        made = cls(now, free - sum(until.values()))
        for end in sorted(until):
            if until[end]:
                made.times.append(end)
                made.free.append(made.free[-1] + until[end])
        return made

    def copy(self) -> Timeline:
        twin = Timeline.__new__(Timeline)
        twin.times = self.times.copy()
        twin.free = self.free.copy()
        return twin

    def at(self, time: int) -> int:
        """How many are free at a time."""
        return self.free[max(bisect_right(self.times, time) - 1, 0)]

    def forget_before(self, now: int) -> None:
        """Drop the steps that are over."""
        first = bisect_right(self.times, now) - 1
        if first > 0:
            del self.times[:first]
            del self.free[:first]

    def take(self, start: int, end: int, units: int) -> None:
        """Take units during [start, end); a negative number gives them back."""
        low, high = self._cut(start), self._cut(end)
        free = self.free
        for step in range(low, high):
            free[step] -= units
        # Steps that no longer differ would only slow the next search.
        self._join(high)
        self._join(low)

    def earliest(self, units: int, duration: int, start: int) -> int | None:
        """The first time from ``start`` at which so many are free for so long; None: never."""
        times, free = self.times, self.free
        last = len(times)
        step = max(bisect_right(times, start) - 1, 0)
        while True:
            while free[step] < units:
                step += 1
                if step == last:
                    return None
            begin = times[step]
            if begin < start:
                begin = start
            end = begin + duration
            step += 1
            while step < last and free[step] >= units:
                if times[step] >= end:
                    return begin
                step += 1
            if step == last or times[step] >= end:
                return begin

    def least(self, start: int, end: int) -> int:
        """How many are free during all of [start, end)."""
        low = max(bisect_right(self.times, start) - 1, 0)
        return min(self.free[low : max(bisect_left(self.times, end), low + 1)])

    def is_free_before(self, units: int, duration: int, start: int, bound: int) -> bool:
        """Whether so many are free for so long, or until ``bound``, from some time in [start, bound)."""
        times, free = self.times, self.free
        last = bisect_left(times, bound)
        step = max(bisect_right(times, start) - 1, 0)
        while start < bound:
            while step < last and free[step] < units:
                step += 1
            if step >= last:
                break
            end = max(times[step], start) + duration
            step += 1
            while step < last and free[step] >= units and times[step] < end:
                step += 1
            if step >= last or times[step] >= end:
                return True
        return False

    def until(self, units: int, start: int) -> int | None:
        """When fewer than so many are free for the first time from ``start``; None: never."""
        low = max(bisect_right(self.times, start) - 1, 0)
        for step in range(low, len(self.times)):
            if self.free[step] < units:
                return max(self.times[step], start)
        return None

    def _cut(self, time: int) -> int:
        step = bisect_left(self.times, time)
        if step == len(self.times) or self.times[step] != time:
            if step == 0:
                raise ValueError(f"{time} is before the timeline's beginning, {self.times[0]}")
            self.times.insert(step, time)
            self.free.insert(step, self.free[step - 1])
        return step

    def _join(self, step: int) -> None:
        if 0 < step < len(self.times) and self.free[step] == self.free[step - 1]:
            del self.times[step]
            del self.free[step]
