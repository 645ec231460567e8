"""The search of one window: from the index where that can tell, else by the walk.

The matcher asks it for each window that an operation looks at. It has all that a search needs besides the
request (scores, tables, the slots of look-alikes) and keeps that in step with the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from errno import EBUSY

import numpy as np
from cachetools import LRUCache

from fluence.graph.columns import Mask
from fluence.graph.graph import ResourceGraph
from fluence.graph.ledger import Ledger
from fluence.graph.selection import Selection, merged
from fluence.match.extensions import Extensions
from fluence.match.flexible import FlexibleWalk, variants
from fluence.match.index import search
from fluence.match.policy import MatchPolicy
from fluence.match.request import Request
from fluence.match.slot_cache import SlotCache
from fluence.match.tables import Index
from fluence.match.visit_order import VisitOrder
from fluence.match.walk import Walk
from fluence.match.window import FAR, Found, TooFar, Window
from fluence.model.constraint import Constraint

_SMALL = 1000  # vertices that a request takes
_SHORT_WALK = 200  # vertices that a walk may meet in vain
_LONGEST_PAUSE = 64  # searches after which the short walk is tried again
_SHAPES = 4096
_MASKS = 2**26  # bytes of masks of constraints
_TRIED = -(2**62)  # ids of what is held only while a search goes on
_HOPELESS = Found(None, EBUSY)


class WindowSearch:
    """Searches one graph, with one ledger, under one policy."""

    def __init__(
        self,
        graph: ResourceGraph,
        ledger: Ledger,
        policy: MatchPolicy,
        visit_order: VisitOrder,
        *,
        subsystems: Sequence[str],
        flexible: bool,
        extensions: Extensions,
    ) -> None:
        self.graph, self.ledger, self.policy, self.visit_order = graph, ledger, policy, visit_order
        self.subsystems, self.flexible, self.extensions = subsystems, flexible, extensions
        self.indexed = True  # False: leave everything to the walk
        self.visited = 0  # vertices that the last walk met
        self.node = graph.types.code("node")
        self._slot = graph.types.code("slot")
        self._constrained = {graph.types.code(word) for word in extensions.constrained}
        self._pause, self._patience = 0, 1  # of the short walk
        self.scores = policy.scores(graph)
        self._shape_at, self._scores_at = graph.shape_generation, graph.property_generation
        self._forget()
        self._derive()

    def refresh(self) -> None:
        """Catch up with a graph that changed; the ledger has caught up already."""
        graph = self.graph
        if self._scores_at == graph.property_generation:
            return
        self._scores_at = graph.property_generation
        self._forget()
        old, self.scores = self.scores, self.policy.scores(graph)
        if self._shape_at != graph.shape_generation or not np.array_equal(old, self.scores):
            self._shape_at = graph.shape_generation
            self._derive()

    def add_quantities(self, types: Iterable[str]) -> None:
        """Any part of a vertex of these types can be taken too, once it has caught up with the graph."""
        more = frozenset(types) | self.extensions.quantities
        self.extensions = replace(self.extensions, quantities=more)
        self._shape_at = self._scores_at = -1

    def is_pool(self, vertex: int) -> bool:
        """Whether any part of a vertex can be taken."""
        return int(self.graph.type[vertex]) in self.index.pools

    # -- searching -------------------------------------------------------------------------------------------

    def find(self, request: Request, window: Window) -> Found:
        """What a request gets in a window.

        A search that stops early usually finds enough at once, and the walk is quickest then; it gives way to
        the index when it has come too far.
        """
        if self._has_hopeless and request.shape in self._hopeless:
            # What an empty graph cannot hold, no other can. (Not so with ranges: they take more where
            # there is more, and then fit fewer.)
            return _HOPELESS
        if self.has_siblings(request):
            return self._find_siblings(request, window)
        if not self.uses_index:
            return self.walk(request, window)
        if self.policy.stop_early and request.weight <= _SMALL:
            near = self._walk_shortly(request, window)
            if near is not None:
                return near
        allowed = self.allowed_by(request.constraint)
        found = search(self.index, request.needs, window, allowed, self.whole_types(request))
        return self.walk(request, window) if found is None else found

    def never_fits(self, request: Request, far: Found) -> None:
        """Remember that an empty graph does not hold a request."""
        if far is _HOPELESS:
            return
        if request.is_fixed and far.conflict is None and not self.has_siblings(request):
            self._hopeless[request.shape] = self._has_hopeless = True

    def walk(self, request: Request, window: Window, limit: int | None = None) -> Found:
        """What the walk finds, whatever the index could tell; it gives up after ``limit`` vertices."""
        allowed = self.allowed_by(request.constraint)
        found = Found(None)
        for needs in variants(request.needs, self._slot) if self.flexible else (request.needs,):
            walk = (FlexibleWalk if self.flexible else Walk)(
                self.graph,
                self.ledger,
                self.policy,
                self.subsystems,
                self.visit_order,
                self.slot_cache,
                self.scores,
                self._factors,
                needs,
                window,
                allowed=allowed,
                pools=self.index.pools,
                keep_shared=self.extensions.shared,
                limit=limit,
            )
            found = walk.run(self.whole_types(request))
            self.visited = walk.visited
            if found.selection is not None:
                break
        return found

    def _walk_shortly(self, request: Request, window: Window) -> Found | None:
        """What a walk finds, if it need not go far; in a full graph the next ones would go far as well, so
        that it is not tried for a while after it went in vain."""
        if self._pause:
            self._pause -= 1
            return None
        # Slots that may lie anywhere are found at once or gathered from all over.
        far = (
            _SHORT_WALK // 5 + 2 * request.weight if request.is_headless else _SHORT_WALK + 4 * request.weight
        )
        try:
            found = self.walk(request, window, limit=far)
        except TooFar:
            found = None
        if found is not None and found.selection is not None:
            self._patience = 1
        else:
            self._pause, self._patience = self._patience, min(2 * self._patience, _LONGEST_PAUSE)
        return found

    def _find_siblings(self, request: Request, window: Window) -> Found:
        """Place the needs of the top level one after the other, each seeing what those before it took."""
        window = FAR if window.empty else window
        parts: list[Selection] = []
        tried: list[int] = []
        try:
            for number, need in enumerate(request.needs):
                one = replace(request, needs=(need,), minimum={}, shape=())
                found = self.find(one, window)
                part = found.selection
                if part is None:
                    return found
                parts.append(part)
                if number + 1 < len(request.needs) and len(part):
                    tried.append(_TRIED - number)
                    self.ledger.add(
                        tried[-1],
                        start=window.start,
                        end=window.end,
                        reserved=not window.allocate,
                        vertices=part.vertices,
                        needs=part.needs,
                        exclusive=part.exclusive,
                    )
        finally:
            for job in tried:
                self.ledger.remove(job)
        return Found(merged(self.index.tree, parts))

    # -- what a request means here ---------------------------------------------------------------------------

    @property
    def uses_index(self) -> bool:
        """Whether the index is asked before the walk."""
        return self.indexed and not self.flexible and len(self.subsystems) == 1

    def has_siblings(self, request: Request) -> bool:
        """Whether a request has several needs of one type at the top, which the extension allows."""
        if not self.extensions.siblings:
            return False
        return len({need.type for need in request.needs}) < len(request.needs)

    def whole_types(self, request: Request) -> frozenset[int]:
        """The types of vertices that a job gets with everything below them."""
        if self.policy.node_exclusive:
            return request.exclusive_types | {self.node}
        return request.exclusive_types

    def allowed_by(self, constraint: Constraint | None) -> Mask | None:
        """Which vertices a constraint admits; it speaks of some types only."""
        if constraint is None:
            return None
        found = self._allowed.get(constraint)
        if found is None:
            graph = self.graph
            found = np.ones(graph.rows, np.bool_)
            nothing: dict[str, str] = {}
            for code in self._constrained:
                for vertex in graph.vertices_of_type(code).tolist():
                    found[vertex] = constraint.matches(
                        graph.name[vertex], int(graph.rank[vertex]), graph.properties.get(vertex, nothing)
                    )
            self._allowed[constraint] = found
        return found

    def _forget(self) -> None:
        # The shapes that this graph cannot hold, and what constraints mean on it.
        self._hopeless: LRUCache[tuple[object, ...], bool] = LRUCache(_SHAPES)
        self._has_hopeless = False  # most graphs hold all that is asked of them, and a shape is slow to hash
        self._allowed: LRUCache[Constraint, Mask] = LRUCache(_MASKS, lambda mask: mask.nbytes + 1024)

    def _derive(self) -> None:
        tree = self.graph.tree(self.subsystems[0])
        self.slot_cache = SlotCache(self.graph, tree, self.ledger, self.scores)
        self._factors = self.policy.node_factor(self.graph) if self.policy.node_centric else None
        self.index = Index(
            self.graph,
            tree,
            self.ledger,
            self.policy,
            self.scores,
            self._factors,
            self.visit_order,
            self.extensions,
        )
