"""Victims: the fewest and least important that must end so that a gang fits, judged by all filters.

A victim is a single pod, the surplus of a gang above its minimum (pod by pod), or a whole gang. They are
ordered by priority, as kube-scheduler orders them, and then by the work that is lost with them. The search
has three parts:

1. The shortest beginning of that order with which the gang fits. So the most important victim is as
   unimportant as can be. What would be free at most is found by sums; then it is tried.
2. Only those victims stay that are on the nodes of the placement that was found.
3. Each of these is spared if the gang still fits with it, the most important first.

Where a quota is in the way too, the fewest that free it are chosen before, and count as gone in the search.
Budgets, and the guarantees of the victims' queues, are counted over the result. Where they are violated, it
is tried without those that violate them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from fluence.cluster.earmarks import Earmarks
from fluence.graph.graph import Ints, Rows
from fluence.model.pod import Pod
from fluence.placer.gang import GangPlacement
from fluence.placer.profile import FreeView
from fluence.schedule.preemption.rights import Standing
from fluence.schedule.preemption.rules import Budgets, Cost

Gone = dict[int, frozenset[str]]  # pods, by the number of their job
_MAX_ROUNDS = 8  # of searches without those that violate a budget or a guarantee


@dataclass(frozen=True, slots=True, eq=False)
class Victim:
    """Pods that end together."""

    group: str
    standing: Standing
    pods: tuple[Pod, ...]
    start: int  # ms: when the newest of them started
    whole: bool  # all of its group
    jobs: dict[int, frozenset[str]] = field(
        default_factory=dict
    )  # its pods (uids), by the number of their job
    share: float = 0.0  # of the cluster, by its dominant resource
    checkpoints: tuple[int, ...] = ()  # that its pods declare, in milliseconds

    @property
    def priority(self) -> int:
        return self.standing.priority

    def importance(self, now: int) -> tuple[int, float, bool, int, str]:
        """Less is ended first."""
        is_gang = self.whole and len(self.pods) > 1
        return self.priority, self.lost(now), is_gang, -self.start, self.group

    def lost(self, now: int) -> float:
        """The work that is lost with it, in cluster-seconds: since its start, or since the last checkpoint
        that it declares."""
        return self.share * self.unsaved(now) / 1000

    def unsaved(self, now: int) -> int:
        """How long it has run since then, in milliseconds."""
        saved = max((at for at in self.checkpoints if self.start <= at <= now), default=self.start)
        return max(0, now - saved)

    @property
    def nodes(self) -> set[str]:
        return {pod.spec.node_name for pod in self.pods if pod.spec.node_name}

    @property
    def grace(self) -> int:
        """How long its pods may take to end, in milliseconds."""
        given = (pod.spec.termination_grace_period_seconds for pod in self.pods)
        return 1000 * max((30 if seconds is None else max(0, seconds) for seconds in given), default=0)


def together(*some: dict[int, frozenset[str]] | Iterable[Victim]) -> dict[int, frozenset[str]]:
    """Pods by their jobs, of several victims."""
    found: dict[int, frozenset[str]] = {}
    for each in some:
        parts = (each,) if isinstance(each, dict) else (victim.jobs for victim in each)
        for part in parts:
            for number, uids in part.items():
                found[number] = found.get(number, frozenset()) | uids
    return found


@dataclass(frozen=True, slots=True)
class Found:
    """Who is to end, and where the gang is to be then."""

    victims: tuple[Victim, ...]
    placement: GangPlacement


class VictimSearch:
    """One search. ``place`` says where the gang would be with some pods gone; ``nodes_in`` on which nodes it
    might be with what is free at most, its rules about other pods aside. ``has_quota``: whether quotas allow
    it with some pods gone, and ``for_quota`` whether a victim may end for that. ``violates`` names those of
    some victims that may not end beside the others. ``leaving``: the pods that end anyway; ``spent``: what
    those of them cost the budgets that are not seen to end yet."""

    def __init__(
        self,
        earmarks: Earmarks,
        budgets: Budgets,
        *,
        place: Callable[[Gone], GangPlacement | None],
        nodes_in: Callable[[FreeView], set[str] | None],
        has_quota: Callable[[Gone], bool],
        for_quota: Callable[[Victim], bool],
        violates: Callable[[Sequence[Standing]], list[int]],
        leaving: Gone,
        spent: Cost,
        now: int,
    ) -> None:
        self._earmarks = earmarks
        self._budgets = budgets
        self._place = place
        self._nodes_in = nodes_in
        self._has_quota = has_quota
        self._for_quota = for_quota
        self._violates = violates
        self._freed: dict[tuple[int, frozenset[str]], tuple[Rows, Ints]] = {}  # by job and pods
        self._leaving = self._ending = leaving
        self._spent = spent
        self._now = now
        self.is_held_by_budgets = False  # without budgets there would be victims
        self.is_held_by_quota = False  # no allowed victim would free the quota

    def find(self, candidates: Iterable[Victim], *, respect_budgets: bool = True) -> Found | None:
        """The victims, or None if no work that may be ended would help."""
        if self._ending and self._has_quota(self._ending):
            ending = self._place(self._ending)
            if ending is not None:
                return Found((), ending)
        order = sorted(candidates, key=self._importance)
        budgets = self._budgets if respect_budgets else Budgets()
        alone = [not budgets or not budgets.violated_by([victim.pods], self._spent) for victim in order]
        allowed = [victim for victim, may_end in zip(order, alone, strict=True) if may_end]
        self.is_held_by_budgets = len(allowed) < len(order)
        for _ in range(_MAX_ROUNDS):
            found = self._both(allowed)
            if found is None:
                return None
            pods = [victim.pods for victim in found.victims]
            violating = budgets.violated_by(pods, self._spent) if budgets else []
            self.is_held_by_budgets |= bool(violating)
            violating += self._violates([victim.standing for victim in found.victims])
            if not violating:
                return found
            out = {id(found.victims[index]) for index in violating}
            allowed = [victim for victim in allowed if id(victim) not in out]
        return None

    def _importance(self, victim: Victim) -> tuple[int, float, bool, int, str]:
        return victim.importance(self._now)

    def _both(self, order: Sequence[Victim]) -> Found | None:
        """Who is to end so that the gang has its quota, and its seats."""
        self._leaving = self._ending
        if self._has_quota(self._ending):
            return self._minimal(order)
        first = self._fewest_for_quota([victim for victim in order if self._for_quota(victim)])
        self.is_held_by_quota = first is None
        if first is None:
            return None
        self._leaving = together(self._ending, first)
        placement = self._place(self._leaving)
        if placement is not None:
            return Found(tuple(first), placement)
        groups = {victim.group for victim in first}
        more = self._minimal([victim for victim in order if victim.group not in groups])
        if more is None:
            return None
        gone, placement = [*first, *more.victims], more.placement
        for victim in reversed(first):  # the others may have enough of the quota
            others = [each for each in gone if each is not victim]
            left = together(self._ending, others)
            spared = self._place(left) if self._has_quota(left) else None
            if spared is not None:
                gone, placement = others, spared
        return Found(tuple(sorted(gone, key=self._importance)), placement)

    def _fewest_for_quota(self, order: Sequence[Victim]) -> list[Victim] | None:
        def fits(some: Sequence[Victim]) -> bool:
            return self._has_quota(together(self._ending, some))

        if not fits(order):
            return None
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            if fits(order[:middle]):
                high = middle
            else:
                low = middle + 1
        gone = list(order[:low])
        for victim in reversed(order[:low]):
            others = [each for each in gone if each is not victim]
            if fits(others):
                gone = others
        return gone

    def _minimal(self, order: Sequence[Victim]) -> Found | None:
        """The order is from the least important on."""
        count = self._beginning(order)
        if count is None:
            return None
        found = None
        while found is None:  # rules and plans may ask for more than sums say
            found = self._near(list(order[:count]))
            if found is None and count == len(order):
                return None
            count = min(2 * count, len(order))
        gone, placement = found
        for victim in sorted(gone, key=self._importance, reverse=True):
            others = [each for each in gone if each is not victim]
            spared = self._try(others)
            if spared is not None:
                gone, placement = others, spared
        return Found(tuple(sorted(gone, key=self._importance)), placement)

    def _near(self, gone: list[Victim]) -> tuple[list[Victim], GangPlacement] | None:
        """Where the gang would be, and those of some victims that are there."""
        nodes = self._nodes_in(self._view(gone))
        some = gone if nodes is None else [each for each in gone if not nodes.isdisjoint(each.nodes)]
        placement = self._try(some) if len(some) < len(gone) else None
        if placement is not None:
            return some, placement
        placement = self._try(gone)  # devices, or a rule that counts pods elsewhere
        if placement is None:
            return None
        nodes = {seat.node for seat in placement.placements}
        some = [each for each in gone if not nodes.isdisjoint(each.nodes) or placement.grants]
        here = self._try(some) if len(some) < len(gone) else None
        return (gone, placement) if here is None else (some, here)

    def _try(self, gone: Sequence[Victim]) -> GangPlacement | None:
        if self._nodes_in(self._view(gone)) is None:
            return None  # by sums, which is quick
        return self._place(together(self._leaving, gone))

    def _view(self, gone: Sequence[Victim]) -> FreeView:
        """What would be free at most without some victims."""
        parts = [self._freed_by(number, uids) for number, uids in together(self._leaving, gone).items()]
        return self._with_more(*_columns(parts))

    def _beginning(self, order: Sequence[Victim]) -> int | None:
        """How many of the least important must go at least, by sums; None: all are too few."""
        gone = dict(self._leaving)
        parts = [_columns([self._freed_by(number, uids) for number, uids in gone.items()])]
        for victim in order:
            more: list[tuple[Rows, Ints]] = []
            for number, uids in victim.jobs.items():
                before = gone.get(number)
                gone[number] = uids if before is None else before | uids
                more.append(self._freed_by(number, gone[number]))
                if (
                    before is not None
                ):  # what a job holds for pods that ended comes free with the last of them
                    rows, amounts = self._freed_by(number, before)
                    more.append((rows, -amounts))
            parts.append(_columns(more))
        ends = np.cumsum([len(rows) for rows, _ in parts]).tolist()
        rows, amounts = _columns(parts)

        def fits(count: int) -> bool:
            end = ends[count]
            return self._nodes_in(self._with_more(rows[:end], amounts[:end])) is not None

        if not order or not fits(len(order)):
            return None
        low, high = 1, len(order)
        while low < high:
            middle = (low + high) // 2
            if fits(middle):
                high = middle
            else:
                low = middle + 1
        return low

    def _freed_by(self, number: int, uids: frozenset[str]) -> tuple[Rows, Ints]:
        known = self._freed.get((number, uids))
        if known is None:
            known = self._freed[number, uids] = self._earmarks.freed_by({number: uids})
        return known

    def _with_more(self, rows: Rows, amounts: Ints) -> FreeView:
        return self._earmarks.with_more(rows, amounts, now=self._now)


def _columns(parts: Sequence[tuple[Rows, Ints]]) -> tuple[Rows, Ints]:
    """Rows and amounts, one after the other."""
    if not parts:
        return np.empty(0, np.int32), np.empty(0, np.int64)
    rows, amounts = (np.concatenate(column) for column in zip(*parts, strict=True))
    return rows, amounts
