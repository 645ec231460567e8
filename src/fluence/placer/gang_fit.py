"""GangFit: many pods on nodes in one match, all or nothing.

A placement is the part of one node that a pod uses; several pods may share a node. A gang is a list of
members: groups of equal pods with one shape. For each shape, one vector operation computes how many pods fit
on every node; the nodes are filled in the order of the match policy. Only pods with rules about other pods
are placed one by one.

The result is recorded in the ledger of the matcher as one job, so `find`, `explain`, reservations and the
writers treat it like any other job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from fluence.errors import Conflict, InvalidInput, NotFound
from fluence.graph.graph import Ints, Mask, Rows
from fluence.match import policy as policies
from fluence.match.matcher import Matcher
from fluence.match.policy import MatchPolicy
from fluence.match.request import Never, Wait
from fluence.model.external_resources import DeviceGrant
from fluence.placer.availability import Availability, LedgerColumns
from fluence.placer.backends import BackendTable, DeviceChoice, DeviceNeed
from fluence.placer.node_table import NodeTable
from fluence.placer.placer import (
    Columns,
    GangHolding,
    GangPlacement,
    GangRequest,
    Members,
    NodeFill,
    PartialFill,
    Placer,
    Pod,
    PodPlacement,
)
from fluence.placer.profile import FreeView, Profile, WindowSweep

_NOTHING: Columns = (np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0, np.bool_))


@dataclass(frozen=True, slots=True)
class _Found:
    """A possible placement of a gang."""

    fills: Sequence[NodeFill]
    grants: tuple[DeviceGrant, ...] = ()


class GangFit:
    """Places the pods of gangs on the nodes of a matcher's graph."""

    def __init__(self, matcher: Matcher, *, keeps_overdue: bool = False) -> None:
        self.matcher = matcher
        self._ledger = matcher.ledger
        self.availability = Availability(matcher, keeps_overdue=keeps_overdue)
        self.table = NodeTable(matcher)
        self.backends = BackendTable(matcher, self.table)
        self._columns = LedgerColumns(matcher, self.table, self.backends)
        self._placer = Placer(self.table)

    # -- operations ------------------------------------------------------------------------------------------

    def try_now(
        self, gang: GangRequest, *, now: int, duration: int | None = None
    ) -> GangPlacement | Wait | Never:
        """Where the gang would be placed if it started now; nothing is recorded."""
        view = self.look(now, duration)
        found = self._place(gang, view, now)
        if found is None:
            return self._refused(gang, now)
        return self._placement(gang, found, view, -1, now, self._end(now, duration), False)

    def allocate(
        self, gang: GangRequest, *, job: int, now: int, duration: int | None = None
    ) -> GangPlacement | Wait | Never:
        """Place the gang now and record it as a job."""
        self._check_new(job)
        view = self.look(now, duration)
        found = self._place(gang, view, now)
        if found is None:
            return self._refused(gang, now)
        return self._record(self._placement(gang, found, view, job, now, self._end(now, duration), False))

    def reserve(
        self, gang: GangRequest, *, job: int, now: int, duration: int | None = None, begin: int = 0
    ) -> GangPlacement | Wait | Never:
        """Place the gang now or at its earliest start, and record it. ``begin``: the earliest allowed
        start."""
        self._check_new(job)
        found = self.earliest(gang, now=now, duration=duration, job=job, begin=begin)
        return self._record(found) if isinstance(found, GangPlacement) else found

    def earliest(
        self,
        gang: GangRequest,
        *,
        now: int,
        duration: int | None = None,
        job: int = -1,
        latest: int | None = None,
        begin: int = 0,
    ) -> GangPlacement | Wait | Never:
        """The earliest start of the gang and its placement; nothing is recorded. ``begin`` and ``latest``
        limit the search."""
        view = self.look(now, duration)
        found = self._place(gang, view, now) if begin <= now else None
        if found is not None:
            return self._placement(gang, found, view, job, now, self._end(now, duration), False)
        never = self._never(gang, now)
        if never is not None:
            return never
        for at, end, view in self._later(
            gang.devices, duration, gang, latest, begin if begin > now else None
        ):
            found = self._place(gang, view, at)
            if found is not None:
                return self._placement(gang, found, view, job, at, end, True)
        return Wait("busy")

    def devices_from(
        self, needs: Sequence[DeviceNeed], policy: MatchPolicy, *, now: int, duration: int | None
    ) -> int | None:
        """The earliest time at which the devices alone are free; None if unknown."""
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
        begin: int | None = None,
    ) -> Iterator[tuple[int, int, FreeView]]:
        """The later windows in which the gang might fit: start, end, and what is free throughout."""
        starts = self.availability.ends()
        if begin is not None:
            starts = np.concatenate((np.array([begin], starts.dtype), starts[starts > begin]))
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
        """The windows of a profile in which the gang might fit, by what is free at each instant."""
        free, enough = self.availability.view, np.ones(len(starts), np.bool_)
        if gang is not None:
            enough &= self._placer.candidates(gang, free, profile, starts, ends)
        for need in devices:
            enough &= self.backends.candidates(need, profile, free, starts, ends)
        return enough

    def fits(self, gang: GangRequest, view: FreeView, at: int) -> bool:
        """Whether a gang fits in a view."""
        return self._place(gang, view, at) is not None

    def nodes_for(self, gang: GangRequest, view: FreeView, at: int) -> set[str] | None:
        """The nodes on which a gang would be placed in a view; None: it does not fit."""
        found = self._place(gang, view, at)
        if found is None:
            return None
        return {
            self.names[node]
            for fill in found.fills
            for node, count in zip(fill.nodes, fill.counts, strict=True)
            if count
        }

    def may_start(self, gang: GangRequest, *, job: int, now: int, duration: int | None) -> bool:
        """Whether a gang with a reservation might start now instead, without its rules about other pods. Its
        own reservation does not count."""
        view = self.look(now, duration)
        if job in self.jobs:
            (rows, taken), now_free = self.availability.effect(job), self.availability.view
            view = FreeView(view.free.copy(), view.users.copy())
            view.free[rows] = np.minimum(view.free[rows] + taken, now_free.free[rows])
            view.users[rows] = np.maximum(view.users[rows] - 1, now_free.users[rows])
        return self._place(gang.without_rules(), view, now) is not None

    def full_nodes(self, members: Members, *, most: int) -> dict[str, frozenset[str]]:
        """The first nodes on which such a pod would fit only if they were empty, with the resources that they
        lack now (`NodeTable.lacking`)."""
        shape, table = self.table.shape(members.needs), self.table
        view = self.look(self.availability.now, 1)
        full = table.fits(shape, self.empty()) & ~table.fits(shape, view) & self._placer.allowed(members)
        some = np.flatnonzero(full)[:most].tolist()
        return {self.names[index]: table.lacking(members.needs, view, index) for index in some}

    def lacking(self, needs: Mapping[str, Mapping[str, int]], *, now: int) -> dict[str, frozenset[str]]:
        """The types that each node lacks now of the given needs."""
        view, position = self.look(now, 1), self.table.position
        return {node: self.table.lacking(amounts, view, position[node]) for node, amounts in needs.items()}

    def displaced(self) -> set[int]:
        """The reserved jobs whose placements are gone, or taken by other jobs."""
        self.look(self.availability.now)
        found = self.availability.profile.overbooked(self.availability.view)
        up = dict(zip(self.names, self.table.up.tolist(), strict=True))
        for job, holding in self.jobs.items():
            if holding.reserved and not (
                all(up.get(placement.node, False) for placement in holding.placements.values())
                and self.backends.are_there(holding.grants)
            ):
                found.add(job)
        return {job for job in found if job in self.jobs and self.jobs[job].reserved}

    def domain_seats(self, gang: GangRequest, domains: Ints, view: FreeView) -> Ints:
        """The largest number of pods of a gang that fit in each domain in a view."""
        return self._placer.domain_seats(gang, domains, view)

    def could_hold(self, gang: GangRequest) -> bool:
        """Whether the gang would fit on empty nodes, with the rules of its pods about each other."""
        view, now = self.empty(), self.availability.now
        return self._place(gang.on_empty_nodes(), view, now) is not None

    def most_if_empty(self, members: Members) -> int:
        """The largest number of such pods that would fit on empty nodes."""
        slots = self.table.capacity(self.table.shape(members.needs), self.empty())
        if members.most is not None:
            slots = np.minimum(slots, members.most)
        return int((slots * self._placer.allowed(members)).sum())

    def empty(self) -> FreeView:
        """What would be free if all nodes were empty."""
        self.availability.at(self.availability.now)
        self.table.refresh()
        graph = self.matcher.graph
        return FreeView(np.append(graph.size, 0), np.zeros(graph.rows + 1, np.int64))

    def progress(
        self, gang: GangRequest, view: FreeView, *, at: int, empty: bool = False, partial: bool = True
    ) -> PartialFill | None:
        """How many pods of a gang fit in a view, and which does not; None: all fit. ``empty``: assume empty
        nodes."""
        asked = gang.on_empty_nodes() if empty else gang
        asked = replace(asked, minimum=None)
        if self._placer.place(asked, view, at) is not None:
            return None
        return self._placer.progress(replace(asked, domains=None), view, at, partial=partial)

    def hold(
        self,
        job: int,
        placements: Iterable[PodPlacement],
        *,
        start: int,
        end: int | None = None,
        whole: bool = False,
        uses_node: bool = True,
        grants: tuple[DeviceGrant, ...] = (),
    ) -> GangHolding:
        """Record running pods, even if they do not fit.

        Free devices are chosen if a placement names none. ``uses_node=False`` leaves the node itself
        unused, so that another job can still get it as a whole node.
        """
        self._check_new(job)
        until = self.matcher.horizon if end is None else end
        holding = GangHolding(job, start, until, False, whole=whole, uses_node=uses_node, grants=grants)
        self.look(self.availability.now)
        self._take_devices(holding, placements)
        self._ledger.write(holding, *self._columns_of(holding))
        return holding

    def release(self, job: int, pods: Iterable[Pod] | None = None) -> tuple[PodPlacement, ...]:
        """Free a job, or the placements of some pods; a job without placements is removed."""
        holding = self._holding(job)
        held = holding.placements
        gone = list(held if pods is None else dict.fromkeys(pod for pod in pods if pod in held))
        if len(gone) == len(held):
            # The record keeps its placements, so that an undo restores the job.
            self.matcher.cancel(job)
            if holding.grants:
                self._pass_on(job)
            return tuple(held.values())
        freed = tuple(held.pop(pod) for pod in gone)
        holding.ended.difference_update(gone)
        granted = holding.grants
        holding.grants = tuple(grant for grant in granted if not grant.pods.isdisjoint(held))
        if freed:
            self.rewrite(job)
        if len(holding.grants) < len(granted):
            self._pass_on(job)
        return freed

    def rename(self, job: int, pod: Pod, new: Pod) -> PodPlacement:
        """Give a placement to another pod."""
        holding = self._holding(job)
        placement = holding.placements.pop(pod)._replace(pod=new)
        holding.placements[new] = placement
        holding.ended.discard(pod)
        holding.grants = tuple(_renamed(grant, pod, new) for grant in holding.grants)
        holding.shares = tuple(_renamed(grant, pod, new) for grant in holding.shares)
        return placement

    def share(self, job: int, grants: tuple[DeviceGrant, ...], lender: int) -> None:
        """A job shares devices that another job holds. When that job frees them, this job gets them."""
        holding = self._holding(job)
        holding.shares, holding.lender = grants, lender

    def _pass_on(self, lender: int) -> None:
        """A job freed devices: the first job that shared them holds them now, for all."""
        heirs = [each for each in self.jobs.values() if each.lender == lender]
        if not heirs or any(each.grants for each in heirs):
            return
        heir, *others = sorted(heirs, key=lambda each: each.id)
        heir.grants, heir.shares, heir.lender = heir.shares, (), None
        for each in others:
            each.lender = heir.id
        self.rewrite(heir.id)

    def rewrite(self, job: int, placements: Iterable[PodPlacement] = ()) -> None:
        """Record a job again: some placements have changed, or a node has come back with other vertices."""
        holding = self._holding(job)
        # The current resources of the job count as free while new ones are chosen.
        self._ledger.rewrite(holding, *_NOTHING)
        self.look(self.availability.now)
        changed = {placement.pod: placement for placement in placements}
        self._take_devices(holding, [*{**holding.placements, **changed}.values()])
        self._ledger.rewrite(holding, *self._columns_of(holding))

    def prolong(self, job: int, end: int) -> None:
        """Change the end of a job."""
        self._ledger.stretch(job, end)

    # -- asking ----------------------------------------------------------------------------------------------

    @property
    def jobs(self) -> dict[int, GangHolding]:
        """All jobs of the ledger: on a cluster, this is the only writer."""
        return cast(dict[int, GangHolding], self._ledger.jobs)

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
        """The types of nodes: pools and devices."""
        self.look(self.availability.now, 1)
        return (*self.table.pools, *self.table.devices)

    def free(self, type_: str, view: FreeView | None = None) -> Ints:
        """The free amount of a type on each node, now or in a view; negative if a node is overcommitted."""
        return self.table.free(type_, self.look(self.availability.now, 1) if view is None else view)

    def free_units(self, type_: str, backends: Collection[str]) -> int:
        """The number of units of a device type that are free now in some backends."""
        free = self.look(self.availability.now, 1).free
        entries = (each for each in self.backends.of_type(type_) if each.key[0] in backends and each.online)
        return sum(max(0, int(free[each.row])) for each in entries)

    def size(self, type_: str) -> Ints:
        """The size of a type on each node."""
        self.look(self.availability.now, 1)
        return self.table.size(type_)

    def look(self, now: int, duration: int | None = None) -> FreeView:
        """What is free from now on for a duration, as columns over the rows of the graph."""
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
        """`Never` if the gang would not fit on empty nodes, without its rules about other pods."""
        found = self._place(gang.without_rules(), self.empty(), now)
        return None if found is not None else Never("unsatisfiable")

    # -- finding ---------------------------------------------------------------------------------------------

    def _place(self, gang: GangRequest, view: FreeView, at: int) -> _Found | None:
        """Find nodes and external resources together."""
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
        """The gang restricted to the nodes of its devices."""
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

    def _placement(
        self,
        gang: GangRequest,
        found: _Found,
        view: FreeView,
        job: int,
        at: int,
        end: int,
        reserved: bool,
    ) -> GangPlacement:
        policy = policies.find(gang.policy) if isinstance(gang.policy, str) else gang.policy
        placements: list[PodPlacement] = []
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
                    placements.append(PodPlacement(pods[first], name, needs, own))
                    first += 1
            next_[fill.members] = first
        left = tuple(
            pod for members, count in zip(gang.members, next_, strict=True) for pod in members.pods[count:]
        )
        whole = policy.node_exclusive
        columns = self._columns.of(placements, found.grants, whole=whole, uses_node=True, view=view)
        return GangPlacement(job, at, end, reserved, tuple(placements), left, whole, columns, found.grants)

    def _record(self, found: GangPlacement) -> GangPlacement:
        placements = {placement.pod: placement for placement in found.placements}
        holding = GangHolding(
            found.job,
            found.at,
            found.end,
            found.reserved,
            whole=found.whole,
            placements=placements,
            grants=found.grants,
        )
        self._ledger.write(holding, *found.columns)
        return found

    def _columns_of(self, holding: GangHolding) -> Columns:
        """The columns of a job for the ledger."""
        return self._columns.of(
            holding.placements.values(),
            holding.grants,
            whole=holding.whole,
            uses_node=holding.uses_node,
            view=self.availability.view,
        )

    def _take_devices(self, holding: GangHolding, placements: Iterable[PodPlacement]) -> None:
        """Give each placement devices of its node: those that it has, else free ones, else any, if the node
        is overcommitted."""
        taken: set[int] = set()
        for placement in placements:
            node = self.table.position.get(placement.node)
            own: list[int] = []
            for type_, of in self.table.devices.items():
                amount = placement.needs.get(type_, 0)
                if node is None or not amount:
                    continue
                rows = of.of(node)
                busy = self.availability.view.free[rows] <= 0
                busy |= np.isin(rows, list(taken))
                by = np.lexsort((~np.isin(rows, placement.devices), busy))
                own.extend(rows[by][:amount].tolist())
            taken.update(own)
            if own or placement.devices:
                placement = placement._replace(devices=tuple(own))
            holding.placements[placement.pod] = placement

    # -- inside ----------------------------------------------------------------------------------------------

    def _holding(self, job: int) -> GangHolding:
        try:
            return self.jobs[job]
        except KeyError:
            raise NotFound(f"no job {job} holds anything") from None

    def _check_new(self, job: int) -> None:
        if job in self._ledger.jobs:
            raise Conflict(f"job {job} already holds resources: release it first or choose another id")

    def _end(self, at: int, duration: int | None) -> int:
        if duration is not None and duration <= 0:
            raise InvalidInput(f"a duration of {duration} seconds: must be positive, or None for no limit")
        horizon = self.matcher.horizon
        return horizon if duration is None else min(at + duration, horizon)


def _renamed(grant: DeviceGrant, pod: Pod, new: Pod) -> DeviceGrant:
    return grant._replace(pods=grant.pods - {pod} | {new}) if pod in grant.pods else grant
