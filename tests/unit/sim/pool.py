"""A scheduler too plain to be wrong: one pool of equal processors, decisions at arrivals and completions.

It makes records for the tests of figures and pictures, and reproduces the published reference results.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from fluence.sim.intake import TraceJob
from fluence.sim.measure import Record

ROOT = Path(__file__).resolve().parents[3]
TRACES = Path(os.environ.get("FLUENCE_TRACES") or ROOT.parent / "shared" / "traces").resolve()


class Pool:
    """The pool at one moment: what is free, who runs until when at the latest, who waits."""

    def __init__(self, jobs: Sequence[TraceJob], processors: int) -> None:
        self.jobs = jobs
        self.free = processors
        self.now = 0
        self.queue: list[int] = []
        self.ends: dict[int, int] = {}
        self.events = [(job.submit, 1, i) for i, job in enumerate(jobs)]
        self.start: dict[int, int] = {}
        self.promised: dict[int, int] = {}
        self.backfilled: set[int] = set()
        heapq.heapify(self.events)

    def limit(self, i: int) -> int:
        job = self.jobs[i]
        return job.runtime if job.limit is None else job.limit

    def go(self, i: int) -> None:
        job = self.jobs[i]
        self.free -= job.size
        self.ends[i] = self.now + self.limit(i)
        self.start[i] = self.now
        heapq.heappush(self.events, (self.now + job.runtime, 0, i))

    def shadow(self, head: int) -> tuple[int, int]:
        """When the head can start by the limits of what runs, and what is then left over."""
        need, available, at = self.jobs[head].size, self.free, self.now
        for end, i in sorted((end, i) for i, end in self.ends.items()):
            available += self.jobs[i].size
            if available >= need:
                at = end
                break
        available = self.free + sum(self.jobs[i].size for i, end in self.ends.items() if end <= at)
        return at, available - need


def fcfs(pool: Pool) -> None:
    while pool.queue and pool.jobs[pool.queue[0]].size <= pool.free:
        pool.go(pool.queue.pop(0))


def first_fit(pool: Pool) -> None:
    left = []
    for i in pool.queue:
        if pool.jobs[i].size <= pool.free:
            pool.go(i)
        else:
            left.append(i)
    pool.queue = left


def easy(pool: Pool) -> None:
    fcfs(pool)
    if not pool.queue:
        return
    at, extra = pool.shadow(pool.queue[0])
    pool.promised.setdefault(pool.queue[0], at)
    left = pool.queue[:1]
    for i in pool.queue[1:]:
        size, end = pool.jobs[i].size, pool.now + pool.limit(i)
        if size <= pool.free and (end <= at or size <= extra):
            if end > at:
                extra -= size
            pool.backfilled.add(i)
            pool.go(i)
        else:
            left.append(i)
    pool.queue = left


def conservative(pool: Pool) -> None:
    """Every job planned in order, the plan made anew each time."""
    spans = [(pool.now, end, pool.jobs[i].size) for i, end in pool.ends.items()]
    total = pool.free + sum(size for _, _, size in spans)
    left = []
    for i in pool.queue:
        size, limit = pool.jobs[i].size, pool.limit(i)
        for at in sorted({pool.now, *(end for _, end, _ in spans)}):
            times = {at, *(start for start, _, _ in spans if at < start < at + limit)}
            if all(sum(s for b, e, s in spans if b <= t < e) + size <= total for t in times):
                break
        spans.append((at, at + limit, size))
        if at == pool.now:
            pool.go(i)
        else:
            pool.promised.setdefault(i, at)
            left.append(i)
    pool.queue = left


def run(
    jobs: Sequence[TraceJob], processors: int, decide: Callable[[Pool], None], *, until: int | None = None
) -> list[Record]:
    """The records of a run; with *until*, of one that was interrupted then."""
    pool = Pool(jobs, processors)
    while pool.events and (until is None or pool.events[0][0] <= until):
        pool.now = pool.events[0][0]
        while pool.events and pool.events[0][0] == pool.now:
            _, arrives, i = heapq.heappop(pool.events)
            if arrives:
                pool.queue.append(i)
            else:
                pool.free += jobs[i].size
                del pool.ends[i]
        decide(pool)
    return [_record(pool, i, job) for i, job in enumerate(jobs) if until is None or job.submit <= until]


def _record(pool: Pool, i: int, job: TraceJob) -> Record:
    start = pool.start.get(i)
    is_running = i in pool.ends
    promised = pool.promised.get(i)
    return Record(
        name=job.name,
        user=job.user,
        queue=job.queue,
        size=job.size,
        submit=job.submit,
        start=start,
        end=None if start is None or is_running else start + job.runtime,
        runtime=job.runtime,
        limit=job.limit,
        no_later_than=promised,
        expected=None if promised is None else (promised + job.submit) // 2,
        backfilled=i in pool.backfilled,
        state="pending" if start is None else "running" if is_running else "completed",
    )
