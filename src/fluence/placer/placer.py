"""Placer: gangs of pods, and the choice of nodes for their members, given the free resources.

Members are placed one after the other, the hardest first: those with the fewest possible placements per pod.
If a member does not fit, the search is repeated with this member in front.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from fluence.errors import Conflict
from fluence.graph.graph import Ints, Mask, Rows
from fluence.graph.ledger import LedgerJob
from fluence.match import policy as policies
from fluence.match.policy import MatchPolicy
from fluence.model.external_resources import DeviceGrant
from fluence.placer.backends import DeviceNeed
from fluence.placer.node_table import SCORE_STEPS, NodeTable
from fluence.placer.profile import FreeView, Profile, SlotsOverTime

Pod: TypeAlias = Hashable  # the caller's id of a pod: its uid
Columns: TypeAlias = tuple[Rows, Ints, Mask]  # vertices, amounts, exclusive


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Equal pods of a gang. Masks and scores are columns over `GangFit.nodes`."""

    pods: tuple[Pod, ...]
    needs: Mapping[str, int]  # amounts by type, of vertices directly below a node
    allowed: Mask | None = None  # None: every node that is up
    score: Ints | None = None  # nodes with a higher score are taken first; the policy breaks ties
    most: int | None = None  # the largest number of these pods on one node
    least_allocated: bool = False  # also prefer nodes with more resources left


class Attempt(Protocol):
    """One attempt to place a gang whose pods have rules about other pods."""

    def one_at_a_time(self, members: int) -> bool:
        """Whether the next pod must be placed alone, because it changes which nodes are open to the
        others."""

    def open_nodes(self, members: int) -> Mask | None:
        """The nodes that are open to the next pod, given the pods that are placed; None: all."""

    def score(self, members: int) -> Ints | None:
        """The score of nodes for the next pod, given the pods that are placed; added to that of its members.
        None: all are equal."""

    def required_free(self, members: int) -> Mapping[str, int] | None:
        """What the node of the next pod must have free, because other pods must be placed there too."""

    def assign(self, members: int, node: int, count: int) -> None:
        """This number of pods is placed on a node."""


class GangRules(Protocol):
    """The rules of a gang about other pods."""

    def order(self, turns: list[int]) -> list[int]:
        """The members in the order in which to place them, given their order by free resources."""

    def begin(self, at: int) -> Attempt:
        """An attempt for a start at this time."""

    def alone(self) -> GangRules | None:
        """The rules that also apply on empty nodes: rules of its pods about each other that other pods cannot
        satisfy."""


@dataclass(frozen=True, slots=True, eq=False)
class GangRequest:
    """The pods to place together: all of them, or at least ``minimum``."""

    members: tuple[Members, ...]
    minimum: int | None = None
    policy: str | MatchPolicy = "first"
    rules: GangRules | None = None
    stamp: int | None = None  # the state of the nodes for which the masks are valid, if checked
    domains: Ints | None = None  # all pods must be in one domain: the domain of each node, -1 for none
    devices: tuple[DeviceNeed, ...] = ()  # external resources, allocated together with the nodes

    @property
    def size(self) -> int:
        return sum(len(each.pods) for each in self.members)

    def without_rules(self) -> GangRequest:
        """The same without its rules about other pods."""
        return GangRequest(
            self.members, self.minimum, self.policy, domains=self.domains, devices=self.devices
        )

    def on_empty_nodes(self) -> GangRequest:
        """The same as on empty nodes."""
        found = self.without_rules()
        return found if self.rules is None else replace(found, rules=self.rules.alone())


class PodPlacement(NamedTuple):
    """The part of one node that a pod uses."""

    pod: Pod
    node: str
    needs: Mapping[str, int]
    devices: tuple[int, ...] = ()  # the vertices that only this pod uses, such as GPUs


@dataclass(frozen=True, slots=True)
class GangPlacement:
    """The result of a search: the placement of a gang from ``at`` until ``end``."""

    job: int
    at: int
    end: int
    reserved: bool  # for later; False: it starts now
    placements: tuple[PodPlacement, ...]
    left: tuple[Pod, ...]  # pods beyond the minimum that did not fit
    whole: bool  # the job uses whole nodes
    columns: Columns  # for the ledger
    grants: tuple[DeviceGrant, ...] = ()

    @property
    def nodes(self) -> dict[Pod, str]:
        """The node of each pod."""
        return {placement.pod: placement.node for placement in self.placements}

    def __bool__(self) -> bool:
        return True


