"""Seats: many pods on nodes in one match, all or nothing.

A *seat* is what one pod needs of one node; several seats may share a node. A gang is a list of members: pods
that are alike and so have one shape. For each shape one vector operation says how many seats every node has;
the nodes are filled in the order of the match policy. Only pods that have rules about other pods are seated
one by one.

What is found is recorded in the matcher's ledger as one job, so that `find`, `explain`, reservations and the
writers see it like any other.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from fluence.errors import Conflict, InvalidInput, NotFound
from fluence.graph.graph import Ints, Mask, Rows, Tree
from fluence.graph.selection import Selection
from fluence.match import policy as policies
from fluence.match.matcher import Matcher
from fluence.match.placement import Never, Placed, Wait
from fluence.match.policy import MatchPolicy
from fluence.match.room import Room, Sweep, View

Pod: TypeAlias = Hashable  # how the caller calls a pod: its uid
Columns: TypeAlias = tuple[Rows, Ints, Mask]  # vertices, amounts, exclusive

_NOBODY = -(2**62)
_ALL = slice(None)
_MANY_SHAPES = 4096


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Pods of a gang that are alike. Masks and scores are columns over `Seats.nodes`."""

    pods: tuple[Pod, ...]
    needs: Mapping[str, int]  # amount by type of what is right below a node
    allowed: Mask | None = None  # None: every node that is up
    score: Ints | None = None  # nodes with a higher one are taken first; the policy decides among equals
    most: int | None = None  # pods of these on one node


class Sitting(Protocol):
    """One attempt to seat a gang whose pods have rules about each other."""

    def alone(self, members: int) -> bool:
        """Whether the next of these must be seated alone, because it changes what is open to the others."""

    def open(self, members: int) -> Mask | None:
        """The nodes that are open to the next of these, given who sits; None: all."""

    def sit(self, members: int, node: int, count: int) -> None:
        """So many of these sit on a node now."""


class Rules(Protocol):
    """Rules about other pods."""

    def arrange(self, turns: list[int]) -> list[int]:
        """The members in the order in which to seat them, given the order that the room suggests."""

    def begin(self, at: int) -> Sitting:
        """An attempt for a start at this time."""


@dataclass(frozen=True, slots=True, eq=False)
class Gang:
    """What is seated together: all of it, or at least ``minimum`` pods."""

    members: tuple[Members, ...]
    minimum: int | None = None
    policy: str | MatchPolicy = "first"
    rules: Rules | None = None
    stamp: int | None = None  # the state of the nodes that the masks were made for, if the maker minds

    @property
    def size(self) -> int:
        return sum(len(each.pods) for each in self.members)


class Seat(NamedTuple):
    """One pod's place."""

    pod: Pod
    node: str
    needs: Mapping[str, int]
    devices: tuple[int, ...] = ()  # the vertices that are the pod's own, such as GPUs


@dataclass(frozen=True, slots=True)
class Seated:
    """The gang has its seats, from ``at`` until ``end``."""

    job: int
    at: int
    end: int
    reserved: bool  # for later; False: it starts now
    seats: tuple[Seat, ...]
    left: tuple[Pod, ...]  # pods beyond the minimum that found no seat
    whole: bool  # the nodes are the job's own
    held: Columns
    tree: Tree

    @property
    def nodes(self) -> dict[Pod, str]:
        """Which pod got which node."""
        return {seat.pod: seat.node for seat in self.seats}

    @property
    def selection(self) -> Selection:
        """What is held, with the way to it from the root, as the graph stands."""
        return Selection.of(self.tree, *self.held)

    @property
    def placed(self) -> Placed:
        """The same for the writers."""
        return Placed(self.job, self.at, self.end, self.reserved, self.selection)

    def __bool__(self) -> bool:
        return True


@dataclass(slots=True)
class Seating:
    """What a job holds, seat by seat."""

    job: int
    start: int
    end: int
    reserved: bool
    whole: bool = False  # its nodes are its own
    guest: bool = True  # it keeps others from having its nodes as a whole
    seats: dict[Pod, Seat] = field(default_factory=dict)


