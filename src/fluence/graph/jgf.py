"""JSON Graph Format: Fluxion's own format for resource graphs, in its verbose and its compact dialect.

Until Fluxion 0.39 every field was written; since then a field that has its default is left out, and an edge
names its subsystem only when that is not containment. Both are read. The document is decoded in slices, so
that a file of 130 MB never exists as Python objects all at once.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated

import msgspec
import numpy as np

from fluence.errors import InvalidGraph
from fluence.graph.graph import CONTAINMENT, Batch, Ints, Mask, ResourceGraph

_SLICE = 20_000
_MOST = 2**63
_TRAILING_DIGITS = re.compile(r"[0-9]+\Z")

_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Rank = Annotated[int, msgspec.Meta(ge=-1, le=2**31 - 1)]
_Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _Metadata(msgspec.Struct, gc=False):
    type: str
    paths: dict[str, str]
    uniq_id: _Int64 | None = None
    id: _Int64 | None = None
    basename: str | None = None
    name: str | None = None
    size: _Size = 1
    rank: _Rank = -1
    exclusive: bool = False
    status: int = 0
    properties: dict[str, str] | None = None


class Vertex(msgspec.Struct, gc=False):
    """One node of a JGF document."""

    id: str
    metadata: _Metadata

    @property
    def uniq_id(self) -> int:
        if self.metadata.uniq_id is not None:
            return self.metadata.uniq_id
        return int(self.id)

    @property
    def ordinal(self) -> int:
        """The id that policies score by: given, or the digits that end a node's name, or the uniq_id."""
        meta = self.metadata
        if meta.id is not None:
            return meta.id
        if meta.type == "node" and meta.name is not None:
            digits = _TRAILING_DIGITS.search(meta.name)
            if digits is not None:
                return int(digits.group().lstrip("0")[:20] or 0)  # 20 digits are too many already
        return self.uniq_id

    @property
    def basename(self) -> str:
        return self.metadata.type if self.metadata.basename is None else self.metadata.basename

    @property
    def name(self) -> str:
        if self.metadata.name is not None:
            return self.metadata.name
        ordinal = self.ordinal
        return self.basename if ordinal == -1 else f"{self.basename}{ordinal}"


class _EdgeMetadata(msgspec.Struct, gc=False):
    subsystem: str = CONTAINMENT


class Edge(msgspec.Struct, gc=False):
    """One edge of a JGF document."""

    source: str
    target: str
    metadata: _EdgeMetadata | None = None


class _Graph(msgspec.Struct, gc=False):
    nodes: list[msgspec.Raw]
    edges: list[msgspec.Raw]


class _Document(msgspec.Struct, gc=False):
    graph: _Graph
    free_ranks: str | None = None


_document = msgspec.json.Decoder(_Document)
_vertex = msgspec.json.Decoder(Vertex)
_edge = msgspec.json.Decoder(Edge)
_vertices = msgspec.json.Decoder(list[Vertex])
_edges = msgspec.json.Decoder(list[Edge])


def _array(raws: list[msgspec.Raw]) -> bytes:
    """Several values as one array: decoded in one call, which is what takes the time."""
    return b"[" + b",".join(raws) + b"]"


def _index(vertices: list[Vertex], wanted: Vertex) -> int:
    return next(i for i, vertex in enumerate(vertices) if vertex is wanted)


