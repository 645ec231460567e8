"""Candidates of one type at one vertex, and the choice of the best among them.

The walk collects them on its way back up, and chooses at each vertex that serves a need.

Candidates are sorted as by the C++ standard library, ties included, because Fluxion's choices depend on it.
`std::sort` of libstdc++ is an introsort (Musser 1997): quicksort on the median of three, heapsort when that
goes too deep, and one insertion sort at the end for runs of up to 16. If scores are equal, the result depends
on the order in which the candidates were found, and two slots with equal scores may be on different nodes.
`order` reproduces this for scores in an array. It follows only the partitions that contain wanted elements,
so the best 16 of 320,000 cost one pass, not a sort.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from fluence.graph.columns import Ints

Column: TypeAlias = npt.NDArray[Any]
_RUN = 16  # std::_S_threshold


def order(scores: Ints, wanted: int) -> Ints:
    """The positions of the first ``wanted`` elements after ``std::sort(scores, less)``."""
    count = len(scores)
    wanted = min(wanted, count)
    if count <= _RUN:
        return np.argsort(scores, kind="stable")[:wanted]
    low, high = int(scores.min()), int(scores.max())
    value = (scores - low).astype(np.int32) if high - low < 2**31 else np.array(scores, np.int64)
    place = np.arange(count, dtype=np.int32)  # half the memory, and moving it is most of the work
    _introsort(value, place, wanted)
    return place[:wanted].astype(np.int64)


def _introsort(value: Column, place: Column, wanted: int) -> None:
    stack = [(0, len(value), 2 * (len(value).bit_length() - 1))]
    while stack:
        first, last, depth = stack.pop()
        while last - first > _RUN:
            if first >= wanted:
                break
            if depth == 0:
                _heapsort(value, place, first, last)
                break
            depth -= 1
            cut = _partition(value, place, first, last)
            stack.append((cut, last, depth))
            last = cut
        else:
            if first < wanted:
                _insertion_sort(value, place, first, last)


def _insertion_sort(value: Column, place: Column, first: int, last: int) -> None:
    # Insertion never moves an element past an equal one: a stable sort of the run.
    by = np.argsort(value[first:last], kind="stable")
    value[first:last] = value[first:last][by]
    place[first:last] = place[first:last][by]


def _partition(value: Column, place: Column, first: int, last: int) -> int:
    """Hoare's partition around the median of three, as a few array operations."""
    middle = first + (last - first) // 2
    _median_to_first(value, place, first, first + 1, middle, last - 1)
    pivot = value[first]
    part = value[first + 1 : last]
    left = np.flatnonzero(part >= pivot)  # where the left pointer stops
    right = np.flatnonzero(part <= pivot)[::-1]  # where the right pointer stops
    pairs = min(len(left), len(right))
    crossed = left[:pairs] >= right[:pairs]
    swaps = int(crossed.argmax()) if crossed.any() else pairs
    if swaps:
        one, two = left[:swaps] + first + 1, right[:swaps] + first + 1
        value[one], value[two] = value[two], value[one]
        place[one], place[two] = place[two], place[one]
    # After the last swap the pointers continue; the left one stops at the next element that is not less than
    # the pivot. That is the boundary of the two parts.
    start = int(left[swaps - 1]) + 1 if swaps else 0
    rest = np.flatnonzero(value[first + 1 + start : last] >= pivot)
    return first + 1 + start + (int(rest[0]) if len(rest) else last - first - 1 - start)


def _median_to_first(value: Column, place: Column, result: int, a: int, b: int, c: int) -> None:
    va, vb, vc = value[a], value[b], value[c]
    if va < vb:
        chosen = b if vb < vc else c if va < vc else a
    else:
        chosen = a if va < vc else c if vb < vc else b
    value[result], value[chosen] = value[chosen], value[result]
    place[result], place[chosen] = place[chosen], place[result]


def _heapsort(value: Column, place: Column, first: int, last: int) -> None:
    """std::partial_sort over the whole range: make_heap, then sort_heap."""
    heap = list(zip(value[first:last].tolist(), place[first:last].tolist(), strict=True))
    size = len(heap)
    for parent in range((size - 2) // 2, -1, -1):
        _sift(heap, parent, size, heap[parent])
    while size > 1:
        size -= 1
        carried = heap[size]
        heap[size] = heap[0]
        _sift(heap, 0, size, carried)
    value[first:last] = [entry[0] for entry in heap]
    place[first:last] = [entry[1] for entry in heap]


def _sift(heap: list[tuple[int, int]], hole: int, size: int, carried: tuple[int, int]) -> None:
    """std::__adjust_heap: the hole sinks to the bottom, then the carried element rises from there."""
    top = hole
    child = hole
    while child < (size - 1) // 2:
        child = 2 * (child + 1)
        if heap[child][0] < heap[child - 1][0]:
            child -= 1
        heap[hole] = heap[child]
        hole = child
    if size % 2 == 0 and child == (size - 2) // 2:
        child = 2 * (child + 1)
        heap[hole] = heap[child - 1]
        hole = child - 1
    parent = (hole - 1) // 2
    while hole > top and heap[parent][0] < carried[0]:
        heap[hole] = heap[parent]
        hole = parent
        parent = (hole - 1) // 2
    heap[hole] = carried


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
        self.chosen = 0  # the number of sorted groups that are taken
        self.amount = 0  # the amount that must be reached

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
        """Set the total found so far."""
        if total > self.seen:
            self.add_one(total - self.seen)  # the amount from one child counts as one piece
            self.seen = total

    def add_one(self, amount: int) -> int:
        """One more was found; returns the current number of shares."""
        self.filling += amount
        if self.filling >= self.share:
            self.shares += 1
            self.filling = 0
        return self.shares


def arranged(groups: list[CandidateGroup], *, ascending: bool) -> list[CandidateGroup]:
    """Candidates in the order of std::sort."""
    return best_first(groups, [group.score for group in groups], ascending=ascending)


def best_first(items: list[Item], scores: list[int], *, ascending: bool) -> list[Item]:
    """Items with these scores, in the order of std::sort."""
    if len(items) <= 16 or len(set(scores)) == len(scores):
        by = sorted(range(len(items)), key=scores.__getitem__, reverse=not ascending)
    else:
        column = np.array(scores, np.int64)
        by = order(column if ascending else -column, len(items)).tolist()
    return [items[i] for i in by]


def arranged_by_run(groups: list[CandidateGroup], scores: set[int]) -> list[CandidateGroup]:
    """Candidates sorted by their run of consecutive scores, the highest run first."""
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
