"""Rules: which gangs may preempt whom, and which victims PodDisruptionBudgets allow, counted together before
the first of them is ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fluence.backoff import Backoff
from fluence.model.pod import Pod, PodDisruptionBudget

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
