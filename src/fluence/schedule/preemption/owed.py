"""Promises of gangs that lose an earmark: whether they could still start in time.

A gang that waits for a place can give up its reservation for an earmark, and work with a guarantee can take
the earmark of work that is ahead of it. Neither may break a promise, so it is tried before: the seats and the
quota of the new earmark are taken, the victims of the old ones continue, and what is left is searched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from fluence.cluster.graph import ClusterGraph, Refused
from fluence.cluster.planner import HORIZON, ClusterPlanner
from fluence.placer.placer import GangPlacement
from fluence.queue.allocations import Allocation
from fluence.queue.job import FOREVER
from fluence.queue.promises import LATE
from fluence.queue.quota import QuotaBook
from fluence.schedule.pod_set import PodSet


@dataclass(frozen=True, slots=True, eq=False)
class Owed:
    """A gang that would lose its earmark, and the latest start that keeps its promise."""

    pod_set: PodSet
    latest: int


def is_owed(pod_set: PodSet, by: PodSet, now: int) -> bool:
    """Whether another gang must leave a gang the start that it was promised: it is ahead in the order, or it
    gave up a reservation for its earmark."""
    promised = pod_set.no_later_than
    if promised is None or promised + LATE < now:
        return False
    return pod_set.order < by.order or pod_set.deadline is not None


@dataclass(frozen=True, slots=True)
class Taking:
    """Seats that a gang would take, from ``start`` on, when its victims are gone. ``lifted``: the gangs that
    lose their earmarks; ``without``: reservations that it may take too, by number; ``ends``: the ends of
    running tasks then."""

    pod_set: PodSet
    placement: GangPlacement
    start: int
    lifted: Sequence[PodSet]
    without: Iterable[int]
    ends: Mapping[Allocation, int]


def late(
    taking: Taking,
    owed: Iterable[Owed],
    *,
    cluster: ClusterGraph,
    planner: ClusterPlanner,
    quotas: QuotaBook | None,
    now: int,
) -> frozenset[str]:
    """The keys of those gangs that would start later than promised."""
    marks, taker, found = planner.earmarks, taking.pod_set, set[str]()
    until = HORIZON if taker.limit >= FOREVER else min(HORIZON, taking.start + taker.limit)
    keys = [each.key for each in taking.lifted]
    lifted = [each.number for each in taking.lifted]
    book = nullcontext() if quotas is None else quotas.supposing(taker.key, now, until, taking.ends, keys)
    with marks.supposing({}, without=taking.without, lifted=lifted), book:
        for held, end in taking.ends.items():
            if held.number in cluster.fit.jobs:
                cluster.prolong(held.number, end)
        marks.suppose(taking.placement, start=now, end=until)
        for each in sorted(owed, key=lambda one: one.pod_set.order):
            waiting = each.pod_set
            gang = planner.gang(waiting.request)
            if isinstance(gang, Refused):
                continue
            duration = None if waiting.limit >= FOREVER else waiting.limit
            placement = cluster.earliest(gang, now=now, duration=duration, latest=each.latest)
            at = placement.at if isinstance(placement, GangPlacement) else None
            if at is not None and quotas is not None and waiting.key in quotas.claims:
                at = quotas.earliest(waiting.key, at, waiting.limit if waiting.bounded else FOREVER)
            if at is None or at > each.latest:
                found.add(waiting.key)
            else:
                assert isinstance(placement, GangPlacement)
                end = HORIZON if duration is None else min(HORIZON, at + duration)
                marks.suppose(placement, start=at, end=end)
    return frozenset(found)
