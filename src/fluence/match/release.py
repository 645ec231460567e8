"""Partial cancel: give back a part of what a job holds, named by an R or by a graph.

`Matcher.partial_cancel` calls it for a job that has shrunk, or whose nodes end one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fluence.errors import InvalidInput, NotFound
from fluence.graph import jgf, rv1
from fluence.graph.columns import Rows
from fluence.match.filter_usage import counting
from fluence.match.recover import find_vertex

if TYPE_CHECKING:
    from fluence.match.matcher import Matcher

READERS = ("jgf", "rv1exec")


@dataclass(frozen=True, slots=True)
class ReleasedPart:
    """What a partial cancel gave back."""

    vertices: Rows
    whole_job: bool  # nothing that is counted is left: the job is gone


def release(matcher: Matcher, job: int, text: str | bytes, reader: str) -> ReleasedPart:
    """Free the ranks (rv1exec) or the vertices (jgf) that a document names, for one job."""
    if reader not in READERS:
        raise InvalidInput(
            f"{reader!r} is not a valid reader for a partial cancel: choose one of {', '.join(READERS)}"
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
    # Fluxion lets go of a vertex when nothing that it counts is left below, and of one that never counted the
    # job when the job is cancelled. As long as anything is left below, we do not: somebody else could get the
    # vertex for himself, and what is below it twice.
    drained = [
        up
        for up in above
        if up in counted and up not in named and not _holds(matcher, job, up, counted=False)
    ]
    if drained:
        ledger.release(job, np.array([span_at[up] for up in drained], np.int32))
    matcher.recount(job)
    return ReleasedPart(freed, False)


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
    """Whether a job still has anything for itself below a vertex; ``counted``: of what the vertex counts."""
    graph, ledger, tree = matcher.graph, matcher.ledger, matcher.tree
    spans = ledger.jobs[job].spans
    rows = ledger.vertex[spans]
    below = (
        (tree.pre[rows] > tree.pre[vertex]) & (tree.pre[rows] < tree.end[vertex]) & ledger.exclusive[spans]
    )
    if counted:
        below &= np.isin(graph.type[rows], matcher.filters.types(int(graph.type[vertex])))
    return bool(below.any())
