"""Holders: the work that others wait for, because it exceeds its limit or has none, and what users may see of
it.

Users see the names of objects in their own namespace. Of other namespaces they see the kinds of workloads,
and how many there are. `StatusReports` passes everything that is written on objects through `told_to`.
`fluence explain` reads the objects with the rights of its user and shows names.

`StatusReports` asks for overruns for each shape that waits or whose promise was broken, and for running work
without a limit if no start can be promised.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from heapq import nsmallest
from typing import Final

from fluence.cluster.graph import Refused
from fluence.cluster.planner import HORIZON, ClusterPlanner, PodSetRequest
from fluence.cluster.pods import is_resident
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason, Value
from fluence.placer.gang import holds_some
from fluence.queue import JobRecord, Queue
from fluence.schedule.pod_set import PodSet

# The server accepts any text in a reference, and other users see this one.
_KIND: Final = re.compile(r"[A-Za-z][A-Za-z0-9]{0,62}", re.ASCII)
_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?", re.ASCII)
NAMED: Final = 2  # holders that a message names, for each reason
_KINDS: Final = frozenset(("Pod", "Job", "Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"))
_OTHER_KIND: Final = "workload"  # an owner may be of any kind, and users choose its name
_OF_OTHERS: Final = {
    Code.WAITS_FOR_OVERRUN: Code.WAITS_FOR_OVERRUN_OF_OTHERS,
    Code.WAITS_FOR_UNLIMITED: Code.WAITS_FOR_UNLIMITED_OF_OTHERS,
}


def holder(pods: tuple[Pod, ...]) -> dict[str, Value]:
    """The parameters of a reason that names pods of a group as users know them: by their owner."""
    pod = pods[0]
    namespace = pod.metadata.namespace
    owner = pod.metadata.controller_reference
    if owner is None or not (_KIND.fullmatch(owner.kind) and _NAME.fullmatch(owner.name)):
        return {"kind": "Pod", "namespace": namespace, "name": pod.metadata.name, "more": len(pods) - 1}
    kind, name = owner.kind, owner.name
    # The Deployment controller names ReplicaSets like this, and labels their pods.
    made = f"-{pod.metadata.labels.get('pod-template-hash', '')}" if pod.metadata.labels else "-"
    if kind == "ReplicaSet" and len(made) > 1 and name.endswith(made):
        kind, name = "Deployment", name.removesuffix(made)
    return {"kind": kind, "namespace": namespace, "name": name, "more": 0}


def named(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """Reasons for a reader who may read all objects: the first few holders, by name."""
    seen: Counter[Code] = Counter()
    found = []
    for reason in dict.fromkeys(reasons):
        seen[reason.code] += 1
        if reason.code not in _OF_OTHERS or seen[reason.code] <= NAMED:
            found.append(reason)
    return tuple(found)


def told_to(namespace: str, reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """Reasons for the users of a namespace: holders in other namespaces are only counted."""
    own: list[Reason] = []
    others: dict[Code, Counter[str]] = {}
    for reason in dict.fromkeys(reasons):
        code = _OF_OTHERS.get(reason.code)
        if code is None or reason["namespace"] == namespace:
            own.append(reason)
        else:
            kind = str(reason["kind"])
            others.setdefault(code, Counter())[kind if kind in _KINDS else _OTHER_KIND] += 1
    counted = (Reason.of(code, holders=tuple(kinds.most_common())) for code, kinds in others.items())
    return (*named(own), *counted)


_ASKED = 16  # overrunning jobs that are checked, oldest first


def holding(
    request: PodSetRequest, limit: int, now: int, queue: Queue, planner: ClusterPlanner
) -> list[Reason]:
    """Overrunning jobs on nodes where a request could start if they ended."""
    since = queue.overruns.since
    if not since:
        return []
    first = nsmallest(_ASKED, since, key=since.__getitem__)
    return [_named(queue, task) for task in planner.held_up_by(request, now, limit, first)]


def breaking(record: JobRecord, queue: Queue) -> list[Reason]:
    """The job that broke the last promise by its overrun, if it is still running."""
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


_HOLDERS = 64  # different holders that are counted
_LOOKED_AT = 16  # nodes that are checked
_AHEAD = 64  # jobs ahead in the queue that are checked


def unlimited(pod_set: PodSet, planner: ClusterPlanner, queue: Queue) -> list[Reason]:
    """Running work without a time limit on nodes that would otherwise fit, most frequent first. Without
    such work, the first job ahead in the queue that has no limit and will take the capacity."""
    if pod_set.no_later_than is not None or pod_set.reservation is not None or pod_set.asked < 0:
        return []
    # Overrunning jobs have a limit; `holding` names them.
    pods = _endless(pod_set.request, planner, besides=queue.overruns.since)
    found = Counter(_reason((pod,)) for pod in pods)
    return [each for each, _ in found.most_common(_HOLDERS)] or _ahead(pod_set, queue)


def _reason(pods: tuple[Pod, ...]) -> Reason:
    return Reason.of(Code.WAITS_FOR_UNLIMITED, **holder(pods))


def _endless(request: PodSetRequest, planner: ClusterPlanner, *, besides: Collection[str]) -> Iterator[Pod]:
    """Pods without a known end, on suitable devices or on the first nodes that would fit and are full, except
    pods of some jobs."""
    gang, cluster = planner.gang(request), planner.cluster
    if isinstance(gang, Refused):
        return
    seats, running = cluster.fit, planner.allocations.running
    others = {running[task].number for task in besides if task in running}
    wanted = {name for need in gang.devices for name in seats.backends.backends_of(need.suits)}
    for job in list(seats.jobs.values()) if wanted else ():
        granted = any(grant.backend in wanted for grant in job.grants)
        if granted and job.end >= HORIZON and job.id not in others:
            entries = map(cluster.pods.entries.get, map(str, job.placements))
            yield from (entry.pod for entry in entries if entry is not None)
    for node, lacking in seats.full_nodes(gang.members[0], most=_LOOKED_AT).items():
        for entry in cluster.pods.on(node):
            holding = None if entry.job is None else seats.jobs.get(entry.job)
            if entry.job in others or is_resident(entry.pod) or (holding and holding.end < HORIZON):
                continue
            # A pod that uses none of what the node lacks would not help if it ended.
            is_whole = holding is not None and holding.whole and "node" in lacking
            if is_whole or holds_some(entry.needs, lacking):
                yield entry.pod


def _ahead(pod_set: PodSet, queue: Queue) -> list[Reason]:
    for record in queue.pending.records[:_AHEAD]:
        if record is pod_set:
            break
        request = record.job.request
        if not record.bounded and record.no_later_than is not None and isinstance(request, PodSetRequest):
            return [_reason(request.pods)]
    return []
