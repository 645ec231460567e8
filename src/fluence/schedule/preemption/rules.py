"""Rules: who may end whose work, by settings, queues and PodDisruptionBudgets, and how often a controller's
pods ended.

Without queues it is the order alone: what comes before other work by priority may end it. A queue can say
more:

- ``within``: which work of its own its jobs may end: none, of lower priority, or also newer work of the same.
- ``reclaim``: which work of other queues. Absent: of lower priority, as in Kubernetes. Else only while the
  job is within the guarantee of its queue, and only work of queues that stay at or above theirs without it;
  ``any``: of any priority.

A guarantee that is reclaimed by ``any`` is not taken away again by priority: only work that is within a
guarantee itself can do that. So two jobs never have the right to end each other at one time.

Guarantees are compared below the lowest queue that both jobs are in, on the state that is left in the end.

They are kept in the status of the queues that have a least run time, where no tenant writes, so that a new
process continues with them. There a controller is a digest of its identity: everybody may read queues, and
names of other tenants' work are not for everybody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from hashlib import blake2b
from typing import Final

from cachetools import LRUCache

from fluence.backoff import Backoff
from fluence.model.pod import Pod, PodDisruptionBudget
from fluence.model.queue_documents import MAX_PREEMPTED
from fluence.model.queues import NOTHING, Amounts, Preemption, QueueTree, Reclaim, Resource, Within
from fluence.queue.quota import QuotaBook, add_amounts

PAUSES: Final = Backoff(5_000, 300_000)
"""In milliseconds, between orders to end the same work."""

Cost = Counter[tuple[str, str]]
"""How many disruptions of each budget, by its namespace and name."""


class BudgetMode(StrEnum):
    """What PodDisruptionBudgets mean to preemption."""

    HARD = "hard"  # they are never violated
    SOFT = "soft"  # only if no other victims are found, as by kube-scheduler


@dataclass(frozen=True, slots=True)
class PreemptionRules:
    """What an administrator sets."""

    enabled: bool = True
    budgets: BudgetMode = BudgetMode.HARD
    non_preempting: frozenset[str] = frozenset()  # queues whose gangs do not preempt

    def allow(self, queue: str) -> bool:
        return self.enabled and queue not in self.non_preempting


class Budgets:
    """The PodDisruptionBudgets of a cluster, by namespace."""

    def __init__(self) -> None:
        self._budgets: dict[str, dict[str, PodDisruptionBudget]] = {}

    def set(self, budget: PodDisruptionBudget, *, gone: bool) -> None:
        """A budget as it is now, or that it is gone."""
        namespace, name = budget.metadata.namespace, budget.metadata.name
        if not gone:
            self._budgets.setdefault(namespace, {})[name] = budget
            return
        self._budgets.get(namespace, {}).pop(name, None)
        if not self._budgets.get(namespace):
            self._budgets.pop(namespace, None)

    def __bool__(self) -> bool:
        return bool(self._budgets)

    def violated_by(self, victims: Iterable[tuple[Pod, ...]], spent: Cost | None = None) -> list[int]:
        """Of some victims, in this order, those for whose pods the budgets have nothing left beside the
        others. ``spent``: what others cost whose end was ordered."""
        spent = Counter() if spent is None else spent.copy()
        refused = []
        for index, pods in enumerate(victims):
            costs = self.cost(pods)
            if any(spent[key] + cost > self._allowed(key) for key, cost in costs.items()):
                refused.append(index)
            else:
                spent.update(costs)
        return refused

    def cost(self, pods: Iterable[Pod]) -> Cost:
        """What the end of some pods costs, by budget. A pod that is being deleted costs nothing more."""
        costs: Cost = Counter()
        for pod in pods:
            if pod.metadata.deletion_timestamp is None:
                namespace = pod.metadata.namespace
                budgets = self._budgets.get(namespace, {}).items()
                costs.update((namespace, name) for name, budget in budgets if budget.counts(pod))
        return costs

    def _allowed(self, key: tuple[str, str]) -> int:
        return self._budgets[key[0]][key[1]].allowed


@dataclass(frozen=True, slots=True)
class Standing:
    """What one gang has in comparison with another. A victim has the rank with which it would wait again."""

    priority: int  # of its pods
    rank: int  # in the queue; higher comes first
    queue: str = ""  # the leaf that it counts in
    since: int = 0  # when it was submitted
    amounts: Amounts = field(default_factory=lambda: NOTHING, compare=False)  # that it counts in quotas

    def precedes(self, other: Standing) -> bool:
        """Whether it goes before another in the order in which free capacity is given out, by Kubernetes'
        rules too. So what was ended does not come before it again."""
        return self.priority > other.priority and self.rank > other.rank

    def _is_older(self, other: Standing) -> bool:
        equal = (self.priority, self.rank) == (other.priority, other.rank)
        return equal and self.since < other.since


class Rights:
    """The rights between gangs while the queues use what they use now."""

    def __init__(self, book: QuotaBook | None = None, gone: Iterable[tuple[str, Amounts]] = ()) -> None:
        """``gone``: what ends anyway, by queue."""
        self._tree: QueueTree | None = None if book is None else book.tree
        self._used: dict[str, dict[Resource, int]] = {}
        self._held: dict[str, tuple[str, Amounts]] = {}
        if book is not None and any(book.tree.entitled.values()):
            self._used = {name: {} for name in book.tree.queues}
            for leaf, amounts in book.usage().items():
                self._add(leaf, amounts)
            for job, claim in book.held().items():
                self._held[job] = claim.leaf, claim.amounts
                self._add(claim.leaf, claim.amounts)
            for leaf, ended in gone:
                self._add(leaf, ended, -1)

    def may_look_below(self, queue: str) -> bool:
        """Whether jobs of a queue may end work that is not of lower priority."""
        rules = self.rules(queue)
        return rules.reclaim is Reclaim.ANY or rules.within is Within.LOWER_OR_NEWER

    def may_end_for_quota(self, mine: Standing, other: Standing) -> bool:
        """Whether a queue says that its jobs end others also for quota alone. Kubernetes has no such rule, so
        that must be said."""
        rules = self.rules(mine.queue)
        chosen = rules.within if mine.queue == other.queue else rules.reclaim
        return chosen not in (None, Within.NEVER, Reclaim.NEVER)

    def rules(self, queue: str) -> Preemption:
        """What a queue says of preemption."""
        tree = self._tree
        return Preemption() if tree is None or queue not in tree.paths else tree.preemption(queue)

    def may_end(self, mine: Standing, other: Standing, *, job: str = "") -> bool:
        """Whether one gang may end another, or take what is held for it. ``job``: the key of the first, if
        something is held for it already."""
        tree = self._tree
        if tree is None or mine.queue not in tree.paths or other.queue not in tree.paths:
            return mine.precedes(other)
        if mine.queue == other.queue:
            within = tree.preemption(mine.queue).within
            newer = within is Within.LOWER_OR_NEWER and mine._is_older(other)
            return within is not Within.NEVER and (mine.precedes(other) or newer)
        reclaim = tree.preemption(mine.queue).reclaim
        if reclaim is Reclaim.NEVER or (reclaim is not Reclaim.ANY and not mine.precedes(other)):
            return False
        ours, theirs = _apart(tree.paths[mine.queue], tree.paths[other.queue])
        if reclaim is None:
            is_kept = tree.preemption(other.queue).reclaim is Reclaim.ANY and self._is_within(other, theirs)
            return not is_kept or self._is_entitled(mine, ours, job)
        return self._is_entitled(mine, ours, job) and not self._is_within(other, theirs)

    def violated_by(self, mine: Standing, victims: Sequence[Standing]) -> list[int]:
        """Of some victims, in this order, those that may not be ended beside the others: their queues would
        be left with less than their guarantee."""
        refused: list[int] = []
        ended: list[Standing] = []
        for index, victim in enumerate(victims):
            if self.may_end(mine, victim):
                self._add(victim.queue, victim.amounts, -1)
                ended.append(victim)
            else:
                refused.append(index)
        for victim in ended:
            self._add(victim.queue, victim.amounts)
        return refused

    def _add(self, leaf: str, amounts: Amounts, sign: int = 1) -> None:
        if self._used and self._tree is not None:
            for name in self._tree.paths.get(leaf, ()):
                add_amounts(self._used[name], {key: sign * amount for key, amount in amounts.items()})

    def _is_entitled(self, mine: Standing, queues: Iterable[str], job: str) -> bool:
        """Whether a guarantee covers a gang that waits, beside what runs and is held for others."""
        leaf, held = self._held.get(job, ("", NOTHING))
        self._add(leaf, held, -1)
        found = any(self._covers(name, mine.amounts) for name in queues)
        self._add(leaf, held)
        return found

    def _covers(self, queue: str, amounts: Amounts) -> bool:
        entitled, used = self._guaranteed(queue), self._used.get(queue, {})
        named = [resource for resource in amounts if resource in entitled]
        return bool(named) and all(used.get(each, 0) + amounts[each] <= entitled[each] for each in named)

    def _is_within(self, other: Standing, queues: Iterable[str]) -> bool:
        """Whether a queue would have less than its guarantee without a gang that runs."""
        for name in queues:
            used = self._used.get(name, {})
            for resource, least in self._guaranteed(name).items():
                amount = other.amounts.get(resource, 0)
                if amount and used.get(resource, 0) - amount < least:
                    return True
        return False

    def _guaranteed(self, queue: str) -> Mapping[Resource, int]:
        assert self._tree is not None
        return self._tree.entitled[queue]


def _apart(mine: tuple[str, ...], theirs: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """The queues of two paths below the lowest that both have."""
    both = set(mine) & set(theirs)
    return [name for name in mine if name not in both], [name for name in theirs if name not in both]


_MAX_CONTROLLERS: Final = 10_000


class EndedCounts:
    """By controller, with the queue that its pods counted in."""

    def __init__(self) -> None:
        self._ended: LRUCache[str, tuple[str, int]] = LRUCache(_MAX_CONTROLLERS)

    def note(self, controller: str, queue: str) -> None:
        """A pod of a controller ends for others."""
        key = _digest(controller)
        self._ended[key] = queue, self._ended.get(key, (queue, 0))[1] + 1

    def of(self, controller: str) -> int:
        return self._ended.get(_digest(controller), ("", 0))[1] if self._ended else 0

    def forget(self, controller: str) -> None:
        """A controller is gone."""
        if self._ended:
            self._ended.pop(_digest(controller), None)

    def restore(self, queue: str, counts: Mapping[str, int]) -> None:
        """What an earlier process wrote in the status of a queue. Pods that are still ending are in it."""
        for key, count in counts.items():
            self._ended[key] = queue, max(count, self._ended.get(key, (queue, 0))[1])

    def of_queue(self, queue: str) -> dict[str, int]:
        """Those of one queue, for its status: the most often ended, if they are many."""
        found = {key: count for key, (name, count) in self._ended.items() if name == queue}
        most = sorted(found, key=lambda key: (-found[key], key))[:MAX_PREEMPTED]
        return {key: found[key] for key in sorted(most)}


def _digest(controller: str) -> str:
    return blake2b(controller.encode(), digest_size=8).hexdigest()
