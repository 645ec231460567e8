"""GangFit: many pods on nodes in one match, all or nothing.

A *seat* is what one pod needs of one node; several seats may share a node. A gang is a list of members: pods
that are alike and so have one shape. For each shape one vector operation says how many seats every node has;
the nodes are filled in the order of the match policy. Only pods that have rules about other pods are placed
one by one.

What is found is recorded in the matcher's ledger as one job, so that `find`, `explain`, reservations and the
writers see it like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from fluence.errors import Conflict, InvalidInput, NotFound
from fluence.graph.graph import Ints, Rows
from fluence.match import policy as policies
from fluence.match.matcher import Matcher
from fluence.match.placement import Never, Wait
from fluence.placer.availability import Availability, FreeTimes, FreeView
from fluence.placer.gang import Columns, GangRequest, Pod, Seat, Seated, Seating
from fluence.placer.node_table import NodeTable
from fluence.placer.placer import NodeFill, Placer, SeatBound
from fluence.units import MOST


class GangFit:
    """Seats the pods of gangs on the nodes of a matcher's graph."""

    def __init__(self, matcher: Matcher, *, keeps_overdue: bool = False) -> None:
        self.matcher = matcher
        self.availability = Availability(matcher, keeps_overdue=keeps_overdue)
        self.jobs: dict[int, Seating] = {}
        self.table = NodeTable(matcher)
        self._placer = Placer(self.table)

    # -- operations ------------------------------------------------------------------------------------------

    def try_now(self, gang: GangRequest, *, now: int, duration: int | None = None) -> Seated | Wait | Never:
        """Where the gang would be placed if it started now; nothing is recorded."""
        view = self.look(now, duration)
        fills = self._placer.place(gang, view, now)
        if fills is None:
            return self._refused(gang, now)
        return self._seated(gang, fills, view, -1, now, self._end(now, duration), False)

    def seat(
        self, gang: GangRequest, *, job: int, now: int, duration: int | None = None
    ) -> Seated | Wait | Never:
        """Seat the gang now and record it as a job."""
        self._check_new(job)
        view = self.look(now, duration)
        fills = self._placer.place(gang, view, now)
        if fills is None:
            return self._refused(gang, now)
        return self._record(self._seated(gang, fills, view, job, now, self._end(now, duration), False))

    def reserve(
        self, gang: GangRequest, *, job: int, now: int, duration: int | None = None
    ) -> Seated | Wait | Never:
        """Seat the gang now or at the earliest time that suffices, and record it."""
        self._check_new(job)
        found = self.earliest(gang, now=now, duration=duration, job=job)
        return self._record(found) if isinstance(found, Seated) else found

    def join(self, gang: GangRequest, *, job: int, now: int) -> Seated | Wait | Never:
        """Seat more pods now for a job that has seats already, until its end."""
        seating = self._seating(job)
        found = self.try_now(gang, now=now, duration=max(seating.end - now, 1))
        if isinstance(found, Seated):
            self.rewrite(job, found.seats)
            return replace(found, job=job)
        return found

    def earliest(
        self, gang: GangRequest, *, now: int, duration: int | None = None, job: int = -1
    ) -> Seated | Wait | Never:
        """When the gang could start, and where; nothing is recorded."""
        view = self.look(now, duration)
        fills = self._placer.place(gang, view, now)
        if fills is not None:
            return self._seated(gang, fills, view, job, now, self._end(now, duration), False)
        never = self._never(gang, now)
        if never is not None:
            return never
        sweep = FreeTimes(self.availability)
        bound = SeatBound(self._placer, gang, sweep.view)
        while (rows := sweep.step()) is not None:
            if not bound.suffices(sweep.view, rows):
                continue
            if sweep.time >= self.matcher.horizon:
                break
            view = sweep.throughout(self._end(sweep.time, duration))
            fills = self._placer.place(gang, view, sweep.time)
            if fills is not None:
                end = self._end(sweep.time, duration)
                return self._seated(gang, fills, view, job, sweep.time, end, True)
        return Wait("busy")

    def domain_seats(
        self, gang: GangRequest, domains: Ints, *, now: int, duration: int | None = None
    ) -> Ints:
        """How many pods of a gang could be in each domain now, at most."""
        view = self.look(now, duration)
        return self._placer.domain_seats(gang, domains, view)

    def could_hold(self, gang: GangRequest) -> bool:
        """Whether the gang would fit if nobody held anything, its rules about other pods aside."""
        self.look(self.availability.now)
        return self._never(gang, self.availability.now) is None

    def hold(
        self,
        job: int,
        seats: Iterable[Seat],
        *,
        start: int,
        end: int | None = None,
        reserved: bool = False,
        whole: bool = False,
        uses_node: bool = True,
    ) -> None:
        """Record seats that are taken whether they fit or not: pods that run already.

        Devices are chosen among the free ones where the seat names none. ``uses_node=False`` leaves the node
        itself untouched, so that others may still have it as a whole.
        """
        self._check_new(job)
        until = self.matcher.horizon if end is None else end
        seating = Seating(job, start, until, reserved, whole, uses_node)
        self.look(self.availability.now)
        self._take_devices(seating, seats)
        self._write(seating)

    def release(self, job: int, pods: Iterable[Pod] | None = None) -> tuple[Seat, ...]:
        """Give back all of a job, or the seats of some pods; with its last seat the job is gone."""
        seating = self._seating(job)
        gone = list(seating.seats) if pods is None else [pod for pod in pods if pod in seating.seats]
        freed = tuple(seating.seats.pop(pod) for pod in gone)
        if not seating.seats:
            self._erase(job)
        elif freed:
            self.rewrite(job)
        return freed

    def rewrite(self, job: int, seats: Iterable[Seat] = ()) -> None:
        """Record a job anew: some of its seats have changed, or a node has come back with other vertices."""
        seating = self._seating(job)
        self._erase(job)
        self.look(self.availability.now)
        changed = {seat.pod: seat for seat in seats}
        self._take_devices(seating, [*{**seating.seats, **changed}.values()])
        self._write(seating)

    def prolong(self, job: int, end: int) -> None:
        """A job runs longer than it said."""
        record = self.matcher.ledger.job(job)
        ledger, spans = self.matcher.ledger, record.spans
        columns = (ledger.vertex[spans].copy(), ledger.needs[spans].copy(), ledger.exclusive[spans].copy())
        seating = self.jobs.get(job) or Seating(job, record.start, end, record.reserved)
        seating.end = end
        self._erase(job)
        self._write(seating, columns)

    # -- asking ----------------------------------------------------------------------------------------------

    @property
    def nodes(self) -> Rows:
        """The rows of the nodes in the graph; masks and scores are in this order."""
        return self.table.nodes

    @property
    def names(self) -> list[str]:
        return self.table.names

    @property
    def position(self) -> dict[str, int]:
        return self.table.position

    @property
    def types(self) -> tuple[str, ...]:
        """What nodes have: pools and devices."""
        self.look(self.availability.now, 1)
        return (*self.table.pools, *self.table.devices)

    def free(self, type_: str, view: FreeView | None = None) -> Ints:
        """How much of a type is free on each node now, or in a view; below 0 where others took more than
        there is."""
        return self.table.free(type_, self.look(self.availability.now, 1) if view is None else view)

    def size(self, type_: str) -> Ints:
        """How much of a type each node has."""
        self.look(self.availability.now, 1)
        return self.table.size(type_)

    def look(self, now: int, duration: int | None = None) -> FreeView:
        """What is free from now on for a while, as columns over the rows of the graph."""
        view = self.availability.at(now)
        self.table.refresh()
        if not self.availability.events:
            return view
        return self.availability.throughout(self._end(now, duration))

    # -- refusing --------------------------------------------------------------------------------------------

    def _refused(self, gang: GangRequest, now: int) -> Wait | Never:
        never = self._never(gang, now)
        return Wait("busy") if never is None else never

    def _never(self, gang: GangRequest, now: int) -> Never | None:
        """Whether the gang would fit if nobody held anything, its rules about other pods aside."""
        graph = self.matcher.graph
        empty = FreeView(np.append(graph.size, 0), np.zeros(graph.rows + 1, np.int64))
        bare = GangRequest(gang.members, gang.minimum, gang.policy, domains=gang.domains)
        return None if self._placer.place(bare, empty, now) is not None else Never("unsatisfiable")

    # -- recording -------------------------------------------------------------------------------------------

    def _seated(
        self,
        gang: GangRequest,
        fills: Sequence[NodeFill],
        view: FreeView,
        job: int,
        at: int,
        end: int,
        reserved: bool,
    ) -> Seated:
        policy = policies.find(gang.policy) if isinstance(gang.policy, str) else gang.policy
        seats: list[Seat] = []
        next_ = [0] * len(gang.members)
        for fill in fills:
            members = gang.members[fill.members]
            pods, needs, first = members.pods, members.needs, next_[fill.members]
            amounts = [amount for _, amount in self.table.shape(needs).devices]
            for index, (node, count) in enumerate(zip(fill.nodes, fill.counts, strict=True)):
                name = self.names[node]
                for number in range(count):
                    own: tuple[int, ...] = ()
                    if amounts:
                        picked = zip(fill.devices, amounts, strict=True)
                        own = tuple(row for of, n in picked for row in of[index][number * n : number * n + n])
                    seats.append(Seat(pods[first], name, needs, own))
                    first += 1
            next_[fill.members] = first
        left = tuple(
            pod
            for members, seated in zip(gang.members, next_, strict=True)
            if seated < len(members.pods)
            for pod in members.pods[seated:]
        )
        whole = policy.node_exclusive
        held = self._columns(seats, whole=whole, uses_node=True, view=view)
        return Seated(job, at, end, reserved, tuple(seats), left, whole, held, self.matcher.tree)

    def _record(self, seated: Seated) -> Seated:
        seats = {seat.pod: seat for seat in seated.seats}
        seating = Seating(seated.job, seated.at, seated.end, seated.reserved, seated.whole, True, seats)
        self._write(seating, seated.held)
        return seated

    def _write(self, seating: Seating, columns: Columns | None = None) -> None:
        """Record what the seats of a job come to."""
        if columns is None:
            columns = self._columns(
                seating.seats.values(),
                whole=seating.whole,
                uses_node=seating.uses_node,
                view=self.availability.view,
            )
        rows, needs, exclusive = columns
        record = self.matcher.ledger.add(
            seating.job,
            start=seating.start,
            end=seating.end,
            reserved=seating.reserved,
            vertices=rows,
            needs=needs,
            exclusive=exclusive,
        )
        self.availability.added(record)
        self.jobs[seating.job] = seating

    def _erase(self, job: int) -> None:
        self.availability.removing(self.matcher.ledger.job(job))
        self.matcher.cancel(job)
        self.jobs.pop(job, None)

    def _columns(self, seats: Iterable[Seat], *, whole: bool, uses_node: bool, view: FreeView) -> Columns:
        """The vertices, amounts and exclusiveness that seats come to; nodes that are gone do not count."""
        graph = self.matcher.graph
        taken: dict[int, int] = {}
        used: dict[int, None] = {}
        for seat in seats:
            node = self.table.position.get(seat.node)
            if node is None:
                continue
            used[node] = None
            for type_, amount in seat.needs.items():
                pool = self.table.pools.get(type_)
                if pool is not None and amount:
                    row = int(pool[node])
                    taken[row] = taken.get(row, 0) + amount
            for row in seat.devices:
                taken[row] = taken.get(row, 0) + 1
        taken.pop(graph.rows, None)  # of what a node does not have, nothing can be held
        if whole and used:
            for row, amount in self.table.rest(list(used), view):
                taken[row] = max(amount, taken.get(row, 0))
        way: dict[int, bool] = {}  # node and all above it; is it the job's own?
        for node in used if uses_node else ():
            first, *above = self.table.way(node)
            way[first] = whole
            way.update(dict.fromkeys(above, False))
        # Pods that run may say that they take anything: it is counted as far as can be.
        amounts = np.array([min(amount, MOST) for amount in taken.values()], np.int64)
        return (
            np.array([*taken, *way], np.int32),
            np.concatenate((amounts, graph.size[[*way]])),
            np.array([*(True for _ in taken), *way.values()], np.bool_),
        )

    def _take_devices(self, seating: Seating, seats: Iterable[Seat]) -> None:
        """Give each seat devices of its node: those that it has, free ones, or any, if others took too
        many."""
        taken: set[int] = set()
        for seat in seats:
            node = self.table.position.get(seat.node)
            own: list[int] = []
            for type_, of in self.table.devices.items():
                amount = seat.needs.get(type_, 0)
                if node is None or not amount:
                    continue
                rows = of.of(node)
                busy = self.availability.view.free[rows] <= 0
                busy |= np.isin(rows, list(taken))
                by = np.lexsort((~np.isin(rows, seat.devices), busy))
                own.extend(rows[by][:amount].tolist())
            taken.update(own)
            if own or seat.devices:
                seat = seat._replace(devices=tuple(own))
            seating.seats[seat.pod] = seat

    # -- inside ----------------------------------------------------------------------------------------------

    def _seating(self, job: int) -> Seating:
        try:
            return self.jobs[job]
        except KeyError:
            raise NotFound(f"no job {job} has seats") from None

    def _check_new(self, job: int) -> None:
        if job in self.matcher.ledger.jobs:
            raise Conflict(f"job {job} already holds resources: release it first or choose another id")

    def _end(self, at: int, duration: int | None) -> int:
        if duration is not None and duration <= 0:
            raise InvalidInput(f"a duration of {duration} seconds: must be positive, or None for no limit")
        horizon = self.matcher.horizon
        return horizon if duration is None else min(at + duration, horizon)
