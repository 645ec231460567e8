"""The matcher: one graph, one ledger, one policy, and the operations on them.

`fluence match`, `fluence resource-query`, the queue and the graph of a live cluster go through it. It decides
which windows an operation looks at and records what was found; the search is in `window_search.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from errno import EINVAL

import numpy as np
from cachetools import FIFOCache

from fluence.errors import Conflict, FluenceError, InvalidInput, InvalidJobspec, NotFound
from fluence.graph import jgf
from fluence.graph.columns import Rows
from fluence.graph.filters import DEFAULT, Filters
from fluence.graph.graph import ResourceGraph
from fluence.graph.ledger import Ledger, LedgerJob
from fluence.graph.selection import Selection
from fluence.graph.tree import CONTAINMENT
from fluence.match import policy as policies
from fluence.match.earliest import earliest
from fluence.match.extensions import NONE, Extensions
from fluence.match.filter_usage import usage_at, usage_of
from fluence.match.placement import Never, Operation, Outcome, Placed, Wait
from fluence.match.policy import MatchPolicy
from fluence.match.precheck import NodeCheck
from fluence.match.recover import ledger_columns, recover
from fluence.match.release import ReleasedPart, release
from fluence.match.request import Request, compile_jobspec
from fluence.match.root_filter import RootFilter
from fluence.match.tables import Index
from fluence.match.visit_order import VisitOrder
from fluence.match.window import EMPTY, Found, Window
from fluence.match.window_search import WindowSearch
from fluence.model import idset
from fluence.model.jobspec import Jobspec

HORIZON = 3_153_600_000  # a hundred years: how long a graph lasts unless it is told otherwise
_JOBSPECS = 4096  # whose requests are kept
_NO_JOB = -1  # the id of what was only tried, as in Fluxion
_RECORDING = (Operation.ALLOCATE, Operation.ALLOCATE_OR_RESERVE, Operation.ALLOCATE_OR_JUDGE)


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
            flexible=flexible,
            extensions=extensions,
        )
        self.precheck = NodeCheck(self.search, self.filters, horizon)
        self._root_filter = RootFilter(graph, self.filters, self.tree) if bug_compatible else None
        self._shape_at = graph.shape_generation
        # What had to wait is tried again. A jobspec that is kept here keeps its id to itself.
        self._requests: FIFOCache[int, tuple[Jobspec, Request]] = FIFOCache(_JOBSPECS)

    @property
    def extensions(self) -> Extensions:
        """What the matcher can do beyond Fluxion."""
        return self.search.extensions

    @property
    def index(self) -> Index:
        """The tables from which most searches are answered."""
        return self.search.index

    @property
    def indexed(self) -> bool:
        """Whether the index is asked; False leaves every search to the walk."""
        return self.search.indexed

    @indexed.setter
    def indexed(self, value: bool) -> None:
        self.search.indexed = value

    @property
    def visited(self) -> int:
        """How many vertices the last walk met."""
        return self.search.visited

    # -- matching --------------------------------------------------------------------------------------------

    def match(
        self, operation: Operation | str, jobspec: Jobspec | Request, *, job: int | None = None, now: int = 0
    ) -> Outcome:
        """Carry out one operation at a time; only a successful allocation or reservation changes anything.

        ``job`` is the id under which that is recorded; the operations that record nothing need none.
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
            at, found = earliest(self.search, self._root_filter, request, now=now, duration=duration)
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
        """What a job holds or was promised, and when."""
        return self.ledger.job(job)

    def is_pool(self, vertex: int) -> bool:
        """Whether any part of a vertex can be taken."""
        return self.search.is_pool(vertex)

    def hold(self, placed: Placed, *, now: int | None = None) -> None:
        """Record a placement that was found elsewhere, such as the seats of a gang, or before; it is not
        checked. Only with ``now`` does the order of a `first` search follow it."""
        self.refresh()
        self._record(placed)
        if now is not None:
            self._touch(placed, now)

    def cancel(self, job: int) -> None:
        """Give back all that a job holds or was promised."""
        self.ledger.remove(job)
        self.visit_order.forget(job)
        if self._root_filter is not None:
            self._root_filter.remove(job)

    def partial_cancel(self, job: int, text: str | bytes, *, reader: str = "rv1exec") -> ReleasedPart:
        """Give back the ranks or vertices that an R or a graph names."""
        self.refresh()
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
        self.refresh()
        if at < 0 or duration <= 0:
            raise InvalidInput(
                f"invalid time ({at}, {duration}): the start must not be negative, nor the length 0"
            )
        if job in self.ledger.jobs:
            raise self._refused(job)
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
        self.refresh()
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
        self.refresh()
        return lost

    def remove_vertices(self, gone: Rows) -> dict[int, Rows]:
        """Take vertices out of the graph, with all that is below them; says what each job lost by it."""
        return self._remove(gone)

    def add_quantities(self, types: Iterable[str]) -> None:
        """From now on, any part of a vertex of these types can be taken too."""
        self.search.add_quantities(types)
        self.refresh()

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
        nodes = [vertex for vertex in below if self.graph.type[vertex] == self.search.node]
        self.graph.nodes_up += int(self.graph.size[nodes].sum()) * (1 if up else -1)

    def filter_usage(self, *, now: int | None, job: int | None) -> dict[int, dict[str, tuple[int, int]]]:
        """Per vertex and counted type: what is in use below it, at a time or by one job, and the total."""
        graph, tree, ledger, filters = self.graph, self.tree.shape(), self.ledger, self.filters
        if job is None:
            return usage_at(graph, tree, ledger, filters, now=now)
        return usage_of(graph, tree, ledger, filters, job=job)

    def refresh(self) -> None:
        """Catch up with a graph that changed."""
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
        """How long a request would run from now on: until the horizon where it does not say."""
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
        """The verdict on a request that an empty graph does not hold."""
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

    def _touch(self, placed: Placed, now: int, *, holds: bool = True) -> None:
        """Let the next search that stops early see how much is left below each touched vertex."""
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
            )

    def recount(self, job: int) -> None:
        """A job has left some vertices and kept others: count again what it uses below each."""
        if self.policy.stop_early:
            ledger, spans = self.ledger, self.ledger.jobs[job].spans
            self.visit_order.recount(
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


def _operation(name: str) -> Operation:
    try:
        return Operation(name)
    except ValueError:
        known = ", ".join(each.value for each in Operation)
        raise InvalidInput(
            f"{name!r} is not a valid operation: choose one of {known}", where="operation"
        ) from None
