"""Unlimited reasons: why a start is unknown: who holds what is wanted, and has no limit.

Called by `StatusReports` for pod sets that were asked about and could be promised nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from fluence.cluster.graph import Refused
from fluence.cluster.pods import is_resident
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.queue import Queue
from fluence.schedule.holders import holder
from fluence.schedule.planner import HORIZON, ClusterPlanner, PodSetRequest
from fluence.schedule.pod_set import PodSet

_HOLDERS = 64  # that are told apart
_LOOKED_AT = 16  # nodes
_AHEAD = 64  # so many of those in front of it are looked at


def unlimited(pod_set: PodSet, planner: ClusterPlanner, queue: Queue) -> list[Reason]:
    """Those that nobody ends, on nodes that the pods could have without them; the most frequent first. If
    there are none, the first in front of it in the queue that has no limit and will take the room."""
    if pod_set.no_later_than is not None or pod_set.reservation is not None or pod_set.asked < 0:
        return []
    # Those that overrun have a limit; `holding` names them.
    pods = _endless(pod_set.request, planner, besides=queue.overruns.since)
    found = Counter(_reason((pod,)) for pod in pods)
    return [each for each, _ in found.most_common(_HOLDERS)] or _ahead(pod_set, queue)


def _reason(pods: tuple[Pod, ...]) -> Reason:
    return Reason.of(Code.WAITS_FOR_UNLIMITED, **holder(pods))


def _endless(request: PodSetRequest, planner: ClusterPlanner, *, besides: Collection[str]) -> Iterator[Pod]:
    """Pods of which nobody knows when they end, on devices that would suit or on the first nodes that would
    and are full, but for those of some tasks."""
    gang, cluster = planner.gang(request), planner.cluster
    if isinstance(gang, Refused):
        return
    seats, running = cluster.seats, planner.allocations.running
    others = {running[task].number for task in besides if task in running}
    wanted = {name for need in gang.devices for name in seats.backends.backends_of(need.suits)}
    for job in list(seats.jobs.values()) if wanted else ():
        granted = any(grant.backend in wanted for grant in job.grants)
        if granted and job.end >= HORIZON and job.job not in others:
            entries = map(cluster.pods.entries.get, map(str, job.seats))
            yield from (entry.pod for entry in entries if entry is not None)
    for node in seats.full_nodes(gang.members[0], most=_LOOKED_AT):
        for entry in cluster.pods.on(node):
            seating = None if entry.job is None else seats.jobs.get(entry.job)
            endless = seating is None or seating.end >= HORIZON
            if endless and entry.job not in others and not is_resident(entry.pod):
                yield entry.pod


def _ahead(pod_set: PodSet, queue: Queue) -> list[Reason]:
    for record in queue.pending.records[:_AHEAD]:
        if record is pod_set:
            break
        request = record.job.request
        if not record.bounded and record.no_later_than is not None and isinstance(request, PodSetRequest):
            return [_reason(request.pods)]
    return []
