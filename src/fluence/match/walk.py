"""The plain tree walk: Fluxion's depth-first search with a step up, vertex by vertex.

It decides every request that the index does not support, and it is the oracle in tests of the index. From the
root down, each vertex is compared with the list of needs at its level:

* its type is needed: continue below it with the contents of that need;
* a slot is needed, and every type in the slot is the type of a direct child: build slots from the children;
* nothing has matched above it: pass through with the same list;
* otherwise: leave this branch.

On the way back up, each vertex that serves a need must have enough candidates below it, and takes the best.
A vertex that made no choice passes its candidates to its parent, where they compete with others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from errno import EBUSY, EINVAL
from typing import TypeAlias

from fluence.graph.columns import Ints, Mask, Tree, scalars
from fluence.graph.graph import ResourceGraph
from fluence.graph.ledger import Ledger
from fluence.graph.selection import Marks, trace
from fluence.match.candidates import (
    MET,
    CandidateCount,
    CandidateGroup,
    Edge,
    Pool,
    Pools,
    arranged,
    arranged_by_run,
)
from fluence.match.filter_usage import FilterCheck
from fluence.match.leaf_slots import LeafSlots, SlotCache, leaf_needs
from fluence.match.policy import MatchPolicy, VisitOrder
from fluence.match.request import Found, Need, TooFar, Window

# The need that a vertex serves, the slots to build at it, the needs to search for below it, and whether
# nothing has matched above it.
Meeting: TypeAlias = tuple[Need | None, tuple[Need, ...], tuple[Need, ...], bool]


@dataclass
class Walk:
    """One search of a graph for one request in one window."""

    graph: ResourceGraph
    ledger: Ledger
    policy: MatchPolicy
    subsystems: Sequence[str]
    load: VisitOrder
    slot_cache: SlotCache
    score: Ints
    factors: Ints | None  # what a node adds to scores below it, under a node-centric policy
    needs: tuple[Need, ...]
    window: Window
    allowed: Mask | None = None  # the constraint, per vertex
    marks: Marks = field(default_factory=dict)
    labels: dict[int, str] = field(default_factory=dict)
    obstacle: int = 0
    conflict: str | None = None
    visited: int = 0
    pools: frozenset[int] = frozenset()  # types that can be taken in part
    keep_shared: bool = False
    limit: int | None = None  # give up after this number of vertices
    filters: FilterCheck | None = None  # if they change the result

    def run(self, whole: frozenset[int]) -> Found:
        """Search; ``whole`` are the types whose vertices a job gets with everything below them."""
        graph = self.graph
        self.dom = self.subsystems[0]
        self.tree = graph.tree(self.dom)
        self.trees = [(name, graph.tree(name)) for name in self.subsystems if name in graph.trees]
        self.types, self.sizes = scalars(graph.type), scalars(graph.size)
        self.ups = scalars(graph.up)
        self.scores = scalars(self.score)
        self._allowed = None if self.allowed is None else scalars(self.allowed)
        self._node = graph.types.code("node")
        self._slot = graph.types.code("slot")
        self._factors = None if self.factors is None else scalars(self.factors)
        self._parents, self._starts = scalars(self.tree.parent), scalars(self.tree.child_start)
        self._ids, self._uniq = scalars(graph.id), scalars(graph.uniq_id)
        self._seen: set[int] | None = None if self.tree.is_tree else set()
        self._leaf_slots = LeafSlots(self)

        root = self.tree.root
        needs = self.needs
        alone = any(need.type == self.types[root] and need.exclusive for need in needs)
        pools: Pools = {}
        found = self._visit(root, needs, True, alone, pools, 0)
        if found is None:
            return Found(None, self.obstacle, self.conflict)
        available, score, exclusive = found
        pool = pools.setdefault((self.dom, self.types[root]), Pool())
        pool.add(CandidateGroup(score, available, [(root, available, alone, -1)], is_root=True))
        amount = self._resolve_root(root, available, pools)
        if amount is None:
            return Found(None, EBUSY)
        selection = trace(
            graph,
            self.tree,
            self.marks,
            (amount, exclusive),
            whole,
            self.labels,
            keep_shared=self.keep_shared,
        )
        return Found(selection, self.obstacle, self.conflict)

    # -- one vertex ------------------------------------------------------------------------------------------

    def _visit(
        self, u: int, needs: tuple[Need, ...], pristine: bool, alone: bool, above: Pools, factor: int
    ) -> tuple[int, int, bool] | None:
        """(available, score, exclusive) of a vertex that can serve, None otherwise."""
        self.visited += 1
        if self.limit is not None and self.visited > self.limit:
            raise TooFar
        type_ = self.types[u]
        meeting = self._meet(u, type_, needs, pristine)
        if meeting is None:
            self.obstacle = EBUSY
            return None
        match, slots, below, fresh = meeting
        exclusive = alone or (match is not None and match.exclusive is True)
        if not self.passes(u, type_, needs, exclusive):
            return None
        available = self._available(u)
        inner = factor
        if self._factors is not None and type_ == self._node:
            if self._ids[u] < -1 or self._uniq[u] < 0:
                return None  # an id that cannot be scored
            inner = factor + self._factors[u]

        pools: Pools = {}
        if self._seen is not None:
            self._seen.add(u)
        if slots:
            self._build_slots(u, slots, pools, inner)
        elif below:
            self._explore(u, below, fresh, exclusive, pools, inner)
        elif self._starts[u + 1] > self._starts[u]:
            self.obstacle = EBUSY  # Fluxion compares the children with an empty list

        chose = False
        if match is not None:
            for child in match.below:
                pool = pools.setdefault((self.dom, child.type), Pool())
                amount = child.count.effective(pool.qualified)
                if amount == 0:
                    self.obstacle = EBUSY
                    return None
                pool.choose(amount, self._arrange)
                chose = True
            if match.label:
                self.labels[u] = match.label
        if chose:
            self._stamp(pools, to_root=False)
        else:
            for key, pool in pools.items():
                above.setdefault(key, Pool()).merge(pool)
        return available, self.scores[u] + factor, exclusive

    def _visit_leaf(self, u: int, need: Need, alone: bool, factor: int) -> tuple[int, int, bool] | None:
        """`_visit` for a need with nothing below it: the most common case by far."""
        self.visited += 1
        exclusive = alone or need.exclusive is True
        available = self.sizes[u]
        if not (
            available
            and (self.ups[u] or self.window.healthy)
            and (self.window.empty or self.ledger.heads[u] < 0)
            and self._allowed is None
        ):
            if not self.passes(u, need.type, (need,), exclusive):
                return None
            available = self._available(u)
        if need.label:
            self.labels[u] = need.label
        if self._starts[u + 1] > self._starts[u]:
            self.obstacle = EBUSY
        return available, self.scores[u] + factor, exclusive

    def _meet(self, u: int, type_: int, needs: tuple[Need, ...], pristine: bool) -> Meeting | None:
        """How a vertex meets a list of needs; None if it serves nothing."""
        match: Need | None = None
        slot: Need | None = None
        for need in needs:
            if need.type == type_:
                if match is not None or slot is not None:
                    return None  # one level needs a type twice, or a type and a slot
                match, slot = need, need.slot
            elif need.is_slot:
                if match is not None or slot is not None:
                    return None
                slot = need
        if slot is not None and self._holds_slot(u, slot):
            return match, (slot,), (), False
        if match is not None:
            return match, (), match.below, False
        return (None, (), needs, True) if pristine else None

    def _holds_slot(self, u: int, slot: Need) -> bool:
        if self._leaf_slots.is_known(u, slot):
            return True
        types = self.slot_cache.child_types(u)
        return all(need.type in types for need in slot.below)

    def passes(self, u: int, type_: int, needs: tuple[Need, ...], exclusive: bool) -> bool:
        """Whether the vertex is up, allowed and not taken, and unused by other jobs if it must be."""
        window = self.window
        if (
            (not window.healthy and not self.ups[u])
            or (self._allowed is not None and not self._allowed[u])
            or self._available(u) == 0
        ):
            self.obstacle = EBUSY
            return False
        for need in needs:
            if need.type != type_ or need.is_slot:
                continue
            if exclusive and need.exclusive is False:
                self.obstacle = EINVAL
                self.conflict = (
                    f"exclusivity conflicts at {need.label or need.name}: it says `exclusive: false` inside "
                    "something that is exclusive; leave that out, or move it outside the slot"
                )
                return False
            if need.type in self.pools:
                continue  # other jobs may use parts of it
            if (exclusive or need.exclusive) and not window.empty and self.ledger.heads[u] >= 0:
                ledger = self.ledger
                if (window.allocate and ledger.is_allocated(u)) or ledger.is_shared(
                    u, window.start, window.end
                ):
                    self.obstacle = EBUSY
                    return False
        if self.filters is not None and not self._filters_pass(u, type_, needs, self.filters):
            self.obstacle = EBUSY
            return False
        return True

    def _filters_pass(self, u: int, type_: int, needs: tuple[Need, ...], filters: FilterCheck) -> bool:
        """Whether enough is left below a vertex for each need that it serves, and for one of each slot."""
        return all(
            filters.leaves(u, need.inside)
            for need in needs
            if need.inside and (need.is_slot or need.type == type_)
        )

    def _available(self, u: int) -> int:
        if self.window.empty or self.ledger.heads[u] < 0:
            return self.sizes[u]
        return self.ledger.available(u, self.window.start, self.window.end)

    # -- below a vertex --------------------------------------------------------------------------------------

    def _explore(
        self, u: int, needs: tuple[Need, ...], pristine: bool, alone: bool, pools: Pools, factor: int
    ) -> None:
        for name, tree in self.trees:
            if name == self.dom:
                self._explore_down(u, needs, pristine, alone, pools, factor, shares=1)
            else:
                self._explore_up(u, name, tree, needs, alone, pools)

    def _explore_down(
        self,
        u: int,
        needs: tuple[Need, ...],
        pristine: bool,
        alone: bool,
        pools: Pools,
        factor: int,
        *,
        shares: int,
    ) -> None:
        """Visit the children; a search that stops early takes the least loaded first, and only as many as it
        needs."""
        stops = self.policy.stop_early
        tallies = {need.type: CandidateCount(need.most) for need in needs} if stops else {}
        satisfied: set[int] = set()
        wanted = None if pristine else {need.type for need in needs if not need.is_slot}
        slots = any(need.is_slot for need in needs)
        leaves = {} if pristine else leaf_needs(needs, alone=alone)
        seen = self._seen
        for child in self.load.children(self.tree, u) if stops else self.tree.children(u):
            if seen is not None and child in seen:
                continue
            type_ = self.types[child]
            if type_ in satisfied:
                continue
            if wanted is not None and not slots and type_ not in wanted:
                self.obstacle = EBUSY
                continue
            if type_ in leaves:
                found = self._visit_leaf(child, leaves[type_], alone, factor)
            else:
                found = self._visit(child, needs, pristine, alone, pools, factor)
            if found is None:
                continue
            available, score, exclusive = found
            pool = pools.get((self.dom, type_))
            if pool is None:
                pool = pools[self.dom, type_] = Pool()
            pool.add(CandidateGroup(score, available, [(child, available, exclusive, u)]))
            if not stops:
                continue
            # A leaf adds only itself; a deeper vertex may have passed up candidates of other types.
            for asked in (type_,) if type_ in leaves else tallies:
                tally = tallies[asked]
                reached = pools.get((self.dom, asked))
                if reached is not None:
                    tally.add(reached.total)
                if tally.shares >= shares:
                    satisfied.add(asked)
            if len(satisfied) == len(tallies):
                break

    def _explore_up(
        self, u: int, name: str, tree: Tree, needs: tuple[Need, ...], alone: bool, pools: Pools
    ) -> None:
        """Visit the other subsystems of a vertex. They prune the search, but nothing of them is recorded."""
        for child in tree.children(u):
            if not self.passes(child, self.types[child], needs, alone):
                continue
            if child != tree.root:
                self._explore_up(child, name, tree, needs, alone, pools)
            available = self._available(child)
            if available:
                pool = pools.setdefault((name, self.types[child]), Pool())
                pool.add(CandidateGroup(MET, available, []))

    def _build_slots(self, u: int, slots: tuple[Need, ...], pools: Pools, factor: int) -> None:
        (slot,) = slots
        leaves = self._leaf_slots.leaves(slot)
        if leaves is not None and self._seen is None and self.pools.isdisjoint(leaves):
            self._leaf_slots.build(u, slot, leaves, pools, factor)
            return
        inner: Pools = {}
        self._explore_down(u, slot.below, False, True, inner, factor, shares=slot.most)
        for pool in inner.values():
            pool.choose(pool.qualified, self._arrange_slot)
        counts: list[int] = []
        most = 2**32 - 1
        for need in slot.below:
            pool = inner.get((self.dom, need.type)) or Pool()
            count = need.count.effective(pool.qualified)
            counts.append(count)
            fit = filling = 0
            if count and need.type in self.pools:
                fit = pool.qualified // count
            elif count:
                for group in pool.groups:
                    filling += group.count
                    if filling >= count:
                        fit, filling = fit + 1, 0
            most = min(most, fit)
        if not slot.below:
            return
        self._assemble(((slot, counts) for _ in range(most)), inner, pools)

    def _assemble(self, plan: Iterable[tuple[Need, list[int]]], inner: Pools, pools: Pools) -> None:
        """Build slots from whole candidates, best first: all slots, or none if the candidates do not
        suffice."""
        at: dict[int, int] = {}
        rest: dict[int, int] = {}  # of a pool, what earlier slots left
        built: list[CandidateGroup] = []
        for slot, counts in plan:
            score = MET
            edges: list[Edge] = []
            for need, count in zip(slot.below, counts, strict=True):
                groups = inner[self.dom, need.type].groups
                taken = 0
                while taken < count:
                    place = at.get(need.type, 0)
                    if place >= len(groups):
                        return
                    group = groups[place]
                    vertex, amount, _, parent = group.edges[0]
                    if need.type in self.pools:
                        left = rest.get(vertex, amount)
                        amount = min(left, count - taken)
                        rest[vertex] = left - amount
                    if rest.get(vertex, 0) == 0:
                        at[need.type] = place + 1
                    edges.append((vertex, amount, True, parent))
                    score += group.score
                    taken += amount
            built.append(CandidateGroup(score, 1, edges))
        if built:
            pool = pools.setdefault((self.dom, self._slot), Pool())
            for group in built:
                pool.add(group)

    # -- choosing --------------------------------------------------------------------------------------------

    def _arrange(self, groups: list[CandidateGroup], amount: int) -> list[CandidateGroup]:
        return arranged(groups, ascending=self.policy.ascending)

    def _arrange_slot(self, groups: list[CandidateGroup], amount: int) -> list[CandidateGroup]:
        return arranged(groups, ascending=self.policy.slot_ascending)

    def _resolve_root(self, root: int, available: int, pools: Pools) -> int | None:
        """Make the last choice, among the candidates at the root; returns how much of the root is needed."""
        runs: set[int] = set()
        for need in self.needs:
            pool = pools.setdefault((self.dom, need.type), Pool())
            amount = need.count.effective(pool.qualified)
            if amount == 0:
                return None
            if self.policy.runs:
                runs.update(group.score for group in pool.groups)
                pool.choose(amount, lambda groups, _: arranged_by_run(groups, runs))
            else:
                pool.choose(amount, self._arrange)
        amount = 1
        for need in self.needs:
            if need.type == self.types[root]:
                amount = need.count.effective(available)
                if amount == 0:
                    return None
        if any(pool.qualified == 0 for pool in pools.values()):
            return None
        self._stamp(pools, to_root=True)
        return amount

    def _stamp(self, pools: Pools, *, to_root: bool) -> None:
        """Mark the chosen vertices and, at the root, also the vertices on the path to them that serve no
        need."""
        for (subsystem, type_), pool in pools.items():
            if subsystem != self.dom:
                continue
            left = pool.amount
            for group in pool.groups[: pool.chosen]:
                if group.is_root:
                    continue
                for vertex, amount, exclusive, parent in group.edges:
                    if self.pools and self.types[vertex] in self.pools:
                        if type_ != self._slot:
                            amount = min(amount, left)
                            left -= amount
                        elif vertex in self.marks:
                            amount += self.marks[vertex][0]
                    self.marks[vertex] = (amount, exclusive, parent)
                    if to_root:
                        self._stamp_way(parent, pools)

    def _stamp_way(self, vertex: int, pools: Pools) -> None:
        while vertex != self.tree.root and vertex not in self.marks:
            above = self._parents[vertex]
            pool = pools.get((self.dom, self.types[vertex]))
            if pool is not None and not pool.chosen:
                self.marks[vertex] = (self.sizes[vertex], False, above)
            vertex = above
