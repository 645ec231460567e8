"""When jobs would start if they ran as long as predicted: a backfill scheduler run ahead, in counts.

Running tasks are planned with by their limits, as a scheduler must, and end as predicted. The job in front
holds the earliest start that limits allow; others go ahead if they do not delay it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Sequence
from heapq import heapify, heappop, heappush


def forward(
    now: int,
    free: int,
    running: Sequence[tuple[int, int, int]],  # predicted end, planned end, units
    pending: Sequence[tuple[int, int, int]],  # units, predicted duration, limit
    wanted: Collection[int],  # places in `pending`
) -> dict[int, int]:
    """The start of each wanted job."""
    starts: dict[int, int] = {}
    missing = set(wanted)
    ends = [(predicted, number) for number, (predicted, _, _) in enumerate(running)]
    heapify(ends)
    held = {number: (planned, number, units) for number, (_, planned, units) in enumerate(running)}
    limits = sorted(held.values())  # the same in the order of planned ends
    queue = list(range(len(pending)))
    serial = len(running)
    smallest = min((units for units, _, _ in pending), default=0)
    while missing and queue:
        waiting: list[int] = []
        shadow = spare = -1  # of the job in front, once it must wait
        for number, place in enumerate(queue):
            if free < smallest:
                waiting += queue[number:]
                break
            units, duration, limit = pending[place]
            if shadow >= 0 and (units > free or (now + limit > shadow and units > spare)):
                waiting.append(place)
                continue
            if units > free:
                shadow, spare = _shadow(now, free, limits, units)
                waiting.append(place)
                continue
            if shadow >= 0 and now + limit > shadow:
                spare -= units
            free -= units
            held[serial] = (now + limit, serial, units)
            insort(limits, held[serial])
            heappush(ends, (now + duration, serial))
            serial += 1
            if place in missing:
                starts[place] = now
                missing.discard(place)
        queue = waiting
        if not ends:
            break  # what is left fits at no time
        now = max(now, ends[0][0])
        while ends and ends[0][0] <= now:
            over = held.pop(heappop(ends)[1])
            del limits[bisect_left(limits, over)]
            free += over[2]
    return starts


def _shadow(now: int, free: int, limits: list[tuple[int, int, int]], units: int) -> tuple[int, int]:
    """When limits free enough for the job in front, and how many units it leaves to others then."""
    last = now
    for end, _, some in limits:
        if end > last:
            if free >= units:
                return last, free - units
            last = end
        free += some
    return (last, free - units) if free >= units and limits else (now, free)  # it holds nobody up
