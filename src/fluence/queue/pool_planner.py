"""A planner of equal units: jobs request a number of them, and the plan is a count over time.

The queue uses it for workloads whose jobs all request some of many equal units. The matcher chooses the units
only when a job starts; `timeline` explains why counts are enough. A simulation rarely needs the chosen units,
and choosing them is half of its work: with ``names_late``, starts and ends are only noted, and `name` chooses
the units later.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace
from operator import is_

import numpy as np

from fluence.errors import Conflict, InvalidInput
from fluence.graph.graph import Ints
from fluence.graph.ledger import LedgerJob
from fluence.match.matcher import Matcher
from fluence.match.request import Operation, Placed, Request
from fluence.model.jobspec import Jobspec
from fluence.model.reason import Code, Reason
from fluence.queue.allocations import Allocation, Allocations
from fluence.queue.graph_planner import KNOWN_REQUESTS, GraphPlanner
from fluence.queue.job import FOREVER
from fluence.queue.planner import Outlook, Planner, PlanRequest, WithoutClasses, limits
from fluence.queue.timeline import Amounts, Timeline, Totals, expected, forward


def counted(matcher: Matcher, request: Request) -> tuple[int, int] | None:
    """The type and the number of units, if a request is only for a number of equal units."""
    graph = matcher.graph
    if (
        len(request.needs) != 1
        or request.constraint is not None
        or not request.is_fixed
        or matcher.flexible
        or matcher.extensions
        or matcher.policy.node_exclusive
        or len(matcher.subsystems) != 1
    ):
        return None
    slot = request.needs[0]
    if not slot.is_slot or len(slot.below) != 1 or slot.below[0].below:
        return None
    unit = slot.below[0]
    if (graph.size[graph.vertices_of_type(unit.type)] != 1).any():
        return None
    return unit.type, slot.count.min * unit.count.min


class _Sketch:
    """Planned starts of waiting requests. If jobs have only arrived since, the next sketch continues this
    one."""

    def __init__(self, base: Timeline, now: int, *, in_order: bool) -> None:
        self.asks: list[PlanRequest] = []
        self.starts: list[int | None] = []
        self._line = base.copy()
        self._times, self._free = base.times[1:], base.free.copy()
        self._after: dict[tuple[int, int], int] = {}  # units and limit -> the last such start
        self._first = FOREVER
        self._last = now
        self._in_order = in_order

    def continues(self, base: Timeline, waiting: Sequence[PlanRequest], now: int) -> bool:
        """Whether a new sketch would begin with the same starts: the same requests in front, the same free
        units, and no start has passed."""
        return (
            now <= self._first
            and len(self.asks) <= len(waiting)
            and all(map(is_, self.asks, waiting))
            and self._free == base.free
            and self._times == base.times[1:]
        )

    def add(self, ask: PlanRequest, units: int, now: int) -> None:
        kind = (units, ask.limit)
        last = max(self._last, now) if self._in_order else now
        start = self._line.earliest(units, ask.limit, max(last, self._after.get(kind, now)))
        self.asks.append(ask)
        self.starts.append(start)
        if start is not None:
            self._line.take(start, start + ask.limit, units)
            self._after[kind] = start
            self._first = min(self._first, start)
            if self._in_order:
                self._last = start


class PoolPlanner(WithoutClasses):
    """Plans interchangeable units of one type."""

    is_exact = True

    def __init__(self, matcher: Matcher, unit: str | int, now: int = 0, *, names_late: bool = False) -> None:
        """``names_late``: the units of tasks are chosen when `name` is called. Nothing else may change the
        graph or the ledger before that."""
        self.matcher = matcher
        code = matcher.graph.types.find(unit) if isinstance(unit, str) else unit
        if code is None:
            raise InvalidInput(f"the graph has no {unit!r}")
        self.unit = code
        self.freed = self.opened = self.lost = 0
        self.allocations = Allocations()
        self._number = max(matcher.ledger.jobs, default=0)
        # By identity, because hashing a jobspec costs more than planning it. The request is kept so that its
        # id stays valid.
        self._requests: dict[int, tuple[Hashable, tuple[Request, int] | None]] = {}
        self._shapes: dict[int, int] = {}
        self._units: Ints = np.zeros(0, np.int64)  # per shape
        self._unnamed: list[Allocation] = []  # started in this pass, not yet matched
        self._names_late = names_late
        self._noted: list[tuple[Allocation, int | None, int]] = []  # see `name`
        self._after: dict[tuple[int, int], int] = {}  # (units, limit) -> where the last such search ended
        self._sketches: dict[bool, _Sketch] = {}  # the last ones, by whether they are in order
        self._state = matcher.graph.state_generation
        self.capacity = 0
        self._base = self._measure(now)  # running tasks
        self._plan: Timeline | None = None  # running and reserved tasks; None: none is reserved

    # -- requests --------------------------------------------------------------------------------------------

    def understands(self, request: Hashable) -> bool:
        return self._read(request) is not None

    def widened(self) -> Planner:
        self.drop_all()
        self.allocations.settle()
        self.name()
        self._names_late = False
        wider = GraphPlanner(self.matcher, self.allocations)
        wider.freed, wider.opened, wider.lost = self.freed + 1, self.opened + 1, self.lost
        return wider

    def adopt(self, task: str, number: int, request: Hashable, start: int, end: int, now: int) -> Allocation:
        """Take over a task that already has an allocation in the matcher."""
        units = self._known(request)[1]
        held = Allocation(task, request, self.matcher.ledger.job(number), units)
        self.allocations.add(held)
        if end > now:
            self._take(now, end, units)
        self._number = max(self._number, number)
        return held

    def adopt_reservation(self, task: str, request: Hashable, placed: Placed) -> Allocation:
        """Take over a reservation; only its time matters."""
        units = self._known(request)[1]
        held = Allocation(task, request, LedgerJob(-1, placed.at, placed.end, True), units)
        self._reserve(held)
        return held

    def shape(self, request: Hashable) -> int:
        units = self._known(request)[1]
        found = self._shapes.get(units)
        if found is None:
            found = self._shapes[units] = len(self._shapes)
            self._units = np.append(self._units, units)
        return found

    def feasibility(self, request: Hashable) -> Reason | None:
        units = self._known(request)[1]
        total = len(self.matcher.graph.vertices_of_type(self.unit))
        if units <= total:
            return None
        return Reason.of(Code.TOO_FEW_UNITS, units=units, unit=self._type(), total=total)

    def relaxed(self, request: Hashable) -> Hashable | None:
        return None

    def amounts(self, request: Hashable) -> Mapping[str, int]:
        return {self._type(): self._known(request)[1]}

    def capacities(self) -> Mapping[str, int]:
        return {self._type(): self.capacity}

    # -- starting and planning -------------------------------------------------------------------------------

    def advance(self, now: int) -> None:
        if self._state != self.matcher.graph.state_generation:
            self.name()
            self._state = self.matcher.graph.state_generation
            before, self._base = self._base, self._measure(now)
            self._after.clear()
            if self.allocations.reserved:
                self._plan = self._base.copy()
                for each in self.allocations.reserved.values():
                    if each.end > now:
                        self._plan.take(max(each.start, now), each.end, each.units)
            # Compare all times: one node may come as another goes, and the number of units stays the same.
            times = {now, *(time for time in (*before.times, *self._base.times) if time > now)}
            changes = [self._base.at(time) - before.at(time) for time in times]
            self.freed += 1
            self.lost += min(changes) < 0
            self.opened += max(changes) > 0
        self._base.forget_before(now)
        if self._plan is not None:
            self._plan.forget_before(now)

    def start(self, task: str, request: Hashable, now: int, limit: int, clear: int) -> Allocation | None:
        units = self._known(request)[1]
        if (self._plan or self._base).least(now, now + clear) < units:
            return None
        return self._hold(task, request, units, now, limit)

    def start_or_reserve(
        self, task: str, request: Hashable, now: int, limit: int, clear: int, begin: int = 0
    ) -> Allocation | None:
        units = self._known(request)[1]
        # Nothing was freed since the last search for the same units and time, so this one cannot find an
        # earlier start.
        first = max(now, self._after.get((units, clear), now))
        start = (self._plan or self._base).earliest(units, clear, max(first, begin))
        if start is None:
            return None
        if begin <= first:
            self._after[units, clear] = start
        if start == now:
            return self._hold(task, request, units, now, limit)
        held = Allocation(task, request, LedgerJob(-1, start, start + limit, True), units)
        self._reserve(held)
        return held

    def may_move(self, allocation: Allocation, now: int) -> bool:
        assert self._plan is not None  # from its start on, its units are free for it
        lasts = allocation.end - allocation.start
        return self._plan.is_free_before(allocation.units, lasts, now, allocation.start)

    def may_start(self, allocation: Allocation, now: int, clear: int) -> bool:
        return True  # only a match can tell

    def displaced(self) -> Collection[Allocation]:
        return list(self.allocations.reserved.values())

    def drop(self, allocation: Allocation) -> None:
        self.allocations.drop(allocation)
        if not self.allocations.reserved:
            self._forget_plan()
        elif self._plan is not None:
            begin = max(allocation.start, self._plan.times[0])
            if begin < allocation.end:
                self._plan.take(begin, allocation.end, -allocation.units)
            self._after.clear()

    def drop_all(self) -> None:
        self.allocations.drop_all()
        self._forget_plan()

    def end(self, allocation: Allocation, now: int) -> None:
        self.allocations.finish(allocation)
        if allocation.number >= 0:
            self.name()  # apply earlier notes first
            self.matcher.cancel(allocation.number)
        elif allocation in self._unnamed:
            self._unnamed.remove(allocation)
        else:
            self._noted.append((allocation, None, now))
        self.freed += 1
        if now < allocation.end:
            self.opened += 1
            self._take(now, allocation.end, -allocation.units)
            self._after.clear()

    def extend(self, allocation: Allocation, end: int) -> None:
        self._take(allocation.end, end, allocation.units)
        if allocation.number >= 0:
            self.name()
            self.matcher.ledger.stretch(allocation.number, end)
        else:
            allocation.job.end = end
            if allocation not in self._unnamed:
                self._noted.append((allocation, end, -1))
        self.allocations.note_end(allocation)
        self.lost += 1

    def mark(self) -> object:
        plan = None if self._plan is None else self._plan.copy()
        return self.allocations.mark(), self._base.copy(), plan, len(self._unnamed)

    def undo(self, mark: object) -> None:
        assert isinstance(mark, tuple)
        held, self._base, self._plan, unnamed = mark
        self.allocations.undo(held)
        del self._unnamed[unnamed:]
        self._after.clear()

    def settle(self, now: int) -> list[Allocation]:
        self.allocations.settle()
        unnamed, self._unnamed = self._unnamed, []
        if self._names_late and all(now < each.end <= self.matcher.horizon for each in unnamed):
            # Enough units are free, so the matcher would find them.
            self._noted += [(each, each.end, now) for each in unnamed]
            return []
        self.name()
        failed = [each for each in unnamed if not self._match(each, now, each.end)]
        for each in failed:
            self.allocations.finish(each)
        return failed

    def name(self) -> None:
        """Choose the units of all running tasks, by applying the notes: starts with their end and time, new
        ends, and tasks that are over."""
        noted, self._noted = self._noted, []
        for each, end, now in noted:
            if end is None:
                self.matcher.cancel(each.number)
            elif now < 0:
                self.matcher.ledger.stretch(each.number, end)
            elif not self._match(each, now, end):
                raise Conflict(f"{each.task} holds {each.units} units that the graph does not have any more")

    def _match(self, held: Allocation, now: int, end: int) -> bool:
        """Choose the units of a task that starts at ``now``; returns whether the matcher found them."""
        self._number += 1
        wanted = replace(self._known(held.request)[0], duration=end - now)
        if not self.matcher.match(Operation.ALLOCATE, wanted, job=self._number, now=now):
            return False
        held.job = self.matcher.ledger.job(self._number)
        if held.job.end != end:  # NB the matcher ends all at its horizon
            self.matcher.ledger.stretch(self._number, end)
        return True

    def rule_out(self, shape: int, limit: int, blocked: Ints, now: int) -> None:
        known = blocked[: len(self._units)]
        np.minimum(known, limit, out=known, where=self._units >= self._units[shape])
        known[self._units > (self._plan or self._base).at(now)] = 0

    # -- thinking ahead --------------------------------------------------------------------------------------

    def sketch(
        self,
        now: int,
        waiting: Sequence[PlanRequest],
        *,
        in_order: bool,
        wanted: Collection[int] | None = None,
    ) -> list[int | None]:
        if self.allocations.quotas is not None:
            asks = [(self._demand(ask), ask.limit) for ask in waiting]
            return self._totals(now, waiting, {}).place_all(asks, now, in_order=in_order)
        sketch = self._sketches.get(in_order)
        if sketch is None or not sketch.continues(self._base, waiting, now):
            sketch = self._sketches[in_order] = _Sketch(self._base, now, in_order=in_order)
        for ask in waiting[len(sketch.asks) :]:
            sketch.add(ask, self._known(ask.request)[1], now)
        return sketch.starts.copy()

    def expect(
        self, now: int, ends: Mapping[str, int], waiting: Sequence[PlanRequest], wanted: Collection[int]
    ) -> dict[int, int]:
        if self.allocations.quotas is not None:
            some = waiting[: max(wanted, default=-1) + 1]
            lasting = [(self._demand(ask), ask.duration) for ask in some]
            return expected(self._totals(now, some, ends).place_all(lasting, now), wanted)
        held = self.allocations.running
        running = [(ends.get(name, each.end), each.end, each.units) for name, each in held.items()]
        pending = [(self._known(ask.request)[1], ask.duration, ask.limit) for ask in waiting]
        return forward(now, self._base.at(now), running, pending, wanted)

    def supported(self, request: Hashable, now: int, limit: int) -> int | None:
        return now

    def outlook(self, request: Hashable, now: int, limit: int) -> Outlook:
        units = self._known(request)[1]
        line = self._plan or self._base
        free, most = line.at(now), line.least(now, now + limit)
        causes: tuple[Reason, ...] = ()
        if free < units:
            busy = Reason.of(Code.UNITS_BUSY, units=units, unit=self._type(), free=free, total=self.capacity)
            causes = (busy,)
        elif most < units:
            causes = (Reason.of(Code.UNITS_PROMISED, unit=self._type(), free=free, most=most),)
        until = line.until(units, now)
        return Outlook(
            causes=causes,
            start=line.earliest(units, limit, now),
            fewer=most if 0 < most < units else None,
            shorter=until - now if until is not None and now < until < now + limit else None,
            blockers=self._blockers(units - free),
        )

    # -- inside ----------------------------------------------------------------------------------------------

    def _read(self, request: Hashable) -> tuple[Request, int] | None:
        found = self._requests.get(id(request))
        if found is None:
            if not isinstance(request, Jobspec):
                raise TypeError(f"a jobspec is needed, not {type(request).__name__}")
            compiled = self.matcher.compile(request)
            units = counted(self.matcher, compiled)
            known = None if units is None or units[0] != self.unit else (compiled, units[1])
            if len(self._requests) >= KNOWN_REQUESTS:
                del self._requests[next(iter(self._requests))]  # the oldest
            found = self._requests[id(request)] = (request, known)
        return found[1]

    def _known(self, request: Hashable) -> tuple[Request, int]:
        found = self._read(request)
        if found is None:
            raise Conflict("this request asks for more than some of many equal units")
        return found

    def _type(self) -> str:
        return self.matcher.graph.types.words[self.unit]

    def _hold(self, task: str, request: Hashable, units: int, now: int, limit: int) -> Allocation:
        if task in self.allocations.running:
            raise Conflict(f"{task} already holds resources")
        self._take(now, now + limit, units)
        held = Allocation(task, request, LedgerJob(-1, now, now + limit, False), units)
        self.allocations.add(held)
        self._unnamed.append(held)
        return held

    def _reserve(self, held: Allocation) -> None:
        if self._plan is None:
            self._plan = self._base.copy()
        begin = max(held.start, self._plan.times[0])
        if begin < held.end:
            self._plan.take(begin, held.end, held.units)
        self.allocations.add(held)

    def _take(self, start: int, end: int, units: int) -> None:
        for line in (self._base, self._plan):
            # Both timelines may have dropped past steps, each up to a different time.
            if line is not None and (begin := max(start, line.times[0])) < end:
                line.take(begin, end, units)

    def _totals(self, now: int, waiting: Sequence[PlanRequest], ends: Mapping[str, int]) -> Totals:
        """The units and the limits of queues over time, for waiting requests."""
        quotas = self.allocations.quotas
        assert quotas is not None
        running = (
            (ends.get(task, held.end), {self.unit: held.units, **quotas.lines(task)})
            for task, held in self.allocations.running.items()
        )
        return Totals(now, {self.unit: self.capacity, **limits(waiting)}, running)

    def _demand(self, ask: PlanRequest) -> Amounts:
        return {self.unit: self._known(ask.request)[1], **(ask.claim.demand if ask.claim else {})}

    def _forget_plan(self) -> None:
        self._plan = None
        self._after.clear()

    def _measure(self, now: int) -> Timeline:
        """Count the units again: those that are up are free, except for those of running tasks until their
        ends."""
        graph, ledger = self.matcher.graph, self.matcher.ledger
        tree = self.matcher.tree.shape()
        usable = np.zeros(graph.rows, np.bool_)
        for vertex in graph.vertices_of_type(self.unit).tolist():
            usable[vertex] = bool(graph.up[vertex]) and all(graph.up[a] for a in tree.ancestors(vertex))
        self.capacity = int(usable.sum())
        line = Timeline(now, self.capacity)
        for each in self.allocations.running.values():
            if each.number >= 0:
                rows = ledger.vertex[ledger.job(each.number).spans]
                each.units = int(usable[rows].sum())
            if each.end > now:
                line.take(now, each.end, each.units)
        return line

    def _blockers(self, missing: int) -> tuple[str, ...]:
        found = []
        for each in sorted(self.allocations.running.values(), key=lambda each: each.end):
            if missing <= 0:
                break
            found.append(each.task)
            missing -= each.units
        return tuple(found)
