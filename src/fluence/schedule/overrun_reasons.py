"""Overrun reasons: who runs past a limit, for those that wait for it.

Called by `StatusReports` for each shape that waits, and for each whose promise was broken.
"""

from __future__ import annotations

from heapq import nsmallest

from fluence.model.reason import Code, Reason
from fluence.queue import JobRecord, Queue
from fluence.schedule.holders import holder
from fluence.schedule.planner import ClusterPlanner, PodSetRequest

_ASKED = 16  # of those that overrun, the first so many are looked at


def holding(
    request: PodSetRequest, limit: int, now: int, queue: Queue, planner: ClusterPlanner
) -> list[Reason]:
    """Those that overrun on nodes where a request could start if they had ended."""
    since = queue.overruns.since
    if not since:
        return []
    first = nsmallest(_ASKED, since, key=since.__getitem__)
    return [_named(queue, task) for task in planner.held_up_by(request, now, limit, first)]


def breaking(record: JobRecord, queue: Queue) -> list[Reason]:
    """Who overran, and still runs, so that the last promise was broken."""
    cause = record.broken[-1].cause if record.broken else None
    if cause is None or cause.code is not Code.RUNS_PAST_LIMIT:
        return []
    task = str(cause["job"])
    return [_named(queue, task)] if task in queue.overruns.since else []


def _named(queue: Queue, task: str) -> Reason:
    record = queue.records[task]
    request = record.job.request
    assert isinstance(request, PodSetRequest)
    return Reason.of(
        Code.WAITS_FOR_OVERRUN,
        **holder(request.pods),
        limit=record.limit,
        since=queue.overruns.since[task],
    )
