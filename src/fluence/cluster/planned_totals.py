"""Possible starts of waiting gangs without placing them: sums over time, and a forecast by expected ends.

`ClusterPlanner` uses it. `PlannedTotals` adds up the resources of the cluster and the requests of gangs. Sums
ignore fragmentation, so their starts are lower bounds. There is one sum for each set of nodes that the gangs
can use: on a cluster with partitions, free nodes in one partition do not help a job that waits for another.
`StartForecast` finds the first time at which a gang fits on the nodes by all rules, if running jobs end when
they are expected to and no other job starts.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from cachetools import LRUCache

from fluence.cluster.graph import ClusterGraph
from fluence.graph.graph import Mask
from fluence.model.external_resources import DeviceGrant
from fluence.placer.gang_fit import GangFit
from fluence.placer.placer import GangRequest
from fluence.placer.profile import JobChange, Profile
from fluence.queue.allocations import Allocations
from fluence.queue.quota import Claim
from fluence.queue.timeline import Amounts, Totals

_MAX_SHAPES = 10_000  # distinct shapes in a cache: users can make up any number
_MAX_POOLS = 32  # sets of nodes in a sketch: as many as jobs in a round of promises

_ALL = b""  # every node
_MAX_AMOUNT = 1 << 52  # the cap of any amount of one pod: sums must fit into 64 bits

_Held = tuple[str, int, Mapping[Hashable, int]]  # a task, its end, and its resources


class DeviceKind(NamedTuple):
    """A countable resource: the units of a device type in some backends."""

    type: str
    backends: tuple[str, ...]

    def counts(self, grant: DeviceGrant) -> bool:
        return grant.type == self.type and grant.backend in self.backends


class PoolKind(NamedTuple):
    """A countable resource: a type on some nodes."""

    type: str
    nodes: bytes  # a mask


@dataclass(frozen=True, slots=True)
class Asked:
    """The requests of gangs of a shape: by the sets of nodes that their pods can use, and by device."""

    parts: tuple[tuple[bytes, Mapping[str, int]], ...] = ()
    devices: tuple[tuple[DeviceKind, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Sketch:
    """Sums over time, and the request of each waiting gang. ``beside``: what it might take from sets of nodes
    that it can use in part. ``unknown``: places for which the sums give no start."""

    totals: Totals
    asks: list[tuple[Amounts, int]]
    beside: list[Amounts]
    unknown: frozenset[int]
    demands: Sequence[Amounts] = ()  # of each gang against the quotas of its queue

    def starts(self, now: int, *, in_order: bool = False, since: Sequence[int] = ()) -> list[int | None]:
        """``in_order``: no gang starts before the one in front of it, and each uses the nodes where it delays
        the others most. ``since``: no gang starts before its reservation."""
        beside = self.beside if in_order else ()
        found = self.totals.place_all(
            self.asks, now, in_order=in_order, beside=beside, since=since, demands=self.demands
        )
        for place in self.unknown:
            found[place] = None
        return found


class PlannedTotals:
    """The sums of one cluster, computed once per state, because a round of promises needs them three
    times."""

    def __init__(self, cluster: ClusterGraph, allocations: Allocations) -> None:
        self._cluster = cluster
        self._allocations = allocations
        self._asked: MutableMapping[int, Asked] = LRUCache(_MAX_SHAPES)  # per shape
        self._asked_of: tuple[object, ...] = ()  # the nodes and devices at that time
        self._made_at: tuple[object, ...] = ()
        self._made: tuple[dict[Hashable, int], list[_Held]] = ({}, [])

    def known(self, shape: int) -> Asked | None:
        """The requests of gangs of a shape, if they are known."""
        at = (self._cluster.columns.generation, self._cluster.devices)
        if self._asked_of != at:
            self._asked_of = at
            self._asked.clear()
        return self._asked.get(shape)

    def learn(self, shape: int, gang: GangRequest) -> Asked:
        """Compute the requests of a gang, for all gangs of its shape."""
        parts: dict[bytes, dict[str, int]] = {}
        for members in gang.members:
            nodes = _ALL if members.allowed is None else members.allowed.tobytes()
            part = parts.setdefault(nodes, {})
            for kind, amount in members.needs.items():
                part[kind] = part.get(kind, 0) + amount * len(members.pods)
        devices: dict[DeviceKind, int] = {}
        for need in gang.devices:
            names = tuple(self._cluster.fit.backends.backends_of(need.suits))
            device = DeviceKind(need.type, names)
            devices[device] = devices.get(device, 0) + need.count
        self._asked[shape] = found = Asked(tuple(parts.items()), tuple(devices.items()))
        return found

    def sketch(
        self,
        now: int,
        asked: Sequence[Asked],
        durations: Sequence[int],
        wanted: Collection[int] | None,
        ends: Mapping[str, int] | None = None,
        claims: Sequence[Claim | None] = (),
    ) -> Sketch:
        """A sketch of the waiting gangs, in order. ``wanted``: the places whose starts are needed; None: all.
        ``ends``: the expected ends of some tasks. ``claims``: of each gang against the quotas of its
        queue."""
        places = range(len(asked)) if wanted is None else sorted(wanted)
        first = [*(asked[place] for place in places), *asked]  # the wanted gangs first, then all
        every = dict.fromkeys(nodes for each in first for nodes, _ in each.parts)
        devices = dict.fromkeys(kind for each in first for kind, _ in each.devices)
        pools = _Pools(
            dict.fromkeys(islice(every, _MAX_POOLS)), every, dict.fromkeys(islice(devices, _MAX_POOLS))
        )
        amounts: dict[int, tuple[Amounts, Amounts]] = {}  # by identity: all gangs of a shape share one
        for each in asked:
            if id(each) not in amounts:
                amounts[id(each)] = pools.amounts(each)
        of = [amounts[id(each)] for each in asked]
        kinds = frozenset(kind for both in amounts.values() for each in both for kind in each)
        totals = self._totals(now, ends or {}, kinds, claims)
        asks = [(needs, duration) for (needs, _), duration in zip(of, durations, strict=True)]
        demands: Sequence[Amounts] = ()
        if self._allocations.quotas is not None:
            demands = [{} if claim is None else claim.demand for claim in claims]
        return Sketch(
            totals,
            asks,
            [might for _, might in of],
            frozenset(place for place in places if not pools.tells_apart(asked[place])),
            demands,
        )

    def _totals(
        self,
        now: int,
        ends: Mapping[str, int],
        kinds: frozenset[Hashable],
        claims: Sequence[Claim | None],
    ) -> Totals:
        """What is free now, and what tasks free when they end."""
        running = self._allocations.running
        at = (self._cluster.matcher.ledger.generation, now, len(running), kinds, self._cluster.devices)
        if at != self._made_at:
            self._made_at, self._made = at, self._sum(now, kinds)
        capacity, held = self._made
        quotas = self._allocations.quotas
        if quotas is not None:
            lines = (line for claim in claims if claim is not None for line in claim.limits.items())
            return Totals(
                now,
                {**capacity, **dict(lines)},
                [(ends.get(task, end), {**amounts, **quotas.lines(task)}) for task, end, amounts in held],
            )
        return Totals(now, dict(capacity), [(ends.get(task, end), amounts) for task, end, amounts in held])

    def _sum(self, now: int, kinds: Iterable[Hashable]) -> tuple[dict[Hashable, int], list[_Held]]:
        seats = self._cluster.fit
        tasks = [
            (name, task.end, holding)
            for name, task in self._allocations.running.items()
            if task.end > now and (holding := seats.jobs.get(task.number)) is not None
        ]
        held: list[dict[Hashable, int]] = [{} for _ in tasks]
        capacity: dict[Hashable, int] = {}
        pools: dict[str, list[PoolKind]] = {}
        for kind in kinds:
            if isinstance(kind, PoolKind):
                pools.setdefault(kind.type, []).append(kind)
            elif isinstance(kind, DeviceKind):
                capacity[kind] = seats.free_units(kind.type, kind.backends)
                for taken, (_, _, holding) in zip(held, tasks, strict=True):
                    if units := sum(each.amount for each in holding.grants if kind.counts(each)):
                        taken[kind] = units
        for type_, some in pools.items():
            free = np.maximum(seats.free(type_), 0)
            rows = [
                (number, node, min(amount, _MAX_AMOUNT))
                for number, (_, _, holding) in enumerate(tasks)
                for seat in holding.placements.values()
                if (amount := seat.needs.get(type_)) and (node := seats.position.get(seat.node)) is not None
            ]
            task_of, node_of, amounts = np.array(rows, np.int64).reshape(-1, 3).T
            for pool in some:
                mask = _mask(pool.nodes, len(free))
                capacity[pool] = int(free[mask].sum())
                sums = np.zeros(len(tasks), np.int64)
                inside = mask[node_of]
                np.add.at(sums, task_of[inside], amounts[inside])
                for number in np.flatnonzero(sums).tolist():
                    held[number][pool] = int(sums[number])
        for taken in held:
            for each, amount in taken.items():
                capacity[each] += amount
        return capacity, [(name, end, taken) for (name, end, _), taken in zip(tasks, held, strict=True)]


class _Pools:
    """The sets of nodes and backends with sums, and how the sets of other gangs overlap them."""

    def __init__(
        self, chosen: Collection[bytes], every: Collection[bytes], devices: Collection[DeviceKind]
    ) -> None:
        self._chosen = chosen
        self._devices = devices
        # A sum over all nodes is not needed if one of the sets contains all the others.
        covers = any(all(_within(each, pool) for each in every) for pool in chosen)
        sums = [*chosen] if covers else [*chosen, _ALL]
        self._around = {each: [pool for pool in sums if _within(each, pool)] for each in every}
        self._beside = {
            each: [pool for pool in chosen if pool not in self._around[each] and _overlap(each, pool)]
            for each in every
        }

    def tells_apart(self, asked: Asked) -> bool:
        return all(nodes in self._chosen for nodes, _ in asked.parts) and all(
            kind in self._devices for kind, _ in asked.devices
        )

    def amounts(self, asked: Asked) -> tuple[Amounts, Amounts]:
        """What a gang takes, and what it might take in addition."""
        needs: dict[Hashable, int] = dict(asked.devices)
        might: dict[Hashable, int] = {}
        for nodes, part in asked.parts:
            for type_, amount in part.items():
                for found, pools in ((needs, self._around[nodes]), (might, self._beside[nodes])):
                    for pool in pools:
                        kind = PoolKind(type_, pool)
                        found[kind] = found.get(kind, 0) + amount
        for device, count in asked.devices:
            own = set(device.backends)
            for other in self._devices:
                if other.type == device.type and other != device and not own.isdisjoint(other.backends):
                    found = needs if own.issubset(other.backends) else might
                    found[other] = found.get(other, 0) + count
        return needs, might


def _within(one: bytes, other: bytes) -> bool:
    if one == other or other == _ALL:
        return True
    return one != _ALL and not (_mask(one, len(one)) & ~_mask(other, len(other))).any()


def _overlap(one: bytes, other: bytes) -> bool:
    return _ALL in (one, other) or bool((_mask(one, len(one)) & _mask(other, len(other))).any())


def _mask(nodes: bytes, count: int) -> Mask:
    return np.ones(count, np.bool_) if nodes == _ALL else np.frombuffer(nodes, np.bool_)


class StartForecast:
    """``ends``: the expected end of each job; jobs that are not in it do not end."""

    def __init__(self, seats: GangFit, ends: Mapping[int, int], now: int) -> None:
        self._seats = seats
        seats.look(now)  # update the tables
        self._free = seats.availability.view
        effect, horizon = seats.availability.effect, seats.matcher.horizon
        self._profile = Profile(
            [
                JobChange(job, end, -1, *effect(job))
                for job, end in ends.items()
                if job in seats.jobs and now < end < horizon
            ]
        )
        self._starts: dict[int, int | None] = {}  # by shape: the first known start

    def start(self, gang: GangRequest, shape: int, since: int) -> int | None:
        """The first time from ``since`` on at which a gang fits; None if unknown."""
        known = self._starts.get(shape, since + 1)
        if known is not None and since < known:
            known = self._starts[shape] = self._first(gang, since)
        return None if known is None else max(known, since)

    def _first(self, gang: GangRequest, since: int) -> int | None:
        if self._fits(gang, since):
            return since
        times = np.unique(self._profile.times[self._profile.times > since])
        times = times[self._seats.could_suffice(self._profile, times, times + 1, gang.devices, gang)]
        # Resources only come free over time. If the gang does not fit at the last end, it never fits before.
        if not len(times) or not self._fits(gang, int(times[-1])):
            return None
        low, high = 0, len(times) - 1
        while low < high:
            middle = (low + high) // 2
            if self._fits(gang, int(times[middle])):
                high = middle
            else:
                low = middle + 1
        return int(times[high])

    def _fits(self, gang: GangRequest, at: int) -> bool:
        return self._seats.fits(gang, self._profile.at(self._free, at), at)
