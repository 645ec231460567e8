"""Drain: ends work for no other job: of a queue that says ``stop: drain``, and what is left of a gang that
was ended.

Gangs end as a whole. A Job that admission held back is suspended again, and other pods are deleted for
their controllers: both wait in the queue then. Pods without a controller go on, since nothing would make them
again.

A crash, or a fault of the server, can come when some pods of a gang are deleted and others are not. All of
them are marked with `DisruptionTarget` before the first is deleted. The roles `edit` and `admin` cannot write
the status of a pod, so a user cannot forge that mark. Any process finds the pods that are left. If they are
fewer than the gang needs, they are ended as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from fluence.model.owner import controller_of
from fluence.model.pod import Pod
from fluence.model.queues import Stop
from fluence.queue import Queue
from fluence.schedule.events import Preempt
from fluence.schedule.gangs.groups import Groups
from fluence.schedule.pod_set import PodSets
from fluence.schedule.preemption.rules import PAUSES, Budgets, Cost
from fluence.schedule.preemption.victims import RunningWork, Victim, held_jobs


class Drain:
    """Of all queues. Without one that is drained it does nothing."""

    def __init__(self, work: RunningWork, budgets: Budgets, *, groups: Groups, queue: Queue) -> None:
        self._work = work
        self._budgets = budgets
        self._groups = groups
        self._queue = queue
        self._again: dict[str, tuple[int, int]] = {}  # by group: when to order its end again, and the pause
        self._round = 0  # when to look again, where there are budgets
        self._saw: object = None  # the state in which all were looked at
        self.ordered: dict[str, str] = {}
        """Pods whose end was ordered and is not seen yet, with their groups."""

    def __bool__(self) -> bool:
        return bool(self.ordered)

    def orders(
        self, state: object, now: int, *, ordered: Mapping[str, str], spent: Cost
    ) -> Iterator[Preempt]:
        """Whose end is to be ordered now. ``ordered``: the pods that end for others already; ``spent``: what
        these cost the budgets."""
        quotas = self._queue.quotas
        drained = set() if quotas is None else set(quotas.tree.drained)
        if not drained:
            self._again.clear()
            self.ordered.clear()
            return
        due = self.next_due()
        if (self._saw == state and (due is None or now < due)) or (self._budgets and now < self._round):
            return
        self._round = now + PAUSES.first  # the statuses of budgets follow what ends
        self._saw = state
        victims = [
            victim
            for victim in self._work.victims(state, ordered=ordered, now=now)
            if victim.whole and victim.standing.queue in drained and _comes_back(victim)
        ]
        pods = [victim.pods for victim in victims]
        refused = set(self._budgets.violated_by(pods, spent)) if self._budgets else ()
        groups = {victim.group for index, victim in enumerate(victims) if index not in refused}
        for gone in self._again.keys() - groups:
            del self._again[gone]
        self.ordered = {}
        for victim in victims:
            if victim.group not in groups:
                continue
            self.ordered.update({pod.metadata.uid: victim.group for pod in victim.pods})
            at, pause = self._again.get(victim.group, (now, PAUSES.first))
            if at <= now:
                self._again[victim.group] = now + pause, PAUSES.longer(pause)
                yield self._order(victim)

    def next_due(self) -> int | None:
        due = min((at for at, _ in self._again.values()), default=None)
        return due if due is None or not self._budgets else max(due, self._round)

    def _order(self, victim: Victim) -> Preempt:
        quotas = self._queue.quotas
        assert quotas is not None
        tree, priority = quotas.tree, victim.standing.priority
        path = tree.paths[victim.standing.queue]
        by = next(name for name in path if tree.queues[name].stop is Stop.DRAIN)
        owners = held_jobs(victim, self._groups)
        return Preempt(victim.group, victim.pods, owners, None, priority, priority, (), by)


def _comes_back(victim: Victim) -> bool:
    """Whether a controller makes its pods again."""
    return all(controller_of(pod.metadata) for pod in victim.pods)


class Remainder:
    """``on_nodes``: the pods that run and are not being deleted, by uid."""

    def __init__(self, groups: Groups, pod_sets: PodSets, on_nodes: Mapping[str, object]) -> None:
        self._groups = groups
        self._pod_sets = pod_sets
        self._on_nodes = on_nodes
        self._marked: set[str] = set()
        self._again: dict[str, tuple[int, int]] = {}  # by gang: when to order its end again, and the pause
        self.ordered: dict[str, str] = {}
        """Pods whose end was ordered and is not seen yet, with their groups."""

    def note(self, uid: str, *, is_marked: bool) -> None:
        """Whether a pod runs on though it is marked."""
        if is_marked:
            self._marked.add(uid)
        else:
            self._marked.discard(uid)

    def orders(self, now: int, ordered: Collection[str]) -> Iterator[Preempt]:
        """Whose end is to be ordered now. ``ordered``: the pods that end by other orders."""
        if not self._marked:
            self._again.clear()
            self.ordered.clear()
            return
        sets = (self._pod_sets.by_pod.get(uid) for uid in self._marked if uid not in ordered)
        cut = {group: pods for group in {each.group for each in sets if each} if (pods := self._cut(group))}
        self.ordered = {pod.metadata.uid: group for group, pods in cut.items() for pod in pods}
        for group in self._again.keys() - cut.keys():
            del self._again[group]
        for group, pods in sorted(cut.items()):
            at, pause = self._again.get(group, (now, PAUSES.first))
            if at <= now:
                self._again[group] = now + pause, PAUSES.longer(pause)
                priority = max(pod.spec.priority or 0 for pod in pods)
                yield Preempt(group, pods, (), None, priority, priority, ())

    def next_due(self) -> int | None:
        return min((at for at, _ in self._again.values()), default=None)

    def _cut(self, group: str) -> tuple[Pod, ...]:
        """The pods that are left of a gang, if they are too few and all of them were to end."""
        gang = self._groups.gang(group)
        pods = () if gang is None else tuple(pod for pod in gang.placed if pod.metadata.uid in self._on_nodes)
        is_cut = gang is not None and len(pods) < gang.minimum
        return pods if is_cut and all(pod.metadata.uid in self._marked for pod in pods) else ()