@dataclass(slots=True, eq=False)
class GangHolding(LedgerJob):
    """A job in the ledger whose vertices are the placements of pods and the devices granted to them."""

    whole: bool = False  # it uses whole nodes
    uses_node: bool = True  # no other job can get its nodes as whole nodes
    placements: dict[Pod, PodPlacement] = field(default_factory=dict)
    grants: tuple[DeviceGrant, ...] = ()
    shares: tuple[DeviceGrant, ...] = ()  # devices that `lender` also holds for this job
    lender: int | None = None  # another job
    ended: set[Pod] = field(default_factory=set)  # pods that have ended while the job keeps their placements

    def holds(self, lacking: Mapping[str, Collection[str]]) -> bool:
        """Whether it holds something that some nodes lack (`NodeTable.lacking`), by name."""
        return any(
            (self.whole and "node" in lacking[pod.node]) or holds_some(pod.needs, lacking[pod.node])
            for pod in self.placements.values()
            if pod.node in lacking
        )


def holds_some(needs: Mapping[str, int], types: Collection[str]) -> bool:
    """Whether a pod has some of these types."""
    return any(needs.get(type_, 0) > 0 for type_ in types)


_NOBODY = -(2**62)


@dataclass(frozen=True, slots=True)
class NodeFill:
    """Some members on some nodes, in the order of their pods."""

    members: int
    nodes: list[int]
    counts: list[int]
    devices: tuple[list[list[int]], ...] = ()  # per type of device, per node


@dataclass(frozen=True, slots=True)
class PartialFill:
    """A gang that fits in part: the state when the next pod does not fit."""

    seated: int  # the number of pods that fit
    stuck: int | None  # the number of the members whose next pod does not fit; None: all fit
    view: FreeView  # what is free after placing them
    attempt: Attempt | None  # the rules about other pods, with the placed pods counted


