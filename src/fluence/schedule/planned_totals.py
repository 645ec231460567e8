"""Planned totals: what a cluster has and what gangs ask for as plain sums, for sketches of the plan.

`ClusterPlanner` asks. Sums ignore how room lies on nodes, so a start by them is a bound from below. They are
made for each set of nodes that those can use who are asked about: on a cluster with partitions, what is free
in one of them is no help to who waits for another.
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
from fluence.model.device import DeviceGrant
from fluence.placer.gang import GangRequest
from fluence.queue.allocations import Allocations
from fluence.queue.totals import Amounts, Totals

_SHAPES = 10_000  # distinct shapes of which something is remembered; users can make up any number
_POOLS = 32  # sets of nodes that a sketch tells apart: as many jobs are told in one round

_ALL = b""  # every node
_MOST = 1 << 52  # of anything that one pod holds: people write 1e17 cores, and sums must stay within 64 bits

_Held = tuple[str, int, Mapping[Hashable, int]]  # a task, its end, and what it holds


class DeviceKind(NamedTuple):
    """Units of a type of device in some backends, as something that is counted."""

    type: str
    backends: tuple[str, ...]

    def counts(self, grant: DeviceGrant) -> bool:
        return grant.type == self.type and grant.backend in self.backends


class PoolKind(NamedTuple):
    """What some nodes have of a type."""

    type: str
    nodes: bytes  # a mask


@dataclass(frozen=True, slots=True)
class Asked:
    """What gangs of a shape ask for: of the sets of nodes that some of their pods can use, and of devices."""

    parts: tuple[tuple[bytes, Mapping[str, int]], ...] = ()
    devices: tuple[tuple[DeviceKind, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Sketch:
    """Sums over time, and what each of those that wait asks of them. ``beside``: what it might take of sets
    of nodes that it can use in part. ``unknown``: places that the sums say nothing about."""

    totals: Totals
    asks: list[tuple[Amounts, int]]
    beside: list[Amounts]
    unknown: frozenset[int]

    def starts(self, now: int, *, in_order: bool = False) -> list[int | None]:
        """``in_order``: none before the one in front of it, and whoever is in front goes where it harms."""
        beside = self.beside if in_order else ()
        found = self.totals.place_all(self.asks, now, in_order=in_order, beside=beside)
        for place in self.unknown:
            found[place] = None
        return found


class PlannedTotals:
    """The sums of one cluster. They are made once for each state of it: a round of promises asks thrice."""

    def __init__(self, cluster: ClusterGraph, allocations: Allocations) -> None:
        self._cluster = cluster
        self._allocations = allocations
        self._asked: MutableMapping[int, Asked] = LRUCache(_SHAPES)  # per shape
        self._asked_of: tuple[object, ...] = ()  # the nodes and devices that there were then
        self._made_at: tuple[object, ...] = ()
        self._made: tuple[dict[Hashable, int], list[_Held]] = ({}, [])

    def known(self, shape: int) -> Asked | None:
        """What gangs of a shape ask for, if that is known."""
        at = (self._cluster.columns.generation, self._cluster.devices)
        if self._asked_of != at:
            self._asked_of = at
            self._asked.clear()
        return self._asked.get(shape)

    def learn(self, shape: int, gang: GangRequest) -> Asked:
        """What a gang asks for, for all of its shape."""
        parts: dict[bytes, dict[str, int]] = {}
        for members in gang.members:
            nodes = _ALL if members.allowed is None else members.allowed.tobytes()
            part = parts.setdefault(nodes, {})
            for kind, amount in members.needs.items():
                part[kind] = part.get(kind, 0) + amount * len(members.pods)
        devices: dict[DeviceKind, int] = {}
        for need in gang.devices:
            names = tuple(self._cluster.seats.backends.backends_of(need.suits))
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
    ) -> Sketch:
        """For those that wait, in order. ``wanted``: the places that are asked about; None: all. ``ends``:
        when some tasks will probably end."""
        places = range(len(asked)) if wanted is None else sorted(wanted)
        first = [*(asked[place] for place in places), *asked]  # those who are asked about, then all
        every = dict.fromkeys(nodes for each in first for nodes, _ in each.parts)
        devices = dict.fromkeys(kind for each in first for kind, _ in each.devices)
        pools = _Pools(dict.fromkeys(islice(every, _POOLS)), every, dict.fromkeys(islice(devices, _POOLS)))
        amounts: dict[int, tuple[Amounts, Amounts]] = {}  # by identity: all of a shape ask for the same
        for each in asked:
            if id(each) not in amounts:
                amounts[id(each)] = pools.amounts(each)
        of = [amounts[id(each)] for each in asked]
        kinds = frozenset(kind for both in amounts.values() for each in both for kind in each)
        return Sketch(
            self._totals(now, ends or {}, kinds),
            [(needs, duration) for (needs, _), duration in zip(of, durations, strict=True)],
            [might for _, might in of],
            frozenset(place for place in places if not pools.tells_apart(asked[place])),
        )

    def _totals(self, now: int, ends: Mapping[str, int], kinds: frozenset[Hashable]) -> Totals:
        """What is free now, and what tasks give back when they end."""
        running = self._allocations.running
        at = (self._cluster.matcher.ledger.generation, now, len(running), kinds, self._cluster.devices)
        if at != self._made_at:
            self._made_at, self._made = at, self._sum(now, kinds)
        capacity, held = self._made
        return Totals(now, dict(capacity), [(ends.get(task, end), amounts) for task, end, amounts in held])

    def _sum(self, now: int, kinds: Iterable[Hashable]) -> tuple[dict[Hashable, int], list[_Held]]:
        seats = self._cluster.seats
        tasks = [
            (name, task.end, seating)
            for name, task in self._allocations.running.items()
            if task.end > now and (seating := seats.jobs.get(task.number)) is not None
        ]
        held: list[dict[Hashable, int]] = [{} for _ in tasks]
        capacity: dict[Hashable, int] = {}
        pools: dict[str, list[PoolKind]] = {}
        for kind in kinds:
            if isinstance(kind, PoolKind):
                pools.setdefault(kind.type, []).append(kind)
            elif isinstance(kind, DeviceKind):
                capacity[kind] = seats.free_units(kind.type, kind.backends)
                for taken, (_, _, seating) in zip(held, tasks, strict=True):
                    if units := sum(each.amount for each in seating.grants if kind.counts(each)):
                        taken[kind] = units
        for type_, some in pools.items():
            free = np.maximum(seats.free(type_), 0)
            rows = [
                (number, node, min(amount, _MOST))
                for number, (_, _, seating) in enumerate(tasks)
                for seat in seating.seats.values()
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
    """Sets of nodes, and of backends, of which sums are made, and how those of other gangs stand to them."""

    def __init__(
        self, chosen: Collection[bytes], every: Collection[bytes], devices: Collection[DeviceKind]
    ) -> None:
        self._chosen = chosen
        self._devices = devices
        # What all nodes have goes without saying where one of the sets has all the others in it.
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
        """What a gang takes, and what it might take besides."""
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