class Document:
    """A decoded JGF document whose vertices and edges are read on the way."""

    def __init__(self, text: str | bytes, *, source: str = "jgf") -> None:
        self.source = source
        try:
            found = _document.decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise InvalidGraph(_reason(error), where=_where(source, "", error)) from None
        self._nodes, self._edges = found.graph.nodes, found.graph.edges
        self.free_ranks = found.free_ranks

    def vertices(self) -> Iterator[Vertex]:
        for first in range(0, len(self._nodes), _SLICE):
            yield from self.slice(first)

    def __len__(self) -> int:
        return len(self._nodes)

    def slice(self, first: int) -> list[Vertex]:
        """Some vertices from a number on, decoded together."""
        raws = self._nodes[first : first + _SLICE]
        try:
            found = _vertices.decode(_array(raws))
            inferred = [v for v in found if v.metadata.id is None or v.metadata.uniq_id is None]
            for vertex in inferred:  # what is given was checked by the decoder
                if not (-_MOST <= vertex.uniq_id < _MOST and -_MOST <= vertex.ordinal < _MOST):
                    raise InvalidGraph(
                        "the id must fit into 64 bits", where=self._node(first + _index(found, vertex))
                    )
        except msgspec.DecodeError:
            for index, raw in enumerate(raws, first):
                try:
                    _vertex.decode(raw)
                except msgspec.DecodeError as error:
                    place = f"graph.nodes[{index}]"
                    raise InvalidGraph(_reason(error), where=_where(self.source, place, error)) from None
            raise
        except ValueError:
            raise InvalidGraph(
                f"metadata.uniq_id is missing and cannot be inferred from the id {vertex.id!r}, "
                "which is not a number: give metadata.uniq_id",
                where=self._node(first + _index(found, vertex)),
            ) from None
        return found

    def edges(self) -> Iterator[Edge]:
        for edges in self.edge_slices():
            yield from edges

    def edge_slices(self) -> Iterator[list[Edge]]:
        """The edges, some at a time."""
        for first in range(0, len(self._edges), _SLICE):
            raws = self._edges[first : first + _SLICE]
            try:
                yield _edges.decode(_array(raws))
            except msgspec.DecodeError:
                for index, raw in enumerate(raws, first):
                    try:
                        _edge.decode(raw)
                    except msgspec.DecodeError as error:
                        place = f"graph.edges[{index}]"
                        raise InvalidGraph(_reason(error), where=_where(self.source, place, error)) from None
                raise

    def _node(self, index: int) -> str:
        return f"{self.source}: graph.nodes[{index}]"


def read(text: str | bytes, *, source: str = "jgf", into: ResourceGraph | None = None) -> Batch:
    """The batch of vertices and edges that a document adds, to an empty graph or to ``into``.

    A vertex whose path and rank the graph already has stands for that vertex; this is how a graph grows.
    """
    with _no_collection():
        document = Document(text, source=source)
        batch = Batch()
        rows = _read_vertices(document, batch, into)
        _read_edges(document, batch, rows, into)
    return batch


def _read_vertices(document: Document, batch: Batch, into: ResourceGraph | None) -> dict[str, int]:
    """Fill the columns; returns the document's ids with the row of the batch, or ~row of the graph."""
    rows = _read_columns(document, batch) if into is None else None
    if rows is None:
        rows = _read_one_by_one(document, batch, into)
    return rows


def _read_columns(document: Document, batch: Batch) -> dict[str, int] | None:
    """The quick way, a column at a time; None where a vertex has several paths or stands there twice."""
    known: dict[str, str] = {}  # equal names share one string: "core7" stands on every node
    ids: list[str] = []
    paths: list[str] = []
    for first in range(0, len(document), _SLICE):
        vertices = document.slice(first)
        metas = [vertex.metadata for vertex in vertices]
        if {len(meta.paths) for meta in metas} != {1}:
            return None
        base = len(ids)
        ids += [vertex.id for vertex in vertices]
        try:
            paths += [meta.paths[CONTAINMENT] for meta in metas]
        except KeyError:
            return None
        batch.type += [meta.type for meta in metas]
        batch.basename += [meta.type if meta.basename is None else meta.basename for meta in metas]
        batch.id += [v.ordinal if v.metadata.id is None else v.metadata.id for v in vertices]
        batch.uniq_id += [v.uniq_id if v.metadata.uniq_id is None else v.metadata.uniq_id for v in vertices]
        names = [v.name if v.metadata.name is None else v.metadata.name for v in vertices]
        batch.name += [known.setdefault(name, name) for name in names]
        batch.rank += [meta.rank for meta in metas]
        batch.size += [meta.size for meta in metas]
        batch.up += [meta.status == 0 for meta in metas]
        batch.properties.update(
            {base + i: meta.properties for i, meta in enumerate(metas) if meta.properties}
        )
        if not {meta.status for meta in metas} <= {0, 1}:
            raise _bad_status(document, next(v for v in vertices if v.metadata.status not in (0, 1)))
    count = len(ids)
    if len(set(paths)) != count and len(set(zip(paths, batch.rank, strict=True))) != count:
        for column in (batch.type, batch.basename, batch.name, batch.id, batch.uniq_id, batch.rank):
            column.clear()
        batch.size, batch.up, batch.properties = [], [], {}
        return None
    rows = dict(zip(ids, range(count), strict=True))
    if len(rows) != count:
        raise _twice(document, next(id_ for i, id_ in enumerate(ids) if rows[id_] != i))
    batch.unit = [""] * count
    batch.paths[CONTAINMENT] = paths
    for row in [row for row, path in enumerate(paths) if path.count("/") == 1]:
        _root(batch, CONTAINMENT, row, document.source)
    return rows


