"""Enforcement: warns work that exceeds its limit, and ends it after a grace period, if its queue asks for it.

Each cycle this step lists the pods to warn or end, and `fluence.act.orders` carries it out. It is off unless
a setting or a Queue object names the queue. It applies to pods whose status has the limit that they were
granted. In queues that only warn, it also applies to pods of this scheduler with the allocation annotation of
their bind. Work that Kubernetes itself ends at its limit is left alone. The warning is written on the pods
(`names.WARNED`), so that a new process neither repeats it nor grants a second grace period. If ending pods
fails, it is tried again after a pause that doubles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from fluence import names
from fluence.backoff import Backoff
from fluence.cluster.pods import PodEntry
from fluence.model.grant import limit_note
from fluence.model.owner import Job, Owner, controller_of
from fluence.model.pod import Pod
from fluence.model.queues import EMPTY, QueueTime
from fluence.queue import Queue
from fluence.schedule.gangs.groups import Groups
from fluence.schedule.pod_set import PodSet, PodSets
from fluence.schedule.step import Step
from fluence.text import natural_key
from fluence.units import parse_rfc3339, rfc3339

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
