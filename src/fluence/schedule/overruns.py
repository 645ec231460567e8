"""Overruns: work that exceeds its limit is warned and ended if its queue asks for it; and who waits for such
work.

Each cycle this step lists the pods to warn or end, and `fluence.act.orders` carries it out. It is off unless
a setting or a Queue object names the queue. It applies to pods whose status has the limit that they were
granted. In queues that only warn, it also applies to pods of this scheduler with the allocation annotation of
their bind. Work that Kubernetes itself ends at its limit is left alone. The warning is written on the pods
(`names.WARNED`), so that a new process neither repeats it nor grants a second grace period. If ending pods
fails, it is tried again after a pause that doubles.

Users see the names of objects in their own namespace. Of other namespaces they see the kinds of workloads,
and how many there are. `StatusReports` passes everything that is written on objects through `told_to`.
`fluence explain` reads the objects with the rights of its user and shows names.

`StatusReports` asks for overruns for each shape that waits or whose promise was broken, and for running work
without a limit if no start can be promised.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from heapq import nsmallest
from typing import TYPE_CHECKING, Final

from fluence import names
from fluence.backoff import Backoff
from fluence.cluster.graph import Refused
from fluence.cluster.planner import HORIZON, ClusterPlanner, PodSetRequest
from fluence.cluster.pods import PodEntry, is_resident
from fluence.model.grant import limit_note
from fluence.model.owner import Job, Owner, controller_of
from fluence.model.pod import Pod
from fluence.model.queues import EMPTY, QueueTime
from fluence.model.reason import Code, Reason, Value
from fluence.placer.placer import holds_some
from fluence.queue import JobRecord, Queue
from fluence.schedule.gangs.groups import Groups
from fluence.schedule.pod_set import PodSet, PodSets
from fluence.schedule.step import Step
from fluence.units import natural_key, parse_rfc3339, rfc3339

if TYPE_CHECKING:
    from fluence.schedule.cycle import Decisions


_BACKOFF = Backoff(10_000, 300_000)  # ms between tries to end the same pods


class LimitMode(StrEnum):
    """What happens to work that exceeds its limit."""

    WARN = "warn"
    END = "end"


@dataclass(frozen=True, slots=True)
class WarnOverrun:
    """Warn pods that exceed their limit. Times are in milliseconds."""

    pods: tuple[Pod, ...]
    limit: int
    since: int  # when the limit passed
    at: int  # when the warning is written
    ends: int | None  # when they will be ended; None: never


@dataclass(frozen=True, slots=True)
class EndOverrun:
    """End pods that exceed their limit, through their Job or by eviction."""

    job: str  # the queue's key
    pods: tuple[Pod, ...]
    owner: Owner | None  # the Job, if these are its only pods; None: evict them
    limit: int
    since: int


class Enforcement(Step):
    """``modes`` by queue. ``grace`` is the time between the warning and the end in milliseconds. ``on_nodes``
    are the pods on nodes by uid."""

    def __init__(
        self,
        modes: Mapping[str, LimitMode],
        grace: int,
        *,
        queue: Queue,
        pod_sets: PodSets,
        groups: Groups,
        on_nodes: Mapping[str, PodEntry],
    ) -> None:
        self._queue = queue
        self._pod_sets = pod_sets
        self._groups = groups
        self._on_nodes = on_nodes
        self._modes = dict(modes)
        self._grace = grace
        self._warned: dict[str, int] = {}  # by task
        self._tries: dict[str, tuple[int, int]] = {}  # by task: the next try, and the pause after it

    def run(self, now: int, decisions: Decisions) -> None:
        """Warn or end work that exceeds its limit, if its queue asks for it."""
        if self._modes or self._queue.quotas is not None:
            decisions.overruns += self._orders(now)

    def _orders(self, now: int) -> Iterator[WarnOverrun | EndOverrun]:
        since = self._queue.overruns.since
        for kept in (self._warned, self._tries):
            for task in [each for each in kept if each not in since]:
                del kept[task]
        for task, passed in since.items():
            pod_set = self._pod_sets.by_key.get(task)
            if pod_set is None or pod_set.job.enforced:
                continue
            job = pod_set.job
            mode = self._modes.get(job.queue, self._modes.get(job.named_queue))
            grace = self._grace if mode is not None else self._grace_of(job.queue)
            if grace is None:
                continue
            pods = _seated(pod_set, self._groups.scheduler, self._on_nodes)
            if pods:
                yield from self._act(pod_set, pods, mode or LimitMode.END, grace, passed, now)

    def _grace_of(self, queue: str) -> int | None:
        """The grace period of a queue whose object says that work ends at its limit; None if it does not."""
        tree = EMPTY if self._queue.quotas is None else self._queue.quotas.tree
        time = tree.time(queue) if queue in tree.queues else QueueTime()
        return (time.grace or 0) if time.enforce else None

    def next_due(self) -> int | None:
        """The time of the next end, if no event comes before."""
        return min((at for at, _ in self._tries.values()), default=None)

    def _act(
        self, pod_set: PodSet, pods: tuple[Pod, ...], mode: LimitMode, grace: int, passed: int, now: int
    ) -> Iterator[WarnOverrun | EndOverrun]:
        task, ends = pod_set.key, mode is LimitMode.END
        if task not in self._warned:
            told = _told(pods, passed, now)
            self._warned[task] = now if told is None else told
            due = self._warned[task] + grace
            if ends:
                self._tries[task] = due, _BACKOFF.first
            if told is None:
                yield WarnOverrun(pods, pod_set.limit, passed, now, due if ends else None)
        if not ends:
            return
        due, pause = self._tries[task]
        if due <= now:
            self._tries[task] = now + pause, _BACKOFF.longer(pause)
            yield EndOverrun(task, pods, _whole_job(pods, self._groups), pod_set.limit, passed)


def warned_note(at: int) -> dict[str, str]:
    """The annotation that records the warning of a pod."""
    return {names.WARNED: rfc3339(at * 1000, "microseconds")}


def _told(pods: tuple[Pod, ...], passed: int, now: int) -> int | None:
    """When an earlier process warned these pods. Anybody may write annotations, so a time before the limit or
    in the future is ignored."""
    found = []
    for pod in pods:
        at = parse_rfc3339(pod.annotations.get(names.WARNED, ""))
        if at is not None and passed <= (ms := round(at / 1000)) <= now:
            found.append(ms)
    return min(found, default=None)


def _seated(pod_set: PodSet, scheduler: str, on_nodes: Mapping[str, PodEntry]) -> tuple[Pod, ...]:
    """The pods of a pod set that this scheduler placed and that are not terminating. Later changes of their
    labels and annotations do not count: pods that started together end together."""
    found = (on_nodes[uid].pod for uid in pod_set.alive if uid in on_nodes)
    return tuple(
        sorted((pod for pod in found if _is_seated(pod, scheduler)), key=lambda pod: natural_key(pod.key))
    )


def _is_seated(pod: Pod, scheduler: str) -> bool:
    if not pod.spec.node_name or pod.is_terminal or pod.metadata.deletion_timestamp is not None:
        return False
    if limit_note(pod) is not None:
        return True  # kube-scheduler may have bound it on the node we chose
    # The annotation is for queues that only warn, and for pods that an earlier version has bound.
    return pod.spec.scheduler_name == scheduler and names.ALLOCATION in pod.annotations


def _whole_job(pods: tuple[Pod, ...], groups: Groups) -> Owner | None:
    """The Job of these pods, if they are all that it runs or still has to run. Ending it must not end work
    within its limit."""
    named = {controller_of(pod.metadata) for pod in pods}
    owner = groups.owner(named.pop()) if len(named) == 1 else None
    if not isinstance(owner, Job) or not all(owner.claims(pod.metadata) for pod in pods):
        return None
    left = owner.pods if owner.remaining is None else owner.remaining
    return owner if left <= len(pods) else None


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
