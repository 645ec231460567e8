"""Candidates: what a search found of one type at one vertex, and the choice of the best among it.

The walk collects them on its way back up, and chooses at each vertex that the request names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from fluence.match.sort import order

MET = 1
Item = TypeVar("Item")
Edge = tuple[int, int, bool, int]  # vertex, needs, exclusive, through which parent it was reached


class CandidateGroup:
    """A candidate: one vertex, or the vertices that make up one slot."""

    __slots__ = ("count", "edges", "is_root", "score")

    def __init__(self, score: int, count: int, edges: list[Edge], is_root: bool = False) -> None:
        self.score = score
        self.count = count
        self.edges = edges
        self.is_root = is_root


class Pool:
    """The candidates of one type at one vertex, and the choice made among them."""

    __slots__ = ("amount", "chosen", "groups", "qualified", "total")

    def __init__(self) -> None:
        self.groups: list[CandidateGroup] = []
        self.qualified = 0
        self.total = 0
        self.chosen = 0  # how many of the sorted groups are taken
        self.amount = 0  # and how much that must be

    def add(self, group: CandidateGroup) -> None:
        self.total += group.count
        if group.score > 0:
            self.qualified += group.count
        self.groups.append(group)

    def merge(self, other: Pool) -> None:
        self.total += other.total
        self.qualified += other.qualified
        self.groups.extend(other.groups)

    def choose(
        self, amount: int, arrange: Callable[[list[CandidateGroup], int], list[CandidateGroup]]
    ) -> None:
        """Take the best until the amount is reached."""
        if amount == 0 or amount > self.qualified:
            return
        self.groups = arrange(self.groups, amount)
        taken = index = 0
        while taken < amount:
            taken += self.groups[index].count
            index += 1
        self.chosen, self.amount = index, amount


Pools = dict[tuple[str, int], Pool]


@dataclass(slots=True)
class CandidateCount:
    """Progress towards the shares of one type that a search which stops early needs."""

    share: int
    seen: int = 0
    filling: int = 0
    shares: int = 0

    def add(self, total: int) -> None:
        """So much was found so far."""
        if total > self.seen:
            self.add_one(total - self.seen)  # what one child brought counts as one piece
            self.seen = total

    def add_one(self, amount: int) -> int:
        """One more was found; returns how many shares there are by now."""
        self.filling += amount
        if self.filling >= self.share:
            self.shares += 1
            self.filling = 0
        return self.shares


def arranged(groups: list[CandidateGroup], *, ascending: bool) -> list[CandidateGroup]:
    """Candidates as std::sort leaves them."""
    return best_first(groups, [group.score for group in groups], ascending=ascending)


def best_first(items: list[Item], scores: list[int], *, ascending: bool) -> list[Item]:
    """What has these scores, as std::sort leaves it."""
    if len(items) <= 16 or len(set(scores)) == len(scores):
        by = sorted(range(len(items)), key=scores.__getitem__, reverse=not ascending)
    else:
        column = np.array(scores, np.int64)
        by = order(column if ascending else -column, len(items)).tolist()
    return [items[i] for i in by]


def arranged_by_run(groups: list[CandidateGroup], scores: set[int]) -> list[CandidateGroup]:
    """Candidates by the run of consecutive scores that theirs belongs to, the highest run first."""
    run: dict[int, int] = {}
    number = 0
    previous: int | None = None
    for score in sorted(scores):
        if previous is None or score != previous + 1:
            number += 1
        run[score] = number
        previous = score
    column = np.array([-run[group.score] for group in groups], np.int64)
    return [groups[i] for i in order(column, len(groups)).tolist()]