def _read_one_by_one(document: Document, batch: Batch, into: ResourceGraph | None) -> dict[str, int]:
    rows: dict[str, int] = {}
    present: dict[tuple[str, int], int] = {}
    for vertex in document.vertices():
        meta = vertex.metadata
        if vertex.id in rows:
            raise _twice(document, vertex.id)
        if meta.status not in (0, 1):
            raise _bad_status(document, vertex)
        row = _find(meta, present, into)
        if row is None:
            row = batch.vertex(
                meta.type,
                id=vertex.ordinal,
                uniq_id=vertex.uniq_id,
                basename=vertex.basename,
                name=vertex.name,
                rank=meta.rank,
                size=meta.size,
                up=meta.status == 0,
                properties=meta.properties,
                paths=meta.paths,
            )
            for subsystem, path in meta.paths.items():
                present[path, meta.rank] = row
                if path.count("/") == 1:
                    _root(batch, subsystem, row, document.source)
        rows[vertex.id] = row
    return rows


def _twice(document: Document, node: str) -> InvalidGraph:
    return InvalidGraph(f"the node id {node!r} appears twice: ids must be unique", where=document.source)


def _bad_status(document: Document, vertex: Vertex) -> InvalidGraph:
    return InvalidGraph(
        f"status is {vertex.metadata.status} and must be 0 (up) or 1 (down)",
        where=f"{document.source}: node {vertex.id!r}",
    )


def _find(meta: _Metadata, present: Mapping[tuple[str, int], int], into: ResourceGraph | None) -> int | None:
    for path in meta.paths.values():
        row = present.get((path, meta.rank))
        if row is not None:
            return row
        if into is not None:
            for vertex in into.vertices_at(path):
                if int(into.rank[vertex]) == meta.rank:
                    return ~vertex
    return None


