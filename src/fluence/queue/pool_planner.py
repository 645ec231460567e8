"""A space of equal units: jobs take so many, whichever; the plan is a count over time.

Only a start names the units, through the matcher. See `timeline` for why counts suffice.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fluence.errors import Conflict, InvalidInput
from fluence.graph.graph import Ints
from fluence.match.matcher import Matcher
from fluence.match.placement import Operation, Placed
from fluence.match.request import Request
from fluence.model.jobspec import Jobspec
from fluence.queue.forecast import forward
from fluence.queue.graph_planner import GraphPlanner
from fluence.queue.planner import Outlook, Planner, PlanRequest
from fluence.queue.timeline import Timeline


@dataclass(slots=True)
class _Task:
    request: Request
    units: int
    end: int
    number: int = -1  # in the matcher; -1: not named yet


def counted(matcher: Matcher, request: Request) -> tuple[int, int] | None:
    """The type and the number of units, if all that a request asks for is some of many equal units."""
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


class PoolPlanner:
    """Units of one type, interchangeable; everything else about them does not matter to its jobs."""

    def __init__(self, matcher: Matcher, unit: str | int, now: int = 0) -> None:
        self.matcher = matcher
        code = matcher.graph.types.find(unit) if isinstance(unit, str) else unit
        if code is None:
            raise InvalidInput(f"the graph has no {unit!r}")
        self.unit = code
        self.freed = self.opened = self.lost = 0
        self.tasks: dict[str, _Task] = {}
        self.reservations: dict[str, tuple[int, int, int]] = {}  # start, end, units
        self._number = max(matcher.ledger.jobs, default=0)
        # By identity, since hashing a jobspec costs more than planning it; the request is kept with it.
        self._requests: dict[int, tuple[Hashable, tuple[Request, int] | None]] = {}
        self._shapes: dict[int, int] = {}
        self._units: Ints = np.zeros(0, np.int64)  # per shape
        self._unnamed: list[str] = []
        self._after: dict[tuple[int, int], int] = {}  # (units, limit) -> where the last such search ended
        self._state = matcher.graph.state_generation
        self.capacity = 0
        self._base = self._measure(now)  # what runs
        self._plan: Timeline | None = None  # what runs and what is reserved; None: nothing is

    # -- requests --------------------------------------------------------------------------------------------

    def understands(self, request: Hashable) -> bool:
        return self._read(request) is not None

    def widened(self) -> Planner:
        wider = GraphPlanner(self.matcher)
        wider.freed, wider.opened, wider.lost = self.freed + 1, self.opened + 1, self.lost
        for name, task in self.tasks.items():
            wider.take_over(name, task.number, task.request, task.end)
        return wider

    def adopt(self, task: str, number: int, request: Hashable, end: int, now: int) -> None:
        """Take over a task that already holds resources in the matcher."""
        wanted, units = self._known(request)
        self.tasks[task] = _Task(wanted, units, end, number)
        if end > now:
            self._take(now, end, units)
        self._number = max(self._number, number)

    def holding(self, task: str) -> tuple[int, int]:
        """The number of a task in the matcher, and when it ends by its limit."""
        return self.tasks[task].number, self.tasks[task].end

    def adopt_reservation(self, task: str, request: Hashable, placed: Placed) -> None:
        """Take over a place in the plan; only its time is looked at."""
        units = self._known(request)[1]
        if self._plan is None:
            self._plan = self._base.copy()
        begin = max(placed.at, self._plan.times[0])
        if begin < placed.end:
            self._plan.take(begin, placed.end, units)
        self.reservations[task] = (placed.at, placed.end, units)

    def reserving(self, task: str) -> tuple[int | None, int]:
        """The number of a reservation in the matcher, if it has one, and its end."""
        return None, self.reservations[task][1]

    def shape(self, request: Hashable) -> int:
        units = self._known(request)[1]
        found = self._shapes.get(units)
        if found is None:
            found = self._shapes[units] = len(self._shapes)
            self._units = np.append(self._units, units)
        return found

    def judge(self, request: Hashable) -> str | None:
        units = self._known(request)[1]
        total = len(self.matcher.graph.vertices_of_type(self.unit))
        if units <= total:
            return None
        return f"it asks for {units} {self._word()}; this cluster has {total}"

    def relaxed(self, request: Hashable) -> Hashable | None:
        return None

    # -- starting and planning -------------------------------------------------------------------------------

    def advance(self, now: int) -> None:
        if self._state != self.matcher.graph.state_generation:
            self._state = self.matcher.graph.state_generation
            before, self._base = self._base, self._measure(now)
            self._after.clear()
            if self.reservations:
                self._plan = self._base.copy()
                for start, end, units in self.reservations.values():
                    if end > now:
                        self._plan.take(max(start, now), end, units)
            # One node may come as another goes: the number of units alone does not tell.
            times = {now, *(time for time in (*before.times, *self._base.times) if time > now)}
            changes = [self._base.at(time) - before.at(time) for time in times]
            self.freed += 1
            self.lost += min(changes) < 0
            self.opened += max(changes) > 0
        self._base.forget_before(now)
        if self._plan is not None:
            self._plan.forget_before(now)

    def start(self, task: str, request: Hashable, now: int, limit: int, clear: int) -> bool:
        wanted, units = self._known(request)
        if (self._plan or self._base).least(now, now + clear) < units:
            return False
        self._hold(task, wanted, units, now, limit)
        return True

    def start_or_reserve(self, task: str, request: Hashable, now: int, limit: int, clear: int) -> int | None:
        wanted, units = self._known(request)
        # Nothing has been given back since the last search for as much, so this one cannot end before it.
        begin = max(now, self._after.get((units, clear), now))
        start = (self._plan or self._base).earliest(units, clear, begin)
        if start is None:
            return None
        self._after[units, clear] = start
        if start == now:
            self._hold(task, wanted, units, now, limit)
            return now
        if self._plan is None:
            self._plan = self._base.copy()
        self._plan.take(start, start + limit, units)
        self.reservations[task] = (start, start + limit, units)
        return start

    def may_move(self, task: str, now: int) -> bool:
        start, end, units = self.reservations[task]
        assert self._plan is not None  # from its start on, what it needs is its own
        return self._plan.is_free_before(units, end - start, now, start)

    def drop(self, task: str) -> None:
        start, end, units = self.reservations.pop(task)
        if not self.reservations:
            self._forget_plan()
        elif self._plan is not None:
            begin = max(start, self._plan.times[0])
            if begin < end:
                self._plan.take(begin, end, -units)
            self._after.clear()

    def drop_all(self) -> None:
        self.reservations.clear()
        self._forget_plan()

    def end(self, task: str, now: int) -> None:
        held = self.tasks.pop(task)
        if held.number >= 0:
            self.matcher.cancel(held.number)
        else:
            self._unnamed.remove(task)
        self.freed += 1
        if now < held.end:
            self.opened += 1
            self._take(now, held.end, -held.units)
            self._after.clear()

    def stretch(self, task: str, end: int) -> None:
        held = self.tasks[task]
        self._take(held.end, end, held.units)
        held.end = end
        if held.number >= 0:
            self.matcher.ledger.stretch(held.number, end)
        self.lost += 1

    def mark(self) -> object:
        plan = None if self._plan is None else self._plan.copy()
        return self._base.copy(), plan, self.tasks.copy(), self.reservations.copy(), len(self._unnamed)

    def undo(self, mark: object) -> None:
        assert isinstance(mark, tuple)
        self._base, self._plan, self.tasks, self.reservations, unnamed = mark
        del self._unnamed[unnamed:]
        self._after.clear()

    def settle(self, now: int) -> list[str]:
        failed = []
        for name in self._unnamed:
            task = self.tasks[name]
            self._number += 1
            wanted = replace(task.request, duration=task.end - now)
            if self.matcher.match(Operation.ALLOCATE, wanted, job=self._number, now=now):
                task.number = self._number
            else:
                failed.append(name)
        self._unnamed.clear()
        for name in failed:
            self.tasks.pop(name)
        return failed

    def rule_out(self, shape: int, limit: int, blocked: Ints, now: int) -> None:
        known = blocked[: len(self._units)]
        np.minimum(known, limit, out=known, where=self._units >= self._units[shape])
        known[self._units > (self._plan or self._base).at(now)] = 0

    # -- thinking ahead --------------------------------------------------------------------------------------

    def sketch(self, now: int, asks: Sequence[PlanRequest], *, in_order: bool) -> list[int | None]:
        plan = self._base.copy()
        after: dict[tuple[int, int], int] = {}
        starts: list[int | None] = []
        last = now
        for ask in asks:
            units = self._known(ask.request)[1]
            kind = (units, ask.limit)
            start = plan.earliest(units, ask.limit, max(last, after.get(kind, now)))
            starts.append(start)
            if start is not None:
                plan.take(start, start + ask.limit, units)
                after[kind] = start
                if in_order:
                    last = start
        return starts

    def expect(
        self, now: int, ends: Mapping[str, int], asks: Sequence[PlanRequest], wanted: Collection[int]
    ) -> dict[int, int]:
        running = [(ends.get(name, task.end), task.end, task.units) for name, task in self.tasks.items()]
        pending = [(self._known(ask.request)[1], ask.duration, ask.limit) for ask in asks]
        return forward(now, self._base.at(now), running, pending, wanted)

    def room(self, request: Hashable, now: int, limit: int) -> Outlook:
        units = self._known(request)[1]
        line = self._plan or self._base
        free, most = line.at(now), line.least(now, now + limit)
        word = self._word()
        if free < units:
            cause = f"it needs {units} {word} and {free} of {self.capacity} are free"
        elif most < units:
            cause = f"{free} {word} are free, but only {most} of them for as long as it may run"
        else:
            cause = ""
        until = line.until(units, now)
        return Outlook(
            cause=cause,
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
            found = self._requests[id(request)] = (request, known)
        return found[1]

    def _known(self, request: Hashable) -> tuple[Request, int]:
        found = self._read(request)
        if found is None:
            raise Conflict("this request asks for more than some of many equal units")
        return found

    def _word(self) -> str:
        return f"{self.matcher.graph.types.words[self.unit]}s"

    def _hold(self, task: str, wanted: Request, units: int, now: int, limit: int) -> None:
        if task in self.tasks:
            raise Conflict(f"{task} already holds resources")
        self._take(now, now + limit, units)
        self.tasks[task] = _Task(wanted, units, now + limit)
        self._unnamed.append(task)

    def _take(self, start: int, end: int, units: int) -> None:
        for line in (self._base, self._plan):
            # Each has forgotten what is over, as far as its own steps allow.
            if line is not None and (begin := max(start, line.times[0])) < end:
                line.take(begin, end, units)

    def _forget_plan(self) -> None:
        self._plan = None
        self._after.clear()

    def _measure(self, now: int) -> Timeline:
        """Count again: units that are up and belong to nobody are free, those that are held come later."""
        graph, ledger = self.matcher.graph, self.matcher.ledger
        tree = self.matcher.tree.shape()
        usable = np.zeros(graph.rows, np.bool_)
        for vertex in graph.vertices_of_type(self.unit).tolist():
            usable[vertex] = bool(graph.up[vertex]) and all(graph.up[a] for a in tree.ancestors(vertex))
        self.capacity = int(usable.sum())
        line = Timeline(now, self.capacity)
        for name, task in self.tasks.items():
            if name not in self._unnamed:
                rows = ledger.vertex[ledger.job(task.number).spans]
                task.units = int(usable[rows].sum())
            if task.end > now:
                line.take(now, task.end, task.units)
        return line

    def _blockers(self, missing: int) -> tuple[str, ...]:
        found = []
        for name, task in sorted(self.tasks.items(), key=lambda item: item[1].end):
            if missing <= 0:
                break
            found.append(name)
            missing -= task.units
        return tuple(found)
