"""The resource graph in columns: one row per vertex, one tree of edges per subsystem.

The readers in this package make a graph; `fluence.match` and `fluence.cluster` search and change it. A vertex
is a row number that never changes; a removed vertex keeps its row and is marked dead. Each change increments
a generation, from which caches see that they are out of date.

A `Batch` has vertices and edges that are added to a graph together. The readers of files make batches.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from fluence.errors import InvalidGraph, NotFound
from fluence.graph.columns import (
    BUILT_IN_TYPES,
    CONTAINMENT,
    NO_ROWS,
    Interner,
    Ints,
    Mask,
    Rows,
    Tree,
    scalars,
)


@dataclass(slots=True)
class Batch:
    """Vertices and edges to be added together; rows and edge ends are numbered within the batch.

    An edge end below zero, ``~row``, names a vertex that the graph already has.
    """

    type: list[str] = field(default_factory=list)
    basename: list[str] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    id: list[int] = field(default_factory=list)
    uniq_id: list[int] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    unit: list[str] = field(default_factory=list)
    up: list[bool] = field(default_factory=list)
    properties: dict[int, dict[str, str]] = field(default_factory=dict)
    paths: dict[str, dict[int, str] | list[str]] = field(default_factory=dict)
    edges: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)
    roots: dict[str, int] = field(default_factory=dict)

    def vertex(
        self,
        type_: str,
        *,
        id: int,  # noqa: A002 - the field's own name
        uniq_id: int,
        basename: str | None = None,
        name: str | None = None,
        rank: int = -1,
        size: int = 1,
        unit: str = "",
        up: bool = True,
        properties: dict[str, str] | None = None,
        paths: dict[str, str] | None = None,
    ) -> int:
        """Add one vertex and return its row in the batch."""
        row = len(self.type)
        base = type_ if basename is None else basename
        self.type.append(type_)
        self.basename.append(base)
        self.name.append(name if name is not None else base if id == -1 else f"{base}{id}")
        self.id.append(id)
        self.uniq_id.append(uniq_id)
        self.rank.append(rank)
        self.size.append(size)
        self.unit.append(unit)
        self.up.append(up)
        if properties:
            self.properties[row] = properties
        for subsystem, path in (paths or {}).items():
            known = self.paths.setdefault(subsystem, {})
            assert isinstance(known, dict)
            known[row] = path
        return row

    def edge(self, source: int, target: int) -> None:
        """Add one edge; edges of a vertex keep the order in which they are added."""
        sources, targets = self.edges.setdefault(CONTAINMENT, ([], []))
        sources.append(source)
        targets.append(target)


__all__ = ["CONTAINMENT", "NO_ROWS", "Batch", "Ints", "Mask", "ResourceGraph", "Rows", "Tree", "scalars"]

_DEEPEST = 200  # levels: a search uses the stack for each level
_MAX_TOTAL = 2**62  # of all sizes of a graph, so that sums fit into 64 bits


class ResourceGraph:
    """Vertices in columns, one tree per subsystem, and the status and properties of vertices."""

    def __init__(self) -> None:
        self.types = Interner(BUILT_IN_TYPES)
        self.basenames = Interner()
        self.units = Interner(("",))
        self.type: Rows = np.empty(0, np.int32)
        self.basename: Rows = np.empty(0, np.int32)
        self.unit: Rows = np.empty(0, np.int32)
        self.id: Ints = np.empty(0, np.int64)
        self.uniq_id: Ints = np.empty(0, np.int64)
        self.rank: Ints = np.empty(0, np.int64)
        self.size: Ints = np.empty(0, np.int64)
        self.up: Mask = np.empty(0, np.bool_)
        self.alive: Mask = np.empty(0, np.bool_)
        self.name: list[str] = []
        self.properties: dict[int, dict[str, str]] = {}
        self.trees: dict[str, Tree] = {}
        self.nodes_up = 0
        self.shape_generation = 0  # vertices or edges were added or removed
        self.state_generation = 0  # a status changed, or anything else did
        self.property_generation = 0  # a property changed, or the shape did
        self._given_paths: dict[str, dict[int, str]] = {}
        self._by_path: dict[str, list[int]] | None = None
        self._by_rank: dict[int, list[int]] | None = None
        self._by_type: dict[int, Rows] = {}
        self._edge_count = 0

    # -- files -----------------------------------------------------------------------------------------------

    @classmethod
    def load(
        cls,
        path: str | Path,
        format: str | None = None,  # noqa: A002 - what everybody calls it
        *,
        allow: Collection[str] | None = None,
    ) -> ResourceGraph:
        """Read a file: grug, jgf, hwloc or rv1exec; without a format, it is guessed from the content.

        ``allow`` keeps only these types of an hwloc topology.
        """
        try:
            text = Path(path).read_bytes()
        except OSError as error:
            raise InvalidGraph(f"cannot be read: {error.strerror}", where=str(path)) from None
        return cls.parse(text, format, source=str(path), allow=allow)

    @classmethod
    def parse(
        cls,
        text: str | bytes,
        format: str | None = None,  # noqa: A002
        *,
        source: str = "graph",
        allow: Collection[str] | None = None,
    ) -> ResourceGraph:
        """Read a text as `load` reads a file; *source* is what errors call it."""
        from fluence.graph import files

        data = text.encode() if isinstance(text, str) else text
        return files.graph_of(data, format, source=source, allow=allow)

    def render(self, format: str = "jgf") -> str:  # noqa: A002
        """The whole graph as text: jgf, jgf_verbose, simple, rlite, rv1_nosched, graphml, dot and others."""
        from fluence.graph import files

        return files.render(self, format)

    # -- reading ---------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(self.alive.sum())

    @property
    def rows(self) -> int:
        """Rows in use, those of removed vertices included."""
        return len(self.type)

    def tree(self, subsystem: str = CONTAINMENT) -> Tree:
        """The tree of a subsystem, ready to be read."""
        tree = self.trees.get(subsystem)
        if tree is None:
            known = ", ".join(sorted(self.trees)) or "none"
            raise NotFound(f"the graph has no subsystem {subsystem!r} (it has: {known})")
        return tree.shape()

    def path(self, vertex: int, subsystem: str = CONTAINMENT) -> str | None:
        """The path of a vertex in a subsystem; None if it has none."""
        given = self._given_paths.get(subsystem)
        if given is not None and vertex in given:
            return given[vertex]
        tree = self.trees.get(subsystem)
        if tree is None or vertex not in tree:
            return None
        parts = [self.name[vertex]]
        parent = int(tree.parent[vertex])
        while parent >= 0:
            if given is not None and parent in given:
                return "/".join([given[parent], *reversed(parts)])
            parts.append(self.name[parent])
            parent = int(tree.parent[parent])
        return "/" + "/".join(reversed(parts))

    def paths(self, vertex: int) -> dict[str, str]:
        """All paths of a vertex, by subsystem."""
        found = {s: self.path(vertex, s) for s in {**self.trees, **self._given_paths}}
        return {subsystem: path for subsystem, path in found.items() if path is not None}

    def vertices_at(self, path: str) -> list[int]:
        """The vertices that have this path in any subsystem; several when they differ in rank."""
        if self._by_path is None:
            self._by_path = {}
            for vertex in np.flatnonzero(self.alive).tolist():
                for found in set(self.paths(vertex).values()):
                    self._by_path.setdefault(found, []).append(vertex)
        return self._by_path.get(path, [])

    def vertices_of_rank(self, rank: int) -> list[int]:
        """The vertices of an execution target."""
        if self._by_rank is None:
            self._by_rank = {}
            for vertex in np.flatnonzero(self.alive & (self.rank >= 0)).tolist():
                self._by_rank.setdefault(int(self.rank[vertex]), []).append(vertex)
        return self._by_rank.get(rank, [])

    def vertices_of_type(self, type_: str | int) -> Rows:
        """The vertices of a type, in the order in which they were added."""
        code = self.types.find(type_) if isinstance(type_, str) else type_
        if code is None:
            return NO_ROWS
        found = self._by_type.get(code)
        if found is None:
            found = np.flatnonzero(self.alive & (self.type == code)).astype(np.int32)
            self._by_type[code] = found
        return found

    def type_name(self, vertex: int) -> str:
        return self.types.words[int(self.type[vertex])]

    # -- changing --------------------------------------------------------------------------------------------

    def extend(self, batch: Batch) -> Rows:
        """Add a batch of vertices and edges; returns the new rows. An error leaves the graph unchanged."""
        base, count = self.rows, len(batch.type)
        edges = {
            subsystem: (_ends(ends[0], base), _ends(ends[1], base)) for subsystem, ends in batch.edges.items()
        }
        trees = self._grown_trees(batch, edges, base, count)
        if sum(batch.size) + int(self.size.sum()) > _MAX_TOTAL:
            raise InvalidGraph("the sizes of all vertices together must stay below 2^62: use a larger unit")

        node = self.types.code("node")
        types = np.array(self.types.codes(batch.type), np.int32)
        up = np.array(batch.up, np.bool_)
        size = np.array(batch.size, np.int64)
        self.type = np.concatenate((self.type, types))
        self.basename = np.concatenate(
            (self.basename, np.array(self.basenames.codes(batch.basename), np.int32))
        )
        self.unit = np.concatenate((self.unit, np.array(self.units.codes(batch.unit), np.int32)))
        self.id = np.concatenate((self.id, np.array(batch.id, np.int64)))
        self.uniq_id = np.concatenate((self.uniq_id, np.array(batch.uniq_id, np.int64)))
        self.rank = np.concatenate((self.rank, np.array(batch.rank, np.int64)))
        self.size = np.concatenate((self.size, size))
        self.up = np.concatenate((self.up, up))
        self.alive = np.concatenate((self.alive, np.ones(count, np.bool_)))
        self.nodes_up += int(size[(types == node) & up].sum())
        self.name.extend(batch.name)
        for row, properties in batch.properties.items():
            self.properties[base + row] = properties
        self.trees = trees
        self._edge_count += sum(len(ends[0]) for ends in edges.values())
        self._keep_paths(batch, base)
        self._reshaped()
        return np.arange(base, base + count, dtype=np.int32)

    def remove(self, vertices: Sequence[int] | Rows) -> None:
        """Remove vertices from the graph; everything below them must be included."""
        gone = np.asarray(vertices, np.int32)
        self.alive[gone] = False
        node = self.types.code("node")
        for tree in self.trees.values():
            tree.parent[gone] = -1
            tree.parent[np.isin(tree.parent, gone)] = -1
            dead = set(gone.tolist())
            tree.links = {
                v: kept
                for v, of in tree.links.items()
                if v not in dead and (kept := [(n, child) for n, child in of if child not in dead])
            }
            tree.stale()
        nodes = gone[(self.type[gone] == node) & self.up[gone]]
        self.nodes_up -= int(self.size[nodes].sum())
        for vertex in gone.tolist():
            self.properties.pop(vertex, None)
        self._reshaped()

    def set_status(self, vertex: int, *, up: bool) -> bool:
        """Mark a vertex up or down; True if that was a change."""
        if bool(self.up[vertex]) == up:
            return False
        self.up[vertex] = up
        self.state_generation += 1
        return True

    def set_property(self, vertex: int, key: str, value: str) -> None:
        self.properties.setdefault(vertex, {})[key] = value
        self.state_generation += 1
        self.property_generation += 1

    def remove_property(self, vertex: int, key: str) -> bool:
        """Remove a property; returns whether it existed."""
        found = self.properties.get(vertex)
        if found is None or key not in found:
            return False
        del found[key]
        self.state_generation += 1
        self.property_generation += 1
        return True

    # -- inside ----------------------------------------------------------------------------------------------

    def _grown_trees(
        self, batch: Batch, edges: dict[str, tuple[Rows, Rows]], base: int, count: int
    ) -> dict[str, Tree]:
        """The trees with the batch's edges added, checked before anything is changed."""
        grown: dict[str, Tree] = {}
        roots = {s: (row + base if row >= 0 else ~row) for s, row in batch.roots.items()}
        for subsystem in {**self.trees, **edges, **roots}:
            old = self.trees.get(subsystem)
            parent = np.full(base + count, -1, np.int32)
            sequence = np.zeros(base + count, np.int64)
            links = {} if old is None else {v: list(of) for v, of in old.links.items()}
            if old is not None:
                parent[:base], sequence[:base] = old.parent, old.sequence
                if subsystem in roots and roots[subsystem] != old.root:
                    raise InvalidGraph(f"a second root for subsystem {subsystem!r}")
            root = old.root if old is not None else roots.get(subsystem, -1)
            if subsystem in edges:
                source, target = edges[subsystem]
                number = self._edge_count + np.arange(len(target))
                _check_edges(source, target, root, _Names(self.name, batch.name, base))
                first = np.zeros(len(target), np.bool_)
                first[np.unique(target, return_index=True)[1]] = True
                first &= parent[target] < 0
                for s, t, n in zip(
                    source[~first].tolist(), target[~first].tolist(), number[~first].tolist(), strict=True
                ):
                    links.setdefault(s, []).append((n, t))
                parent[target[first]] = source[first]
                sequence[target[first]] = number[first]
            if root < 0:
                heads = np.setdiff1d(edges[subsystem][0], edges[subsystem][1])
                if len(heads) != 1:
                    raise InvalidGraph(f"subsystem {subsystem!r} has {len(heads)} roots and must have one")
                root = int(heads[0])
            tree = grown[subsystem] = Tree(root, parent, sequence, links)
            if subsystem in edges:
                if int(tree.shape().depth.max()) > _DEEPEST:
                    raise InvalidGraph(f"subsystem {subsystem!r} has more than {_DEEPEST} levels")
                reached = len(tree.order)
                if reached != int((parent >= 0).sum()) + 1:
                    raise InvalidGraph(f"edges of subsystem {subsystem!r} form a cycle or a second tree")
        return grown

    def _keep_paths(self, batch: Batch, base: int) -> None:
        """Keep only the paths that differ from the names along the edges."""
        names = self.name
        for subsystem, given in batch.paths.items():
            kept = self._given_paths.setdefault(subsystem, {})
            tree = self.trees.get(subsystem)
            rows = (
                [base + row for row in given] if isinstance(given, dict) else range(base, base + len(given))
            )
            paths = list(given.values()) if isinstance(given, dict) else given
            if tree is None:
                kept.update(zip(rows, paths, strict=True))
                continue
            parents = tree.parent[list(rows)].tolist() if len(paths) else []
            if base == 0 and not isinstance(given, dict):
                # A whole graph at once: the path of the parent is in the same list.
                start, before = "", -1
                for vertex, (path, name, parent) in enumerate(zip(paths, names, parents, strict=True)):
                    if parent != before:  # siblings are usually adjacent
                        start, before = f"{paths[parent]}/", parent
                    if parent < 0 or path != start + name:
                        kept[vertex] = path
                root = tree.root
                if kept.get(root) == f"/{names[root]}":
                    del kept[root]
                continue
            wanted = dict(zip(rows, paths, strict=True))
            for vertex, path, parent in zip(rows, paths, parents, strict=True):
                above = wanted.get(parent)
                if above is None:
                    above = (self.path(parent, subsystem) or "") if parent >= 0 else ""
                if path != f"{above}/{names[vertex]}" or (parent < 0 and vertex != tree.root):
                    kept[vertex] = path

    def _reshaped(self) -> None:
        self._by_path = None
        self._by_rank = None
        self._by_type = {}
        self.shape_generation += 1
        self.state_generation += 1
        self.property_generation += 1


class _Names:
    """Vertex names for error messages, whether the vertex is in the graph or in the batch."""

    def __init__(self, old: list[str], new: list[str], base: int) -> None:
        self._old, self._new, self._base = old, new, base

    def __getitem__(self, row: int) -> str:
        return self._old[row] if row < self._base else self._new[row - self._base]


def _ends(rows: list[int], base: int) -> Rows:
    ends = np.array(rows, np.int64)
    return np.where(ends >= 0, ends + base, ~ends).astype(np.int32)


def _check_edges(source: Rows, target: Rows, root: int, names: _Names) -> None:
    if root >= 0 and (target == root).any():
        raise InvalidGraph(f"the root {names[root]!r} gets a parent: the edges form a cycle")
    loops = source[source == target]
    if len(loops):
        raise InvalidGraph(f"vertex {names[int(loops[0])]!r} contains itself")
