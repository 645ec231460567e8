"""GRUG: a GraphML recipe from which a resource graph is grown, one recipe edge after the other.

A recipe is a small graph. Its nodes describe kinds of vertices, its edges how many of the target each
source gets (``MULTIPLY``) or which vertices that are already there join another subsystem
(``ASSOCIATE_IN``, ``ASSOCIATE_BY_PATH_IN``). The recipe is walked depth first in file order, and the first
edge that reaches a recipe node grows all of its vertices at once::

    recipe      cluster ──1──► rack ──2──► node ──4──► core
    vertices    0              1           2 3         4 5 6 7 8 9 10 11     = uniq_id

Only the first edge to a recipe node counts, as in Fluxion; another one to the same node is passed over.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from fluence.errors import InvalidGraph
from fluence.graph import markup
from fluence.graph.columns import CONTAINMENT, Ints
from fluence.graph.graph import Batch
from fluence.graph.markup import Element

MAX_VERTICES = 10_000_000  # five times the largest machine; typing errors in a scale give far more

_NODE_DEFAULTS = {
    "root": "0",
    "type": "",
    "basename": "",
    "size": "1",
    "unit": "",
    "subsystem": CONTAINMENT,
}
_EDGE_DEFAULTS = {
    "e_subsystem": CONTAINMENT,
    "relation": "contains",
    "rrelation": "in",
    "gen_method": "MULTIPLY",
    "multi_scale": "1",
    "id_scope": "0",
    "id_start": "0",
    "id_stride": "1",
    "as_tgt_subsystem": CONTAINMENT,
    "as_tgt_uplvl": "1",
    "as_src_uplvl": "1",
}
_INT = (-(2**31), 2**31 - 1)
_LONG = (0, 2**63 - 1)


@dataclass(slots=True, frozen=True)
class VertexKind:
    """A node of the recipe: the attributes of its vertices."""

    is_root: bool
    type: str
    basename: str
    size: int
    unit: str
    subsystem: str
    where: str


@dataclass(slots=True, frozen=True)
class GrowthStep:
    """An edge of the recipe: how the vertices of its target are made."""

    source: int
    target: int
    subsystem: str
    method: str
    scale: int
    id_scope: int
    id_start: int
    id_stride: int
    by_subsystem: str  # the paths that ASSOCIATE_BY_PATH_IN compares
    target_up: int
    source_up: int
    where: str


@dataclass(slots=True)
class Recipe:
    """Kinds and the steps that leave each of them, both in file order."""

    kinds: list[VertexKind] = field(default_factory=list)
    steps: list[list[GrowthStep]] = field(default_factory=list)


def read(text: str | bytes, *, source: str = "grug", links: bool = False, limit: int = MAX_VERTICES) -> Batch:
    """The vertices and edges that a recipe describes; more than ``limit`` vertices are refused.

    An association can give a vertex a second parent in a subsystem, and Fluxion visits such a vertex below
    each parent. That is not a tree, so it is refused, unless ``links`` allows such edges. The path of the
    vertex is then the one below its last parent, while vertices that were already below it keep their paths.
    """
    recipe = _recipe(markup.parse(text, source=source), source)
    growth = _Growth(recipe, links, limit)
    growth.run()
    batch = growth.batch
    if not batch.type:
        raise InvalidGraph(
            "the recipe grows no vertices; its first node needs root=1 and an edge that leaves it",
            where=source,
        )
    _number_nodes(batch)
    return batch


def _number_nodes(batch: Batch) -> None:
    """Nodes are execution targets 0, 1, 2 … in the order of their creation; nothing else has a rank."""
    rank = 0
    for row, type_ in enumerate(batch.type):
        if type_ == "node":
            batch.rank[row] = rank
            rank += 1


# -- growing ---------------------------------------------------------------------------------------------


class _Growth:
    """The walk over a recipe, and the batch that it fills."""

    def __init__(self, recipe: Recipe, links: bool, limit: int) -> None:
        self.batch = Batch()
        self._recipe = recipe
        self._links_allowed = links
        self._limit = limit
        self._grown: dict[int, list[int]] = {}  # the rows of each kind
        self._scales: list[int] = []  # of the MULTIPLY steps on the way down, the innermost last
        self._by_type: dict[str, list[int]] = {}
        self._above: dict[str, dict[int, int]] = {}  # per subsystem, whose path each row's path continues
        self._parent: dict[str, dict[int, int]] = {}  # per subsystem, the source of each row's edge
        self._further: dict[str, dict[int, set[int]]] = {}  # the same for second parents and more
        self._paths: dict[tuple[str, int], str] = {}
        self._methods: dict[str, Callable[[GrowthStep], list[int]]] = {
            "MULTIPLY": self._multiply,
            "ASSOCIATE_IN": self._associate,
            "ASSOCIATE_BY_PATH_IN": self._associate_by_path,
        }

    def run(self) -> None:
        recipe = self._recipe
        seen = [False] * len(recipe.kinds)
        for first in range(len(recipe.kinds)):
            if seen[first]:
                continue
            seen[first] = True
            stack = [(first, iter(recipe.steps[first]))]
            while stack:
                _, steps = stack[-1]
                step = next((s for s in steps if not seen[s.target]), None)
                if step is None:
                    stack.pop()
                    # NB Fluxion drops a scale for every kind it leaves, also one that no MULTIPLY led to.
                    if self._scales:
                        self._scales.pop()
                    continue
                seen[step.target] = True
                self._take(step)
                stack.append((step.target, iter(recipe.steps[step.target])))

    def _take(self, step: GrowthStep) -> None:
        kind = self._recipe.kinds[step.source]
        if kind.is_root and not self._grown.get(step.source):
            self._grown[step.source] = [self._root(kind)]
        self._grown[step.target] = self._methods[step.method](step)

    def _root(self, kind: VertexKind) -> int:
        """The root of the kind's subsystem; it is made if it does not exist."""
        found = self.batch.roots.get(kind.subsystem)
        if found is not None:
            return found
        row = self._add(kind, [0], kind.where)[0]
        self.batch.roots[kind.subsystem] = row
        self._above.setdefault(kind.subsystem, {})[row] = -1
        return row

    def _multiply(self, step: GrowthStep) -> list[int]:
        kind = self._recipe.kinds[step.target]
        sources = self._grown.get(step.source, [])
        scale = max(step.scale, 0)
        count = len(sources) * scale
        if len(self.batch.type) + count > self._limit:
            raise InvalidGraph(
                f"the recipe grows more than {self._limit:,} vertices; lower its multi_scale",
                where=step.where,
            )
        self._check_sources(step, sources)
        ids = self._ids(step, len(sources), scale)
        self._scales.append(step.scale)
        rows = self._add(kind, ids, step.where)
        parents = np.repeat(np.array(sources, np.int64), scale).tolist()
        self._connect(step.subsystem, parents, rows)
        self._above.setdefault(kind.subsystem, {}).update(zip(rows, parents, strict=True))
        if kind.subsystem != step.subsystem or kind.subsystem in self._further:
            # Edge and path are in different subsystems, or there are several paths: write the path
            # explicitly.
            given = self.batch.paths.setdefault(kind.subsystem, {})
            assert isinstance(given, dict)
            given.update((row, self._path(row, kind.subsystem)) for row in rows)
        return list(rows)

    def _associate(self, step: GrowthStep) -> list[int]:
        targets = self._by_type.get(self._recipe.kinds[step.target].type, [])
        return self._join(step, lambda _source: targets)

    def _associate_by_path(self, step: GrowthStep) -> list[int]:
        by_prefix: dict[str, list[int]] = {}
        for row in self._by_type.get(self._recipe.kinds[step.target].type, ()):
            prefix = _prefix(self._path(row, step.by_subsystem), step.target_up)
            by_prefix.setdefault(prefix, []).append(row)
        return self._join(
            step,
            lambda row: by_prefix.get(_prefix(self._path(row, step.by_subsystem), step.source_up), []),
        )

    def _join(self, step: GrowthStep, targets_of: Callable[[int], list[int]]) -> list[int]:
        """Put existing vertices below the sources, in the subsystem of the step."""
        sources = self._grown.get(step.source, [])
        self._check_sources(step, sources)
        parents = self._parent.setdefault(step.subsystem, {})
        joined: list[int] = []
        for source in sources:
            targets = targets_of(source)
            if len(joined) + len(targets) > self._limit:
                raise InvalidGraph(f"the edge grows more than {self._limit:,} others", where=step.where)
            second = [row for row in targets if row in parents or row == self.batch.roots.get(step.subsystem)]
            first = [row for row in targets if row not in parents]
            if second:
                self._link(step, source, second)
            self._connect(step.subsystem, [source] * len(first), first)
            self._say_paths(step.subsystem, source, targets)
            joined.extend(targets)
        return joined

    def _say_paths(self, subsystem: str, source: int, rows: list[int]) -> None:
        """Vertices that join a source get a new path below it."""
        prefix, names = self._path(source, subsystem), self.batch.name
        above, given = self._above.setdefault(subsystem, {}), self.batch.paths.get(subsystem)
        for row in rows:
            above[row] = source
            path = self._paths[subsystem, row] = f"{prefix}/{names[row]}"
            if isinstance(given, dict):
                given[row] = path

    def _link(self, step: GrowthStep, source: int, rows: list[int]) -> None:
        """Give vertices another parent in a subsystem."""
        subsystem, names = step.subsystem, self.batch.name
        if not self._links_allowed:
            raise InvalidGraph(
                f"{names[rows[0]]!r} would get a second parent, {names[source]!r}, "
                f"in subsystem {subsystem!r}; let the edge reach each vertex once, or use another subsystem",
                where=step.where,
            )
        above = self._ancestors(source, subsystem)
        for row in rows:
            if row in above:
                raise InvalidGraph(
                    f"{names[row]!r} would contain itself in subsystem {subsystem!r}", where=step.where
                )
        if subsystem not in self._further:
            # Paths are made once: the contents of the vertices keep their paths.
            given = self.batch.paths.setdefault(subsystem, {})
            assert isinstance(given, dict)
            given.update((row, self._path(row, subsystem)) for row in self._above[subsystem])
        further = self._further.setdefault(subsystem, {})
        sources, targets = self.batch.edges[subsystem]
        for row in rows:
            if self._parent[subsystem][row] != source and source not in further.get(row, ()):
                further.setdefault(row, set()).add(source)
                sources.append(source)
                targets.append(row)

    def _ancestors(self, row: int, subsystem: str) -> set[int]:
        """The vertex and all vertices that contain it, on any path."""
        parents, further = self._parent.get(subsystem, {}), self._further.get(subsystem, {})
        found: set[int] = set()
        todo = [row]
        while todo:
            row = todo.pop()
            if row not in found:
                found.add(row)
                todo += [parents[row]] if row in parents else []
                todo += further.get(row, ())
        return found

    def _check_sources(self, step: GrowthStep, sources: list[int]) -> None:
        inside = self._parent.get(step.subsystem, {})
        root = self.batch.roots.get(step.subsystem)
        for row in sources:
            if row not in inside and row != root:
                raise InvalidGraph(
                    f"{self.batch.name[row]!r} is not part of the edge's subsystem {step.subsystem!r}; "
                    "give its kind root=1 there or associate it first",
                    where=step.where,
                )

    def _connect(self, subsystem: str, parents: list[int], rows: list[int] | range) -> None:
        sources, targets = self.batch.edges.setdefault(subsystem, ([], []))
        sources.extend(parents)
        targets.extend(rows)
        self._parent.setdefault(subsystem, {}).update(zip(rows, parents, strict=True))

    def _add(self, kind: VertexKind, ids: list[int], where: str) -> range:
        """Vertices of one kind with these ids; the number of a row is its uniq_id."""
        batch, count = self.batch, len(ids)
        rows = range(len(batch.type), len(batch.type) + count)
        names = {i: kind.basename if i == -1 else f"{kind.basename}{i}" for i in set(ids)}
        if not all(names.values()):
            raise InvalidGraph("the vertices have no name; give the node a basename", where=where)
        batch.type.extend([kind.type] * count)
        batch.basename.extend([kind.basename] * count)
        batch.name.extend([names[i] for i in ids])
        batch.id.extend(ids)
        batch.uniq_id.extend(rows)
        batch.rank.extend([-1] * count)
        batch.size.extend([kind.size] * count)
        batch.unit.extend([kind.unit] * count)
        batch.up.extend([True] * count)
        self._by_type.setdefault(kind.type, []).extend(rows)
        return rows

    def _ids(self, step: GrowthStep, sources: int, scale: int) -> list[int]:
        """Ids count within the parent, or within an ancestor ``id_scope`` levels above it."""
        if not sources * scale:
            return []
        if step.id_scope < 0:
            return [-1] * (sources * scale)
        if step.id_scope == 0:
            # NB the stride does not count here.
            return list(range(step.id_start, step.id_start + scale)) * sources
        # Never above the limit on vertices, so the sums below stay far inside 64 bits.
        wrap = min(abs(math.prod(self._scales[-step.id_scope :])) or 1, self._limit)
        block: Ints = np.arange(sources, dtype=np.int64) % wrap * (scale * step.id_stride)
        within: Ints = np.arange(scale, dtype=np.int64) * step.id_stride
        return (step.id_start + block[:, None] + within[None, :]).ravel().tolist()

    def _path(self, row: int, subsystem: str) -> str:
        """The path of a row in a subsystem, or empty."""
        above, paths = self._above.get(subsystem, {}), self._paths
        chain: list[int] = []
        path = ""
        while row in above:
            known = paths.get((subsystem, row))
            if known is not None:
                path = known
                break
            chain.append(row)
            row = above[row]
        for row in reversed(chain):
            path = paths[subsystem, row] = f"{path}/{self.batch.name[row]}"
        return path