class _Devices:
    """The vertices of a type that each node has several of, such as GPUs."""

    def __init__(self, rows: Rows, position: Ints, nodes: int) -> None:
        by = np.argsort(position, kind="stable")
        self.rows = rows[by]
        self.position = position[by]
        self.start = np.searchsorted(self.position, np.arange(nodes + 1))
        self.nodes = nodes

    def free(self, view: View) -> Ints:
        """How many are free on each node."""
        return np.bincount(self.position[view.free[self.rows] > 0], minlength=self.nodes)

    def pick(self, view: View, nodes: list[int], counts: list[int]) -> list[list[int]]:
        """The first free ones of some nodes."""
        if len(nodes) == 1:
            rows = self.of(nodes[0])
            return [rows[view.free[rows] > 0][: counts[0]].tolist()]
        wanted = np.zeros(self.nodes, np.int64)
        wanted[nodes] = counts
        free = view.free[self.rows] > 0
        before = np.concatenate(([0], np.cumsum(free)))
        number = before[:-1] - before[self.start[self.position]]  # among the free ones of its node
        chosen = np.flatnonzero(free & (number < wanted[self.position]))
        picked = self.rows[chosen].tolist()
        first = np.searchsorted(chosen, self.start).tolist()
        return [picked[first[node] : first[node + 1]] for node in nodes]

    def of(self, node: int) -> Rows:
        return self.rows[self.start[node] : self.start[node + 1]]


@dataclass(frozen=True, slots=True)
class _Shape:
    """Needs made ready for the columns."""

    pools: tuple[tuple[Rows, int], ...]  # the row of the pool of each node, and the amount
    devices: tuple[tuple[_Devices, int], ...]


@dataclass(frozen=True, slots=True)
class _Share:
    """Some members on some nodes, in the order of their pods."""

    members: int
    nodes: list[int]
    counts: list[int]
    devices: tuple[list[list[int]], ...] = ()  # per type of device, per node


