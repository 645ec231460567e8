"""Counts over time: how many units are free from now on, as step functions.

Interchangeable units need no names before a job starts: if enough are free at each instant, they can be
assigned to the jobs in the order of their starts (an interval graph is perfect). So a plan needs only counts,
and finds starts that a plan of named units misses. `Timeline` counts one kind of unit. `Totals` counts
several, as sums over a cluster. It ignores which node has the resources, so its starts are early rather than
late, and it costs a hundredth of a plan that places every job. `forward` simulates a backfill scheduler with
counts and predicted ends.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from fluence.match.request import Need, Request
from fluence.queue.job import FOREVER


class Timeline:
    """``free[i]`` units are free from ``times[i]`` until ``times[i + 1]``; the last step lasts forever."""

    __slots__ = ("free", "times")

    def __init__(self, now: int, free: int) -> None:
        self.times = [now]
        self.free = [free]

    @classmethod
    def filled(cls, now: int, free: int, until: Mapping[int, int]) -> Timeline:
        """A timeline on which units are taken from now on: ``until`` maps end times to numbers of units."""
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
        times, free = self.times, self.free
        low = bisect_left(times, start)
        if low == len(times) or times[low] != start:
            if low == 0:
                raise ValueError(f"{start} is before the timeline's beginning, {times[0]}")
            times.insert(low, start)
            free.insert(low, free[low - 1])
        high = bisect_left(times, end, low)
        if high == len(times) or times[high] != end:
            times.insert(high, end)
            free.insert(high, free[high - 1])
        for step in range(low, high):
            free[step] -= units
        # Merge equal steps, which would slow down the next search.
        if high > 0 and free[high] == free[high - 1]:
            del times[high], free[high]
        if 0 < low < len(times) and free[low] == free[low - 1]:
            del times[low], free[low]

    def earliest(self, units: int, duration: int, start: int) -> int | None:
        """The first time from ``start`` at which ``units`` are free for ``duration``; None: never."""
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
        """Whether ``units`` are free for ``duration``, or until ``bound``, from some time in [start,
        bound)."""
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
        """The first time from ``start`` at which fewer than ``units`` are free; None: never."""
        low = max(bisect_right(self.times, start) - 1, 0)
        for step in range(low, len(self.times)):
            if self.free[step] < units:
                return max(self.times[step], start)
        return None


Amounts: TypeAlias = Mapping[Hashable, int]  # type -> how much

NO_TIME = FOREVER // 2  # a start this far away means waiting for work whose end is unknown


class Totals:
    """Sums over time, one timeline per type."""

    def __init__(self, now: int, capacity: Amounts, running: Iterable[tuple[int, Amounts]]) -> None:
        until: dict[Hashable, dict[int, int]] = {kind: {} for kind in capacity}
        for end, amounts in running:
            if end > now:
                for kind, amount in amounts.items():
                    if kind in until:
                        until[kind][end] = until[kind].get(end, 0) + amount
        self._until = now + NO_TIME
        self._lines = {kind: Timeline.filled(now, capacity[kind], ends) for kind, ends in until.items()}
        self._ample: Collection[Hashable] = ()  # types with enough for all

    def place(self, amounts: Amounts, duration: int, start: int) -> int | None:
        """Place a request at its earliest start and return that time; None: it never fits, or its start is
        unknown."""
        parts = self._parts(amounts)
        return None if parts is None else self._place(parts, duration, start)

    def place_all(
        self,
        asks: Iterable[tuple[Amounts, int]],
        start: int,
        *,
        in_order: bool = False,
        beside: Sequence[Amounts] = (),
        since: Sequence[int] = (),
        demands: Sequence[Amounts] = (),
    ) -> list[int | None]:
        """The same for several requests, one after the other. ``in_order``: no request starts before the one
        in front of it. ``beside``: what each might take in addition, if it is free. ``since``: the earliest
        start of each. ``demands``: what each takes too, of other types."""
        asks = list(asks)
        self._drop_ample(asks, (*beside, *demands))
        starts: list[int | None] = []
        known: dict[int, list[tuple[Timeline, int]] | None] = {}  # by identity: requests of a shape share it
        for place, (amounts, duration) in enumerate(asks):
            parts = known[id(amounts)] if id(amounts) in known else self._parts(amounts)
            known[id(amounts)] = parts
            if demands and demands[place] and parts is not None:
                more = self._parts(demands[place])
                parts = None if more is None else [*parts, *more]
            begin = max(start, since[place]) if since else start
            at = None if parts is None else self._place(parts, duration, begin)
            starts.append(at)
            if at is None:
                continue
            if in_order:
                start = at
            if beside and beside[place]:
                end = at + duration
                for line, amount in self._parts(beside[place]) or ():
                    free = min(amount, line.least(at, end))
                    if free > 0:
                        line.take(at, end, free)
        return starts

    def _parts(self, amounts: Amounts) -> list[tuple[Timeline, int]] | None:
        """The timeline of each type, without those that are never short; None: there is no such type."""
        lines, ample = self._lines, self._ample
        found = [(lines.get(kind), amount) for kind, amount in amounts.items() if kind not in ample]
        parts = [(line, amount) for line, amount in found if line is not None]
        return None if len(parts) < len(found) else parts

    def _place(self, parts: list[tuple[Timeline, int]], duration: int, start: int) -> int | None:
        begin, agreed, place = start, 0, 0
        while agreed < len(parts):  # each allows the same time
            line, amount = parts[place]
            at = line.earliest(amount, duration, begin)
            if at is None:
                return None
            begin, agreed = at, agreed + 1 if at == begin else 1
            place = place + 1 if place + 1 < len(parts) else 0
        if begin >= self._until:
            return None
        for line, amount in parts:
            line.take(begin, begin + duration, amount)
        return begin

    def _drop_ample(self, asks: Sequence[tuple[Amounts, int]], others: Iterable[Amounts]) -> None:
        """Ignore the types that have enough for all requests together at any time."""
        counts = Counter(id(amounts) for amounts, _ in asks)
        shapes = {id(amounts): amounts for amounts, _ in asks}
        total: dict[Hashable, int] = {}
        for key, amounts in shapes.items():
            for kind, amount in amounts.items():
                total[kind] = total.get(kind, 0) + amount * counts[key]
        for amounts in others:
            for kind, amount in amounts.items():
                total[kind] = total.get(kind, 0) + amount
        lines = self._lines
        self._ample = {
            kind for kind, amount in total.items() if kind in lines and amount <= min(lines[kind].free)
        }


def expected(starts: Sequence[int | None], wanted: Collection[int]) -> dict[int, int]:
    """The known starts at the places ``wanted``."""
    return {place: start for place, start in enumerate(starts) if start is not None and place in wanted}


def asked_for(request: Request) -> Amounts:
    """How much of each leaf type a request takes."""
    found: dict[Hashable, int] = {}

    def add(need: Need, times: int) -> None:
        times *= need.count.min
        for below in need.below:
            add(below, times)
        if not need.below:
            found[need.type] = found.get(need.type, 0) + times

    for need in request.needs:
        add(need, 1)
    return found


def forward(
    now: int,
    free: int,
    running: Sequence[tuple[int, int, int]],  # predicted end, planned end, units
    pending: Sequence[tuple[int, int, int]],  # units, predicted duration, limit
    wanted: Collection[int],  # places in `pending`
) -> dict[int, int]:
    """The start of each wanted job, if running and waiting jobs end when they are predicted to."""
    starts: dict[int, int] = {}
    missing = set(wanted)
    ends = [(predicted, number) for number, (predicted, _, _) in enumerate(running)]
    heapify(ends)
    held = {number: (planned, number, units) for number, (_, planned, units) in enumerate(running)}
    limits = sorted(held.values())  # the same in the order of planned ends
    alike: dict[tuple[int, int], deque[int]] = {}  # units and limit -> places that wait, in order
    for place, (units, _, limit) in enumerate(pending):
        alike.setdefault((units, limit), deque()).append(place)
    kinds = sorted((units, limit, places) for (units, limit), places in alike.items())
    serial = len(running)
    front, last = 0, len(pending)
    started = [False] * last
    shadow = spare = -1  # of the job in front, while it must wait
    while missing and front < last:
        if shadow < 0:
            place = front
            units, duration, limit = pending[place]
            if units > free:
                if kinds[0][0] <= free:
                    shadow, spare = _shadow(now, free, limits, units)
                    continue
                place = -1
        else:
            # The first job that fits and does not delay the one in front. Free units shrink with each start,
            # so jobs that did not fit before need not be tried again.
            place = last
            for units, limit, places in kinds:
                if units > free:
                    break
                if places[0] < place and (units <= spare or now + limit <= shadow):
                    place = places[0]
            if place == last:
                place = -1
            else:
                units, duration, limit = pending[place]
                if now + limit > shadow:
                    spare -= units
        if place >= 0:
            free -= units
            held[serial] = entry = (now + limit, serial, units)
            insort(limits, entry)
            heappush(ends, (now + duration, serial))
            serial += 1
            places = alike[units, limit]
            places.popleft()
            if not places:
                kinds.remove((units, limit, places))
                del alike[units, limit]
            started[place] = True
            while front < last and started[front]:
                front += 1
            if place in missing:
                starts[place] = now
                missing.discard(place)
            continue
        if not ends:
            break  # the remaining jobs never fit
        shadow = -1
        now = max(now, ends[0][0])
        while ends and ends[0][0] <= now:
            over = held.pop(heappop(ends)[1])
            del limits[bisect_left(limits, over)]
            free += over[2]
    return starts


def _shadow(now: int, free: int, limits: list[tuple[int, int, int]], units: int) -> tuple[int, int]:
    """When the limits of running jobs free enough for the job in front, and how many units are left over
    then."""
    last = now
    for end, _, some in limits:
        if end > last:
            if free >= units:
                return last, free - units
            last = end
        free += some
    return (last, free - units) if free >= units and limits else (now, free)  # it delays no other job