@contextmanager
def _no_collection() -> Iterator[None]:
    """Nothing here forms cycles, and looking for them takes longer than the reading itself."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _root(batch: Batch, subsystem: str, row: int, source: str) -> None:
    other = batch.roots.setdefault(subsystem, row)
    if other != row:
        raise InvalidGraph(
            f"{batch.name[other]!r} and {batch.name[row]!r} are both roots of subsystem {subsystem!r}: "
            "only one path may be at the top",
            where=source,
        )


def _read_edges(
    document: Document, batch: Batch, rows: Mapping[str, int], into: ResourceGraph | None
) -> None:
    sources: list[int] = []
    targets: list[int] = []
    subsystems: list[str] = []
    for edges in document.edge_slices():
        try:
            sources += [rows[edge.source] for edge in edges]
            targets += [rows[edge.target] for edge in edges]
        except KeyError as error:
            missing = error.args[0]
            index = next(i for i, edge in enumerate(edges) if missing in (edge.source, edge.target))
            raise InvalidGraph(
                f"no node has the id {missing!r}",
                where=f"{document.source}: graph.edges[{len(subsystems) + index}]",
            ) from None
        subsystems += [CONTAINMENT if edge.metadata is None else edge.metadata.subsystem for edge in edges]
    source, target = np.array(sources, np.int64), np.array(targets, np.int64)
    kinds = dict.fromkeys(subsystems)
    for subsystem in kinds:
        keep = (source >= 0) | (target >= 0)  # between two that are there already it adds nothing
        if len(kinds) > 1:
            keep &= np.array([of == subsystem for of in subsystems], np.bool_)
        if not _is_tree(target[keep], batch.roots.get(subsystem)):
            _drop_ways_back(source, target, keep, _depths(batch, subsystem, into))
        batch.edges[subsystem] = (source[keep].tolist(), target[keep].tolist())
        _check_siblings(*batch.edges[subsystem], batch, into, document.source)
        if not _is_tree(target[keep], None):
            _check_acyclic(*batch.edges[subsystem], batch, document.source)


def _is_tree(target: Ints, root: int | None) -> bool:
    """Whether every vertex is the target of one edge at most, and the root of none."""
    if not len(target) or int(target.min()) < 0:
        return False
    counts = np.bincount(target)
    return int(counts.max()) == 1 and (root is None or root >= len(counts) or not counts[root])


def _drop_ways_back(source: Ints, target: Ints, keep: Mask, deep: Ints) -> None:
    """Older writers add the way back up beside each edge; the tree says it anyway."""
    upward = np.flatnonzero(keep & (deep[target] >= 0) & (deep[source] > deep[target]))
    if len(upward):
        down = set(zip(source[keep].tolist(), target[keep].tolist(), strict=True))
        keep[[i for i in upward.tolist() if (int(target[i]), int(source[i])) in down]] = False


def _depths(batch: Batch, subsystem: str, into: ResourceGraph | None) -> Ints:
    """How deep each vertex lies by its path, indexed by row; those of the graph count from the end, as ~row
    does. A vertex without a path is as deep as the other end wishes."""
    paths = batch.paths.get(subsystem, {})
    known = 0 if into is None else into.rows
    deep = np.full(len(batch.type) + known, -1, np.int64)
    if isinstance(paths, dict):
        for row, path in paths.items():
            deep[row] = path.count("/")
    else:
        deep[: len(paths)] = [path.count("/") for path in paths]
    if into is not None:
        for row in range(known):
            above = into.path(row, subsystem) if into.alive[row] else None
            deep[~row] = -1 if above is None else above.count("/")
    return deep


def _check_acyclic(sources: list[int], targets: list[int], batch: Batch, where: str) -> None:
    """Where vertices have several parents, the tree alone does not show that an edge leads back up."""
    below: dict[int, list[int]] = {}
    above: dict[int, int] = {}
    for source, target in zip(sources, targets, strict=True):
        below.setdefault(source, []).append(target)
        above[target] = above.get(target, 0) + 1
    free = [source for source in below if source not in above]
    while free:
        for target in below.get(free.pop(), ()):
            above[target] -= 1
            if not above[target]:
                free.append(target)
    caught = next((row for row, edges in above.items() if edges and row >= 0), None)
    if caught is not None:
        raise InvalidGraph(f"the edges form a cycle through {batch.name[caught]!r}", where=where)


def _check_siblings(
    sources: list[int], targets: list[int], batch: Batch, into: ResourceGraph | None, where: str
) -> None:
    """Siblings are told apart by uniq_id; Fluxion answers EEXIST where two have the same."""
    if into is None and len(set(batch.uniq_id)) == len(batch.uniq_id) and len(set(targets)) == len(targets):
        return
    keys = [(s, batch.uniq_id[t]) for s, t in zip(sources, targets, strict=True) if t >= 0]
    if into is not None:
        for tree in into.trees.values():
            for source in {source for source in sources if source < 0}:
                keys += [(source, int(into.uniq_id[child])) for child in tree.shape().children(~source)]
    if len(set(keys)) != len(keys):
        raise InvalidGraph(
            "an edge is there twice, or two children of one vertex share a uniq_id", where=where
        )


def _reason(error: Exception) -> str:
    text = str(error).split(" - at `")[0]
    if text.startswith("Input data was truncated"):
        return "the JSON ends too early: the file is empty or cut off"
    if text.startswith("JSON is malformed"):
        return f"this is not {text.replace(' is malformed:', ':')}, or the file is cut off there"
    return text[:1].lower() + text[1:]


def _where(source: str, place: str, error: Exception) -> str:
    parts = str(error).split(" - at `$")
    inner = parts[1].rstrip("`") if len(parts) == 2 else ""
    path = f"{place}{inner}".lstrip(".")
    return f"{source}: {path}" if path else source
