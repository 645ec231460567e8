"""Re-create an allocation from what was written about it: a graph (JGF) or an R (RFC 20).

After a restart the ledger is empty and the jobs still run. Their R says what they hold; reading it back must
give the ledger that was lost, or an error that names the vertex that does not fit. `Matcher.update` calls it,
and so does the `update` of resource-query.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fluence.errors import Conflict, InvalidGraph, InvalidInput, NotFound
from fluence.graph import jgf, rv1
from fluence.graph.columns import Ints, Mask, Rows
from fluence.graph.graph import ResourceGraph
from fluence.graph.selection import Marks, Selection, trace
from fluence.graph.tree import CONTAINMENT
from fluence.model import idset

if TYPE_CHECKING:
    from fluence.match.matcher import Matcher

READERS = ("jgf", "jgf_shorthand", "rv1exec")


@dataclass(slots=True)
class Recovered:
    """What an allocation document says of this graph."""

    marks: Marks = field(default_factory=dict)  # the way down, as in a search
    root: tuple[int, bool] | None = None  # None: the document does not reach this matcher's root
    held: dict[int, int] = field(default_factory=dict)  # vertices taken, and how much of each
    shared: list[int] = field(default_factory=list)


def recover(matcher: Matcher, text: str | bytes, reader: str, start: int, end: int) -> Recovered:
    """Read a document against the graph and check that all it names is there and free."""
    if reader not in READERS:
        raise InvalidInput(
            f"{reader!r} is not a valid reader for allocations: choose one of {', '.join(READERS)}"
        )
    if reader == "rv1exec":
        found = _from_r(matcher.graph, text)
    else:
        found = _from_jgf(matcher, jgf.Document(text, source=reader), shorthand=reader == "jgf_shorthand")
    ledger, size = matcher.ledger, matcher.graph.size
    wanted = {**dict.fromkeys(found.shared, 0), **found.held}
    for vertex, amount in wanted.items():
        least = amount if matcher.is_pool(vertex) else size[vertex]
        taken = vertex in found.held and not matcher.is_pool(vertex) and ledger.is_shared(vertex, start, end)
        if taken or ledger.available(vertex, start, end) < least:
            raise Conflict(f"{matcher.graph.path(vertex)} is unavailable: another job holds it in that time")
    return found


def ledger_columns(matcher: Matcher, found: Recovered) -> tuple[Selection | None, Rows, Ints, Mask]:
    """The selection to show, and the columns (vertices, needs, exclusive) to record."""
    selection = None
    amounts: dict[int, tuple[int, bool]] = {}
    if found.root is not None:
        selection = trace(matcher.graph, matcher.tree, found.marks, found.root, frozenset(), {})
        amounts = {
            v: (found.held.get(v, n), v in found.held)
            for v, n in zip(selection.vertices.tolist(), selection.needs.tolist(), strict=True)
        }
    # What the way down does not reach is held all the same.
    amounts.update({v: (n, True) for v, n in found.held.items() if v not in amounts})
    rows = np.array(list(amounts), np.int32)
    needs = np.array([n for n, _ in amounts.values()], np.int64)
    alone = np.array([x for _, x in amounts.values()], np.bool_)
    return selection, rows, needs, alone


def find_vertex(matcher: Matcher, vertex: jgf.Vertex) -> int:
    """The vertex of the graph that a JGF vertex stands for, with all fields equal."""
    graph, meta = matcher.graph, vertex.metadata
    for path in meta.paths.values():
        rows = graph.vertices_at(path)
        for row in rows:
            if int(graph.rank[row]) == meta.rank:
                _check_same(graph, row, vertex, path, is_pool=matcher.is_pool(row))
                return row
        if not rows:
            raise NotFound(f"the graph has no vertex {path}")
        raise InvalidGraph(
            f"inconsistent input vertex {path}: its rank is {meta.rank} here and {int(graph.rank[rows[0]])} "
            "in the graph"
        )
    raise InvalidGraph(f"vertex {vertex.id!r} has no path")


def _check_same(graph: ResourceGraph, row: int, vertex: jgf.Vertex, path: str, *, is_pool: bool) -> None:
    size = int(graph.size[row])
    whole = vertex.metadata.size <= size if is_pool else vertex.metadata.size == size
    for field_, here, there in (
        ("type", vertex.metadata.type, graph.type_name(row)),
        ("basename", vertex.basename, graph.basenames.words[int(graph.basename[row])]),
        ("size", size if whole else vertex.metadata.size, size),
        ("id", vertex.ordinal, int(graph.id[row])),
        ("name", vertex.name, graph.name[row]),
        ("paths", vertex.metadata.paths, graph.paths(row)),
    ):
        if here != there:
            raise InvalidGraph(
                f"inconsistent input vertex {path}: its {field_} is {here!r} here and {there!r} in the graph"
            )


def _from_jgf(matcher: Matcher, document: jgf.Document, *, shorthand: bool) -> Recovered:
    graph, tree = matcher.graph, matcher.tree
    found = Recovered()
    rows: dict[str, int] = {}
    alone: dict[int, bool] = {}
    free = set(idset.decode(document.free_ranks or ""))  # given back since the document was written
    for vertex in document.vertices():
        row = find_vertex(matcher, vertex)
        if vertex.metadata.rank in free:
            continue
        if vertex.id in rows:
            raise InvalidGraph(f"the node id {vertex.id!r} appears twice: ids must be unique")
        rows[vertex.id] = row
        alone[row] = vertex.metadata.exclusive
        if vertex.metadata.exclusive:
            found.held[row] = vertex.metadata.size
        else:
            found.shared.append(row)
    for index, edge in enumerate(document.edges()):
        try:
            source, target = rows[edge.source], rows[edge.target]
        except KeyError as error:
            if document.free_ranks is not None:
                continue
            raise InvalidGraph(
                f"no node has the id {error.args[0]!r}", where=f"graph.edges[{index}]"
            ) from None
        if not any(target in other.shape().children(source) for other in graph.trees.values()):
            raise InvalidGraph(
                f"the graph has no edge from {graph.path(source)} to {graph.path(target)}",
                where=f"graph.edges[{index}]",
            )
        found.marks[target] = (found.held.get(target, int(graph.size[target])), alone[target], source)
        if source == tree.root:
            found.root = (int(graph.size[source]), alone[source])
    if shorthand:
        for row in list(found.held):
            for below in tree.subtree(row)[1:].tolist():
                if int(graph.rank[below]) in free:
                    continue
                found.held[below] = int(graph.size[below])
                found.marks[below] = (int(graph.size[below]), True, int(tree.parent[below]))
    return found


def _from_r(graph: ResourceGraph, text: str | bytes) -> Recovered:
    """R is flat: cluster, nodes, and their cores and gpus."""
    r = rv1.decode(text)
    tree = graph.tree(CONTAINMENT)
    found = Recovered(root=(int(graph.size[tree.root]), False))
    for entry in r.entries:
        for rank in entry.ranks:
            node = _node_of(graph, rank, r.hosts.get(rank))
            found.marks[node] = (int(graph.size[node]), True, tree.root)
            by_id = {(graph.type_name(child), int(graph.id[child])): child for child in tree.children(node)}
            taken = 0
            for type_, ids in entry.children.items():
                for id_ in ids:
                    child = by_id.get((type_, id_))
                    if child is None:
                        raise NotFound(f"{graph.path(node)} has no {type_}{id_}")
                    found.marks[child] = (int(graph.size[child]), True, node)
                    found.held[child] = int(graph.size[child])
                    taken += 1
            # A node is the job's own only when everything else of its rank is.
            if taken == len(graph.vertices_of_rank(rank)) - 1:
                found.held[node] = int(graph.size[node])
            else:
                found.shared.append(node)
    return found


def _node_of(graph: ResourceGraph, rank: int, host: str | None) -> int:
    for vertex in graph.vertices_of_rank(rank):
        if graph.type_name(vertex) == "node" and graph.name[vertex] == host:
            return vertex
    raise NotFound(f"the graph has no node {host!r} of rank {rank}")
