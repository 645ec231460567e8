"""Planned totals: what a cluster has and what gangs ask for as plain sums, for sketches of the plan.

`ClusterPlanner` asks. Sums ignore where things are, so a start by them is a bound from below.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, MutableMapping
from typing import NamedTuple

import numpy as np
from cachetools import LRUCache

from fluence.cluster.graph import ClusterGraph
from fluence.model.device import DeviceGrant
from fluence.placer.gang import GangRequest
from fluence.queue.allocations import Allocations
from fluence.queue.totals import Amounts, Totals

_SHAPES = 10_000  # distinct shapes of which something is remembered; users can make up any number

_Held = tuple[str, int, Mapping[Hashable, int]]  # a task, its end, and what it holds


class DeviceKind(NamedTuple):
    """Units of a type of device in some backends, as something that is counted."""

    type: str
    backends: tuple[str, ...]

    def counts(self, grant: DeviceGrant) -> bool:
        return grant.type == self.type and grant.backend in self.backends


class PlannedTotals:
    """The sums of one cluster. They are made once for each state of it: a round of promises asks thrice."""

    def __init__(self, cluster: ClusterGraph, allocations: Allocations) -> None:
        self._cluster = cluster
        self._allocations = allocations
        self._asked: MutableMapping[int, dict[Hashable, int]] = LRUCache(_SHAPES)  # per shape
        self._asked_of: object = None  # the devices that there were then
        self._made_at: tuple[object, ...] = ()
        self._made: tuple[dict[Hashable, int], list[_Held]] = ({}, [])

    def known(self, shape: int) -> Amounts | None:
        """What gangs of a shape ask for, if that is known."""
        if self._asked_of is not self._cluster.devices:
            self._asked_of = self._cluster.devices
            self._asked.clear()
        return self._asked.get(shape)

    def learn(self, shape: int, gang: GangRequest) -> Amounts:
        """What a gang asks for, for all of its shape."""
        found: dict[Hashable, int] = {}
        for members in gang.members:
            for kind, amount in members.needs.items():
                found[kind] = found.get(kind, 0) + amount * len(members.pods)
        for need in gang.devices:
            names = tuple(self._cluster.seats.backends.backends_of(need.suits))
            device = DeviceKind(need.type, names)
            found[device] = found.get(device, 0) + need.count
        self._asked[shape] = found
        return found

    def now(self, now: int, ends: Mapping[str, int], asked: Iterable[tuple[Amounts, int]]) -> Totals:
        """What is free now, summed over the nodes, and what tasks give back when they end; of devices, those
        that are asked for. ``ends``: when some tasks will probably end."""
        kinds = frozenset(kind for each, _ in asked for kind in each if isinstance(kind, DeviceKind))
        running = self._allocations.running
        at = (self._cluster.matcher.ledger.generation, now, len(running), kinds, id(self._cluster.devices))
        if at != self._made_at:
            self._made_at, self._made = at, self._sum(now, kinds)
        capacity, held = self._made
        return Totals(now, dict(capacity), [(ends.get(task, end), amounts) for task, end, amounts in held])

    def _sum(self, now: int, kinds: Iterable[DeviceKind]) -> tuple[dict[Hashable, int], list[_Held]]:
        seats = self._cluster.seats
        capacity: dict[Hashable, int] = {
            type_: int(np.maximum(seats.free(type_), 0).sum()) for type_ in seats.types
        }
        for kind in kinds:
            capacity[kind] = seats.free_units(kind.type, kind.backends)
        found: list[_Held] = []
        for name, task in self._allocations.running.items():
            seating = seats.jobs.get(task.number)
            if seating is None or task.end <= now:
                continue
            held: dict[Hashable, int] = {}
            for seat in seating.seats.values():
                for type_, amount in seat.needs.items():
                    held[type_] = held.get(type_, 0) + amount
            for kind in kinds if seating.grants else ():
                if units := sum(each.amount for each in seating.grants if kind.counts(each)):
                    held[kind] = units
            for each, amount in held.items():
                capacity[each] = capacity.get(each, 0) + amount
            found.append((name, task.end, held))
        return capacity, found
