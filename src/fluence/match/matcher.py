"""The matcher: one graph, one ledger, one policy, and the operations on them.

`fluence match`, `fluence resource-query`, the queue and the graph of a live cluster use it. It decides which
windows an operation tries, and records the result; the search is in `window_search.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from errno import EINVAL

import numpy as np
from cachetools import FIFOCache

from fluence.errors import Conflict, FluenceError, InvalidInput, InvalidJobspec, NotFound
from fluence.graph import jgf
from fluence.graph.columns import CONTAINMENT, Rows
from fluence.graph.filters import DEFAULT, Filters
from fluence.graph.graph import ResourceGraph
from fluence.graph.ledger import Ledger, LedgerJob
from fluence.graph.selection import Selection
from fluence.match import policy as policies
from fluence.match.filter_usage import RootFilter, counting, usage_at, usage_of
from fluence.match.policy import MatchPolicy, VisitOrder
from fluence.match.recover import ReleasedPart, leave_empty, ledger_columns, recover, release
from fluence.match.request import (
    EMPTY,
    NONE,
    Extensions,
    Found,
    Never,
    Operation,
    Outcome,
    Placed,
    Request,
    Wait,
    Window,
    compile_jobspec,
)
from fluence.match.start_times import earliest
from fluence.match.tables import Index
from fluence.match.window_search import NodeCheck, WindowSearch
from fluence.model import idset
from fluence.model.jobspec import Jobspec

HORIZON = 3_153_600_000  # a hundred years: the default lifetime of a graph
_JOBSPECS = 4096  # whose compiled requests are kept
_NO_JOB = -1  # the id of trials, as in Fluxion
_RECORDING = (Operation.ALLOCATE, Operation.ALLOCATE_OR_RESERVE, Operation.ALLOCATE_OR_JUDGE)


class NothingHeld(InvalidJobspec):
    """The request matches, but nothing of it would be held: it asks for no slot and nothing exclusive, or a
    level is missing between a resource and the slot below it (name it, such as the socket)."""

    def __init__(self, obstacle: int) -> None:
        super().__init__(" ".join((self.__doc__ or "").split()))
        self.obstacle = obstacle


class Matcher:
    """Places requests on a graph and records the allocations."""

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
        """``bug_compatible``: also reproduce the errors of Fluxion 0.54 after a change of the graph, as
        `resource-query` does (docs/matcher.md)."""
        self.graph, self.bug_compatible = graph, bug_compatible
        self.policy = policies.find(policy) if isinstance(policy, str) else policy
        self.subsystems = tuple(subsystems)
        self.horizon = horizon
        self.flexible = flexible
        self.tree = graph.tree(self.subsystems[0])
        self.ledger = Ledger(graph.rows, graph.size)
        self.filters = Filters.parse(filters, graph)
        self.filters.prime(graph, self.tree)
        self.visit_order = VisitOrder(graph, self.filters)
        self.search = WindowSearch(
            graph,
            self.ledger,
            self.policy,
            self.visit_order,
            subsystems=self.subsystems,
            filters=self.filters,
            flexible=flexible,
            extensions=extensions,
        )
        self.precheck = NodeCheck(self.search, self.filters, horizon)
        self._root_filter = RootFilter(graph, self.filters, self.tree) if bug_compatible else None
        if bug_compatible:
            # Fluxion adds one for each node that is up, and subtracts one for each node that is down when
            # added.
            nodes = graph.vertices_of_type(self.search.node)
            graph.nodes_up = int((2 * graph.up[nodes] - 1).sum())
        self._shape_at = graph.shape_generation
        # Waiting requests are tried again. The cache keeps the jobspec, so that its id is not reused.
        self._requests: FIFOCache[int, tuple[Jobspec, Request]] = FIFOCache(_JOBSPECS)

    @property
    def extensions(self) -> Extensions:
        """The features of the matcher beyond Fluxion."""
        return self.search.extensions

    @property
    def index(self) -> Index:
        """The tables from which most searches are answered."""
        return self.search.index

    @property
    def indexed(self) -> bool:
        """Whether the index is used; False: the walk makes every search."""
        return self.search.indexed

    @indexed.setter
    def indexed(self, value: bool) -> None:
        self.search.indexed = value

    @property
    def visited(self) -> int:
        """The number of vertices that the last walk visited."""
        return self.search.visited

    # -- matching --------------------------------------------------------------------------------------------

    def match(
        self,
        operation: Operation | str,
        jobspec: Jobspec | Request,
        *,
        job: int | None = None,
        now: int = 0,
        begin: int | None = None,
    ) -> Outcome:
        """Carry out an operation at a time. Only a successful allocation or reservation changes anything.

        ``job`` is the id under which it is recorded; operations that record nothing need no id. An operation
        that searches for a start time searches from ``begin`` on, if that is later than now.
        """
        if not isinstance(operation, Operation):
            operation = _operation(operation)
        records = operation in _RECORDING
        request = jobspec if isinstance(jobspec, Request) else self.compile(jobspec)
        self.refresh()
        duration = self.duration(request, now)
        if records and (job is None or job < 0 or job in self.ledger.jobs):
            raise self._refused(job)
        number = _NO_JOB if job is None else job
        if operation is Operation.JUDGE:
            found = self.search.find(request, EMPTY)
            if found.selection is not None:
                return Placed(number, now, now, False, found.selection)
            return self._never(request, found)
        if self.precheck.refuses(request, operation, now, duration):
            return Never("unsatisfiable") if operation is Operation.ALLOCATE_OR_JUDGE else Wait("busy")
        if operation in (Operation.ALLOCATE_OR_RESERVE, Operation.TRY_FUTURE):
            at, found = earliest(
                self.search, self._root_filter, request, now=now, duration=duration, begin=begin
            )
        else:
            at, found = now, self.search.find(request, Window(now, now + duration))
        if found.selection is None:
            if operation in (Operation.ALLOCATE, Operation.TRY):
                return Wait("busy")
            far = self.search.find(request, EMPTY)
            return self._never(request, far) if far.selection is None else Wait("busy")
        if at >= self.horizon:
            return Wait("no time before the end of the graph")
        if not len(found.selection):
            raise NothingHeld(found.obstacle)
        end = min(at + duration, self.horizon)
        placed = Placed(number, at, end, at != now, found.selection, request.queue)
        if records:
            self._record(placed)
        self._touch(placed, now, holds=records)
        return placed

    def compile(self, jobspec: Jobspec) -> Request:
        """The request of a jobspec, checked against the types of this graph."""
        known = self._requests.get(id(jobspec))
        if known is None:
            request = compile_jobspec(jobspec, self.graph, flexible=self.flexible)
            known = self._requests[id(jobspec)] = (jobspec, request)
        return known[1]

    def info(self, job: int) -> LedgerJob:
        """The allocation or reservation of a job, with its times."""
        return self.ledger.job(job)

    def holds(self, job: int, vertex: int) -> bool:
        """Whether a job holds a vertex or shares it."""
        return bool((self.ledger.vertex[self.ledger.job(job).spans] == vertex).any())

    def is_pool(self, vertex: int) -> bool:
        """Whether a vertex can be taken in part."""
        return self.search.is_pool(vertex)

    def hold(self, placed: Placed, *, now: int | None = None) -> None:
        """Record a placement that was found earlier or elsewhere, such as that of a gang, without checks. The
        order of a `first` search takes it into account only if ``now`` is given."""
        self.refresh()
        self._record(placed)
        if now is not None:
            self._touch(placed, now)

    def cancel(self, job: int) -> None:
        """Free all resources and reservations of a job."""
        self.ledger.remove(job)
        self.visit_order.forget(job)
        if self._root_filter is not None:
            self._root_filter.remove(job)

    def undo(self, mark: int) -> None:
        """Undo what was recorded and cancelled since a mark of the ledger."""
        for record, is_back in self.ledger.undo(mark):
            if not is_back:
                self.visit_order.forget(record.id)
            elif self.policy.stop_early:
                columns = self.ledger.columns(record)
                self.visit_order.touch(
                    self.tree, record.id, *columns, start=record.start, end=record.end, now=0, holds=True
                )

    def partial_cancel(self, job: int, text: str | bytes, *, reader: str = "rv1exec") -> ReleasedPart:
        """Free the ranks or vertices that an R or a graph names."""
        self.refresh()
        return release(self, job, text, reader)

    def give_back(self, job: int, spans: Rows) -> None:
        """Remove some spans of a job; the job stays, even without spans."""
        ledger = self.ledger
        alone = spans[ledger.exclusive[spans]]
        if self._root_filter is not None:
            self._root_filter.reduce(job, ledger.vertex[alone], ledger.needs[alone])
        ledger.release(job, spans)

    def update(
        self, job: int, text: str | bytes, *, reader: str = "jgf", at: int, duration: int, now: int = 0
    ) -> Placed:
        """Re-create the allocation that a graph or an R describes, all or nothing."""
        self.refresh()
        if at < 0 or duration <= 0:
            raise InvalidInput(
                f"invalid time ({at}, {duration}): the start must not be negative, nor the length 0"
            )
        if job in self.ledger.jobs:
            raise self._refused(job)
        found = recover(self, text, reader, at, at + duration)
        shown, rows, needs, own = ledger_columns(self, found)
        selection = shown if shown is not None else Selection.of(self.tree, rows[:0], needs[:0], own[:0])
        placed = Placed(job, at, at + duration, at != now, selection)
        self.ledger.add(
            job, start=at, end=at + duration, reserved=False, vertices=rows, needs=needs, exclusive=own
        )
        if self._root_filter is not None:
            self._root_filter.add(job, at, at + duration, rows=rows, needs=needs, exclusive=own)
        # Fluxion asks how much is left before time 0, and treats the error as 0.
        self._touch(placed, now, left=0 if self._root_filter is not None else None)
        return placed

    # -- changing the graph ----------------------------------------------------------------------------------

    def grow(self, text: str | bytes, *, source: str = "jgf") -> Rows:
        """Add the vertices of a JGF document; vertices that already exist stay as they are."""
        up = self.graph.nodes_up
        rows = self.graph.extend(jgf.read(text, source=source, into=self.graph))
        if self._root_filter is not None:
            self.graph.nodes_up = up  # Fluxion counts the nodes only when it loads a graph
        self.refresh()
        return rows

    def remove_path(self, path: str) -> Rows:
        """Remove a vertex and everything below it from the graph, even if jobs use it."""
        found = self.graph.vertices_at(path)
        if not found:
            raise NotFound(f"no vertex has the path {path}")
        gone = self.tree.shape().subtree(found[-1]).copy()
        self._remove(gone)
        return gone

    def remove_ranks(self, ranks: str) -> dict[int, Rows]:
        """Remove all vertices of some ranks from the graph; returns what each job lost."""
        gone: set[int] = set()
        for rank in idset.decode(ranks):
            vertices = self.graph.vertices_of_rank(rank)
            if not vertices:
                raise NotFound(f"no vertex has the rank {rank}")
            gone.update(self.with_all_below(vertices))
        rows = np.array(sorted(gone), np.int32)
        ledger, tree = self.ledger, self.tree.shape()
        above = {up for row in gone if row in tree for up in tree.ancestors(row)} - gone
        counted = {
            job.id: above & set(counting(self.graph, tree, self.filters, ledger.vertex[job.spans]))
            for job in ledger.jobs.values()
        }
        if self._root_filter is not None:
            for job in ledger.jobs.values():
                hit = job.spans[ledger.exclusive[job.spans] & np.isin(ledger.vertex[job.spans], rows)]
                if len(hit):
                    self._root_filter.reduce(job.id, ledger.vertex[hit], ledger.needs[hit])
        lost = self._remove(rows)
        for number in lost:
            leave_empty(self, number, counted[number])
        return lost

    def with_all_below(self, vertices: Iterable[int]) -> set[int]:
        """Vertices and everything below them, which may have no rank."""
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
        self.refresh()
        return lost

    def remove_vertices(self, gone: Rows) -> dict[int, Rows]:
        """Remove vertices and everything below them from the graph; returns what each job lost."""
        return self._remove(gone)

    def add_quantities(self, types: Iterable[str]) -> None:
        """From now on, vertices of these types can be taken in part too."""
        self.search.add_quantities(types)
        self.refresh()

    def set_status(self, path: str, *, up: bool) -> None:
        """Mark the vertices of a path up or down. Nothing below a vertex that is down can be allocated."""
        found = self.graph.vertices_at(path)
        if not found:
            raise NotFound(f"no vertex has the path {path}")
        tree = self.graph.tree(self.subsystems[0])
        below: set[int] = set()
        for vertex in found:
            if self.graph.set_status(vertex, up=up):
                below.update(tree.subtree(vertex).tolist() if vertex in tree else [vertex])
        # Fluxion counts every node below a vertex that changes, regardless of the status of the node.
        nodes = [vertex for vertex in below if self.graph.type[vertex] == self.search.node]
        self.graph.nodes_up += int(self.graph.size[nodes].sum()) * (1 if up else -1)

    def filter_usage(self, *, now: int | None, job: int | None) -> dict[int, dict[str, tuple[int, int]]]:
        """Per vertex and counted type: the amount in use below it, at a time or by one job, and the total."""
        graph, tree, ledger, filters = self.graph, self.tree.shape(), self.ledger, self.filters
        if job is None:
            return usage_at(graph, tree, ledger, filters, now=now)
        return usage_of(graph, tree, ledger, filters, job=job)

    def refresh(self) -> None:
        """Update the caches after a change of the graph."""
        if self._shape_at != self.graph.shape_generation:
            self._shape_at = self.graph.shape_generation
            self.ledger.grow(self.graph.rows, self.graph.size)
            self.tree = self.graph.tree(self.subsystems[0])
            self.filters.prime(self.graph, self.tree)
            self.visit_order.reshaped()
            if self._root_filter is not None:
                self._root_filter.reshaped(self.tree)
        self.search.refresh()

    def duration(self, request: Request, now: int) -> int:
        """How long a request would run from now on: until the horizon if it has no duration."""
        given = request.duration
        if not given:
            return self.horizon - now
        if math.isnan(given) or given < 0 or given > self.horizon:
            raise InvalidJobspec(
                f"{given} seconds: must be between 0 and {self.horizon}", where="attributes.system.duration"
            )
        return math.ceil(given)

    # -- inside ----------------------------------------------------------------------------------------------

    def _refused(self, job: int | None) -> FluenceError:
        """Why nothing can be recorded under the id of a job."""
        if job in self.ledger.jobs:
            return Conflict(f"job {job} already holds resources: cancel it first or choose another id")
        given = "none is given" if job is None else f"{job} is not a valid id"
        return InvalidInput(f"{given}: an allocation needs the id of its job, 0 or more", where="job")

    def _never(self, request: Request, far: Found) -> Never:
        """The result for a request that does not fit on the empty graph."""
        if far.obstacle == EINVAL and far.conflict is not None:
            raise InvalidJobspec(far.conflict)
        self.search.never_fits(request, far)
        return Never("unsatisfiable")

    def _record(self, placed: Placed) -> None:
        chosen = placed.selection
        self.ledger.add(
            placed.job,
            start=placed.at,
            end=placed.end,
            reserved=placed.reserved,
            vertices=chosen.vertices,
            needs=chosen.needs,
            exclusive=chosen.exclusive,
        )
        if self._root_filter is not None:
            self._root_filter.add(
                placed.job,
                placed.at,
                placed.end,
                rows=chosen.vertices,
                needs=chosen.needs,
                exclusive=chosen.exclusive,
            )

    def _touch(self, placed: Placed, now: int, *, holds: bool = True, left: int | None = None) -> None:
        """Update the free amounts below each touched vertex, for the next search that stops early."""
        if self.policy.stop_early:
            chosen = placed.selection
            self.visit_order.touch(
                self.tree,
                placed.job,
                chosen.vertices,
                chosen.needs,
                chosen.exclusive,
                start=placed.at,
                end=placed.end,
                now=now,
                holds=holds,
                left=left,
            )

    def recount(self, job: int) -> None:
        """A job has left some vertices and kept others: count its use below each of them again."""
        if self.policy.stop_early:
            ledger, spans = self.ledger, self.ledger.jobs[job].spans
            self.visit_order.recount(
                self.tree, job, ledger.vertex[spans], ledger.needs[spans], ledger.exclusive[spans]
            )

    def cancel_visits(self, job: int) -> tuple[int, int]:
        """The numbers of vertices that Fluxion's walk would enter and leave when it cancels a job."""
        tree = self.tree.shape()
        record = self.ledger.job(job)
        rows = self.ledger.vertex[record.spans]
        children = int((tree.child_start[rows + 1] - tree.child_start[rows]).sum())
        return 1 + children, len(rows)


def _operation(name: str) -> Operation:
    try:
        return Operation(name)
    except ValueError:
        known = ", ".join(each.value for each in Operation)
        raise InvalidInput(
            f"{name!r} is not a valid operation: choose one of {known}", where="operation"
        ) from None
