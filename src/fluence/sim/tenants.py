"""The figures of each queue of a run: the waits of its jobs, its usage, and the share of its weight.

Shares are compared over the time in which every queue with jobs has waiting jobs: a queue without demand
needs no share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from fluence.model.queues import QueueTree
from fluence.queue.fair_share import due_shares
from fluence.sim.measure import Record, percentile

Interval = tuple[int, int]


class TenantFigures(msgspec.Struct, frozen=True):
    """The figures of one queue; times in seconds."""

    jobs: int = 0
    wait_mean: float = 0
    wait_p95: float = 0
    due: float = 0
    """The part of the cluster that its weight gives it, beside the other queues that have jobs."""
    used: float | None = None
    """Its part of what all used while all had jobs that waited; None: there was no such time."""


class Tenants(msgspec.Struct, frozen=True):
    """The figures of all queues that have jobs."""

    queues: dict[str, TenantFigures] = {}
    contended: float = 0
    """Seconds in which all of them had jobs that waited."""
    share_error: float | None = None
    """The part of the cluster that went to another queue than was due; 0: all had their share."""


def tenants(records: Sequence[Record], tree: QueueTree, last: int) -> Tenants:
    """The figures of the leaves of a tree that took jobs, until a time in ms."""
    by_queue: dict[str, list[Record]] = {}
    for record in records:
        if tree.leaf(record.queue) == record.queue:
            by_queue.setdefault(record.queue, []).append(record)
    contended: list[Interval] = [(0, last)] if by_queue else []
    for jobs in by_queue.values():
        waits = ((job.submit, last if job.start is None else job.start) for job in jobs)
        contended = _common(contended, _merged(waits))
    used = {name: sum(_used(job, contended, last) for job in jobs) for name, jobs in by_queue.items()}
    total, due = sum(used.values()), due_shares(tree, by_queue)
    parts = {name: used[name] / total if total else None for name in by_queue}
    queues = {}
    for name, jobs in sorted(by_queue.items()):
        waits_s = sorted(job.wait / 1000 for job in jobs if job.wait is not None)
        part = parts[name]
        queues[name] = TenantFigures(
            jobs=len(jobs),
            wait_mean=round(sum(waits_s) / len(waits_s), 6) if waits_s else 0,
            wait_p95=percentile(waits_s, 0.95),
            due=round(due[name], 6),
            used=None if part is None else round(part, 6),
        )
    error = sum(abs((parts[name] or 0) - due[name]) for name in by_queue) / 2 if total else None
    length = sum(end - start for start, end in contended) / 1000
    return Tenants(queues, length, None if error is None else round(error, 6))


def _merged(intervals: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _common(one: list[Interval], other: list[Interval]) -> list[Interval]:
    """The time in two lists of intervals, each in order and apart."""
    common: list[Interval] = []
    first = second = 0
    while first < len(one) and second < len(other):
        start, end = max(one[first][0], other[second][0]), min(one[first][1], other[second][1])
        if start < end:
            common.append((start, end))
        if one[first][1] < other[second][1]:
            first += 1
        else:
            second += 1
    return common


def _used(job: Record, intervals: list[Interval], last: int) -> int:
    """Units times ms that a job held within some intervals."""
    if job.start is None:
        return 0
    stop = last if job.end is None else job.end
    return job.size * sum(end - start for start, end in _common([(job.start, stop)], intervals))
