"""Sort as the C++ standard library does, ties included, because Fluxion's choices depend on it.

`std::sort` of libstdc++ is an introsort (Musser 1997): quicksort on the median of three, heapsort when that
goes too deep, and one insertion sort at the end that leaves runs of up to 16 as they are. Where scores are
equal the outcome follows from the order in which the candidates were found, and two slots with equal scores
may lie on different nodes. `order` reproduces it for scores in an array; it follows only the partitions that
reach into the wanted part, so that the best 16 of 320,000 cost one pass, not a sort.
"""

from __future__ import annotations

from typing import Any, TypeAlias

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
    place = np.arange(count, dtype=np.int32)  # half the memory to move, and that is most of the work
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
    # Insertion never carries an element past an equal one: a stable sort of the run.
    by = np.argsort(value[first:last], kind="stable")
    value[first:last] = value[first:last][by]
    place[first:last] = place[first:last][by]


def _partition(value: Column, place: Column, first: int, last: int) -> int:
    """Hoare's partition around the median of three, as a few array operations."""
    middle = first + (last - first) // 2
    _median_to_first(value, place, first, first + 1, middle, last - 1)
    pivot = value[first]
    part = value[first + 1 : last]
    left = np.flatnonzero(part >= pivot)  # where the left hand stops
    right = np.flatnonzero(part <= pivot)[::-1]  # where the right hand stops
    pairs = min(len(left), len(right))
    crossed = left[:pairs] >= right[:pairs]
    swaps = int(crossed.argmax()) if crossed.any() else pairs
    if swaps:
        one, two = left[:swaps] + first + 1, right[:swaps] + first + 1
        value[one], value[two] = value[two], value[one]
        place[one], place[two] = place[two], place[one]
    # After the last swap the hands move on from there; the left one stops at the next element that is
    # not less than the pivot, which is where the two parts meet.
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
