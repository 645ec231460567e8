"""The result of a search: the chosen vertices, their amounts, and whether each is exclusive.

The walk marks the vertices that it chose (`trace`), the index collects columns (`gathered`). The ledger
records the selection, and the writers print it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from fluence.graph.columns import Ints, Mask, Rows, Tree, scalars
from fluence.graph.graph import ResourceGraph

# vertex -> needs, exclusive, and the parent through which it was chosen
Marks: TypeAlias = dict[int, tuple[int, bool, int]]


@dataclass(frozen=True, slots=True)
class Selection:
    """Vertices in post-order: children before parents, siblings in the order of their edges."""

    vertices: Rows
    needs: Ints
    exclusive: Mask
    parents: Rows  # through which vertex each was reached; -1 for the root
    depths: Rows
    labels: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.vertices)

    @classmethod
    def of(
        cls,
        tree: Tree,
        vertices: Rows,
        needs: Ints,
        exclusive: Mask,
        labels: dict[int, str] | None = None,
    ) -> Selection:
        """Vertices of a tree in any order."""
        by = np.argsort(tree.post[vertices])
        rows = vertices[by]
        return cls(rows, needs[by], exclusive[by], tree.parent[rows], tree.depth[rows], labels or {})


def trace(
    graph: ResourceGraph,
    tree: Tree,
    marks: Marks,
    root: tuple[int, bool],
    whole: frozenset[int],
    labels: dict[int, str],
    *,
    keep_shared: bool = False,
) -> Selection:
    """Follow the marks from the root down and keep the held vertices.

    A vertex is held if it, or a vertex below it, is exclusive; with ``keep_shared``, every marked vertex is.
    Below a vertex of a ``whole`` type everything belongs to the job, marked or not.
    """
    held: list[tuple[int, int, bool, int, int]] = []  # vertex, needs, exclusive, parent, depth
    types, sizes = scalars(graph.type), scalars(graph.size)
    chosen: dict[int, list[int]] = {}
    for vertex, mark in marks.items():
        chosen.setdefault(mark[2], []).append(vertex)
    seen: set[int] | None = None if tree.is_tree else set()

    def visit(vertex: int, amount: int, alone: bool, shadow: bool, parent: int, depth: int) -> None:
        before = len(held)
        shadow = shadow or types[vertex] in whole
        alone = alone or shadow
        for child in tree.children(vertex) if shadow else tree.in_order(vertex, chosen.get(vertex, ())):
            if seen is not None:
                if child in seen:
                    continue
                seen.add(child)
            if shadow:
                visit(child, sizes[child], True, True, vertex, depth + 1)
                continue
            child_amount, child_alone, _ = marks[child]
            if child in chosen or types[child] in whole:
                visit(child, child_amount, child_alone, False, vertex, depth + 1)
            elif child_alone or keep_shared:
                held.append((child, child_amount, child_alone, vertex, depth + 1))
        if alone or keep_shared or len(held) > before:
            held.append((vertex, amount, alone, parent, depth))

    visit(tree.root, root[0], root[1], False, -1, 0)
    vertices, needs, exclusive, parents, depths = zip(*held, strict=True) if held else ((),) * 5
    return Selection(
        np.array(vertices, np.int32),
        np.array(needs, np.int64),
        np.array(exclusive, np.bool_),
        np.array(parents, np.int32),
        np.array(depths, np.int32),
        {vertex: labels[vertex] for vertex in vertices if vertex in labels} if labels else {},
    )


def gathered(
    graph: ResourceGraph,
    tree: Tree,
    taken: tuple[Rows, Ints, Mask],
    labels: dict[int, str],
    *,
    whole: frozenset[int],
    keep_shared: bool,
) -> Selection:
    """The same as `trace`, from columns: the taken rows, their amounts, and whether each is exclusive;
    together with the path to them and everything that belongs to them, if it is held."""
    rows, amounts, alone = _with_all_below(graph, tree, _with_ways(graph, tree, taken), whole)
    if keep_shared:
        return Selection.of(tree, rows, amounts, alone, labels)
    # A vertex is recorded if it, or a vertex below it, is exclusive.
    pre, end = tree.pre[rows], tree.end[rows]
    held = np.sort(pre[alone])
    keep = np.searchsorted(held, end) > np.searchsorted(held, pre)
    if not bool(keep.all()):
        rows, amounts, alone = rows[keep], amounts[keep], alone[keep]
    return Selection.of(tree, rows, amounts, alone, labels)


def _with_ways(graph: ResourceGraph, tree: Tree, taken: tuple[Rows, Ints, Mask]) -> tuple[Rows, Ints, Mask]:
    rows, amounts, alone = taken
    seen = np.zeros(graph.rows, np.bool_)
    seen[rows] = True
    ways: list[Rows] = []
    above = tree.parent[rows]
    while True:
        above = above[above >= 0]
        above = np.unique(above[~seen[above]])
        if not len(above):
            break
        seen[above] = True
        ways.append(above)
        above = tree.parent[above]
    if not ways:
        return taken
    way = np.concatenate(ways).astype(np.int32)
    needs = graph.size[way].copy()
    needs[way == tree.root] = 1  # the request does not name the root
    return (
        np.concatenate((rows, way)),
        np.concatenate((amounts, needs)),
        np.concatenate((alone, np.zeros(len(way), np.bool_))),
    )


def _with_all_below(
    graph: ResourceGraph, tree: Tree, taken: tuple[Rows, Ints, Mask], whole: frozenset[int]
) -> tuple[Rows, Ints, Mask]:
    """Add everything below vertices of ``whole`` types, exclusively."""
    if not whole:
        return taken
    rows, amounts, alone = taken
    heads = np.isin(graph.type[rows], list(whole))
    if not heads.any():
        return taken
    steps = np.zeros(len(tree.order) + 1, np.int32)
    np.add.at(steps, tree.pre[rows[heads]] + 1, 1)
    np.add.at(steps, tree.end[rows[heads]], -1)
    below = tree.order[np.cumsum(steps)[:-1] > 0]
    amount = np.zeros(graph.rows, np.int64)
    own = np.zeros(graph.rows, np.bool_)
    amount[rows], own[rows] = amounts, alone | heads
    amount[below], own[below] = graph.size[below], True
    both = np.zeros(graph.rows, np.bool_)
    both[rows] = True
    both[below] = True
    rows = np.flatnonzero(both).astype(np.int32)
    return rows, amount[rows], own[rows]


def merged(tree: Tree, parts: list[Selection]) -> Selection:
    """Merge several selections of one tree: amounts add up, and shared vertices stay shared."""
    amounts: dict[int, tuple[int, bool]] = {}
    labels: dict[int, str] = {}
    for part in parts:
        labels.update(part.labels)
        for vertex, needs, alone in zip(
            part.vertices.tolist(), part.needs.tolist(), part.exclusive.tolist(), strict=True
        ):
            before, taken = amounts.get(vertex, (0, False))
            amounts[vertex] = (before + needs if taken and alone else max(before, needs), taken or alone)
    rows = np.array(list(amounts), np.int32)
    needs_column = np.array([needs for needs, _ in amounts.values()], np.int64)
    alone_column = np.array([alone for _, alone in amounts.values()], np.bool_)
    return Selection.of(tree, rows, needs_column, alone_column, labels)