def _prefix(path: str, levels_up: int) -> str:
    """A path without its last ``levels_up`` names; empty if it does not have more than that."""
    names = path.split("/")[1:]
    if levels_up >= len(names):
        return ""
    return "/".join(names[: len(names) - max(levels_up, 0)])


# -- reading the recipe ----------------------------------------------------------------------------------


def _recipe(root: Element, source: str) -> Recipe:
    if root.tag != "graphml":
        raise InvalidGraph(
            f"the document is <{root.tag}>; a recipe is GraphML and begins with <graphml>",
            where=f"{source}: line {root.line}",
        )
    keys = _GrugKeys(root, source)
    recipe = Recipe()
    rows: dict[str, int] = {}
    graphs = list(root.named("graph"))
    for graph in graphs:
        if graph.attributes.get("edgedefault", "directed") != "directed":
            raise InvalidGraph(
                'the edges of a recipe have a direction; write edgedefault="directed"',
                where=f"{source}: line {graph.line}, graph",
            )
        for node in graph.named("node"):
            name = node.attributes.get("id", "")
            where = f"{source}: line {node.line}, node {name!r}"
            if not name:
                raise InvalidGraph("a node needs an id", where=where)
            if name in rows:
                raise InvalidGraph("another node has this id; ids are unique", where=where)
            rows[name] = len(recipe.kinds)
            recipe.kinds.append(_kind(keys.values(node, "node", where), where))
            recipe.steps.append([])
    for graph in graphs:
        for edge in graph.named("edge"):
            name = edge.attributes.get("id") or "{source} -> {target}".format_map(
                {"source": "?", "target": "?"} | edge.attributes
            )
            where = f"{source}: line {edge.line}, edge {name!r}"
            step = _step(keys.values(edge, "edge", where), edge, rows, where)
            recipe.steps[step.source].append(step)
    if not recipe.kinds:
        raise InvalidGraph("the recipe has no nodes; put <node> elements in its <graph>", where=source)
    return recipe


