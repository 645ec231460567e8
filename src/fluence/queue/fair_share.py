"""Fair share: the recent usage of queues and users, and the ranks that follow from it.

Usage is the dominant share of a job times its run time: 1.0 is the whole cluster for one second. It decays by
half in each half-life. The decay is exact and computed when the value is read, so there is no timer and the
order of events does not matter. The share of a job is fixed when it starts: if the cluster grows later,
earlier usage does not change.

Ranks follow Slurm's Fair Tree: siblings are compared only with each other, by their usage over the share that
their weight gives them, first queues and then the users of a queue. A queue of weight 0 comes last.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from fluence.model.queues import QueueTree
from fluence.queue.job import SECOND

HALF_LIFE: Final = 7 * 86_400 * SECOND
LOOK_AHEAD: Final = 600 * SECOND  # running tasks count as if they had run this much longer already
PAUSE: Final = 60 * SECOND  # between two rankings
HYSTERESIS: Final = 0.05  # smaller changes of a ratio are ignored, because each new order costs a new plan
MAX_ACCOUNTS: Final = 20_000  # kept without running or waiting jobs
MAX_USAGE: Final = 1e15  # cluster-seconds; a larger stored value is ignored: 30 million years
NEGLIGIBLE: Final = 1e-3  # cluster-seconds

Account: TypeAlias = tuple[str, str]  # a leaf and a user


@dataclass(slots=True)
class Usage:
    """Decayed usage in cluster-seconds up to a time, and the share of the cluster in use since then."""

    value: float = 0.0
    rate: float = 0.0
    at: int = 0
    tasks: int = 0
    restored: int = 0  # the time up to which an earlier process has counted
    asked: int = 0  # the last ranking in which its rank was read

    def advance(self, now: int, half_life: int) -> None:
        """Compute the usage at a time. An earlier time changes nothing."""
        lasted = now - self.at
        if lasted <= 0:
            return
        kept = math.exp2(-lasted / half_life)
        self.value = self.value * kept + self.rate * (half_life / SECOND / math.log(2)) * (1 - kept)
        self.at = now

    def change(self, share: float, tasks: int) -> None:
        self.tasks += tasks
        # NB adding and subtracting floats leaves a remainder.
        self.rate = max(0.0, self.rate + share) if self.tasks else 0.0

    def add_past(self, share: float, since: int, half_life: int) -> None:
        """Add a share of the cluster that has been in use since an earlier time."""
        lasted = self.at - max(since, self.restored)
        if lasted > 0:
            self.value += share * (half_life / SECOND / math.log(2)) * (1 - math.exp2(-lasted / half_life))


def dominant_share(amounts: Mapping[str, int], capacities: Mapping[str, int]) -> float:
    """The largest fraction of any resource of the cluster that a request takes."""
    shares = (amount / capacities[name] for name, amount in amounts.items() if capacities.get(name, 0) > 0)
    return min(1.0, max(shares, default=0.0))


class FairShare:
    """The usage and the rank of every user of every queue."""

    def __init__(self, tree: QueueTree, half_life: int = HALF_LIFE) -> None:
        self.tree = tree
        self.half_life = half_life
        self.accounts: dict[Account, Usage] = {}
        self.ratios: dict[tuple[str, ...], float] = {}
        """The usage of each queue and user over its share, as used for ranks: 1.4 is 1.4 times its share."""
        self._running: dict[str, tuple[Account, float]] = {}
        self._ranks: dict[Account, int] = {}
        self._ranked_at: int | None = None
        self._is_stale = True
        self._is_incomplete = False
        self._rankings = 0

    def use(self, tree: QueueTree) -> None:
        """Other queues are in force; the usage stays."""
        self.tree = tree
        self._is_incomplete = True

    # -- usage -----------------------------------------------------------------------------------------------

    def started(self, task: str, account: Account, share: float, now: int) -> None:
        """A task uses a share of the cluster from a time on, which may be in the past: after a restart, tasks
        are found in any order. Usage that was restored is not counted twice."""
        usage = self._account(account)
        usage.advance(now, self.half_life)
        usage.add_past(share, now, self.half_life)
        usage.change(share, 1)
        self._running[task] = (account, share)
        self._is_stale = True

    def ended(self, task: str, now: int) -> None:
        """A task has ended."""
        account, share = self._running.pop(task)
        usage = self.accounts[account]
        usage.advance(now, self.half_life)
        usage.change(-share, -1)
        self._is_stale = True

    def changed(self, task: str, share: float, now: int) -> None:
        """A task uses a different share of the cluster from now on."""
        account, before = self._running[task]
        usage = self.accounts[account]
        usage.advance(now, self.half_life)
        usage.change(share - before, 0)
        self._running[task] = (account, share)
        self._is_stale = True

    def restore(self, account: Account, value: float, at: int) -> None:
        """Set the usage of an account at a time, as written by an earlier process. Invalid values are
        ignored."""
        if not 0 <= value <= MAX_USAGE:  # NB also true for NaN
            return
        self.accounts[account] = Usage(value, at=at, restored=at)
        self._is_incomplete = True

    def usage(self, now: int) -> dict[Account, float]:
        """Decayed usage in cluster-seconds, by account."""
        for usage in self.accounts.values():
            usage.advance(now, self.half_life)
        return {account: usage.value for account, usage in self.accounts.items()}

    def _account(self, account: Account) -> Usage:
        usage = self.accounts.get(account)
        if usage is None:
            usage = self.accounts[account] = Usage()
            self._is_incomplete = True
        return usage

    # -- ranks -----------------------------------------------------------------------------------------------

    def rank(self, account: Account) -> int:
        """The rank of a user: 0 is first, and equal users have equal ranks. A new user is last until the next
        ranking."""
        self._account(account).asked = self._rankings
        return self._ranks.get(account, len(self._ranks))

    def update(self, now: int) -> bool:
        """Rank all users again, if that is due; returns whether a rank has changed."""
        due = self._ranked_at is None or now >= self._ranked_at + PAUSE
        if not self._is_incomplete and not (self._is_stale and due):
            return False
        self._ranked_at, self._is_stale, self._is_incomplete = now, False, False
        self._drop_idle(now)
        self._rankings += 1
        before, self._ranks = self._ranks, self._ranked(now)
        return before != self._ranks

    def _drop_idle(self, now: int) -> None:
        """Drop idle accounts with negligible usage, and those with the least usage if there are too many. An
        account is idle if it has no running task and its rank was not read since the last ranking."""
        idle = {
            account: value
            for account, value in self.usage(now).items()
            if not (usage := self.accounts[account]).tasks and usage.asked < self._rankings
        }
        kept = sorted((value, account) for account, value in idle.items() if value >= NEGLIGIBLE)
        surplus = kept[: max(0, len(kept) - MAX_ACCOUNTS)]
        for account in (*idle.keys() - {account for _, account in kept}, *(each for _, each in surplus)):
            del self.accounts[account]

    def shares_used(self, now: int) -> dict[tuple[str, ...], float]:
        """The current ratio of each queue and user, by its path from the top."""
        return self._compare(self._used(now), {})

    def path(self, account: Account) -> tuple[str, ...]:
        """The path from the top to a user: the key of its ratio. Its prefixes are the keys of its queues."""
        leaf, user = account
        return (*reversed(self.tree.paths.get(leaf, (leaf,))), f"user {user}")

    def _ranked(self, now: int) -> dict[Account, int]:
        self.ratios = self._compare(self._used(now), self.ratios)
        keys = {account: self._key(self.path(account)) for account in self.accounts}
        places = {key: place for place, key in enumerate(sorted(set(keys.values())))}
        return {account: places[key] for account, key in keys.items()}

    def _used(self, now: int) -> dict[tuple[str, ...], float]:
        """The usage of each queue and user, by its path from the top."""
        used: dict[tuple[str, ...], float] = {}
        for account, usage in self.accounts.items():
            usage.advance(now, self.half_life)
            value = usage.value + usage.rate * (LOOK_AHEAD / SECOND)
            path = self.path(account)
            for depth in range(1, len(path) + 1):
                used[path[:depth]] = used.get(path[:depth], 0.0) + value
        return used

    def _key(self, path: tuple[str, ...]) -> tuple[float, ...]:
        return tuple(self.ratios[path[:depth]] for depth in range(1, len(path) + 1))

    def _compare(
        self, used: Mapping[tuple[str, ...], float], known: Mapping[tuple[str, ...], float]
    ) -> dict[tuple[str, ...], float]:
        """The ratio of each queue and user: its fraction of the usage of all siblings, over the fraction that
        its weight gives it. A ratio that changed little keeps its known value."""
        siblings: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
        for path in used:
            siblings.setdefault(path[:-1], []).append(path)
        ratios: dict[tuple[str, ...], float] = {}
        for group in siblings.values():
            weights = {path: self._weight(path) for path in group}
            total, all_used = sum(weights.values()), sum(used[path] for path in group)
            for path in group:
                ratio = math.inf
                if weights[path] > 0:
                    ratio = used[path] / all_used / (weights[path] / total) if all_used > 0 else 0.0
                before = known.get(path)
                if before is not None and abs(ratio - before) <= HYSTERESIS * before < math.inf:
                    ratio = before
                ratios[path] = ratio
        return ratios

    def _weight(self, path: tuple[str, ...]) -> float:
        queue = self.tree.queues.get(path[-1])
        return 1.0 if queue is None else queue.weight


def due_shares(tree: QueueTree, leaves: Iterable[str]) -> dict[str, float]:
    """The share of the cluster that its weight gives each leaf, if only these leaves have work."""
    active = {name for leaf in leaves for name in tree.paths[leaf]}
    due: dict[str, float] = {}
    for name in tree.order:
        if name not in active:
            continue
        queue = tree.queues[name]
        siblings = [tree.queues[other].weight for other in tree.children[queue.parent] if other in active]
        above = 1.0 if queue.parent is None else due[queue.parent]
        due[name] = above * queue.weight / total if (total := sum(siblings)) > 0 else 0.0
    return {leaf: due[leaf] for leaf in active if not tree.children.get(leaf)}
