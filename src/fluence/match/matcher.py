"""The matcher: one graph, one ledger, one policy, and the operations on them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from errno import EBUSY, EINVAL, ENOENT
from itertools import chain

import numpy as np

from fluence.errors import Conflict, InvalidInput, InvalidJobspec, NotFound
from fluence.graph import jgf
from fluence.graph.filters import DEFAULT, Filters
from fluence.graph.graph import CONTAINMENT, Mask, ResourceGraph, Rows
from fluence.graph.ledger import Ledger, LedgerJob
from fluence.graph.selection import Selection, merged
from fluence.match import policy as policies
from fluence.match.extensions import NONE, Extensions
from fluence.match.filter_usage import usage_at, usage_of
from fluence.match.flexible import FlexibleWalk, variants
from fluence.match.index import search
from fluence.match.placement import Never, Operation, Outcome, Placed, Wait
from fluence.match.policy import MatchPolicy
from fluence.match.recover import ledger_columns, recover
from fluence.match.release import ReleasedPart, release
from fluence.match.request import Request, compile_jobspec
from fluence.match.root_filter import RootFilter
from fluence.match.slot_cache import SlotCache
from fluence.match.start_times import possible_starts
from fluence.match.tables import Index
from fluence.match.visit_order import VisitOrder
from fluence.match.walk import EMPTY, FAR, Found, TooFar, Walk, Window
from fluence.model import idset
from fluence.model.constraint import Constraint
from fluence.model.jobspec import Jobspec

_SMALL = 1000  # vertices that a request takes
_SHORT_WALK = 200  # vertices that a walk may meet in vain
_LONGEST_PAUSE = 64  # searches after which the short walk is tried again
_FEW_JOBS = 64
_MANY_SHAPES = 4096
_TRIED = -(2**62)  # ids of what is held only while a search goes on
HORIZON = 3_153_600_000  # a hundred years: how long a graph lasts unless it is told otherwise


class NothingHeld(InvalidJobspec):
    """The request matches, but nothing of it would be held: it asks for no slot and nothing exclusive, or a
    level is missing between a resource and the slot below it (name it, such as the socket)."""

    def __init__(self, obstacle: int) -> None:
        super().__init__(" ".join((self.__doc__ or "").split()))
        self.obstacle = obstacle


class Matcher:
    """Places requests on a graph and remembers who holds what."""

    def __init__(
        self,
        graph: ResourceGraph,
        policy: str | MatchPolicy = "first",
        *,
        subsystems: Sequence[str] = (CONTAINMENT,),
        filters: str = DEFAULT,
        horizon: int = HORIZON,
        flexible: bool = False,
        extensions: Extensions = NONE,
        bug_compatible: bool = False,
    ) -> None:
        """``bug_compatible``: also do what Fluxion 0.54 gets wrong once the graph has changed, as
        `resource-query` does (docs/matcher.md)."""
        self.graph = graph
        self.policy = policies.find(policy) if isinstance(policy, str) else policy
        self.subsystems = tuple(subsystems)
        self.horizon = horizon
        self.flexible = flexible
        self.extensions = extensions
        self.visited = 0
        self.indexed = True
        self.tree = graph.tree(self.subsystems[0])
        self.ledger = Ledger(graph.rows, graph.size)
        self.filters = Filters.parse(filters, graph)
        self.filters.prime(graph, self.tree)
        self.load = VisitOrder(graph, self.filters)
        self._root_filter = RootFilter(graph, self.filters, self.tree) if bug_compatible else None
        self._node = graph.types.code("node")
        self._slot = graph.types.code("slot")
        self._constrained = {graph.types.code(word) for word in extensions.constrained}
        self._pools = frozenset(graph.types.code(word) for word in extensions.quantities)
        self._shape = graph.shape_generation
        self._scores = self.policy.scores(graph)
        self._scores_at = graph.property_generation
        self.index = self._make_index()
        self._allowed: dict[tuple[Constraint, int], Mask] = {}
        # What had to wait is tried again. A jobspec that is kept here keeps its id to itself.
        self._requests: dict[int, tuple[Jobspec, Request]] = {}
        self._pause, self._patience = 0, 1  # of the short walk
        self._hopeless: set[tuple[object, ...]] = set()  # shapes that this graph cannot hold

    # -- matching --------------------------------------------------------------------------------------------

    def match(
        self, operation: Operation | str, jobspec: Jobspec | Request, *, job: int = -1, now: int = 0
    ) -> Outcome:
        """Carry out one operation at a time; only a successful allocation or reservation changes anything."""
        operation = Operation(operation)
        request = jobspec if isinstance(jobspec, Request) else self.compile(jobspec)
        self._refresh()
        duration = self._duration(request, now)
        records = operation in (
            Operation.ALLOCATE,
            Operation.ALLOCATE_OR_RESERVE,
            Operation.ALLOCATE_OR_JUDGE,
        )
        if records and job in self.ledger.jobs:
            raise Conflict(f"job {job} already holds resources: cancel it first or choose another id")
        if operation is Operation.JUDGE:
            found = self._search(request, EMPTY)
            if found.selection is not None:
                return Placed(job, now, now, False, found.selection)
            return self._never(request, found)
        verdict = self._too_few_nodes(request, operation, now, duration)
        if verdict is not None:
            return verdict
        if operation in (Operation.ALLOCATE_OR_RESERVE, Operation.TRY_FUTURE):
            if self._root_filter is not None:
                at, found = self._earliest_in_fluxion(self._root_filter, request, now, duration)
            else:
                at, found = self._earliest(request, now, duration)
        else:
            at, found = now, self._search(request, Window(now, now + duration))
        if found.selection is None:
            if operation in (Operation.ALLOCATE, Operation.TRY):
                return Wait("busy")
            far = self._search(request, EMPTY)
            return self._never(request, far) if far.selection is None else Wait("busy")
        if at >= self.horizon:
            return Wait("no time before the end of the graph")
        if not len(found.selection):
            raise NothingHeld(found.obstacle)
        end = min(at + duration, self.horizon)
        placed = Placed(job, at, end, at != now, found.selection, request.queue)
        if records:
            self._record(placed)
        self._touch(placed, now, holds=records)
        return placed

    def compile(self, jobspec: Jobspec) -> Request:
        """The request of a jobspec, checked against the types of this graph."""
        known = self._requests.get(id(jobspec))
        if known is None:
            if len(self._requests) >= _MANY_SHAPES:
                self._requests.clear()
            request = compile_jobspec(jobspec, self.graph, flexible=self.flexible)
            known = self._requests[id(jobspec)] = (jobspec, request)
        return known[1]

    def info(self, job: int) -> LedgerJob:
        """What a job holds or was promised, and when."""
        return self.ledger.job(job)

    def is_pool(self, vertex: int) -> bool:
        """Whether any part of a vertex can be taken."""
        return int(self.graph.type[vertex]) in self._pools

    def hold(self, placed: Placed, *, now: int | None = None) -> None:
        """Record a placement that was found elsewhere, such as the seats of a gang, or before; it is not
        checked. Only with ``now`` does the order of a `first` search follow it."""
        self._refresh()
        self._record(placed)
        if now is not None:
            self._touch(placed, now)

    def refresh(self) -> None:
        """Catch up with a graph that changed."""
        self._refresh()

    def cancel(self, job: int) -> None:
        """Give back all that a job holds or was promised."""
        self.ledger.remove(job)
        self.load.forget(job)
        if self._root_filter is not None:
            self._root_filter.remove(job)

    def partial_cancel(self, job: int, text: str | bytes, *, reader: str = "rv1exec") -> ReleasedPart:
        """Give back the ranks or vertices that an R or a graph names."""
        self._refresh()
        return release(self, job, text, reader)

    def give_back(self, job: int, spans: Rows) -> None:
        """Erase some spans of a job; the job stays, even with none."""
        ledger = self.ledger
        alone = spans[ledger.exclusive[spans]]
        if self._root_filter is not None:
            self._root_filter.reduce(job, ledger.vertex[alone], ledger.needs[alone])
        ledger.release(job, spans)

    def update(
        self, job: int, text: str | bytes, *, reader: str = "jgf", at: int, duration: int, now: int = 0
    ) -> Placed:
        """Re-create the allocation that a graph or an R describes, all of it or nothing."""
        self._refresh()
        if at < 0 or duration <= 0:
            raise InvalidInput(
                f"invalid time ({at}, {duration}): the start must not be negative, nor the length 0"
            )
        if job in self.ledger.jobs:
            raise Conflict(f"job {job} already holds resources: cancel it first or choose another id")
        found = recover(self, text, reader, at, at + duration)
        shown, rows, needs, alone = ledger_columns(self, found)
        selection = shown if shown is not None else Selection.of(self.tree, rows[:0], needs[:0], alone[:0])
        placed = Placed(job, at, at + duration, at != now, selection)
        self.ledger.add(
            job, start=at, end=at + duration, reserved=False, vertices=rows, needs=needs, exclusive=alone
        )
        if self._root_filter is not None:
            self._root_filter.add(job, at, at + duration, rows=rows, needs=needs, exclusive=alone)
        self._touch(placed, now)
        return placed

    # -- changing the graph ----------------------------------------------------------------------------------

    def grow(self, text: str | bytes, *, source: str = "jgf") -> Rows:
        """Add the vertices of a JGF document; those that are there already stand for themselves."""
        up = self.graph.nodes_up
        rows = self.graph.extend(jgf.read(text, source=source, into=self.graph))
        if self._root_filter is not None:
            self.graph.nodes_up = up  # Fluxion counts the nodes when it loads a graph, and then never again
        self._refresh()
        return rows

    def remove_path(self, path: str) -> Rows:
        """Take a vertex and all below it out of the graph, whoever is on it."""
        found = self.graph.vertices_at(path)
        if not found:
            raise NotFound(f"no vertex has the path {path}")
        gone = self.tree.shape().subtree(found[-1]).copy()
        self._remove(gone)
        return gone

    def remove_ranks(self, ranks: str) -> dict[int, Rows]:
        """Take all vertices of some ranks out of the graph; says what each job lost by it."""
        gone: set[int] = set()
        for rank in idset.decode(ranks):
            vertices = self.graph.vertices_of_rank(rank)
            if not vertices:
                raise NotFound(f"no vertex has the rank {rank}")
            gone.update(self.with_all_below(vertices))
        rows = np.array(sorted(gone), np.int32)
        if self._root_filter is not None:
            ledger = self.ledger
            for job in ledger.jobs.values():
                hit = job.spans[ledger.exclusive[job.spans] & np.isin(ledger.vertex[job.spans], rows)]
                if len(hit):
                    self._root_filter.reduce(job.id, ledger.vertex[hit], ledger.needs[hit])
        return self._remove(rows)

    def with_all_below(self, vertices: Iterable[int]) -> set[int]:
        """Vertices and what hangs below them, which may have no rank of its own."""
        tree = self.tree.shape()
        return {row for v in vertices for row in (tree.subtree(v).tolist() if v in tree else [v])}

    def _remove(self, gone: Rows) -> dict[int, Rows]:
        if self.tree.root in gone:
            raise Conflict("the root cannot be removed")
        lost = self.ledger.clear(gone)
        for job in lost:
            self.recount(job)
        up = self.graph.nodes_up
        self.graph.remove(gone)
        if self._root_filter is not None:
            self.graph.nodes_up = up
        self._refresh()
        return lost

    def remove_vertices(self, gone: Rows) -> dict[int, Rows]:
        """Take vertices out of the graph, with all that is below them; says what each job lost by it."""
        return self._remove(gone)

    def add_quantities(self, types: Iterable[str]) -> None:
        """From now on, any part of a vertex of these types can be taken too."""
        more = frozenset(types) | self.extensions.quantities
        self.extensions = replace(self.extensions, quantities=more)
        self._pools = frozenset(self.graph.types.code(word) for word in more)
        self.index = self._make_index()

    def set_status(self, path: str, *, up: bool) -> None:
        """Mark the vertices of a path up or down; what is below a vertex that is down cannot be had."""
        found = self.graph.vertices_at(path)
        if not found:
            raise NotFound(f"no vertex has the path {path}")
        tree = self.graph.tree(self.subsystems[0])
        below: set[int] = set()
        for vertex in found:
            if self.graph.set_status(vertex, up=up):
                below.update(tree.subtree(vertex).tolist() if vertex in tree else [vertex])
        # Fluxion counts every node below a vertex that changes, whatever the node's own status.
        nodes = [vertex for vertex in below if self.graph.type[vertex] == self._node]
        self.graph.nodes_up += int(self.graph.size[nodes].sum()) * (1 if up else -1)

    def filter_usage(self, *, now: int | None, job: int | None) -> dict[int, dict[str, tuple[int, int]]]:
        """Per vertex and counted type: what is in use below it, at a time or by one job, and the total."""
        graph, tree, ledger, filters = self.graph, self.tree.shape(), self.ledger, self.filters
        if job is None:
            return usage_at(graph, tree, ledger, filters, now=now)
        return usage_of(graph, tree, ledger, filters, job=job)

    # -- inside ----------------------------------------------------------------------------------------------

    def _duration(self, request: Request, now: int) -> int:
        given = request.duration
        if not given:
            return self.horizon - now
        if math.isnan(given) or given < 0 or given > self.horizon:
            raise InvalidJobspec(
                f"{given} seconds: must be between 0 and {self.horizon}", where="attributes.system.duration"
            )
        return math.ceil(given)

    def _search(self, request: Request, window: Window) -> Found:
        """Search with the index where it can tell, else with the walk.

        A search that stops early usually finds enough at once, and the walk is quickest then; it gives way to
        the index when it has come too far.
        """
        if request.shape in self._hopeless:
            # What an empty graph cannot hold, no other can. (Not so with ranges: they take more where
            # there is more, and then fit fewer.)
            return Found(None, EBUSY)
        if self._has_siblings(request):
            return self._search_siblings(request, window)
        if not self._uses_index:
            return self._walk(request, window)
        if self.policy.stop_early and request.weight <= _SMALL:
            near = self._walk_shortly(request, window)
            if near is not None:
                return near
        allowed = self._allowed_by(request.constraint)
        found = search(self.index, request.needs, window, allowed, self._whole(request))
        return self._walk(request, window) if found is None else found

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
            found = self._walk(request, window, limit=far)
        except TooFar:
            found = None
        if found is not None and found.selection is not None:
            self._patience = 1
        else:
            self._pause, self._patience = self._patience, min(2 * self._patience, _LONGEST_PAUSE)
        return found

    def _has_siblings(self, request: Request) -> bool:
        types = {need.type for need in request.needs}
        return self.extensions.siblings and len(types) < len(request.needs)

    def _search_siblings(self, request: Request, window: Window) -> Found:
        """Place the needs of the top level one after the other, each seeing what those before it took."""
        window = FAR if window.empty else window
        parts: list[Selection] = []
        tried: list[int] = []
        try:
            for number, need in enumerate(request.needs):
                one = replace(request, needs=(need,), minimum={}, shape=())
                found = self._search(one, window)
                if found.selection is None:
                    return found
                parts.append(found.selection)
                if number + 1 < len(request.needs) and len(found.selection):
                    tried.append(_TRIED - number)
                    start, end = window.start, window.end
                    self._hold(Placed(tried[-1], start, end, not window.allocate, found.selection))
        finally:
            for job in tried:
                self.ledger.remove(job)
        return Found(merged(self.tree, parts))

    @property
    def _uses_index(self) -> bool:
        return self.indexed and not self.flexible and len(self.subsystems) == 1

    def _walk(self, request: Request, window: Window, limit: int | None = None) -> Found:
        allowed = self._allowed_by(request.constraint)
        found = Found(None)
        for needs in variants(request.needs, self._slot) if self.flexible else (request.needs,):
            walk = (FlexibleWalk if self.flexible else Walk)(
                self.graph,
                self.ledger,
                self.policy,
                self.subsystems,
                self.load,
                self._twins,
                self._scores,
                self._factors,
                needs,
                window,
                allowed=allowed,
                pools=self._pools,
                keep_shared=self.extensions.shared,
                limit=limit,
            )
            found = walk.run(self._whole(request))
            self.visited = walk.visited
            if found.selection is not None:
                break
        return found

    def _never(self, request: Request, far: Found) -> Never:
        """The verdict on a request that an empty graph does not hold."""
        if far.obstacle == EINVAL and far.conflict is not None:
            raise InvalidJobspec(far.conflict)
        if request.is_fixed and far.conflict is None and not self._has_siblings(request):
            if len(self._hopeless) > _MANY_SHAPES:
                self._hopeless.clear()
            self._hopeless.add(request.shape)
        return Never("unsatisfiable")

    def _whole(self, request: Request) -> frozenset[int]:
        if self.policy.node_exclusive:
            return request.exclusive_types | {self._node}
        return request.exclusive_types

    def _earliest(self, request: Request, now: int, duration: int) -> tuple[int, Found]:
        """The first time, from now on, at which a search succeeds; times at which it cannot are skipped."""
        times = [now, *(time for time in self.ledger.times() if time > now)]
        starts: Iterable[int] = times
        if self._uses_index and len(times) > 1 and not self._has_siblings(request):
            allowed = self._allowed_by(request.constraint)
            # With many jobs, one search now is cheaper than to sweep over all of them.
            tried = [now] if len(self.ledger.jobs) > _FEW_JOBS else []
            rest = times[len(tried) :]
            sweep = possible_starts(self.index, request.needs, rest, duration=duration, allowed=allowed)
            starts = chain(tried, sweep)
        for time in starts:
            found = self._search(request, Window(time, time + duration, allocate=time == now))
            if found.selection is not None:
                if time == now:
                    return now, found
                # Fluxion looks one event further before it stops, and that sets its errno.
                return time, replace(found, obstacle=ENOENT if time == times[-1] else EBUSY)
        return now, Found(None)

    def _earliest_in_fluxion(
        self, filter_: RootFilter, request: Request, now: int, duration: int
    ) -> tuple[int, Found]:
        """The first time, of those that Fluxion tries, at which a search succeeds."""
        found = self._search(request, Window(now, now + duration))
        if found.selection is not None:
            return now, found
        starts = filter_.starts(now + 1, duration, request.minimum)
        for time in starts:
            found = self._search(request, Window(time, time + duration, allocate=False))
            if found.selection is not None:
                further = next(starts, None)
                return time, replace(found, obstacle=ENOENT if further is None else EBUSY)
        return now, Found(None)

    def _too_few_nodes(
        self, request: Request, operation: Operation, now: int, duration: int
    ) -> Outcome | None:
        """Fluxion's check before the search: are there as many nodes as the request needs at least?"""
        if not self.filters.counts(self._node) or self._has_siblings(request):
            return None
        wanted = request.minimum.get(self._node, 0)
        judging = operation is Operation.ALLOCATE_OR_JUDGE
        too_few: Outcome = Never("unsatisfiable") if judging else Wait("busy")
        if wanted > self.graph.nodes_up:
            return too_few
        if request.constraint is None or not wanted:
            return None
        allowed = self._allowed_by(request.constraint)
        nodes = self.graph.vertices_of_type(self._node)
        if allowed is not None:
            nodes = nodes[allowed[nodes]]
        if not judging:
            nodes = nodes[self.graph.up[nodes]]
        time = now if operation in (Operation.ALLOCATE, Operation.TRY) else self.horizon - 1
        touched = self.ledger.head[nodes] >= 0
        fit = int((self.graph.size[nodes[~touched]] == 1).sum())
        fit += sum(self.ledger.available(v, time, time + duration) == 1 for v in nodes[touched].tolist())
        return too_few if fit < wanted else None

    def _allowed_by(self, constraint: Constraint | None) -> Mask | None:
        """Which vertices a constraint admits; it speaks of some types only."""
        if constraint is None:
            return None
        key = (constraint, self.graph.property_generation)
        found = self._allowed.get(key)
        if found is None:
            graph = self.graph
            found = np.ones(graph.rows, np.bool_)
            nothing: dict[str, str] = {}
            for code in self._constrained:
                for vertex in graph.vertices_of_type(code).tolist():
                    found[vertex] = constraint.matches(
                        graph.name[vertex], int(graph.rank[vertex]), graph.properties.get(vertex, nothing)
                    )
            if len(self._allowed) > 256:
                self._allowed.clear()
            self._allowed[key] = found
        return found

    def _refresh(self) -> None:
        """Catch up with a graph that changed."""
        if self._shape != self.graph.shape_generation:
            self.ledger.grow(self.graph.rows, self.graph.size)
            self.tree = self.graph.tree(self.subsystems[0])
            self.filters.prime(self.graph, self.tree)
            self.load.reshaped()
            if self._root_filter is not None:
                self._root_filter.reshaped(self.tree)
        if self._scores_at != self.graph.property_generation:
            self._hopeless.clear()
            old, self._scores = self._scores, self.policy.scores(self.graph)
            self._scores_at = self.graph.property_generation
            if self._shape != self.graph.shape_generation or not np.array_equal(old, self._scores):
                self._shape = self.graph.shape_generation
                self.index = self._make_index()

    def _make_index(self) -> Index:
        self._twins = SlotCache(self.graph, self.tree, self.ledger, self._scores)
        factors = self._factors = self.policy.node_factor(self.graph) if self.policy.node_centric else None
        return Index(
            self.graph, self.tree, self.ledger, self.policy, self._scores, factors, self.load, self.extensions
        )

    def _record(self, placed: Placed) -> None:
        self._hold(placed)
        if self._root_filter is not None:
            chosen = placed.selection
            self._root_filter.add(
                placed.job,
                placed.at,
                placed.end,
                rows=chosen.vertices,
                needs=chosen.needs,
                exclusive=chosen.exclusive,
            )

    def _hold(self, placed: Placed) -> None:
        selection = placed.selection
        self.ledger.add(
            placed.job,
            start=placed.at,
            end=placed.end,
            reserved=placed.reserved,
            vertices=selection.vertices,
            needs=selection.needs,
            exclusive=selection.exclusive,
        )

    def _touch(self, placed: Placed, now: int, *, holds: bool = True) -> None:
        """Let the next search that stops early see how much is left below each touched vertex."""
        if self.policy.stop_early:
            chosen = placed.selection
            self.load.touch(
                self.tree,
                placed.job,
                chosen.vertices,
                chosen.needs,
                chosen.exclusive,
                start=placed.at,
                end=placed.end,
                now=now,
                holds=holds,
            )

    def recount(self, job: int) -> None:
        """A job has left some vertices and kept others: count again what it uses below each."""
        if self.policy.stop_early:
            ledger, spans = self.ledger, self.ledger.jobs[job].spans
            self.load.recount(
                self.tree, job, ledger.vertex[spans], ledger.needs[spans], ledger.exclusive[spans]
            )

    def cancel_visits(self, job: int) -> tuple[int, int]:
        """How many vertices Fluxion's walk would meet and leave when it cancels a job: what it holds, and
        the children of that."""
        tree = self.tree.shape()
        record = self.ledger.job(job)
        rows = self.ledger.vertex[record.spans]
        children = int((tree.child_start[rows + 1] - tree.child_start[rows]).sum())
        return 1 + children, len(rows)