class _GrugKeys:
    """The <key> declarations: from the id that data refers to, to the attribute's name and default."""

    def __init__(self, root: Element, source: str) -> None:
        self._names: dict[str, dict[str, str]] = {"node": {}, "edge": {}}
        self._defaults = {"node": dict(_NODE_DEFAULTS), "edge": dict(_EDGE_DEFAULTS)}
        for key in root.named("key"):
            where = f"{source}: line {key.line}, key {key.attributes.get('id', '')!r}"
            target = key.attributes.get("for", "all")
            if target == "graph":
                continue
            if target not in ("node", "edge", "all"):
                raise InvalidGraph(f"a key is for node or edge, not {target!r}", where=where)
            name = key.attributes.get("attr.name", "")
            for part in ("node", "edge") if target == "all" else (target,):
                if name not in self._defaults[part]:
                    if target == "all":
                        continue
                    known = ", ".join(self._defaults[part])
                    raise InvalidGraph(f"a {part} of a recipe has no {name!r} (it has: {known})", where=where)
                self._names[part][key.attributes.get("id", "")] = name
                for default in key.named("default"):
                    self._defaults[part][name] = default.text

    def values(self, element: Element, part: str, where: str) -> dict[str, str]:
        """Every attribute of a node or an edge."""
        found = dict(self._defaults[part])
        for data in element.named("data"):
            key = data.attributes.get("key", "")
            name = self._names[part].get(key)
            if name is None:
                raise InvalidGraph(f"no <key> for a {part} has the id {key!r}; declare it", where=where)
            found[name] = data.text
        return found


