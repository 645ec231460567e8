"""Fluxion's check before it searches: are there as many nodes as the request needs at least?

The matcher asks it before each search, and answers "busy" or "unsatisfiable" without one where it fails.
"""

from __future__ import annotations

from fluence.graph.filters import Filters
from fluence.match.placement import Operation
from fluence.match.request import Request
from fluence.match.window_search import WindowSearch


class NodeCheck:
    """The check on one graph; it is made only where a filter counts nodes."""

    def __init__(self, search: WindowSearch, filters: Filters, horizon: int) -> None:
        self._search, self._filters, self._horizon = search, filters, horizon

    def refuses(self, request: Request, operation: Operation, start: int, duration: int) -> bool:
        """Whether fewer nodes count than a request needs."""
        search = self._search
        graph, node = search.graph, search.node
        if not self._filters.counts(node) or search.has_siblings(request):
            return False
        wanted = request.minimum.get(node, 0)
        if wanted > graph.nodes_up:
            return True
        allowed = search.allowed_by(request.constraint)
        if allowed is None or not wanted:
            return False
        nodes = graph.vertices_of_type(node)
        nodes = nodes[allowed[nodes]]
        if operation is not Operation.ALLOCATE_OR_JUDGE:
            nodes = nodes[graph.up[nodes]]
        time = start if operation in (Operation.ALLOCATE, Operation.TRY) else self._horizon - 1
        ledger = search.ledger
        touched = ledger.head[nodes] >= 0
        fit = int((graph.size[nodes[~touched]] == 1).sum())
        fit += sum(ledger.available(v, time, time + duration) == 1 for v in nodes[touched].tolist())
        return fit < wanted