class Seats:
    """Seats the pods of gangs on the nodes of a matcher's graph."""

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher
        self.room = Room(matcher)
        self.jobs: dict[int, Seating] = {}
        self.nodes: Rows = np.empty(0, np.int32)  # rows of the graph; masks and scores are in this order
        self.names: list[str] = []
        self.position: dict[str, int] = {}
        self._node = matcher.graph.types.code("node")
        self._pools: dict[str, Rows] = {}
        self._devices: dict[str, _Devices] = {}
        self._shapes: dict[tuple[tuple[str, int], ...], _Shape] = {}
        self._orders: dict[MatchPolicy, Ints] = {}
        self._up: Mask | None = None
        self._ways: dict[int, tuple[int, ...]] = {}
        self._shape_at = -1
        self._state_at = -1

    # -- operations ------------------------------------------------------------------------------------------

    def try_now(self, gang: Gang, *, now: int, duration: int | None = None) -> Seated | Wait | Never:
        """Where the gang would sit if it started now; nothing is recorded."""
        view = self.look(now, duration)
        shares = self._arrange(gang, view, now)
        if shares is None:
            return self._refused(gang, now)
        return self._seated(gang, shares, view, -1, now, self._end(now, duration), False)

    def seat(self, gang: Gang, *, job: int, now: int, duration: int | None = None) -> Seated | Wait | Never:
        """Seat the gang now and record it as a job."""
        self._check_new(job)
        view = self.look(now, duration)
        shares = self._arrange(gang, view, now)
        if shares is None:
            return self._refused(gang, now)
        return self._record(self._seated(gang, shares, view, job, now, self._end(now, duration), False))

    def reserve(
        self, gang: Gang, *, job: int, now: int, duration: int | None = None
    ) -> Seated | Wait | Never:
        """Seat the gang now or at the earliest time that suffices, and record it."""
        self._check_new(job)
        found = self.earliest(gang, now=now, duration=duration, job=job)
        return self._record(found) if isinstance(found, Seated) else found

    def earliest(
        self, gang: Gang, *, now: int, duration: int | None = None, job: int = -1
    ) -> Seated | Wait | Never:
        """When the gang could start, and where; nothing is recorded."""
        view = self.look(now, duration)
        shares = self._arrange(gang, view, now)
        if shares is not None:
            return self._seated(gang, shares, view, job, now, self._end(now, duration), False)
        never = self._never(gang, now)
        if never is not None:
            return never
        sweep = Sweep(self.room)
        bound = _Bound(self, gang, sweep.view)
        while (rows := sweep.step()) is not None:
            if not bound.suffices(sweep.view, rows):
                continue
            if sweep.time >= self.matcher.horizon:
                break
            view = sweep.throughout(self._end(sweep.time, duration))
            shares = self._arrange(gang, view, sweep.time)
            if shares is not None:
                end = self._end(sweep.time, duration)
                return self._seated(gang, shares, view, job, sweep.time, end, True)
        return Wait("busy")

    def hold(
        self,
        job: int,
        seats: Iterable[Seat],
        *,
        start: int,
        end: int | None = None,
        reserved: bool = False,
        whole: bool = False,
        guest: bool = True,
    ) -> None:
        """Record seats that are taken whether they fit or not: pods that run already.

        Devices are chosen among the free ones where the seat names none. ``guest=False`` leaves the node
        itself untouched, so that others may still have it as a whole.
        """
        self._check_new(job)
        until = self.matcher.horizon if end is None else end
        seating = Seating(job, start, until, reserved, whole, guest)
        self.look(self.room.now)
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
        self.look(self.room.now)
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

    def look(self, now: int, duration: int | None = None) -> View:
        """What is free from now on for a while, as columns over the rows of the graph."""
        view = self.room.at(now)
        self._refresh()
        if not self.room.events:
            return view
        return self.room.throughout(self._end(now, duration))

    def free(self, type_: str, view: View | None = None) -> Ints:
        """How much of a type is free on each node; below 0 where others took more than there is."""
        seen = self.look(self.room.now, 1) if view is None else view
        devices = self._devices.get(type_)
        if devices is not None:
            return devices.free(seen)
        rows = self._pools.get(type_)
        return np.zeros(len(self.nodes), np.int64) if rows is None else seen.free[rows]

    def size(self, type_: str) -> Ints:
        """How much of a type each node has."""
        self.look(self.room.now, 1)
        devices = self._devices.get(type_)
        if devices is not None:
            return np.bincount(devices.position, minlength=len(self.nodes))
        rows = self._pools.get(type_)
        if rows is None:
            return np.zeros(len(self.nodes), np.int64)
        return np.append(self.matcher.graph.size, 0)[rows]

    @property
    def types(self) -> tuple[str, ...]:
        """What nodes have: pools and devices."""
        self.look(self.room.now, 1)
        return (*self._pools, *self._devices)

    def capacity(self, needs: Mapping[str, int], view: View) -> Ints:
        """How many seats of one shape every node has; a node that somebody has for himself has none."""
        return self._capacity(self._shape(needs), view)

    # -- finding ---------------------------------------------------------------------------------------------

    def _arrange(self, gang: Gang, view: View, at: int) -> list[_Share] | None:
        """Who sits where, in the order of the members; None if too few find a seat.

        Members are seated one after the other, the hardest first: those for which there are fewest seats for
        each of them. Members that find no seat are tried again before all others.
        """
        policy = policies.find(gang.policy) if isinstance(gang.policy, str) else gang.policy
        order = self._order(policy)
        if len(gang.members) == 1 and gang.rules is None:
            share = self._share(gang.members[0], 0, view, policy, order, None, None)
            wanted = gang.size if gang.minimum is None else gang.minimum
            return [share] if sum(share.counts) >= wanted and share.counts else None
        turns = self._turns(gang, view)
        if gang.rules is not None:
            turns = gang.rules.arrange(turns)
        promoted: set[int] = set()
        while True:
            shares, stuck = self._attempt(gang, turns, view, at, policy, order, partial=False)
            if stuck is None:
                return shares
            if stuck in promoted or turns[0] == stuck:
                break
            promoted.add(stuck)
            turns = [stuck, *(turn for turn in turns if turn != stuck)]
            if gang.rules is not None:
                turns = gang.rules.arrange(turns)
        if gang.minimum is None or gang.minimum >= gang.size:
            return None
        shares, _ = self._attempt(gang, turns, view, at, policy, order, partial=True)
        return shares if sum(sum(share.counts) for share in shares) >= max(gang.minimum, 1) else None

    def _turns(self, gang: Gang, view: View) -> list[int]:
        if len(gang.members) == 1:
            return [0]
        slack = []
        for number, members in enumerate(gang.members):
            count = len(members.pods)
            seats = np.minimum(self._capacity(self._shape(members.needs), view), members.most or count)
            seats = np.clip(seats, 0, count) * self._allowed(members)
            slack.append((int(seats.sum()) * 1000 // max(count, 1), number))
        return [number for _, number in sorted(slack)]

    def _attempt(
        self,
        gang: Gang,
        turns: list[int],
        view: View,
        at: int,
        policy: MatchPolicy,
        order: Ints,
        *,
        partial: bool,
    ) -> tuple[list[_Share], int | None]:
        """Seat members in turn; says whose pods did not all find a seat. The view is as it was afterwards."""
        sitting = gang.rules.begin(at) if gang.rules is not None else None
        mine = np.zeros(len(self.nodes), np.bool_)  # nodes that the gang already uses
        undo: list[tuple[Rows, Ints]] = []
        shares: list[_Share] = []
        stuck: int | None = None
        try:
            for number in turns:
                members = gang.members[number]
                seated = 0
                for share in self._sit(members, number, view, policy, order, mine, sitting):
                    seated += sum(share.counts)
                    rows, taken = self._taken(members, share)
                    view.free[rows] -= taken
                    undo.append((rows, taken))
                    mine[share.nodes] = True
                    shares.append(share)
                    if sitting is not None:
                        for node, count in zip(share.nodes, share.counts, strict=True):
                            sitting.sit(number, node, count)
                if seated < len(members.pods) and not partial:
                    stuck = number
                    break
        finally:
            for rows, taken in undo:
                view.free[rows] += taken
        return shares, stuck

    def _sit(
        self,
        members: Members,
        number: int,
        view: View,
        policy: MatchPolicy,
        order: Ints,
        mine: Mask,
        sitting: Sitting | None,
    ) -> Iterator[_Share]:
        """The seats of some members: at once, or one by one where each changes the rules for the next."""
        left = len(members.pods)
        used: dict[int, int] = {}
        while left:
            open_ = sitting.open(number) if sitting is not None else None
            if members.most is not None:
                full = [node for node, count in used.items() if count >= members.most]
                if full:
                    open_ = np.ones(len(self.nodes), np.bool_) if open_ is None else open_.copy()
                    open_[full] = False
            # The first may change the rules for all others, and these not for each other.
            single = sitting is not None and (sitting.alone(number) or (used and members.most is not None))
            share = self._share(
                members, number, view, policy, order, mine, open_, count=1 if single else left
            )
            if not share.counts:
                return
            for node, count in zip(share.nodes, share.counts, strict=True):
                used[node] = used.get(node, 0) + count
            left -= sum(share.counts)
            yield share
            if not single:
                return

    def _share(
        self,
        members: Members,
        number: int,
        view: View,
        policy: MatchPolicy,
        order: Ints,
        mine: Mask | None,
        open_: Mask | None,
        *,
        count: int | None = None,
    ) -> _Share:
        """As many seats as there are pods, or as can be had, on the first nodes in the policy's order."""
        wanted = len(members.pods) if count is None else count
        shape = self._shape(members.needs)
        allowed = self._allowed(members)
        if open_ is not None:
            allowed = allowed & open_
        if policy.node_exclusive:
            untouched = view.guests[self.nodes] == 0
            allowed = allowed & (untouched if mine is None else untouched | mine)
        nodes: list[int]
        counts: list[int]
        if wanted == 1:
            fits = self._fits(shape, view) & allowed
            if members.score is None:
                at = int(order[fits[order].argmax()]) if len(order) else -1
            else:
                scored = np.where(fits, members.score, _NOBODY)[order]
                at = int(order[scored.argmax()]) if len(order) else -1
            nodes, counts = ([at], [1]) if at >= 0 and fits[at] else ([], [])
        else:
            seats = self._capacity(shape, view)
            seats[~allowed] = 0
            np.clip(seats, 0, wanted if members.most is None else members.most, out=seats)
            if members.score is not None:
                order = order[np.argsort(-members.score[order], kind="stable")]
            seats = seats[order]
            filled = np.cumsum(seats)
            last = int(np.searchsorted(filled, wanted))
            used = np.flatnonzero(seats[: last + 1])
            taken = seats[used]
            if len(taken) and filled[used[-1]] > wanted:
                taken[-1] -= filled[used[-1]] - wanted
            nodes, counts = order[used].tolist(), taken.tolist()
        devices = tuple(
            of.pick(view, nodes, [amount * seated for seated in counts]) for of, amount in shape.devices
        )
        return _Share(number, nodes, counts, devices)

    def _fits(self, shape: _Shape, view: View) -> Mask:
        """Which nodes have a seat of a shape."""
        free = view.free
        fits: Mask = free[self.nodes] > 0
        for rows, amount in shape.pools:
            fits &= free[rows] >= amount
        for devices, amount in shape.devices:
            fits &= devices.free(view) >= amount
        return fits

    def _capacity(self, shape: _Shape, view: View, some: Ints | slice = _ALL) -> Ints:
        """How many seats of a shape the nodes, or some of them, have."""
        free = view.free
        seats = np.where(free[self.nodes[some]] > 0, 2**31, 0)
        for rows, amount in shape.pools:
            np.minimum(seats, free[rows[some]] // amount, out=seats)
        for devices, amount in shape.devices:
            np.minimum(seats, devices.free(view)[some] // amount, out=seats)
        return np.maximum(seats, 0, out=seats)

    def _taken(self, members: Members, share: _Share) -> tuple[Rows, Ints]:
        """What a share takes: rows, each once, and amounts."""
        shape = self._shape(members.needs)
        nodes = np.array(share.nodes, np.int64)
        counts = np.array(share.counts, np.int64)
        rows = [pool[nodes] for pool, _ in shape.pools]
        taken = [counts * amount for _, amount in shape.pools]
        for picked in share.devices:
            own = [row for of in picked for row in of]
            rows.append(np.array(own, np.int32))
            taken.append(np.ones(len(own), np.int64))
        if not rows:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        return np.concatenate(rows), np.concatenate(taken)

    def _allowed(self, members: Members) -> Mask:
        if members.allowed is not None:
            if len(members.allowed) != len(self.nodes):
                raise Conflict("nodes have come or gone since this gang was made: make it anew")
            return members.allowed
        if self._up is None:
            graph, tree = self.matcher.graph, self.matcher.tree.shape()
            up = graph.up[self.nodes].copy()
            above = tree.parent[self.nodes]
            while (above >= 0).any():
                up &= (above < 0) | graph.up[above]
                above = np.where(above >= 0, tree.parent[above], -1)
            self._up = up
        return self._up

    # -- refusing --------------------------------------------------------------------------------------------

    def _refused(self, gang: Gang, now: int) -> Wait | Never:
        never = self._never(gang, now)
        return Wait("busy") if never is None else never

    def _never(self, gang: Gang, now: int) -> Never | None:
        """Whether the gang would fit if nobody held anything, its rules about other pods aside."""
        graph = self.matcher.graph
        empty = View(np.append(graph.size, 0), np.zeros(graph.rows + 1, np.int64))
        bare = Gang(gang.members, gang.minimum, gang.policy)
        return None if self._arrange(bare, empty, now) is not None else Never("unsatisfiable")

    # -- recording -------------------------------------------------------------------------------------------

    def _seated(
        self, gang: Gang, shares: Sequence[_Share], view: View, job: int, at: int, end: int, reserved: bool
    ) -> Seated:
        policy = policies.find(gang.policy) if isinstance(gang.policy, str) else gang.policy
        seats: list[Seat] = []
        next_ = [0] * len(gang.members)
        for share in shares:
            members = gang.members[share.members]
            pods, needs, first = members.pods, members.needs, next_[share.members]
            amounts = [amount for _, amount in self._shape(needs).devices]
            for index, (node, count) in enumerate(zip(share.nodes, share.counts, strict=True)):
                name = self.names[node]
                for number in range(count):
                    own: tuple[int, ...] = ()
                    if amounts:
                        picked = zip(share.devices, amounts, strict=True)
                        own = tuple(row for of, n in picked for row in of[index][number * n : number * n + n])
                    seats.append(Seat(pods[first], name, needs, own))
                    first += 1
            next_[share.members] = first
        left = tuple(
            pod
            for members, seated in zip(gang.members, next_, strict=True)
            if seated < len(members.pods)
            for pod in members.pods[seated:]
        )
        whole = policy.node_exclusive
        held = self._columns(seats, whole=whole, guest=True, view=view)
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
                seating.seats.values(), whole=seating.whole, guest=seating.guest, view=self.room.view
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
        self.room.added(record)
        self.jobs[seating.job] = seating

    def _erase(self, job: int) -> None:
        self.room.removing(self.matcher.ledger.job(job))
        self.matcher.cancel(job)
        self.jobs.pop(job, None)

    def _columns(self, seats: Iterable[Seat], *, whole: bool, guest: bool, view: View) -> Columns:
        """The vertices, amounts and exclusiveness that seats come to; nodes that are gone do not count."""
        graph = self.matcher.graph
        taken: dict[int, int] = {}
        used: dict[int, None] = {}
        for seat in seats:
            node = self.position.get(seat.node)
            if node is None:
                continue
            used[node] = None
            for type_, amount in seat.needs.items():
                pool = self._pools.get(type_)
                if pool is not None and amount:
                    row = int(pool[node])
                    taken[row] = taken.get(row, 0) + amount
            for row in seat.devices:
                taken[row] = taken.get(row, 0) + 1
        taken.pop(graph.rows, None)  # of what a node does not have, nothing can be held
        if whole and used:
            for row, amount in self._rest(list(used), view):
                taken[row] = max(amount, taken.get(row, 0))
        way: dict[int, bool] = {}  # node and all above it; is it the job's own?
        for node in used if guest else ():
            first, *above = self._way(node)
            way[first] = whole
            way.update(dict.fromkeys(above, False))
        return (
            np.array([*taken, *way], np.int32),
            np.concatenate((np.array([*taken.values()], np.int64), graph.size[[*way]])),
            np.array([*(True for _ in taken), *way.values()], np.bool_),
        )

    def _rest(self, used: list[int], view: View) -> Iterator[tuple[int, int]]:
        """All that is left of some nodes."""
        rows = [pool[used] for pool in self._pools.values()]
        rows.extend(devices.of(node) for devices in self._devices.values() for node in used)
        every = np.concatenate(rows)
        every = every[every < self.matcher.graph.rows]
        yield from zip(every.tolist(), np.maximum(view.free[every], 0).tolist(), strict=True)

    def _way(self, node: int) -> tuple[int, ...]:
        """The row of a node, and those above it."""
        found = self._ways.get(node)
        if found is None:
            row = int(self.nodes[node])
            found = self._ways[node] = (row, *self.matcher.tree.ancestors(row))
        return found

    def _take_devices(self, seating: Seating, seats: Iterable[Seat]) -> None:
        """Give each seat devices of its node: those that it has, free ones, or any, if others took too
        many."""
        taken: set[int] = set()
        for seat in seats:
            node = self.position.get(seat.node)
            own: list[int] = []
            for type_, of in self._devices.items():
                amount = seat.needs.get(type_, 0)
                if node is None or not amount:
                    continue
                rows = of.of(node)
                busy = self.room.view.free[rows] <= 0
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

    def _shape(self, needs: Mapping[str, int]) -> _Shape:
        key = tuple(needs.items())
        found = self._shapes.get(key)
        if found is None:
            absent = np.full(len(self.nodes), self.matcher.graph.rows, np.int32)
            found = _Shape(
                tuple((self._pools.get(t, absent), n) for t, n in key if n > 0 and t not in self._devices),
                tuple((self._devices[t], n) for t, n in key if n > 0 and t in self._devices),
            )
            if len(self._shapes) > _MANY_SHAPES:
                self._shapes.clear()
            self._shapes[key] = found
        return found

    def _order(self, policy: MatchPolicy) -> Ints:
        """Nodes, best first; those that the policy does not qualify are left out."""
        found = self._orders.get(policy)
        if found is None:
            graph = self.matcher.graph
            if policy.stop_early:
                # Fluxion's order follows the history of the load; ours must be the same after a restart.
                found = np.arange(len(self.nodes))[::-1].copy()
            else:
                scores = policy.scores(graph)[self.nodes]
                qualified = scores > 0
                if policy.node_centric:
                    scores = scores + policy.node_factor(graph)[self.nodes]
                found = np.argsort(scores if policy.ascending else -scores, kind="stable")
                found = found[qualified[found]]
            self._orders[policy] = found
        return found

    def _refresh(self) -> None:
        """Catch up with a graph that changed."""
        graph = self.matcher.graph
        if self._state_at != graph.state_generation:
            self._state_at = graph.state_generation
            self._up = None
            self._orders = {}
        if self._shape_at == graph.shape_generation:
            return
        self._shape_at = graph.shape_generation
        tree = self.matcher.tree.shape()
        self.nodes = graph.vertices_of_type(self._node)
        self.names = [graph.name[row] for row in self.nodes.tolist()]
        self.position = {name: i for i, name in enumerate(self.names)}
        place = np.full(graph.rows, -1, np.int64)
        place[self.nodes] = np.arange(len(self.nodes))
        below = tree.order[tree.parent[tree.order] >= 0]
        above = place[tree.parent[below]]
        below, above = below[above >= 0], above[above >= 0]
        self._pools, self._devices, self._shapes, self._ways = {}, {}, {}, {}
        pools = self.matcher.extensions.quantities
        types = graph.type[below]
        for code in np.unique(types).tolist():
            word = graph.types.words[code]
            rows, at = below[types == code], above[types == code]
            if word in pools:
                column = np.full(len(self.nodes), graph.rows, np.int32)
                column[at] = rows
                self._pools[word] = column
            else:
                self._devices[word] = _Devices(rows, at, len(self.nodes))


class _Bound:
    """Whether there could be enough seats, kept while a sweep goes on: only nodes that changed are counted
    again. What starts later in the window is not looked at, so a search has the last word."""

    def __init__(self, seats: Seats, gang: Gang, view: View) -> None:
        self._seats = seats
        tree = seats.matcher.tree
        place = np.full(seats.matcher.graph.rows, -1, np.int64)
        place[seats.nodes] = np.arange(len(seats.nodes))
        under = np.where(tree.parent >= 0, place[tree.parent], -1)
        self._node_of = np.where(place >= 0, place, under)
        self._gang = gang
        self._each: list[Ints] = []
        for members in gang.members:
            self._each.append(self._count(members, view, _ALL))
        total = gang.size
        self._slack = total - (total if gang.minimum is None else gang.minimum)

    def _count(self, members: Members, view: View, some: Ints | slice) -> Ints:
        seats = self._seats
        found = seats._capacity(seats._shape(members.needs), view, some)
        np.minimum(found, members.most or len(members.pods), out=found)
        return np.where(seats._allowed(members)[some], found, 0)

    def suffices(self, view: View, rows: Rows) -> bool:
        nodes = np.unique(self._node_of[rows])
        nodes = nodes[nodes >= 0]
        short = 0
        for i, members in enumerate(self._gang.members):
            if len(nodes):
                self._each[i][nodes] = self._count(members, view, nodes)
            short += max(0, len(members.pods) - int(self._each[i].sum()))
        return short <= self._slack
