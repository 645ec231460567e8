"""JSON Graph Format: Fluxion's own format for resource graphs, in its verbose and its compact dialect.

Until Fluxion 0.39 every field was written; since then a field that has its default is left out, and an edge
names its subsystem only when that is not containment. Both are read. The document is decoded in pieces, so
that a file of 130 MB never exists as Python objects all at once.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import repeat
from typing import Annotated, TypeVar

import msgspec
import numpy as np

from fluence.errors import InvalidGraph
from fluence.graph.columns import CONTAINMENT, Ints, Mask
from fluence.graph.graph import Batch, ResourceGraph

_PIECE = 4_000_000  # bytes that are decoded together
_BETWEEN = re.compile(rb"\}\s*,\s*\{")  # where one element of an array seems to end and the next to start
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
    nodes: msgspec.Raw
    edges: msgspec.Raw


class _JgfDocument(msgspec.Struct, gc=False):
    graph: _Graph
    free_ranks: str | None = None


_document = msgspec.json.Decoder(_JgfDocument)
_vertex = msgspec.json.Decoder(Vertex)
_edge = msgspec.json.Decoder(Edge)
_vertices = msgspec.json.Decoder(list[Vertex])
_edges = msgspec.json.Decoder(list[Edge])
_raws = msgspec.json.Decoder(list[msgspec.Raw])
_Element = TypeVar("_Element", Vertex, Edge)


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
        for vertices in self.vertex_pieces():
            yield from vertices

    def vertex_pieces(self) -> Iterator[list[Vertex]]:
        """The vertices, some at a time."""
        for first, vertices in self._pieces(self._nodes, "graph.nodes", _vertices, _vertex):
            for number, vertex in enumerate(vertices, first):
                if vertex.metadata.id is None or vertex.metadata.uniq_id is None:
                    self._check_inferred(number, vertex)  # the decoder checked explicit values
            yield vertices

    def edges(self) -> Iterator[Edge]:
        for _, edges in self.edge_pieces():
            yield from edges

    def edge_pieces(self) -> Iterator[tuple[int, list[Edge]]]:
        """The edges, some at a time, with the number of the first of them."""
        return self._pieces(self._edges, "graph.edges", _edges, _edge)

    def _pieces(
        self,
        array: msgspec.Raw,
        place: str,
        some: msgspec.json.Decoder[list[_Element]],
        one: msgspec.json.Decoder[_Element],
    ) -> Iterator[tuple[int, list[_Element]]]:
        """The elements of an array, some at a time, with the number of the first of them.

        To decode many at once is what takes the least time. Where to cut is a guess: inside an element both
        parts are not JSON. Then, and where an element is wrong, the rest is taken apart one by one.
        """
        text = memoryview(array)
        first, start = 0, 1
        while text[0] == ord("["):
            cut = _BETWEEN.search(text, start + _PIECE)
            end = len(text) - 1 if cut is None else cut.start() + 1
            try:
                found = some.decode(b"".join((b"[", text[start:end], b"]")))
            except msgspec.DecodeError:
                break
            yield first, found
            if cut is None:
                return
            first, start = first + len(found), cut.end() - 1
        yield first, self._one_by_one(b"".join((text[:1], text[start:])), place, first, one)

    def _one_by_one(
        self, array: bytes, place: str, first: int, one: msgspec.json.Decoder[_Element]
    ) -> list[_Element]:
        found: list[_Element] = []
        where = place
        try:
            for number, raw in enumerate(_raws.decode(array), first):
                where = f"{place}[{number}]"
                found.append(one.decode(raw))
        except msgspec.DecodeError as error:
            raise InvalidGraph(_reason(error), where=_where(self.source, where, error)) from None
        return found

    def _check_inferred(self, number: int, vertex: Vertex) -> None:
        try:
            fits = -_MOST <= vertex.uniq_id < _MOST and -_MOST <= vertex.ordinal < _MOST
        except ValueError:
            raise InvalidGraph(
                f"metadata.uniq_id is missing and cannot be inferred from the id {vertex.id!r}, "
                "which is not a number: give metadata.uniq_id",
                where=f"{self.source}: graph.nodes[{number}]",
            ) from None
        if not fits:
            raise InvalidGraph("the id must fit into 64 bits", where=f"{self.source}: graph.nodes[{number}]")


def read(text: str | bytes, *, source: str = "jgf", into: ResourceGraph | None = None) -> Batch:
    """The batch of vertices and edges that a document adds, to an empty graph or to ``into``.

    A vertex with the path and rank of an existing vertex means that vertex; this is how a graph grows.
    """
    with _no_collection():
        document = Document(text, source=source)
        read = _read_columns(document) if into is None else None
        batch, rows = read or _read_one_by_one(document, into)
        _read_edges(document, batch, rows, into)
    return batch


def _read_columns(document: Document) -> tuple[Batch, dict[str, int]] | None:
    """The fast way, one column at a time; None if a vertex has several paths or occurs twice. Also returns
    the row of each id of the document.
    """
    batch = Batch()
    known: dict[str, str] = {}  # equal names share one string: every node has a "core7"
    ids: list[str] = []
    paths: list[str] = []
    for vertices in document.vertex_pieces():
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
        batch.name += map(known.setdefault, names, names)
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
        return None
    rows = dict(zip(ids, range(count), strict=True))
    if len(rows) != count:
        raise _twice(document, next(id_ for i, id_ in enumerate(ids) if rows[id_] != i))
    batch.unit = [""] * count
    batch.paths[CONTAINMENT] = paths
    for row, slashes in enumerate(map(str.count, paths, repeat("/"))):
        if slashes == 1:
            _root(batch, CONTAINMENT, row, document.source)
    return batch, rows


def _read_one_by_one(document: Document, into: ResourceGraph | None) -> tuple[Batch, dict[str, int]]:
    """The same for any document; an existing vertex of the graph is returned as ~row."""
    batch = Batch()
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
    return batch, rows


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
    """Pause the garbage collector: nothing here forms cycles, and the search for them takes longer than the
    reading."""
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
    kinds: dict[str, None] = {}
    ids, numbers = list(rows), list(rows.values())
    for first, edges in document.edge_pieces():
        ends = [edge.target for edge in edges]
        # Most writers list edges in the order of their targets, without the root: comparing is faster than a
        # lookup.
        likely = slice(first + 1, first + 1 + len(ends))
        try:
            sources += [rows[edge.source] for edge in edges]
            targets += numbers[likely] if ends == ids[likely] else [rows[end] for end in ends]
        except KeyError as error:
            missing = error.args[0]
            index = next(i for i, edge in enumerate(edges) if missing in (edge.source, edge.target))
            raise InvalidGraph(
                f"no node has the id {missing!r}",
                where=f"{document.source}: graph.edges[{first + index}]",
            ) from None
        metas = [edge.metadata for edge in edges]
        kinds |= dict.fromkeys([CONTAINMENT if meta is None else meta.subsystem for meta in metas])
    source, target = np.array(sources, np.int64), np.array(targets, np.int64)
    for subsystem in kinds:
        keep = (source >= 0) | (target >= 0)  # an edge between two existing vertices adds nothing
        if len(kinds) > 1:
            keep &= np.array([_subsystem(edge) == subsystem for edge in document.edges()], np.bool_)
        if not _is_tree(target[keep], batch.roots.get(subsystem)):
            _drop_ways_back(source, target, keep, _depths(batch, subsystem, into))
        if keep.all():
            batch.edges[subsystem] = sources, targets
        else:
            batch.edges[subsystem] = source[keep].tolist(), target[keep].tolist()
        _check_siblings(*batch.edges[subsystem], batch, into, document.source)
        if not _is_tree(target[keep], None):
            _check_acyclic(*batch.edges[subsystem], batch, document.source)


def _subsystem(edge: Edge) -> str:
    return CONTAINMENT if edge.metadata is None else edge.metadata.subsystem


def _is_tree(target: Ints, root: int | None) -> bool:
    """Whether every vertex is the target of at most one edge, and the root of none."""
    if not len(target) or int(target.min()) < 0:
        return False
    counts = np.bincount(target)
    return int(counts.max()) == 1 and (root is None or root >= len(counts) or not counts[root])


def _drop_ways_back(source: Ints, target: Ints, keep: Mask, deep: Ints) -> None:
    """Drop reverse edges, which older writers add to each edge; the tree implies them."""
    upward = np.flatnonzero(keep & (deep[target] >= 0) & (deep[source] > deep[target]))
    if len(upward):
        down = set(zip(source[keep].tolist(), target[keep].tolist(), strict=True))
        keep[[i for i in upward.tolist() if (int(target[i]), int(source[i])) in down]] = False


def _depths(batch: Batch, subsystem: str, into: ResourceGraph | None) -> Ints:
    """The depth of each vertex by its path, indexed by row; vertices of the graph are at the end, at ~row. A
    vertex without a path has any depth that fits."""
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
    """Refuse cycles: if vertices have several parents, the tree alone does not show that an edge leads back
    up."""
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
    """Siblings must have different uniq_ids; Fluxion returns EEXIST otherwise."""
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
