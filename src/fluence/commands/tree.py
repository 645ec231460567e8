"""Tree: draws a graph as a tree in which equal siblings are one line.

    cluster0
    ├── rack[0-1] × 2
    │   └── node[0-7] × 4 each: 8 core, 2 memory
    └── qpu0

Vertices are equal if they differ only in their names: type, size, status, properties and everything below are
the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import click

from fluence.commands import view
from fluence.graph.graph import CONTAINMENT, ResourceGraph, Tree

Write = Callable[[str, int], str]

_NAMES_SHOWN = 60  # characters of a list of names


@dataclass(slots=True)
class Branch:
    """Equal vertices, and what each of them has below."""

    rows: list[int]
    type: str
    size: int
    up: bool
    properties: dict[str, str]
    each: int  # how many are below one parent
    parents: int
    below: list[Branch] = field(default_factory=list)
    total: dict[str, int] = field(default_factory=dict)  # sizes by type, of everything below one vertex

    @property
    def is_leaf(self) -> bool:
        return not self.below and not self.total


def fold(graph: ResourceGraph, *, depth: int | None = None, subsystem: str = CONTAINMENT) -> Branch:
    """The tree of a subsystem, folded; ``depth`` levels below the root."""
    tree = graph.tree(subsystem)
    kinds = _kinds(graph, tree)
    return _branch(graph, tree, kinds, [tree.root], each=1, parents=1, depth=depth, totals={})


def _kinds(graph: ResourceGraph, tree: Tree) -> dict[int, int]:
    """A number per vertex that equal vertices share."""
    numbers: dict[object, int] = {}
    kinds: dict[int, int] = {}
    rows = tree.order[::-1]  # children before parents
    for v, type_, size, up in zip(
        rows.tolist(),
        graph.type[rows].tolist(),
        graph.size[rows].tolist(),
        graph.up[rows].tolist(),
        strict=True,
    ):
        below = tuple(kinds[child] for child in tree.children(v))
        properties = graph.properties.get(v)
        extra = tuple(sorted(properties.items())) if properties else ()
        kinds[v] = numbers.setdefault((type_, size, up, extra, below), len(numbers))
    return kinds


def _branch(
    graph: ResourceGraph,
    tree: Tree,
    kinds: dict[int, int],
    rows: list[int],
    *,
    each: int,
    parents: int,
    depth: int | None,
    totals: dict[int, dict[str, int]],
) -> Branch:
    first = rows[0]
    branch = Branch(
        rows,
        graph.type_name(first),
        int(graph.size[first]),
        bool(graph.up[first]),
        graph.properties.get(first, {}),
        each,
        parents,
        total=_total(graph, tree, first, kinds, totals),
    )
    if depth == 0:
        return branch
    for start, end in _runs([kinds[child] for child in tree.children(first)]):
        # Equal vertices have their children in the same places.
        found = [child for row in rows for child in tree.children(row)[start:end]]
        branch.below.append(
            _branch(
                graph,
                tree,
                kinds,
                found,
                each=end - start,
                parents=len(rows),
                depth=None if depth is None else depth - 1,
                totals=totals,
            )
        )
    return branch


def _runs(kinds: list[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for i in range(1, len(kinds) + 1):
        if i == len(kinds) or kinds[i] != kinds[start]:
            yield start, i
            start = i


def _total(
    graph: ResourceGraph, tree: Tree, vertex: int, kinds: dict[int, int], totals: dict[int, dict[str, int]]
) -> dict[str, int]:
    kind = kinds[vertex]
    found = totals.get(kind)
    if found is None:
        found = {}
        for child in tree.children(vertex):
            type_ = graph.type_name(child)
            found[type_] = found.get(type_, 0) + int(graph.size[child])
            for below, amount in _total(graph, tree, child, kinds, totals).items():
                found[below] = found.get(below, 0) + amount
        totals[kind] = found
    return found


def lines(graph: ResourceGraph, branch: Branch, *, write: Write = view.plain) -> Iterator[str]:
    """The drawing, line by line. ``write`` formats an amount of a type."""
    yield _label(graph, branch, write)
    yield from _below(graph, branch, "", write)


def _below(graph: ResourceGraph, branch: Branch, margin: str, write: Write) -> Iterator[str]:
    if _inlined(branch):
        return
    for i, child in enumerate(branch.below):
        last = i + 1 == len(branch.below)
        yield f"{margin}{'└── ' if last else '├── '}{_label(graph, child, write)}"
        yield from _below(graph, child, margin + ("    " if last else "│   "), write)


def _inlined(branch: Branch) -> bool:
    """Whether plain leaves are counted in the line above instead of having their own lines."""
    return all(child.is_leaf and child.up and not child.properties for child in branch.below)


def _label(graph: ResourceGraph, branch: Branch, write: Write) -> str:
    names = view.hosts(list(dict.fromkeys(graph.name[row] for row in branch.rows)))
    if len(names) > _NAMES_SHOWN:
        names = names[: _NAMES_SHOWN - 1] + "…"
    text = click.style(names, bold=True, fg="cyan") if branch.type == "node" else names
    if branch.each > 1 or branch.parents > 1:
        text += f" × {branch.each}" + (" each" if branch.parents > 1 else "")
    if branch.size != 1:
        text += f" of size {write(branch.type, branch.size)}"
    if not names.startswith(branch.type):
        text += f" ({branch.type})"
    if branch.properties:
        text += " " + click.style(
            "{" + ", ".join(map(_property, sorted(branch.properties.items()))) + "}", dim=True
        )
    if not branch.up:
        text += click.style(" down", fg="red")
    if branch.total and _inlined(branch):
        text += f": {view.amounts(branch.total, write=write)}"
    return text


def _property(item: tuple[str, str]) -> str:
    key, value = item
    return f"{key}={value}" if value else key


def to_value(graph: ResourceGraph, branch: Branch) -> dict[str, Any]:
    """The folded tree as data."""
    value: dict[str, Any] = {
        "type": branch.type,
        "names": view.hosts(list(dict.fromkeys(graph.name[row] for row in branch.rows))),
        "count": len(branch.rows),
        "each": branch.each,
        "size": branch.size,
        "status": "up" if branch.up else "down",
    }
    if branch.properties:
        value["properties"] = branch.properties
    if branch.total:
        value["total"] = branch.total
    if branch.below:
        value["below"] = [to_value(graph, child) for child in branch.below]
    return value
