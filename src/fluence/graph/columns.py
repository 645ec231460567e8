"""Columns: arrays with one entry per vertex or span, and the edges of one subsystem as a column of parents.

`Interner` keeps words as small integers, so that columns hold numbers and comparisons are cheap.

Children, preorder and depth are derived from the parent column on first use, and again after a change of the
column::

    row        0        1      2      3      4      5
    type       cluster  rack   node   core   core   node
    parent     -1       0      1      2      2      1
    pre        0        1      2      3      4      5        preorder number
    end        6        6      5      4      5      6        one past the last descendant
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from fluence.errors import InvalidGraph

Ints: TypeAlias = npt.NDArray[np.int64]
Rows: TypeAlias = npt.NDArray[np.int32]
Mask: TypeAlias = npt.NDArray[np.bool_]

NO_ROWS: Rows = np.empty(0, np.int32)


def scalars(column: npt.NDArray[Any]) -> Sequence[int]:
    """A column for reading single numbers: a memoryview takes a third of the time of numpy for that."""
    return cast("Sequence[int]", memoryview(column))  # type: ignore[arg-type]


# Fluxion interns these before it reads a graph; their order decides the order of types in a pruning filter.
BUILT_IN_TYPES = (
    "cluster",
    "core",
    "socket",
    "gpu",
    "node",
    "rack",
    "slot",
    "xor_slot",
    "ssd",
    "storage_node",
)


class Interner:
    """A two-way table between words and codes 0, 1, 2 … in the order of first appearance."""

    __slots__ = ("_codes", "words")

    def __init__(self, words: Iterable[str] = ()) -> None:
        self.words: list[str] = []
        self._codes: dict[str, int] = {}
        for word in words:
            self.code(word)

    def code(self, word: str) -> int:
        """The code of ``word``, given out now if it is new."""
        code = self._codes.get(word)
        if code is None:
            code = self._codes[word] = len(self.words)
            self.words.append(word)
        return code

    def find(self, word: str) -> int | None:
        """The code of ``word``, or None if it was never seen."""
        return self._codes.get(word)

    def codes(self, words: Iterable[str]) -> list[int]:
        """The codes of many words."""
        words = list(words)
        for word in dict.fromkeys(words):
            self.code(word)
        return list(map(self._codes.__getitem__, words))

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._codes


CONTAINMENT = "containment"


class Tree:
    """The edges of one subsystem, as a parent column, and the shape derived from it.

    A vertex may have several parents, such as a burst buffer shared by racks. Its first edge belongs to the
    tree; the others are kept as links, and `is_tree` is False.
    """

    def __init__(
        self, root: int, parent: Rows, sequence: Ints, links: dict[int, list[tuple[int, int]]] | None = None
    ) -> None:
        self.root = root
        self.parent = parent  # -1: the root, or not in this subsystem
        self.sequence = sequence  # the order in which the edges to the vertices were added
        self.links = links or {}  # vertex -> (sequence, child) of its other children
        self.pre: Rows = NO_ROWS
        self.end: Rows = NO_ROWS
        self.post: Rows = NO_ROWS
        self.depth: Rows = NO_ROWS
        self.order: Rows = NO_ROWS  # rows in preorder
        self.child_start: Rows = NO_ROWS
        self.child: Rows = NO_ROWS  # the children of v are child[child_start[v]:child_start[v + 1]]
        self._lists: dict[int, list[int]] = {}
        self._fresh = False

    def shape(self) -> Tree:
        """This tree with its derived columns up to date."""
        if not self._fresh:
            self._derive()
        return self

    def stale(self) -> None:
        """The parent column changed."""
        self._fresh = False

    def children(self, vertex: int) -> list[int]:
        """The children of a vertex in the order in which their edges were added."""
        found = self._lists.get(vertex)
        if found is None:
            low, high = self.child_start[vertex], self.child_start[vertex + 1]
            own = self.child[low:high]
            found = own.tolist()
            if vertex in self.links:
                both = [*zip(self.sequence[own].tolist(), found, strict=True), *self.links[vertex]]
                found = [child for _, child in sorted(both)]
            self._lists[vertex] = found
        return found

    def in_order(self, vertex: int, some: Sequence[int]) -> Sequence[int]:
        """Some of the children of a vertex, in the order of their edges."""
        if len(some) < 2:
            return some
        if vertex in self.links:
            return [child for child in self.children(vertex) if child in some]
        return sorted(some, key=scalars(self.sequence).__getitem__)

    @property
    def is_tree(self) -> bool:
        return not self.links

    def ancestors(self, vertex: int) -> Iterator[int]:
        """The proper ancestors, nearest first."""
        parent = self.parent
        vertex = int(parent[vertex])
        while vertex >= 0:
            yield vertex
            vertex = int(parent[vertex])

    def subtree(self, vertex: int) -> Rows:
        """A vertex and all vertices below it, in preorder."""
        return self.order[self.pre[vertex] : self.end[vertex]]

    def __contains__(self, vertex: int) -> bool:
        return vertex == self.root or bool(self.parent[vertex] >= 0)

    def _derive(self) -> None:
        parent = self.parent
        rows = len(parent)
        below = np.flatnonzero(parent >= 0).astype(np.int32)
        below = below[np.lexsort((self.sequence[below], parent[below]))]
        counts = np.bincount(parent[below], minlength=rows)
        start = np.zeros(rows + 1, np.int32)
        np.cumsum(counts, out=start[1:])
        self.child, self.child_start = below, start
        self._lists = {}
        # Levels from the root down: each level's vertices are the children of the level before.
        depth = np.full(rows, -1, np.int32)
        levels: list[Rows] = []
        level = np.array([self.root], np.int32)
        while len(level):
            depth[level] = len(levels)
            levels.append(level)
            width = counts[level]
            first = np.repeat(start[level] - np.concatenate(([0], np.cumsum(width)[:-1])), width)
            level = below[first + np.arange(len(first))] if len(first) else NO_ROWS
            if len(levels) > rows:
                raise InvalidGraph("the edges form a cycle")
        weight = np.zeros(rows, np.int64)  # vertices in the subtree
        for level in reversed(levels):
            weight[level] += 1
            if level[0] != self.root:
                weight += np.bincount(parent[level], weights=weight[level], minlength=rows).astype(np.int64)
        pre = np.full(rows, -1, np.int32)
        pre[self.root] = 0
        for level in levels[1:]:
            # Siblings are adjacent in `below`: a running sum gives each its offset under the parent.
            running = np.cumsum(weight[level]) - weight[level]
            up = parent[level]
            heads = np.concatenate(([True], up[1:] != up[:-1]))
            base = np.maximum.accumulate(np.where(heads, running, 0))
            pre[level] = pre[up] + 1 + (running - base)
        self.pre = pre
        self.end = np.where(pre >= 0, pre + weight, -1).astype(np.int32)
        inside = depth >= 0
        self.depth = depth
        # Post-order number = preorder number + descendants - ancestors.
        self.post = np.where(inside, pre + weight - 1 - depth, -1).astype(np.int32)
        order = np.empty(int(inside.sum()), np.int32)
        order[pre[inside]] = np.flatnonzero(inside)
        self.order = order
        self._fresh = True
