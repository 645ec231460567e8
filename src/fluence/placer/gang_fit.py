"""GangFit: many pods on nodes in one match, all or nothing.

A *seat* is what one pod needs of one node; several seats may share a node. A gang is a list of members: pods
that are alike and so have one shape. For each shape one vector operation says how many seats every node has;
the nodes are filled in the order of the match policy. Only pods that have rules about other pods are placed
one by one.

What is found is recorded in the matcher's ledger as one job, so that `find`, `explain`, reservations and the
writers see it like any other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fluence.errors import Conflict, InvalidInput, NotFound
from fluence.graph.graph import Ints, Mask, Rows
from fluence.match import policy as policies
from fluence.match.matcher import Matcher
from fluence.match.placement import Never, Wait
from fluence.match.policy import MatchPolicy
from fluence.model.device import DeviceGrant
from fluence.placer.availability import Availability
from fluence.placer.backends import BackendTable, DeviceChoice, DeviceNeed
from fluence.placer.gang import Columns, GangRequest, Members, Pod, Seat, Seated, Seating
from fluence.placer.node_table import NodeTable
from fluence.placer.placer import NodeFill, PartialFill, Placer
from fluence.placer.profile import FreeView, Profile
from fluence.placer.seat_columns import SeatColumns
from fluence.placer.window_sweep import WindowSweep


@dataclass(frozen=True, slots=True)
class _Found:
    """Where a gang could be."""

    fills: Sequence[NodeFill]
    grants: tuple[DeviceGrant, ...] = ()


class GangFit:
    """Seats the pods of gangs on the nodes of a matcher's graph."""

    def __init__(self, matcher: Matcher, *, keeps_overdue: bool = False) -> None:
        self.matcher = matcher
        self.availability = Availability(matcher, keeps_overdue=keeps_overdue)
        self.jobs: dict[int, Seating] = {}
        self.table = NodeTable(matcher)
        self.backends = BackendTable(matcher)
        self._columns = SeatColumns(matcher, self.table, self.backends)
        self._placer = Placer(self.table)

    # -- operations ------------------------------------------------------------------------------------------

    def try_now(self, gang: GangRequest, *, now: int, duration: int | None = None) -> Seated | Wait | Never:
        """Where the gang would be placed if it started now; nothing is recorded."""
        view = self.look(now, duration)
        found = self._place(gang, view, now)
        if found is None:
            return self._refused(gang, now)
        return self._seated(gang, found, view, -1, now, self._end(now, duration), False)

    def seat(
        self, gang: GangRequest, *, job: int, now: int, duration: int | None = None
    ) -> Seated | Wait | Never:
        """Seat the gang now and record it as a job."""
        self._check_new(job)
        view = self.look(now, duration)
        found = self._place(gang, view, now)
        if found is None:
            return self._refused(gang, now)
        return self._record(self._seated(gang, found, view, job, now, self._end(now, duration), False))

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
            seating.grants += found.grants
            self.rewrite(job, found.seats)
            return replace(found, job=job)
        return found

    def earliest(
        self,
        gang: GangRequest,
        *,
        now: int,
        duration: int | None = None,
        job: int = -1,
        latest: int | None = None,
    ) -> Seated | Wait | Never:
        """When the gang could start, and where; nothing is recorded. ``latest``: later does not matter."""
        view = self.look(now, duration)
        found = self._place(gang, view, now)
        if found is not None:
            return self._seated(gang, found, view, job, now, self._end(now, duration), False)
        never = self._never(gang, now)
        if never is not None:
            return never
        for at, end, view in self._later(gang.devices, duration, gang, latest):
            found = self._place(gang, view, at)
            if found is not None:
                return self._seated(gang, found, view, job, at, end, True)
        return Wait("busy")

    def devices_from(
        self, needs: Sequence[DeviceNeed], policy: MatchPolicy, *, now: int, duration: int | None
    ) -> int | None:
        """When devices alone could be had; None: nobody knows."""
        view = self.look(now, duration)
        if next(self.backends.choices(needs, view, policy), None) is not None:
            return now
        for at, _, view in self._later(needs, duration):
            if next(self.backends.choices(needs, view, policy), None) is not None:
                return at
        return None

    def _later(
        self,
        devices: Sequence[DeviceNeed],
        duration: int | None,
        gang: GangRequest | None = None,
        latest: int | None = None,
    ) -> Iterator[tuple[int, int, FreeView]]:
        """The times after now at which there could be enough: start, end, and what is free throughout."""
        starts = self.availability.ends()
        if latest is not None:
            starts = starts[starts <= latest]
        horizon = self.matcher.horizon
        ends = np.full_like(starts, horizon) if duration is None else np.minimum(starts + duration, horizon)
        profile = self.availability.profile
        enough = self.could_suffice(profile, starts, ends, devices, gang)
        sweep = None
        for at, end in zip(starts[enough].tolist(), ends[enough].tolist(), strict=True):
            sweep = sweep or WindowSweep(profile, self.availability.view)
            yield at, end, sweep.throughout(at, end)

    def could_suffice(
        self,
        profile: Profile,
        starts: Ints,
        ends: Ints,
        devices: Sequence[DeviceNeed],
        gang: GangRequest | None = None,
    ) -> Mask:
        """In which windows of a profile there could be enough, by what is free at each instant."""
        free, enough = self.availability.view, np.ones(len(starts), np.bool_)
        if gang is not None:
            enough &= self._placer.candidates(gang, free, profile, starts, ends)
        for need in devices:
            enough &= self.backends.candidates(need, profile, free, starts, ends)
        return enough

    def fits(self, gang: GangRequest, view: FreeView, at: int) -> bool:
        """Whether all of a gang find their seats in a view."""
        return self._place(gang, view, at) is not None

    def may_start(self, gang: GangRequest, *, job: int, now: int, duration: int | None) -> bool:
        """Whether a gang with a reservation might start now instead, its rules about other pods aside: what
        it is to have later does not stand in its way."""
        view = self.look(now, duration)
        if job in self.jobs:
            (rows, taken), now_free = self.availability.effect(job), self.availability.view
            view = FreeView(view.free.copy(), view.users.copy())
            view.free[rows] = np.minimum(view.free[rows] + taken, now_free.free[rows])
            view.users[rows] = np.maximum(view.users[rows] - 1, now_free.users[rows])
        return self._place(gang.without_rules(), view, now) is not None

    def full_nodes(self, members: Members, *, most: int) -> list[str]:
        """The first nodes that would have a seat for such pods if they were empty, and have none."""
        shape, table = self.table.shape(members.needs), self.table
        view = self.look(self.availability.now, 1)
        full = table.fits(shape, self.empty()) & ~table.fits(shape, view) & self._placer.allowed(members)
        return [self.names[index] for index in np.flatnonzero(full)[:most].tolist()]

    def displaced(self) -> set[int]:
        """The reserved jobs whose seats are not there any more, or are taken by somebody else."""
        self.look(self.availability.now)
        found = self.availability.profile.overbooked(self.availability.view)
        up = dict(zip(self.names, self.table.up.tolist(), strict=True))
        for job, seating in self.jobs.items():
            if seating.reserved and not (
                all(up.get(seat.node, False) for seat in seating.seats.values())
                and self.backends.are_there(seating.grants)
            ):
                found.add(job)
        return {job for job in found if job in self.jobs and self.jobs[job].reserved}

    def domain_seats(self, gang: GangRequest, domains: Ints, view: FreeView) -> Ints:
        """How many pods of a gang could be in each domain with what is free in a view, at most."""
        return self._placer.domain_seats(gang, domains, view)

    def could_hold(self, gang: GangRequest) -> bool:
        """Whether the gang would fit if nobody held anything: only its own pods could be in its way."""
        view, now = self.empty(), self.availability.now
        return self._place(gang.on_empty_nodes(), view, now) is not None

    def most_if_empty(self, members: Members) -> int:
        """How many such pods the nodes could hold if nobody held anything, at most."""
        seats = self.table.capacity(self.table.shape(members.needs), self.empty())
        if members.most is not None:
            seats = np.minimum(seats, members.most)
        return int((seats * self._placer.allowed(members)).sum())

    def empty(self) -> FreeView:
        """What would be free if nobody held anything."""
        self.availability.at(self.availability.now)
        self.table.refresh()
        graph = self.matcher.graph
        return FreeView(np.append(graph.size, 0), np.zeros(graph.rows + 1, np.int64))

    def progress(
        self, gang: GangRequest, view: FreeView, *, at: int, empty: bool = False, partial: bool = True
    ) -> PartialFill | None:
        """How far a gang gets with what is free in a view; None: it fits. ``empty``: nobody else is there."""
        asked = gang.on_empty_nodes() if empty else gang
        asked = replace(asked, minimum=None)
        if self._placer.place(asked, view, at) is not None:
            return None
        return self._placer.progress(replace(asked, domains=None), view, at, partial=partial)

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
        grants: tuple[DeviceGrant, ...] = (),
    ) -> None:
        """Record seats that are taken whether they fit or not: pods that run already.

        Devices are chosen among the free ones where the seat names none. ``uses_node=False`` leaves the node
        itself untouched, so that others may still have it as a whole.
        """
        self._check_new(job)
        until = self.matcher.horizon if end is None else end
        seating = Seating(job, start, until, reserved, whole, uses_node, grants=grants)
        self.look(self.availability.now)
        self._take_devices(seating, seats)
        self._write(seating)

    def release(self, job: int, pods: Iterable[Pod] | None = None) -> tuple[Seat, ...]:
        """Give back all of a job, or the seats of some pods; with its last seat it is gone."""
        seating = self._seating(job)
        gone = list(seating.seats) if pods is None else [pod for pod in pods if pod in seating.seats]
        freed = tuple(seating.seats.pop(pod) for pod in gone)
        held = seating.grants
        seating.grants = tuple(each for each in held if not each.pods.isdisjoint(seating.seats))
        if not seating.seats:
            self._erase(job)
        elif freed:
            self.rewrite(job)
        if len(seating.grants) < len(held):
            self._pass_on(job)
        return freed

    def rename(self, job: int, pod: Pod, new: Pod) -> str:
        """A seat is another pod's from now on. Says on which node."""
        seating = self._seating(job)
        seat = seating.seats.pop(pod)._replace(pod=new)
        seating.seats[new] = seat
        seating.grants, seating.shares = (
            tuple(_renamed(each, pod, new) for each in grants) for grants in (seating.grants, seating.shares)
        )
        return seat.node

    def share(self, job: int, grants: tuple[DeviceGrant, ...], lender: int) -> None:
        """A job uses devices that another holds: when that one gives them back, they are this one's."""
        seating = self._seating(job)
        seating.shares, seating.lender = grants, lender

    def _pass_on(self, lender: int) -> None:
        """A job gave back devices: the first of those with which it shared them holds them now, for all."""
        heirs = [each for each in self.jobs.values() if each.lender == lender]
        if not heirs or any(each.grants for each in heirs):
            return
        heir, *others = sorted(heirs, key=lambda each: each.job)
        heir.grants, heir.shares, heir.lender = heir.shares, (), None
        for each in others:
            each.lender = heir.job
        self.rewrite(heir.job)

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

    def free_units(self, type_: str, backends: Collection[str]) -> int:
        """How many units of a type of device are free now in some backends."""
        free = self.look(self.availability.now, 1).free
        entries = (each for each in self.backends.of_type(type_) if each.key[0] in backends and each.online)
        return sum(max(0, int(free[each.row])) for each in entries)

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
        found = self._place(gang.without_rules(), self.empty(), now)
        return None if found is not None else Never("unsatisfiable")

    # -- finding ---------------------------------------------------------------------------------------------

    def _place(self, gang: GangRequest, view: FreeView, at: int) -> _Found | None:
        """Nodes, and devices that belong to none, together."""
        if not gang.devices:
            fills = self._placer.place(gang, view, at)
            return None if fills is None else _Found(fills)
        policy = policies.find(gang.policy) if isinstance(gang.policy, str) else gang.policy
        for choice in self.backends.choices(gang.devices, view, policy):
            fills = self._placer.place(self._with(gang, choice), view, at)
            if fills is not None:
                return _Found(fills, choice.grants)
        return None

    def _with(self, gang: GangRequest, choice: DeviceChoice) -> GangRequest:
        """A gang whose pods are where their devices are."""
        if choice.under is None:
            return gang
        inside = self.backends.nodes_under(choice.under, self.table.nodes)
        users = frozenset().union(*(grant.pods for grant in choice.grants))
        members = tuple(
            each
            if users.isdisjoint(each.pods)
            else replace(each, allowed=self._placer.allowed(each) & inside)
            for each in gang.members
        )
        return replace(gang, members=members)

    # -- recording -------------------------------------------------------------------------------------------

    def _seated(
        self,
        gang: GangRequest,
        found: _Found,
        view: FreeView,
        job: int,
        at: int,
        end: int,
        reserved: bool,
    ) -> Seated:
        policy = policies.find(gang.policy) if isinstance(gang.policy, str) else gang.policy
        seats: list[Seat] = []
        next_ = [0] * len(gang.members)
        for fill in found.fills:
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
        held = self._columns.of(seats, found.grants, whole=whole, uses_node=True, view=view)
        return Seated(
            job, at, end, reserved, tuple(seats), left, whole, held, self.matcher.tree, found.grants
        )

    def _record(self, seated: Seated) -> Seated:
        seats = {seat.pod: seat for seat in seated.seats}
        seating = Seating(
            seated.job, seated.at, seated.end, seated.reserved, seated.whole, True, seats, seated.grants
        )
        self._write(seating, seated.held)
        return seated

    def _write(self, seating: Seating, columns: Columns | None = None) -> None:
        """Record what the seats of a job come to."""
        if columns is None:
            columns = self._columns.of(
                seating.seats.values(),
                seating.grants,
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


def _renamed(grant: DeviceGrant, pod: Pod, new: Pod) -> DeviceGrant:
    return grant._replace(pods=grant.pods - {pod} | {new}) if pod in grant.pods else grant
