"""A space that plans by matching: a reservation names its resources."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fluence.errors import Conflict, InvalidInput
from fluence.graph.graph import Ints, Mask
from fluence.match.explain import explain
from fluence.match.matcher import Matcher, NothingHeld
from fluence.match.placement import Never, Operation, Placed
from fluence.match.request import Request
from fluence.model.count import Count
from fluence.model.jobspec import Jobspec
from fluence.queue.journal import Journal
from fluence.queue.planner import Outlook, Planner, PlanRequest
from fluence.queue.totals import Amounts, Totals, asked_for, expected


@dataclass(slots=True)
class _Task:
    number: int  # in the matcher
    request: Request
    end: int


class GraphPlanner:
    """All that a matcher can place, one request at a time."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher
        self.freed = self.opened = self.lost = 0
        self.tasks: dict[str, _Task] = {}
        self.reservations: dict[str, Placed] = {}
        self._number = max(matcher.ledger.jobs, default=0)
        self._shapes: dict[Hashable, int] = {}
        # By identity, since hashing a jobspec costs more than finding it; the jobspec is kept with it.
        self._requests: dict[int, tuple[Hashable, Request]] = {}
        self._journal = Journal()
        self._state = matcher.graph.state_generation
        self._usable = self._find_usable()
        self._judged: dict[int, str | None] = {}  # per shape
        self._judged_at = self._state
        self._asked: dict[Hashable, Amounts] = {}  # per shape
        self._capacity: Amounts = {}
        self._capacity_at = -1

    # -- requests --------------------------------------------------------------------------------------------

    def understands(self, request: Hashable) -> bool:
        return True

    def widened(self) -> Planner:
        return self

    def adopt(self, task: str, number: int, request: Hashable, end: int, now: int) -> None:
        """Take over a task that already holds resources in the matcher."""
        self.take_over(task, number, self._known(request), end)

    def take_over(self, task: str, number: int, request: Request, end: int) -> None:
        """The same, with a request that is compiled already."""
        self.tasks[task] = _Task(number, request, end)
        self._number = max(self._number, number)

    def holding(self, task: str) -> tuple[int, int]:
        """The number of a task in the matcher, and when it ends by its limit."""
        return self.tasks[task].number, self.tasks[task].end

    def adopt_reservation(self, task: str, request: Hashable, placed: Placed) -> None:
        """Take over a place in the plan."""
        self.matcher.hold(placed)
        self.reservations[task] = placed
        self._number = max(self._number, placed.job)

    def reserving(self, task: str) -> tuple[int | None, int]:
        """The number of a reservation in the matcher, and its end."""
        return self.reservations[task].job, self.reservations[task].end

    def shape(self, request: Hashable) -> int:
        return self._shapes.setdefault(self._known(request).shape, len(self._shapes))

    def judge(self, request: Hashable) -> str | None:
        shape = self.shape(request)
        if self._judged_at != self.matcher.graph.state_generation:
            self._judged_at = self.matcher.graph.state_generation
            self._judged.clear()
        if shape not in self._judged:
            self._judged[shape] = self._judge(self._known(request))
        return self._judged[shape]

    def _judge(self, request: Request) -> str | None:
        try:
            outcome = self.matcher.match(Operation.JUDGE, request)
        except (NothingHeld, InvalidInput) as fault:
            return str(fault)
        if not isinstance(outcome, Never):
            return None
        cause = explain(self.matcher, request).cause
        return f"no empty cluster could hold it: {cause}"

    def relaxed(self, request: Hashable) -> Hashable | None:
        assert isinstance(request, Jobspec)
        if request.attributes.constraints is None:
            return None
        return replace(request, attributes=replace(request.attributes, constraints=None))

    # -- starting and planning -------------------------------------------------------------------------------

    def advance(self, now: int) -> None:
        if self._state != self.matcher.graph.state_generation:
            self._state = self.matcher.graph.state_generation
            before, self._usable = self._usable, self._find_usable()
            self.freed += 1
            self.opened += 1
            self.lost += bool((before[0] & ~self._usable[0][: len(before[0])]).any())
            self.lost += before[1] != self._usable[1]

    def start(self, task: str, request: Hashable, now: int, limit: int, clear: int) -> bool:
        return self._match(Operation.ALLOCATE, task, request, now, limit, clear) is not None

    def start_or_reserve(self, task: str, request: Hashable, now: int, limit: int, clear: int) -> int | None:
        return self._match(Operation.ALLOCATE_OR_RESERVE, task, request, now, limit, clear)

    def may_move(self, task: str, now: int) -> bool:
        return True  # only a match can tell

    def drop(self, task: str) -> None:
        placed = self._unreserve(task)
        self._journal.note(lambda: self._reserve_again(task, placed))

    def drop_all(self) -> None:
        for task in list(self.reservations):
            self.drop(task)

    def end(self, task: str, now: int) -> None:
        held = self._cancel(task)
        self.freed += 1
        if now < held.end:
            self.opened += 1

    def stretch(self, task: str, end: int) -> None:
        held = self.tasks[task]
        self.matcher.ledger.stretch(held.number, end)
        held.end = end
        self.lost += 1

    def mark(self) -> object:
        return self._journal.mark()

    def undo(self, mark: object) -> None:
        self._journal.undo(mark)

    def settle(self, now: int) -> list[str]:
        self._journal.settle()
        return []

    def rule_out(self, shape: int, limit: int, blocked: Ints, now: int) -> None:
        blocked[shape] = min(int(blocked[shape]), limit)

    # -- thinking ahead --------------------------------------------------------------------------------------

    def sketch(self, now: int, asks: Sequence[PlanRequest], *, in_order: bool) -> list[int | None]:
        wanted = ((self._amounts(self._known(ask.request)), ask.limit) for ask in asks)
        return self._totals(now, {}).place_all(wanted, now, in_order=in_order)

    def expect(
        self, now: int, ends: Mapping[str, int], asks: Sequence[PlanRequest], wanted: Collection[int]
    ) -> dict[int, int]:
        some = asks[: max(wanted, default=-1) + 1]
        lasting = ((self._amounts(self._known(ask.request)), ask.duration) for ask in some)
        return expected(self._totals(now, ends).place_all(lasting, now), wanted)

    def room(self, request: Hashable, now: int, limit: int) -> Outlook:
        assert isinstance(request, Jobspec)
        wanted = replace(self._known(request), duration=limit)
        future = self.matcher.match(Operation.TRY_FUTURE, wanted, now=now)
        told = None if self._fits(wanted, now) else explain(self.matcher, wanted, now=now)
        return Outlook(
            # Times inside are milliseconds, which are no words for a user; and that it waits is known.
            cause="" if told is None else told.cause,
            start=future.at if isinstance(future, Placed) else None,
            fewer=self._most(request, now, limit),
            shorter=self._longest(wanted, now, limit),
            blockers=self._named(told.blocking) if told else (),
        )

    # -- inside ----------------------------------------------------------------------------------------------

    def _find_usable(self) -> tuple[Mask, int]:
        """What is there and up, and a counter of properties, which constraints may rest on."""
        graph = self.matcher.graph
        return graph.up & graph.alive, graph.property_generation

    def _known(self, request: Hashable) -> Request:
        found = self._requests.get(id(request))
        if found is None:
            if not isinstance(request, Jobspec):
                raise TypeError(f"a jobspec is needed, not {type(request).__name__}")
            found = self._requests[id(request)] = (request, self.matcher.compile(request))
        return found[1]

    def _match(
        self, operation: Operation, task: str, request: Hashable, now: int, limit: int, clear: int
    ) -> int | None:
        if task in self.tasks or task in self.reservations:
            raise Conflict(f"{task} already holds resources")
        wanted = replace(self._known(request), duration=clear)
        self._number += 1
        placed = self.matcher.match(operation, wanted, job=self._number, now=now)
        if not isinstance(placed, Placed):
            return None
        if limit < clear:
            self.matcher.ledger.stretch(placed.job, placed.at + limit)
            placed = replace(placed, end=placed.at + limit)
        if placed.reserved:
            self.reservations[task] = placed
            self._journal.note(lambda: self._unreserve(task))
        else:
            self.tasks[task] = _Task(placed.job, wanted, placed.end)
            self._journal.note(lambda: self._cancel(task))
        return placed.at

    def _cancel(self, task: str) -> _Task:
        held = self.tasks.pop(task)
        self.matcher.cancel(held.number)
        return held

    def _unreserve(self, task: str) -> Placed:
        placed = self.reservations.pop(task)
        self.matcher.cancel(placed.job)
        return placed

    def _reserve_again(self, task: str, placed: Placed) -> None:
        self.matcher.hold(placed, now=0)
        self.reservations[task] = placed

    def _totals(self, now: int, ends: Mapping[str, int]) -> Totals:
        graph = self.matcher.graph
        if self._capacity_at != graph.state_generation:
            self._capacity_at = graph.state_generation
            up = graph.alive & graph.up
            tree = self.matcher.tree.shape()
            for vertex in np.flatnonzero(graph.alive & ~graph.up).tolist():
                if vertex in tree:  # what is below it cannot be had either
                    up[tree.subtree(vertex)] = False
            sums = np.bincount(graph.type[up], weights=graph.size[up])
            self._capacity = {kind: int(amount) for kind, amount in enumerate(sums.tolist()) if amount}
        running = (
            (ends.get(name, task.end), self._amounts(task.request)) for name, task in self.tasks.items()
        )
        return Totals(now, self._capacity, running)

    def _amounts(self, request: Request) -> Amounts:
        found = self._asked.get(request.shape)
        if found is None:
            found = self._asked[request.shape] = asked_for(request)
        return found

    def _named(self, numbers: Collection[int]) -> tuple[str, ...]:
        """The tasks of these jobs of the matcher, those that end first in front."""
        found = [(held.end, name) for name, held in self.tasks.items() if held.number in numbers]
        found += [(held.at, name) for name, held in self.reservations.items() if held.job in numbers]
        return tuple(name for _, name in sorted(found))

    def _fits(self, wanted: Request, now: int) -> bool:
        return bool(self.matcher.match(Operation.TRY, wanted, now=now))

    def _longest(self, wanted: Request, now: int, limit: int) -> int | None:
        """The longest limit with which it could start now: up to a time at which something begins."""
        times = [time for time in self.matcher.ledger.times() if now < time < now + limit]
        low, high = 0, len(times)  # shorter never fits worse
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
