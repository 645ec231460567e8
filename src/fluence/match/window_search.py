"""The search of one window: by the index if it can decide, else by the walk, with the alternatives of a
request.

The matcher calls it for each window that an operation tries. It has everything that a search needs except the
request (scores, tables, cached slots) and updates that when the graph changes. `NodeCheck` is Fluxion's check
before a search: are there at least as many nodes as the request needs?

Sibling slots at one level are alternatives: dynamic programming over the amounts left of each type finds the
mix with the most slots, so their types should be leaves. `xor_slot` siblings are expanded
into variants of the whole request, tried in the order in which they are written. `resource-query -T flexible`
turns this on, as in Fluxion.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from errno import EBUSY
from itertools import product
from typing import TypeAlias

import numpy as np
from cachetools import LRUCache

from fluence.errors import InvalidJobspec
from fluence.graph.columns import Mask
from fluence.graph.filters import Filters
from fluence.graph.graph import ResourceGraph
from fluence.graph.ledger import Ledger
from fluence.graph.selection import Selection, merged
from fluence.match.candidates import Pool, Pools
from fluence.match.filter_usage import FilterCheck
from fluence.match.index import search
from fluence.match.leaf_slots import SlotCache
from fluence.match.policy import MatchPolicy, VisitOrder
from fluence.match.request import FAR, SLOTS, Extensions, Found, Need, Operation, Request, TooFar, Window
from fluence.match.tables import Index
from fluence.match.walk import Meeting, Walk
from fluence.model.constraint import Constraint

MOST_VARIANTS = 1000
_MOST_SLOTS = 2**31 - 1
_XOR = "xor_slot"

Counts: TypeAlias = tuple[int, ...]


def variants(needs: tuple[Need, ...], slot: int) -> list[tuple[Need, ...]]:
    """The variants of a request with one slot of each set of `xor_slot` siblings, in order."""
    return list(_variants(needs, slot, [0]))


def _variants(needs: tuple[Need, ...], slot: int, made: list[int]) -> Iterator[tuple[Need, ...]]:
    alternatives = [need for need in needs if need.name == _XOR]
    rest: list[list[Need]] = [list(_options(need, slot, made)) for need in needs if need.name != _XOR]
    chosen: list[tuple[Need, ...]] = [(own,) for need in alternatives for own in _options(need, slot, made)]
    for one in chosen or [()]:
        for others in product(*rest):
            made[0] += 1
            if made[0] > MOST_VARIANTS:
                raise InvalidJobspec(
                    f"the xor_slots make more than {MOST_VARIANTS} variants: ask for fewer alternatives"
                )
            yield (*others, *one)


def _options(need: Need, slot: int, made: list[int]) -> Iterator[Need]:
    for below in _variants(need.below, slot, made) if need.below else [()]:
        own = replace(need, below=below, slot=next((n for n in reversed(below) if n.is_slot), None))
        yield replace(own, type=slot, name="slot", is_slot=True) if need.name == _XOR else own


class FlexibleWalk(Walk):
    """A walk in which sibling slots are alternatives."""

    def _meet(self, u: int, type_: int, needs: tuple[Need, ...], pristine: bool) -> Meeting | None:
        match: Need | None = None
        slots: tuple[Need, ...] = ()
        for need in needs:
            if need.type == type_:
                if match is not None or slots:
                    return None
                match = need
                if need.slot is not None:
                    slots = need.below
            elif need.is_slot:
                if match is not None:
                    return None
                slots = needs
        if slots:
            if any(self._holds_slot(u, need) for need in slots):
                return match, tuple(need for need in slots if need.is_slot), (), False
        elif match is not None:
            return match, (), match.below, False
        # A vertex of the right type that can hold no slot is passed through, and fails at the end.
        return (match, (), needs, True) if pristine else None

    def _filters_pass(self, u: int, type_: int, needs: tuple[Need, ...], filters: FilterCheck) -> bool:
        """Of several slots the last one decides, as in Fluxion."""
        passes = True
        for need in needs:
            if need.is_slot:
                passes = filters.leaves(u, need.inside)
            elif need.type == type_:
                passes = filters.leaves(u, need.inside)
                if not passes:
                    break
        return passes

    def _build_slots(self, u: int, slots: tuple[Need, ...], pools: Pools, factor: int) -> None:
        union: dict[int, Need] = {}
        for slot in slots:
            for need in slot.below:
                known = union.get(need.type)
                if known is None or known.count.min < need.count.min:
                    union[need.type] = need
        asked = tuple(union[type_] for type_ in sorted(union))
        inner: Pools = {}
        self._explore_down(u, asked, False, True, inner, factor, shares=slots[-1].most)
        for pool in inner.values():
            pool.choose(pool.qualified, self._arrange_slot)
        order = sorted(union)
        left = tuple((inner.get((self.dom, type_)) or Pool()).qualified for type_ in order)
        mix = best_mix(slots, order, left)
        counts = {
            id(slot): [
                need.count.effective((inner.get((self.dom, need.type)) or Pool()).qualified)
                for need in slot.below
            ]
            for slot in slots
        }
        self._assemble(((slot, counts[id(slot)]) for slot in mix), inner, pools)


def best_mix(slots: tuple[Need, ...], order: list[int], left: Counts) -> list[Need]:
    """The alternatives to build, one after the other, for the largest number of slots."""
    place = {type_: i for i, type_ in enumerate(order)}
    if len(slots) == 1:
        (slot,) = slots
        if slot.most > _MOST_SLOTS:
            return []  # Fluxion reads the number as negative, and fails
        most = slot.most
        for need in slot.below:
            have = left[place[need.type]]
            count = need.count.effective(have)
            most = min(most, have // count) if count else 0
        return [slot] * most
    best: dict[Counts, tuple[int, int, Counts]] = {}  # left -> slots, first alternative, left after it
    stack = [left]
    while stack:
        now = stack[-1]
        if now in best:
            stack.pop()
            continue
        nexts: list[tuple[int, Counts]] = []
        for index, slot in enumerate(slots):
            amounts = list(now)
            for need in slot.below:
                count = need.count.effective(now[place[need.type]])
                if not count:
                    break
                amounts[place[need.type]] -= count
            else:
                nexts.append((index, tuple(amounts)))
        missing = [after for _, after in nexts if after not in best and after != now]
        if missing:
            stack.extend(missing)
            continue
        choice = (0, -1, now)
        for index, after in nexts:
            if after != now and best[after][0] + 1 > choice[0]:
                choice = (best[after][0] + 1, index, after)
        best[now] = choice
        stack.pop()
    mix: list[Need] = []
    count, index, after = best[left]
    while count:
        mix.append(slots[index])
        count, index, after = best[after]
    return mix


_SMALL = 1000  # vertices that a request takes
_SHORT_WALK = 200  # vertices that a short walk may visit
_LONGEST_PAUSE = 64  # searches until the short walk is tried again, at most
_SHAPES = 4096
_MASKS = 2**26  # bytes for masks of constraints
_TRIED = -(2**62)  # ids of allocations that exist only during a search
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
        filters: Filters,
        flexible: bool,
        extensions: Extensions,
    ) -> None:
        self.graph, self.ledger, self.policy, self.visit_order = graph, ledger, policy, visit_order
        # A filter can count slots, but no graph has any.
        self._filters = (
            filters if flexible or any(filters.counts(graph.types.code(w)) for w in SLOTS) else None
        )
        self.subsystems, self.flexible, self.extensions = subsystems, flexible, extensions
        self.indexed = True  # False: leave everything to the walk
        self.visited = 0  # vertices visited by the last walk
        self.stuck: frozenset[int] = frozenset()  # types that every job gets whole, as by an error in Fluxion
        self.node = graph.types.code("node")
        self._slot = graph.types.code("slot")
        self._constrained = {graph.types.code(word) for word in extensions.constrained}
        self._pause, self._patience = 0, 1  # of the short walk
        self.scores = policy.column(graph)
        self._shape_at, self._scores_at = graph.shape_generation, graph.property_generation
        self._forget()
        self._derive()

    def refresh(self) -> None:
        """Update the caches after a change of the graph. The ledger must be up to date already."""
        graph = self.graph
        if self._scores_at == graph.property_generation:
            return
        self._scores_at = graph.property_generation
        self._forget()
        old, self.scores = self.scores, self.policy.column(graph)
        if self._shape_at != graph.shape_generation or not np.array_equal(old, self.scores):
            self._shape_at = graph.shape_generation
            self._derive()

    def add_quantities(self, types: Iterable[str]) -> None:
        """Vertices of these types can be taken in part too, after the next `refresh`."""
        more = frozenset(types) | self.extensions.quantities
        self.extensions = replace(self.extensions, quantities=more)
        self._shape_at = self._scores_at = -1

    def is_pool(self, vertex: int) -> bool:
        """Whether a vertex can be taken in part."""
        return int(self.graph.type[vertex]) in self.index.pools

    # -- searching -------------------------------------------------------------------------------------------

    def find(self, request: Request, window: Window) -> Found:
        """Search for a request in a window.

        A search that stops early usually finds enough quickly, and then the walk is fastest. If the walk
        visits too many vertices, the index takes over.
        """
        if self._has_hopeless and request.shape in self._hopeless:
            # A request that does not fit on the empty graph never fits. (This is not true for ranges: they
            # take more if more is free, and then fewer fit.)
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
        """Remember that a request does not fit on the empty graph."""
        if far is _HOPELESS:
            return
        if request.is_fixed and far.conflict is None and not self.has_siblings(request):
            self._hopeless[request.shape] = self._has_hopeless = True

    def walk(self, request: Request, window: Window, limit: int | None = None) -> Found:
        """Search by the walk, without the index; give up after ``limit`` vertices."""
        allowed = self.allowed_by(request.constraint)
        found = Found(None)
        filters = None
        if self._filters is not None:
            tree = self.graph.tree(self.subsystems[0])
            filters = FilterCheck(self.graph, tree, self.ledger, self._filters, window)
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
                filters=filters,
            )
            found = walk.run(self.whole_types(request))
            self.visited = walk.visited
            if found.selection is not None:
                break
        return found

    def _walk_shortly(self, request: Request, window: Window) -> Found | None:
        """The result of a walk, if it needs only a few vertices. In a full graph the next walks would need
        many vertices too, so after a failure the short walk is not tried for a while."""
        if self._pause:
            self._pause -= 1
            return None
        # Slots that can be anywhere are either found at once or collected from the whole graph.
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
        """Place the needs of the top level one after the other; each sees what the earlier ones took."""
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
        """Whether the index is tried before the walk."""
        return self.indexed and self._filters is None and len(self.subsystems) == 1

    def has_siblings(self, request: Request) -> bool:
        """Whether a request has several needs of one type at the top, which the extension allows."""
        if not self.extensions.siblings:
            return False
        return len({need.type for need in request.needs}) < len(request.needs)

    def whole_types(self, request: Request) -> frozenset[int]:
        """The types of vertices that a job gets with everything below them."""
        return request.exclusive_types | self.always_whole

    @property
    def always_whole(self) -> frozenset[int]:
        """The types whose vertices every job gets whole, even without asking."""
        return self.stuck | {self.node} if self.policy.node_exclusive else self.stuck

    def allowed_by(self, constraint: Constraint | None) -> Mask | None:
        """The vertices that a constraint allows; it applies to some types only."""
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
        # The shapes that never fit on this graph, and the masks of constraints.
        self._hopeless: LRUCache[tuple[object, ...], bool] = LRUCache(_SHAPES)
        self._has_hopeless = False  # shapes are slow to hash, and in most graphs every request fits
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


class NodeCheck:
    """The check on one graph. If no filter counts nodes, a request is assumed to need none."""

    def __init__(self, search: WindowSearch, filters: Filters, horizon: int) -> None:
        self._search, self._filters, self._horizon = search, filters, horizon

    def refuses(self, request: Request, operation: Operation, start: int, duration: int) -> bool:
        """Whether fewer nodes are counted than a request needs."""
        search = self._search
        graph, node = search.graph, search.node
        if search.has_siblings(request):
            return False
        wanted = request.minimum.get(node, 0) if self._filters.counts(node) else 0
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
