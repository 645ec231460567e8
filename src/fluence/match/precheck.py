"""Fluxion's check before it searches: are there as many nodes as the request needs at least?

The matcher asks it before each search, and answers "busy" or "unsatisfiable" without one where it fails.
"""

from __future__ import annotations

from fluence.graph.filters import Filters
from fluence.match.placement import Operation
from fluence.match.request import Request
from fluence.match.window_search import WindowSearch


def has_too_few_nodes(
    search: WindowSearch,
    filters: Filters,
    request: Request,
    operation: Operation,
    *,
    start: int,
    duration: int,
    horizon: int,
) -> bool:
    """Whether fewer nodes count than the request needs; only where a filter counts nodes."""
    if not filters.counts(search.node) or search.has_siblings(request):
        return False
    graph, ledger = search.graph, search.ledger
    wanted = request.minimum.get(search.node, 0)
    if wanted > graph.nodes_up:
        return True
    if request.constraint is None or not wanted:
        return False
    allowed = search.allowed_by(request.constraint)
    nodes = graph.vertices_of_type(search.node)
    if allowed is not None:
        nodes = nodes[allowed[nodes]]
    if operation is not Operation.ALLOCATE_OR_JUDGE:
        nodes = nodes[graph.up[nodes]]
    time = start if operation in (Operation.ALLOCATE, Operation.TRY) else horizon - 1
    touched = ledger.head[nodes] >= 0
    fit = int((graph.size[nodes[~touched]] == 1).sum())
    fit += sum(ledger.available(v, time, time + duration) == 1 for v in nodes[touched].tolist())
    return fit < wanted
