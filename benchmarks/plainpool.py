"""The rival of the plan: four policies over a bare pool of equal processors, in little Python.

It knows no graph, names no resource, makes no promise and keeps nothing between events; each plan is made
anew. Its waits are the reference that the simulator must reproduce (see docs/simulate.md).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from heapq import heapify, heappop, heappush

Jobs = list[tuple[float, float, int, float]]  # submit, runtime, processors, limit


def simulate(jobs: Jobs, processors: int, policy: str) -> dict[int, float]:
    """When each job starts."""
    events = [(job[0], 1, number) for number, job in enumerate(jobs)]
    heapify(events)
    free, queue, running, starts = processors, [], {}, {}
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, arrives, number = heappop(events)
            if arrives:
                queue.append(number)
            else:
                free += jobs[number][2]
                del running[number]
        for number in _POLICIES[policy](jobs, now, free, queue, running):
            free -= jobs[number][2]
            running[number] = now + jobs[number][3]
            starts[number] = now
            heappush(events, (now + jobs[number][1], 0, number))
        queue = [number for number in queue if number not in starts]
    return starts


def _fcfs(jobs, now, free, queue, running):
    chosen = []
    for number in queue:
        if jobs[number][2] > free:
            break
        free -= jobs[number][2]
        chosen.append(number)
    return chosen


def _first_fit(jobs, now, free, queue, running):
    chosen = []
    for number in queue:
        if jobs[number][2] <= free:
            free -= jobs[number][2]
            chosen.append(number)
    return chosen


def _easy(jobs, now, free, queue, running):
    chosen = _fcfs(jobs, now, free, queue, running)
    free -= sum(jobs[number][2] for number in chosen)
    if len(chosen) == len(queue):
        return chosen
    need, available = jobs[queue[len(chosen)]][2], free
    ends = sorted(
        [(end, jobs[n][2]) for n, end in running.items()] + [(now + jobs[n][3], jobs[n][2]) for n in chosen]
    )
    shadow = now
    for end, some in ends:
        available, shadow = available + some, end
        if available >= need:
            break
    spare = free + sum(some for end, some in ends if end <= shadow) - need
    for number in queue[len(chosen) + 1 :]:
        _, _, size, limit = jobs[number]
        if size <= free and (now + limit <= shadow or size <= spare):
            if now + limit > shadow:
                spare -= size
            free -= size
            chosen.append(number)
    return chosen


def _conservative(jobs, now, free, queue, running):
    times, left = [now], [free]

    def cut(time):
        step = bisect_left(times, time)
        if step == len(times) or times[step] != time:
            times.insert(step, time)
            left.insert(step, left[step - 1])
        return step

    for number, end in running.items():
        if end > now:
            for step in range(cut(end), len(times)):
                left[step] += jobs[number][2]
    chosen = []
    for number in queue:
        _, _, size, limit = jobs[number]
        step = bisect_right(times, now) - 1
        while True:
            while left[step] < size:
                step += 1
            start, ahead = max(times[step], now), step + 1
            while ahead < len(times) and times[ahead] < start + limit and left[ahead] >= size:
                ahead += 1
            if ahead == len(times) or times[ahead] >= start + limit:
                break
            step = ahead
        low, high = cut(start), cut(start + limit)
        for step in range(low, high):
            left[step] -= size
        if start == now:
            chosen.append(number)
    return chosen


_POLICIES = {"fcfs": _fcfs, "first-fit": _first_fit, "easy": _easy, "conservative": _conservative}
