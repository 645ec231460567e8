"""Enforcement: what runs past its limit is warned once, and ended after a grace period, where a queue asks
for it.

The cycle asks in each round who is to be warned or ended; `fluence.act.limit_enforcer` carries it out. Off
unless a setting names the queue. It concerns pods whose status has the limit that they were granted and, for
queues that only warn, pods of this scheduler with the allocation that came with their binding. What
Kubernetes ends by itself is left alone. A warning is written on the pods (`names.WARNED`), so that a fresh
process neither repeats it nor grants a second grace period. What was not ended is tried again, after a pause
that doubles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fluence import names
from fluence.cluster.pods import PodEntry
from fluence.model.grant import limit_note
from fluence.model.owner import Job, Owner, controller_of
from fluence.model.pod import Pod
from fluence.queue.overruns import Overruns
from fluence.schedule.groups import Groups
from fluence.schedule.pod_set import PodSet, PodSets
from fluence.text import natural_key
from fluence.units import parse_rfc3339, rfc3339

_FIRST_PAUSE = 10_000  # between tries to end the same pods; it doubles,
_LONGEST_PAUSE = 300_000  # up to this


class LimitMode(StrEnum):
    """What becomes of work that runs past its limit."""

    WARN = "warn"
    END = "end"


@dataclass(frozen=True, slots=True)
class WarnOverrun:
    """Tell pods that they run past their limit. Times are milliseconds."""

    pods: tuple[Pod, ...]
    limit: int
    since: int  # when it passed
    at: int  # when they are told, to be written on them
    ends: int | None  # when they will be ended; None: nobody ends them


@dataclass(frozen=True, slots=True)
class EndOverrun:
    """End pods that run past their limit: through their Job, or each by eviction."""

    job: str  # the queue's key
    pods: tuple[Pod, ...]
    owner: Owner | None  # the Job that has nothing but these to run; None: evict them
    limit: int
    since: int


class Enforcement:
    """``modes`` by queue; ``grace``: between the warning and the end, in milliseconds."""

    def __init__(self, modes: Mapping[str, LimitMode], grace: int) -> None:
        self._modes = dict(modes)
        self._grace = grace
        self._warned: dict[str, int] = {}  # by task
        self._tries: dict[str, tuple[int, int]] = {}  # by task: when to try next, and the pause after that

    def round(
        self,
        now: int,
        overruns: Overruns,
        pod_sets: PodSets,
        groups: Groups,
        on_nodes: Mapping[str, PodEntry],
    ) -> Iterator[WarnOverrun | EndOverrun]:
        """What is to be done now. ``on_nodes``: pods by uid."""
        if not self._modes:
            return
        since = overruns.since
        for kept in (self._warned, self._tries):
            for task in [each for each in kept if each not in since]:
                del kept[task]
        for task, passed in since.items():
            pod_set = pod_sets.by_key.get(task)
            mode = None if pod_set is None else self._modes.get(pod_set.job.queue)
            if pod_set is None or mode is None or pod_set.job.enforced:
                continue
            pods = _seated(pod_set, groups.scheduler, on_nodes)
            if pods:
                yield from self._act(pod_set, pods, mode, passed, now, groups)

    def next_due(self) -> int | None:
        """When somebody is to be ended, if nothing happens before."""
        return min((at for at, _ in self._tries.values()), default=None)

    def _act(
        self, pod_set: PodSet, pods: tuple[Pod, ...], mode: LimitMode, passed: int, now: int, groups: Groups
    ) -> Iterator[WarnOverrun | EndOverrun]:
        task, ends = pod_set.key, mode is LimitMode.END
        if task not in self._warned:
            told = _told(pods, passed, now)
            self._warned[task] = now if told is None else told
            due = self._warned[task] + self._grace
            if ends:
                self._tries[task] = due, _FIRST_PAUSE
            if told is None:
                yield WarnOverrun(pods, pod_set.limit, passed, now, due if ends else None)
        if not ends:
            return
        due, pause = self._tries[task]
        if due <= now:
            self._tries[task] = now + pause, min(2 * pause, _LONGEST_PAUSE)
            yield EndOverrun(task, pods, _whole_job(pods, groups), pod_set.limit, passed)


def warned_note(at: int) -> dict[str, str]:
    """What a pod says of its warning."""
    return {names.WARNED: rfc3339(at * 1000, "microseconds")}


def _told(pods: tuple[Pod, ...], passed: int, now: int) -> int | None:
    """When these pods were warned by an earlier process. Anybody may write annotations: a time before the
    limit, or one to come, is none."""
    found = []
    for pod in pods:
        at = parse_rfc3339(pod.annotations.get(names.WARNED, ""))
        if at is not None and passed <= (ms := round(at / 1000)) <= now:
            found.append(ms)
    return min(found, default=None)


def _seated(pod_set: PodSet, scheduler: str, on_nodes: Mapping[str, PodEntry]) -> tuple[Pod, ...]:
    """Its pods that this scheduler put on nodes, and that nobody ends yet. Their labels and annotations may
    have been changed since: what started together is ended together."""
    found = (on_nodes[uid].pod for uid in pod_set.alive if uid in on_nodes)
    return tuple(
        sorted((pod for pod in found if _is_seated(pod, scheduler)), key=lambda pod: natural_key(pod.key))
    )


def _is_seated(pod: Pod, scheduler: str) -> bool:
    if not pod.spec.node_name or pod.is_terminal or pod.metadata.deletion_timestamp is not None:
        return False
    if limit_note(pod) is not None:
        return True  # kube-scheduler may have bound it where we said
    # NB the annotation is for queues that only warn, and for pods that an earlier version has bound.
    return pod.spec.scheduler_name == scheduler and names.ALLOCATION in pod.annotations


def _whole_job(pods: tuple[Pod, ...], groups: Groups) -> Owner | None:
    """The Job of these pods, if they are all that it runs and has still to run: ending it must not end work
    that has overrun nothing."""
    named = {controller_of(pod.metadata) for pod in pods}
    owner = groups.owner(named.pop()) if len(named) == 1 else None
    if not isinstance(owner, Job) or not all(owner.claims(pod.metadata) for pod in pods):
        return None
    left = owner.pods if owner.remaining is None else owner.remaining
    return owner if left <= len(pods) else None