class Placer:
    """Finds placements. It records nothing and leaves its arguments unchanged."""

    def __init__(self, table: NodeTable) -> None:
        self.table = table

    def place(self, gang: GangRequest, view: FreeView, at: int) -> list[NodeFill] | None:
        """The nodes of the members, in the order in which they were placed; None if too few fit."""
        policy = policies.find(gang.policy) if isinstance(gang.policy, str) else gang.policy
        order = self.table.order(policy)
        if gang.domains is not None:
            return self._in_one_domain(gang, gang.domains, view, at, order)
        if len(gang.members) == 1 and gang.rules is None:
            fill = self._fill(gang.members[0], 0, view, policy, order, None, None, None)
            wanted = gang.size if gang.minimum is None else gang.minimum
            return [fill] if sum(fill.counts) >= wanted and fill.counts else None
        fills, turns = self._all(gang, view, at, policy, order)
        if fills is not None or gang.minimum is None or gang.minimum >= gang.size:
            return fills
        fills, _ = self._attempt(gang, turns, view, at, policy, order, partial=True)
        return fills if sum(sum(fill.counts) for fill in fills) >= max(gang.minimum, 1) else None

    def progress(self, gang: GangRequest, view: FreeView, at: int, *, partial: bool) -> PartialFill:
        """Place as many pods as possible of a gang that does not fit, in any domain. ``partial``: place pods
        of all kinds; else stop at the first pod that does not fit."""
        policy = policies.find(gang.policy) if isinstance(gang.policy, str) else gang.policy
        order = self.table.order(policy)
        turns = [0]
        if len(gang.members) > 1:
            _, turns = self._all(gang, view, at, policy, order)
        attempt = gang.rules.begin(at) if gang.rules is not None else None
        beside = FreeView(view.free.copy(), view.users)
        fills: list[NodeFill] = []
        stuck = self._in_turn(
            gang, turns, beside, policy, order, attempt, fills=fills, undo=[], partial=partial
        )
        return PartialFill(sum(sum(fill.counts) for fill in fills), stuck, beside, attempt)

    def _all(
        self, gang: GangRequest, view: FreeView, at: int, policy: MatchPolicy, order: Ints
    ) -> tuple[list[NodeFill] | None, list[int]]:
        """Placements for all members, in the order that was tried last."""
        turns = self._turns(gang, view)
        if gang.rules is not None:
            turns = gang.rules.order(turns)
        promoted: set[int] = set()
        while True:
            fills, stuck = self._attempt(gang, turns, view, at, policy, order, partial=False)
            if stuck is None:
                return fills, turns
            if stuck in promoted or turns[0] == stuck:
                return None, turns
            promoted.add(stuck)
            turns = [stuck, *(turn for turn in turns if turn != stuck)]
            if gang.rules is not None:
                turns = gang.rules.order(turns)

    def _in_one_domain(
        self, gang: GangRequest, domains: Ints, view: FreeView, at: int, order: Ints
    ) -> list[NodeFill] | None:
        """Try the domains in the order of their first nodes: first for all pods, then for the minimum."""
        for minimum in dict.fromkeys((None, gang.minimum)):
            seats = self.domain_seats(gang, domains, view)
            enough = seats >= (gang.size if minimum is None else max(minimum, 1))
            there = domains[order]
            firsts = np.sort(np.unique(there, return_index=True)[1])
            for domain in there[firsts].tolist():
                if domain < 0 or not enough[domain]:
                    continue
                inside = domains == domain
                members = tuple(replace(each, allowed=self.allowed(each) & inside) for each in gang.members)
                found = self.place(replace(gang, members=members, minimum=minimum, domains=None), view, at)
                if found is not None:
                    return found
        return None

    def domain_seats(self, gang: GangRequest, domains: Ints, view: FreeView) -> Ints:
        """The largest number of pods of a gang that fit in each domain, counting each kind separately."""
        found = np.zeros(int(domains.max(initial=-1)) + 1, np.int64)
        inside = domains >= 0
        for members in gang.members:
            count = len(members.pods)
            seats = self.table.capacity(self.table.shape(members.needs), view)
            seats = np.minimum(seats, members.most or count) * self.allowed(members)
            each = np.zeros_like(found)
            np.add.at(each, domains[inside], seats[inside])
            found += np.minimum(each, count)
        return found

    def _turns(self, gang: GangRequest, view: FreeView) -> list[int]:
        if len(gang.members) == 1:
            return [0]
        slack = []
        for number, members in enumerate(gang.members):
            count = len(members.pods)
            seats = np.minimum(
                self.table.capacity(self.table.shape(members.needs), view), members.most or count
            )
            seats = np.clip(seats, 0, count) * self.allowed(members)
            slack.append((int(seats.sum()) * 1000 // max(count, 1), number))
        return [number for _, number in sorted(slack)]

    def _attempt(
        self,
        gang: GangRequest,
        turns: list[int],
        view: FreeView,
        at: int,
        policy: MatchPolicy,
        order: Ints,
        *,
        partial: bool,
    ) -> tuple[list[NodeFill], int | None]:
        """Place members in turn; returns the placements, and the first members that did not fit completely.
        The view is restored."""
        attempt = gang.rules.begin(at) if gang.rules is not None else None
        undo: list[tuple[Rows, Ints]] = []
        fills: list[NodeFill] = []
        try:
            stuck = self._in_turn(
                gang, turns, view, policy, order, attempt, fills=fills, undo=undo, partial=partial
            )
        finally:
            for rows, taken in undo:
                view.free[rows] += taken
        return fills, None if partial else stuck

    def _in_turn(
        self,
        gang: GangRequest,
        turns: list[int],
        view: FreeView,
        policy: MatchPolicy,
        order: Ints,
        attempt: Attempt | None,
        *,
        fills: list[NodeFill],
        undo: list[tuple[Rows, Ints]],
        partial: bool,
    ) -> int | None:
        """Place members in turn and subtract their needs from the view; returns the first members that did
        not fit completely. No further pods are placed after that, unless ``partial``."""
        own = np.zeros(len(self.table.nodes), np.bool_)  # nodes that the gang already uses
        stuck: int | None = None
        for number in turns:
            members = gang.members[number]
            seated = 0
            for fill in self._fills(members, number, view, policy, order, own, attempt, partial=partial):
                seated += sum(fill.counts)
                rows, taken = self.taken(members, fill)
                view.free[rows] -= taken
                undo.append((rows, taken))
                own[fill.nodes] = True
                fills.append(fill)
                if attempt is not None:
                    for node, count in zip(fill.nodes, fill.counts, strict=True):
                        attempt.assign(number, node, count)
            if seated < len(members.pods) and stuck is None:
                stuck = number
                if not partial:
                    break
        return stuck

    def _fills(
        self,
        members: Members,
        number: int,
        view: FreeView,
        policy: MatchPolicy,
        order: Ints,
        own: Mask,
        attempt: Attempt | None,
        *,
        partial: bool,
    ) -> Iterator[NodeFill]:
        """The placements of some members: all at once, or one by one if each pod changes the rules for the
        next."""
        left = len(members.pods)
        used: dict[int, int] = {}
        while left:
            open_ = attempt.open_nodes(number) if attempt is not None else None
            required = attempt.required_free(number) if attempt is not None and not partial else None
            if required is not None:
                fits = self.table.fits(self.table.shape(required), view)
                open_ = fits if open_ is None else open_ & fits
            if members.most is not None:
                full = [node for node, count in used.items() if count >= members.most]
                if full:
                    open_ = np.ones(len(self.table.nodes), np.bool_) if open_ is None else open_.copy()
                    open_[full] = False
            # The first pod may change the rules for the others, although these do not affect each other.
            single = attempt is not None and (
                attempt.one_at_a_time(number) or (used and members.most is not None)
            )
            preferred = attempt.score(number) if attempt is not None else None
            fill = self._fill(
                members, number, view, policy, order, own, open_, preferred, count=1 if single else left
            )
            if not fill.counts:
                return
            for node, count in zip(fill.nodes, fill.counts, strict=True):
                used[node] = used.get(node, 0) + count
            left -= sum(fill.counts)
            yield fill
            if not single:
                return

    def _fill(
        self,
        members: Members,
        number: int,
        view: FreeView,
        policy: MatchPolicy,
        order: Ints,
        own: Mask | None,
        open_: Mask | None,
        preferred: Ints | None,
        *,
        count: int | None = None,
    ) -> NodeFill:
        """Place as many of the pods as fit on the first nodes in the order of the policy."""
        wanted = len(members.pods) if count is None else count
        shape = self.table.shape(members.needs)
        allowed = self.allowed(members)
        if open_ is not None:
            allowed = allowed & open_
        if policy.node_exclusive:
            untouched = view.users[self.table.nodes] == 0
            allowed = allowed & (untouched if own is None else untouched | own)
        score = members.score
        if preferred is not None:
            score = preferred if score is None else score + preferred
        if members.least_allocated:
            left = self.table.least_allocated(members.needs, view)
            score = left if score is None else score * SCORE_STEPS + left
        nodes: list[int]
        counts: list[int]
        if wanted == 1:
            fits = self.table.fits(shape, view) & allowed
            if score is None:
                at = int(order[fits[order].argmax()]) if len(order) else -1
            else:
                scored = np.where(fits, score, _NOBODY)[order]
                at = int(order[scored.argmax()]) if len(order) else -1
            nodes, counts = ([at], [1]) if at >= 0 and fits[at] else ([], [])
        else:
            seats = self.table.capacity(shape, view)
            seats[~allowed] = 0
            np.clip(seats, 0, wanted if members.most is None else members.most, out=seats)
            if score is not None:
                order = order[np.argsort(-score[order], kind="stable")]
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
        return NodeFill(number, nodes, counts, devices)

    def taken(self, members: Members, fill: NodeFill) -> tuple[Rows, Ints]:
        """The resources of members on some nodes: distinct rows, and amounts."""
        shape = self.table.shape(members.needs)
        nodes = np.array(fill.nodes, np.int64)
        counts = np.array(fill.counts, np.int64)
        rows = [pool[nodes] for pool, _ in shape.pools]
        taken = [counts * amount for _, amount in shape.pools]
        for picked in fill.devices:
            devices = [row for of in picked for row in of]
            rows.append(np.array(devices, np.int32))
            taken.append(np.ones(len(devices), np.int64))
        if not rows:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        return np.concatenate(rows), np.concatenate(taken)

    def allowed(self, members: Members) -> Mask:
        """The nodes that some members may use, regardless of free resources."""
        if members.allowed is None:
            return self.table.up
        if len(members.allowed) != len(self.table.nodes):
            raise Conflict("nodes have come or gone since this gang was made: make it anew")
        return members.allowed

    def candidates(
        self, gang: GangRequest, view: FreeView, profile: Profile, starts: Ints, ends: Ints
    ) -> Mask:
        """The windows in which a gang might fit, by what is free at each instant; only `place` is certain."""
        slack = 0 if gang.minimum is None else gang.size - gang.minimum
        found = np.ones(len(starts), np.bool_)
        for members in gang.members:
            wanted = len(members.pods) - slack
            if wanted <= 0:
                continue
            allowed = np.append(self.allowed(members), False)
            shape, most = self.table.shape(members.needs), members.most or len(members.pods)
            for pool, amount in shape.pools:
                where = self.table.node_with(pool)
                counted = np.where(allowed[where], where, -1)
                seats = SlotsOverTime(profile, view, counted, amount, most)
                found &= seats.suffice(wanted, starts, ends)
            for devices, amount in shape.devices:
                where = np.full(len(view.free), -1)
                where[devices.rows] = np.where(allowed[devices.position], devices.position, -1)
                seats = SlotsOverTime(profile, view, where, 1, 1)
                found &= seats.suffice(wanted * amount, starts, ends)
        return found
