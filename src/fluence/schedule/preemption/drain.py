"""Drain: the running work of a queue that says ``stop: drain`` is ended, as PodDisruptionBudgets allow.

Gangs end as a whole. A Job that admission held back is suspended again, and other pods are deleted for
their controllers: both wait in the queue then. Pods without a controller go on, since nothing would make them
again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fluence.model.owner import controller_of
from fluence.model.queues import Stop
from fluence.queue import Queue
from fluence.schedule.actions import Preempt
from fluence.schedule.gangs.groups import Groups
from fluence.schedule.preemption.rules import PAUSES, Budgets, Cost
from fluence.schedule.preemption.running_work import RunningWork, held_jobs
from fluence.schedule.preemption.victims import Victim


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
