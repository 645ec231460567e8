"""A planner that matches jobspecs: a reservation names its resources.

The queue uses it, in the simulator and in what-if, for every request that `PoolPlanner` does not understand.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fluence.errors import Conflict, InvalidInput
from fluence.graph.graph import Ints, Mask
from fluence.match.explain import explain
from fluence.match.matcher import Matcher, NothingHeld
from fluence.match.request import Never, Operation, Placed, Request
from fluence.model.jobspec import Count, Jobspec
from fluence.model.reason import Code, Reason
from fluence.queue.allocations import Allocation, Allocations
from fluence.queue.planner import Outlook, Planner, PlanRequest, WithoutClasses, limits
from fluence.queue.timeline import Amounts, Totals, asked_for, expected

KNOWN_REQUESTS = 100_000  # jobspecs that are kept compiled


class GraphPlanner(WithoutClasses):
    """Plans any request that the matcher can place, one at a time."""

    is_exact = False

    def __init__(self, matcher: Matcher, allocations: Allocations | None = None) -> None:
        self.matcher = matcher
        self.freed = self.opened = self.lost = 0
        self.allocations = Allocations() if allocations is None else allocations
        self._number = max(matcher.ledger.jobs, default=0)
        self._shapes: dict[Hashable, int] = {}
        # By identity, because hashing a jobspec costs more than a lookup. The jobspec is kept so that its id
        # stays valid.
        self._requests: dict[int, tuple[Hashable, Request]] = {}
        self._state = matcher.graph.state_generation
        self._usable = self._find_usable()
        self._feasible: dict[int, Reason | None] = {}  # per shape
        self._feasible_at = self._state
        self._asked: dict[Hashable, Amounts] = {}  # per shape
        self._capacity: Amounts = {}
        self._capacity_at = -1

    # -- requests --------------------------------------------------------------------------------------------

    def understands(self, request: Hashable) -> bool:
        return True

    def widened(self) -> Planner:
        return self

    def adopt(self, task: str, number: int, request: Hashable, start: int, end: int, now: int) -> Allocation:
        """Take over a task that already has an allocation in the matcher."""
        held = Allocation(task, request, self.matcher.ledger.job(number))
        self.allocations.add(held)
        self._number = max(self._number, number)
        return held

    def adopt_reservation(self, task: str, request: Hashable, placed: Placed) -> Allocation:
        """Take over a reservation."""
        self.matcher.hold(placed)
        held = Allocation(task, request, self.matcher.ledger.job(placed.job))
        self.allocations.add(held)
        self._number = max(self._number, placed.job)
        return held

    def shape(self, request: Hashable) -> int:
        return self._shapes.setdefault(self._known(request).shape, len(self._shapes))

    def feasibility(self, request: Hashable) -> Reason | None:
        shape = self.shape(request)
        if self._feasible_at != self.matcher.graph.state_generation:
            self._feasible_at = self.matcher.graph.state_generation
            self._feasible.clear()
        if shape not in self._feasible:
            self._feasible[shape] = self._feasibility(self._known(request))
        return self._feasible[shape]

    def _feasibility(self, request: Request) -> Reason | None:
        try:
            outcome = self.matcher.match(Operation.JUDGE, request)
        except (NothingHeld, InvalidInput) as fault:
            return Reason.of(Code.INVALID_REQUEST, fault=str(fault))
        if not isinstance(outcome, Never):
            return None
        return Reason.of(Code.NO_EMPTY_CLUSTER, cause=explain(self.matcher, request).cause)

    def relaxed(self, request: Hashable) -> Hashable | None:
        assert isinstance(request, Jobspec)
        if request.attributes.constraints is None:
            return None
        return replace(request, attributes=replace(request.attributes, constraints=None))

    def amounts(self, request: Hashable) -> Mapping[str, int]:
        words = self.matcher.graph.types.words
        known = self._amounts(self._known(request))
        return {words[kind]: amount for kind, amount in known.items() if isinstance(kind, int)}

    def capacities(self) -> Mapping[str, int]:
        words = self.matcher.graph.types.words
        return {words[kind]: amount for kind, amount in self._measured().items() if isinstance(kind, int)}

    # -- starting and planning -------------------------------------------------------------------------------

    def advance(self, now: int) -> None:
        if self._state != self.matcher.graph.state_generation:
            self._state = self.matcher.graph.state_generation
            before, self._usable = self._usable, self._find_usable()
            self.freed += 1
            self.opened += 1
            self.lost += bool((before[0] & ~self._usable[0][: len(before[0])]).any())
            self.lost += before[1] != self._usable[1]

    def start(self, task: str, request: Hashable, now: int, limit: int, clear: int) -> Allocation | None:
        return self._match(Operation.ALLOCATE, task, request, now, limit, clear)

    def start_or_reserve(
        self, task: str, request: Hashable, now: int, limit: int, clear: int, begin: int = 0
    ) -> Allocation | None:
        return self._match(Operation.ALLOCATE_OR_RESERVE, task, request, now, limit, clear, begin)

    def may_move(self, allocation: Allocation, now: int) -> bool:
        return True  # only a match can tell

    def may_start(self, allocation: Allocation, now: int, clear: int) -> bool:
        return True  # only a match can tell

    def displaced(self) -> Collection[Allocation]:
        return list(self.allocations.reserved.values())

    def drop(self, allocation: Allocation) -> None:
        self.matcher.cancel(allocation.number)
        self.allocations.drop(allocation)

    def drop_all(self) -> None:
        for allocation in list(self.allocations.reserved.values()):
            self.drop(allocation)

    def end(self, allocation: Allocation, now: int) -> None:
        self.allocations.finish(allocation)
        self.matcher.cancel(allocation.number)
        self.freed += 1
        if now < allocation.end:
            self.opened += 1

    def extend(self, allocation: Allocation, end: int) -> None:
        self.matcher.ledger.stretch(allocation.number, end)
        self.allocations.note_end(allocation)
        self.lost += 1

    def mark(self) -> object:
        return self.allocations.mark(), self.matcher.ledger.mark()

    def undo(self, mark: object) -> None:
        assert isinstance(mark, tuple)
        self.allocations.undo(mark[0])
        self.matcher.undo(mark[1])

    def settle(self, now: int) -> list[Allocation]:
        self.allocations.settle()
        self.matcher.ledger.settle()
        return []

    def rule_out(self, shape: int, limit: int, blocked: Ints, now: int) -> None:
        blocked[shape] = min(int(blocked[shape]), limit)

    # -- thinking ahead --------------------------------------------------------------------------------------

    def sketch(
        self,
        now: int,
        waiting: Sequence[PlanRequest],
        *,
        in_order: bool,
        wanted: Collection[int] | None = None,
    ) -> list[int | None]:
        asks = ((self._demand(ask), ask.limit) for ask in waiting)
        return self._totals(now, {}, waiting).place_all(asks, now, in_order=in_order)

    def expect(
        self, now: int, ends: Mapping[str, int], waiting: Sequence[PlanRequest], wanted: Collection[int]
    ) -> dict[int, int]:
        some = waiting[: max(wanted, default=-1) + 1]
        lasting = ((self._demand(ask), ask.duration) for ask in some)
        return expected(self._totals(now, ends, some).place_all(lasting, now), wanted)

    def supported(self, request: Hashable, now: int, limit: int) -> int | None:
        return now

    def outlook(self, request: Hashable, now: int, limit: int) -> Outlook:
        assert isinstance(request, Jobspec)
        wanted = replace(self._known(request), duration=limit)
        future = self.matcher.match(Operation.TRY_FUTURE, wanted, now=now)
        told = None if self._fits(wanted, now) else explain(self.matcher, wanted, now=now)
        causes: tuple[Reason, ...] = ()
        if told is not None:
            # Only the cause: the times of the explanation are milliseconds, which users do not read.
            causes = (Reason.of(Code.MATCHER_EXPLAINS, cause=told.cause),)
        return Outlook(
            causes,
            start=future.at if isinstance(future, Placed) else None,
            fewer=self._most(request, now, limit),
            shorter=self._longest(wanted, now, limit),
            blockers=self._named(told.blocking) if told else (),
        )

    # -- inside ----------------------------------------------------------------------------------------------

    def _find_usable(self) -> tuple[Mask, int]:
        """The vertices that exist and are up, and the generation of properties, on which constraints
        depend."""
        graph = self.matcher.graph
        return graph.up & graph.alive, graph.property_generation

    def _known(self, request: Hashable) -> Request:
        found = self._requests.get(id(request))
        if found is None:
            if not isinstance(request, Jobspec):
                raise TypeError(f"a jobspec is needed, not {type(request).__name__}")
            if len(self._requests) >= KNOWN_REQUESTS:
                del self._requests[next(iter(self._requests))]  # the oldest
            found = self._requests[id(request)] = (request, self.matcher.compile(request))
        return found[1]

    def _match(
        self,
        operation: Operation,
        task: str,
        request: Hashable,
        now: int,
        limit: int,
        clear: int,
        begin: int = 0,
    ) -> Allocation | None:
        if task in self.allocations:
            raise Conflict(f"{task} already holds resources")
        wanted = replace(self._known(request), duration=clear)
        self._number += 1
        placed = self.matcher.match(operation, wanted, job=self._number, now=now, begin=begin)
        if not isinstance(placed, Placed):
            return None
        if limit < clear:
            self.matcher.ledger.stretch(placed.job, placed.at + limit)
        held = Allocation(task, request, self.matcher.ledger.job(placed.job))
        self.allocations.add(held)
        return held

    def _totals(self, now: int, ends: Mapping[str, int], waiting: Sequence[PlanRequest]) -> Totals:
        quotas = self.allocations.quotas
        capacity = self._measured()
        if quotas is not None:
            capacity = {**capacity, **limits(waiting)}
        running = []
        for name, each in self.allocations.running.items():
            amounts = self._amounts(self._known(each.request))
            if quotas is not None:
                amounts = {**amounts, **quotas.lines(name)}
            running.append((ends.get(name, each.end), amounts))
        return Totals(now, capacity, running)

    def _demand(self, ask: PlanRequest) -> Amounts:
        amounts = self._amounts(self._known(ask.request))
        return amounts if ask.claim is None else {**amounts, **ask.claim.demand}

    def _measured(self) -> Amounts:
        """The usable amount of each type."""
        graph = self.matcher.graph
        if self._capacity_at != graph.state_generation:
            self._capacity_at = graph.state_generation
            up = graph.alive & graph.up
            tree = self.matcher.tree.shape()
            for vertex in np.flatnonzero(graph.alive & ~graph.up).tolist():
                if vertex in tree:  # its subtree cannot be used either
                    up[tree.subtree(vertex)] = False
            sums = np.bincount(graph.type[up], weights=graph.size[up])
            self._capacity = {kind: int(amount) for kind, amount in enumerate(sums.tolist()) if amount}
        return self._capacity

    def _amounts(self, request: Request) -> Amounts:
        found = self._asked.get(request.shape)
        if found is None:
            found = self._asked[request.shape] = asked_for(request)
        return found

    def _named(self, numbers: Collection[int]) -> tuple[str, ...]:
        """The tasks of these jobs of the matcher, by their ends."""
        running, reserved = self.allocations.running.values(), self.allocations.reserved.values()
        found = [(held.end, held.task) for held in running if held.number in numbers]
        found += [(held.start, held.task) for held in reserved if held.number in numbers]
        return tuple(name for _, name in sorted(found))

    def _fits(self, wanted: Request, now: int) -> bool:
        return bool(self.matcher.match(Operation.TRY, wanted, now=now))

    def _longest(self, wanted: Request, now: int, limit: int) -> int | None:
        """The longest limit with which it could start now: it ends at a time at which the ledger changes."""
        times = [time for time in self.matcher.ledger.times() if now < time < now + limit]
        low, high = 0, len(times)  # a shorter limit fits if a longer one does
        while low < high:
            middle = (low + high) // 2
            if self._fits(replace(wanted, duration=times[middle] - now), now):
                low = middle + 1
            else:
                high = middle
        return times[low - 1] - now if low else None

    def _most(self, request: Jobspec, now: int, limit: int) -> int | None:
        """The largest count at the top of the request that could start now."""
        top = request.resources[0]
        if len(request.resources) != 1 or top.count.min != top.count.max:
            return None

        def fits(count: int) -> bool:
            fewer = replace(request, resources=(replace(top, count=Count(count, count)),))
            return self._fits(replace(self.matcher.compile(fewer), duration=limit), now)

        low, high = 0, top.count.min
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low or None
