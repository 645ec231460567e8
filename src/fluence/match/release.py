"""Give back a part of what a job holds, named by an R or by a graph."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fluence.errors import InvalidInput, NotFound
from fluence.graph import jgf, rv1
from fluence.graph.graph import Rows
from fluence.match.recover import find_vertex

if TYPE_CHECKING:
    from fluence.match.matcher import Matcher

READERS = ("jgf", "rv1exec")


@dataclass(frozen=True, slots=True)
class Freed:
    """What a partial cancel gave back."""

    vertices: Rows
    whole_job: bool  # nothing that is counted is left: the job is gone


def release(matcher: Matcher, job: int, text: str | bytes, reader: str) -> Freed:
    """Free the ranks (rv1exec) or the vertices (jgf) that a document names, for one job."""
    if reader not in READERS:
        raise InvalidInput(f"no reader {reader!r} for a partial cancel: choose one of {', '.join(READERS)}")
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
    spans = np.array([span_at[vertex] for vertex in named], np.int32)
    freed = np.array(sorted(named), np.int32)
    ledger.release(job, spans)
    above = {up for vertex in named for up in matcher.tree.ancestors(vertex)}
    drained = [up for up in above if up in span_at and up not in named and not _counts(matcher, job, up)]
    if matcher.tree.root in drained:
        matcher.cancel(job)
        return Freed(freed, True)
    if drained:
        ledger.release(job, np.array([span_at[up] for up in drained], np.int32))
    matcher.recount(job)
    return Freed(freed, False)


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


def _counts(matcher: Matcher, job: int, vertex: int) -> bool:
    """Whether the job still holds anything below a vertex that the vertex counts."""
    graph, ledger, tree = matcher.graph, matcher.ledger, matcher.tree
    types = matcher.filters.types(int(graph.type[vertex]))
    spans = ledger.jobs[job].spans
    rows = ledger.vertex[spans]
    below = (tree.pre[rows] > tree.pre[vertex]) & (tree.pre[rows] < tree.end[vertex])
    counted = below & ledger.exclusive[spans] & np.isin(graph.type[rows], types)
    return bool(counted.any())
