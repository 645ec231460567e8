"""Allocations by document: re-create one from a graph (JGF) or an R (RFC 20), or free a part of one.

After a restart the ledger is empty, but the jobs still run. Reading the R of each job must restore the
ledger, or give an error that names the vertex that does not fit. A job that shrinks, or whose nodes end one
after the other, names the freed part in the same way. `Matcher.update` and `Matcher.partial_cancel` use this
module, and so do the commands of resource-query.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from fluence.errors import Conflict, InvalidGraph, InvalidInput, NotFound
from fluence.graph import jgf, rv1
from fluence.graph.columns import CONTAINMENT, Ints, Mask, Rows
from fluence.graph.graph import ResourceGraph
from fluence.graph.selection import Marks, Selection, trace
from fluence.match.filter_usage import counting
from fluence.model import idset

if TYPE_CHECKING:
    from fluence.match.matcher import Matcher

READERS = ("jgf", "jgf_shorthand", "rv1exec")


@dataclass(slots=True)
class Recovered:
    """The contents of an allocation document, as vertices of this graph."""

    marks: Marks = field(default_factory=dict)  # the path from the root, as in a search
    root: tuple[int, bool] | None = None  # None: the document does not reach this matcher's root
    held: dict[int, int] = field(default_factory=dict)  # vertices taken, and how much of each
    shared: list[int] = field(default_factory=list)


def recover(matcher: Matcher, text: str | bytes, reader: str, start: int, end: int) -> Recovered:
    """Read a document and check that everything in it exists in the graph and is free."""
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
        whole = matcher.search.always_whole
        selection = trace(matcher.graph, matcher.tree, found.marks, found.root, whole, {})
        columns = (selection.vertices, selection.needs, selection.exclusive)
        for v, n, alone in zip(*[column.tolist() for column in columns], strict=True):
            if v in found.held:
                amounts[v] = (found.held[v], True)
            else:
                # What a whole type adds belongs to the job. Fluxion counts and shows it, but treats it as
                # free.
                own = alone and bool(whole) and not matcher.bug_compatible
                amounts[v] = (0 if alone and matcher.bug_compatible else n, own)
    # Vertices that the path does not reach are held too.
    amounts.update({v: (n, True) for v, n in found.held.items() if v not in amounts})
    rows = np.array(list(amounts), np.int32)
    needs = np.array([n for n, _ in amounts.values()], np.int64)
    own = np.array([x for _, x in amounts.values()], np.bool_)
    return selection, rows, needs, own


def find_vertex(matcher: Matcher, vertex: jgf.Vertex) -> int:
    """The vertex of the graph that equals a JGF vertex in all fields."""
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
    free = set(idset.decode(document.free_ranks or ""))  # freed since the document was written

    def name(id_: str, row: int) -> None:
        if id_ in rows:
            raise InvalidGraph(f"the node id {id_!r} appears twice: ids must be unique")
        rows[id_] = row

    for vertex in document.vertices():
        row = find_vertex(matcher, vertex)
        if vertex.metadata.rank in free:
            continue
        name(vertex.id, row)
        alone[row] = vertex.metadata.exclusive
        if not vertex.metadata.exclusive:
            found.shared.append(row)
            continue
        found.held[row] = vertex.metadata.size
        for below in tree.subtree(row)[1:].tolist() if shorthand else ():
            if int(graph.rank[below]) in free:
                continue
            # Vertices below an exclusive vertex must not be named too.
            name(str(graph.uniq_id[below]), below)
            found.held[below] = int(graph.size[below])
            found.marks[below] = (int(graph.size[below]), True, int(tree.parent[below]))
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
            # A node belongs to the job only if everything else of its rank does.
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


CANCEL_READERS = ("jgf", "rv1exec")


@dataclass(frozen=True, slots=True)
class ReleasedPart:
    """What a partial cancel freed."""

    vertices: Rows
    whole_job: bool  # nothing counted is left: the job is gone


def release(matcher: Matcher, job: int, text: str | bytes, reader: str) -> ReleasedPart:
    """Free the ranks (rv1exec) or the vertices (jgf) that a document names, for one job."""
    if reader not in CANCEL_READERS:
        raise InvalidInput(
            f"{reader!r} is not a valid reader for a partial cancel: choose {' or '.join(CANCEL_READERS)}"
        )
    ledger = matcher.ledger
    record = ledger.job(job)
    if record.reserved:
        raise InvalidInput(f"job {job} is a reservation: cancel it as a whole")
    rows = ledger.vertex[record.spans]
    span_at = dict(zip(rows.tolist(), record.spans.tolist(), strict=True))
    if reader == "rv1exec":
        named = _of_ranks(matcher, text, span_at)
    else:
        named = _of_graph(matcher, text, span_at)
    counted = set(counting(matcher.graph, matcher.tree.shape(), matcher.filters, rows))
    spans = np.array([span_at[vertex] for vertex in named], np.int32)
    freed = np.array(sorted(named), np.int32)
    matcher.give_back(job, spans)
    above = {up for vertex in named for up in matcher.tree.ancestors(vertex)}
    root = matcher.tree.root
    if root in counted and not _holds(matcher, job, root, counted=True):
        matcher.cancel(job)
        return ReleasedPart(freed, True)
    leave_empty(matcher, job, (above & counted) - named)
    matcher.recount(job)
    return ReleasedPart(freed, False)


def leave_empty(matcher: Matcher, job: int, above: Iterable[int]) -> None:
    """Remove a job from the vertices below which it holds nothing any more.

    Fluxion removes a job from a vertex when nothing that the vertex counts is left below it. If the vertex
    never counted the job, that happens only when the job is cancelled. Here the job stays while it holds
    anything below. Otherwise another job could get the vertex exclusively, and the rest would be given twice.
    """
    ledger = matcher.ledger
    spans = ledger.jobs[job].spans
    span_at = dict(zip(ledger.vertex[spans].tolist(), spans.tolist(), strict=True))
    empty = [up for up in above if up in span_at and not _holds(matcher, job, up, counted=False)]
    if empty:
        ledger.release(job, np.array([span_at[up] for up in empty], np.int32))


def _of_ranks(matcher: Matcher, text: str | bytes, span_at: dict[int, int]) -> set[int]:
    named: set[int] = set()
    for rank in rv1.decode_ranks(text):
        vertices = matcher.graph.vertices_of_rank(rank)
        if not vertices:
            raise NotFound(f"the graph has no rank {rank}")
        named.update(vertex for vertex in matcher.with_all_below(vertices) if vertex in span_at)
    return named


def _of_graph(matcher: Matcher, text: str | bytes, span_at: dict[int, int]) -> set[int]:
    named: set[int] = set()
    for vertex in jgf.Document(text).vertices():
        row = find_vertex(matcher, vertex)
        if row not in span_at or not matcher.ledger.exclusive[span_at[row]]:
            raise NotFound(f"the job does not hold {matcher.graph.path(row)}")
        named.add(row)
    return named


def _holds(matcher: Matcher, job: int, vertex: int, *, counted: bool) -> bool:
    """Whether a job still holds anything exclusively below a vertex; ``counted``: of the types that the
    vertex counts."""
    graph, ledger, tree = matcher.graph, matcher.ledger, matcher.tree
    spans = ledger.jobs[job].spans
    rows = ledger.vertex[spans]
    below = (
        (tree.pre[rows] > tree.pre[vertex]) & (tree.pre[rows] < tree.end[vertex]) & ledger.exclusive[spans]
    )
    if counted:
        below &= np.isin(graph.type[rows], matcher.filters.types(int(graph.type[vertex])))
    return bool(below.any())