def _kind(values: dict[str, str], where: str) -> VertexKind:
    if not values["type"]:
        raise InvalidGraph("the node has no type; add one, like core", where=where)
    return VertexKind(
        is_root=_integer(values, "root", _INT, where) != 0,
        type=values["type"],
        basename=values["basename"],
        size=_integer(values, "size", _LONG, where),
        unit=values["unit"],
        subsystem=values["subsystem"],
        where=where,
    )


def _step(values: dict[str, str], edge: Element, rows: dict[str, int], where: str) -> GrowthStep:
    ends: list[int] = []
    for end in ("source", "target"):
        name = edge.attributes.get(end, "")
        if name not in rows:
            raise InvalidGraph(f"its {end} {name!r} is not the id of a node", where=where)
        ends.append(rows[name])
    method = values["gen_method"]
    if method not in ("MULTIPLY", "ASSOCIATE_IN", "ASSOCIATE_BY_PATH_IN"):
        raise InvalidGraph(
            f"unknown gen_method {method!r}; use MULTIPLY, ASSOCIATE_IN or ASSOCIATE_BY_PATH_IN", where=where
        )
    return GrowthStep(
        source=ends[0],
        target=ends[1],
        subsystem=values["e_subsystem"],
        method=method,
        scale=_integer(values, "multi_scale", (0, 2**31 - 1), where),
        id_scope=_integer(values, "id_scope", _INT, where),
        id_start=_integer(values, "id_start", _INT, where),
        id_stride=_integer(values, "id_stride", _INT, where),
        by_subsystem=values["as_tgt_subsystem"],
        target_up=_integer(values, "as_tgt_uplvl", _INT, where),
        source_up=_integer(values, "as_src_uplvl", _INT, where),
        where=where,
    )


def _integer(values: dict[str, str], name: str, bounds: tuple[int, int], where: str) -> int:
    text = values[name]
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
        raise InvalidGraph(f"{name} is {text[:40]!r}; it must be a whole number", where=where)
    low, high = bounds
    if not low <= int(text) <= high:
        raise InvalidGraph(f"{name} is {text}; it must lie between {low} and {high}", where=where)
    return int(text)
