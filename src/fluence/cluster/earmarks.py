"""Earmarks: placements reserved for a gang while the pods on them end; and what would fit without some pods.

`fluence.schedule.preemption` uses it. An earmark is a job in the ledger that is reserved from now on, in
addition to the pods that still run there, so that no other pod can be placed there. `ClusterPlanner` lifts it
when it tries the gang itself. Suppositions are undone at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from fluence.cluster.graph import ClusterGraph
from fluence.cluster.requests import PodSetRequest
from fluence.graph.graph import Ints, Rows
from fluence.placer.placer import GangHolding, GangPlacement, PodPlacement
from fluence.placer.profile import FreeView
from fluence.units import MAX_AMOUNT

_SUPPOSED = -(1 << 39)  # the first number of suppositions; earmarks have -2, -3, …

Gone = Mapping[int, Collection[str]]  # pods that are assumed to be gone, by the number of their job


class Earmarks:
    """The earmarks of one cluster, by the number of the gang's own job."""

    def __init__(self, cluster: ClusterGraph) -> None:
        self._cluster = cluster
        self._numbers: dict[int, int] = {}
        self.requests: dict[int, PodSetRequest] = {}  # of the gangs
        self._next = -2
        self._supposed = _SUPPOSED

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    def __bool__(self) -> bool:
        return bool(self._numbers)

    # -- holding ---------------------------------------------------------------------------------------------

    def hold(self, request: PodSetRequest, placement: GangPlacement, *, now: int, end: int) -> None:
        """Reserve a placement for a gang from now on, although other pods still run there."""
        number = request.number
        self.release(number)
        mark, self._next = self._next, self._next - 1
        self._write(mark, placement, now, end)
        self._numbers[number], self.requests[number] = mark, request

    def _write(self, mark: int, placement: GangPlacement, start: int, end: int) -> None:
        placements = {each.pod: each for each in placement.placements}
        holding = GangHolding(
            mark, start, end, True, whole=placement.whole, placements=placements, grants=placement.grants
        )
        self._cluster.matcher.ledger.write(holding, *placement.columns)

    def release(self, number: int) -> None:
        """Remove the earmark of a gang."""
        mark = self._numbers.pop(number, None)
        self.requests.pop(number, None)
        if mark is not None and mark in self._cluster.fit.jobs:
            self._cluster.matcher.ledger.remove(mark)

    def prolong(self, number: int, end: int) -> None:
        """The gang starts later than expected."""
        mark = self._numbers[number]
        if mark in self._cluster.fit.jobs and self._cluster.fit.jobs[mark].end < end:
            self._cluster.prolong(mark, end)

    def seats(self, number: int) -> dict[str, str]:
        """The earmarked node of each pod; empty if a node is gone."""
        holding = self._cluster.fit.jobs.get(self._numbers.get(number, 0))
        return {} if holding is None else {str(pod): seat.node for pod, seat in holding.placements.items()}

    def lift(self, number: int) -> None:
        """Remove an earmark from the ledger, until the caller undoes it."""
        mark = self._numbers.get(number)
        if mark is not None and mark in self._cluster.fit.jobs:
            self._cluster.matcher.ledger.remove(mark)

    # -- supposing -------------------------------------------------------------------------------------------

    @contextmanager
    def supposing(
        self, gone: Gone, *, without: Iterable[int] = (), lifted: Iterable[int] = ()
    ) -> Iterator[None]:
        """Assume for every filter that some pods are gone, ``without`` some reservations, by their numbers,
        and with the earmarks of some gangs ``lifted``. Everything is restored afterwards."""
        cluster = self._cluster
        mark, ledger, jobs = cluster.mark(), cluster.matcher.ledger, cluster.fit.jobs
        supposed = self._supposed
        uids: set[str] = set()
        try:
            for number in lifted:
                self.lift(number)
            for number in without:
                if number in jobs:
                    ledger.remove(number)
            for number, pods in gone.items():
                holding = jobs.get(number)
                if holding is None:
                    continue
                uids.update(pods)
                left = _left(holding, pods)
                ledger.remove(number)
                if left:
                    cluster.fit.hold(
                        self._supposed,
                        left,
                        start=holding.start,
                        end=holding.end,
                        whole=holding.whole,
                        uses_node=holding.uses_node,
                        grants=holding.grants,
                    )
                    self._supposed -= 1
            cluster.departing = frozenset(uids)
            yield
        finally:
            cluster.departing = frozenset()
            cluster.undo(mark)
            self._supposed = supposed

    def suppose(self, placement: GangPlacement, *, start: int, end: int) -> None:
        """Assume that a placement is taken too, until the end of `supposing`."""
        self._write(self._supposed, placement, start, end)
        self._supposed -= 1

    def freed_by(self, gone: Gone) -> tuple[Rows, Ints]:
        """The most that would come free without some pods: vertices and amounts."""
        fit = self._cluster.fit
        rows: list[Rows] = []
        amounts: list[Ints] = []
        for number, pods in gone.items():
            holding = fit.jobs.get(number)
            if holding is None:
                continue
            if not _left(holding, pods):
                found = fit.availability.effect(number)
            else:
                found = _taken(
                    self._cluster, (holding.placements[uid] for uid in pods if uid in holding.placements)
                )
            rows.append(found[0])
            amounts.append(found[1])
        if not rows:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        return np.concatenate(rows), np.concatenate(amounts)

    def with_more(self, rows: Rows, amounts: Ints, *, now: int) -> FreeView:
        """What would be free now with these amounts added, and with no other pod on whole nodes."""
        view = self._cluster.fit.look(now, 1)
        free = view.free.copy()
        np.add.at(free, rows, amounts)
        return FreeView(free, np.zeros_like(view.users))


def _left(holding: GangHolding, gone: Collection[str]) -> list[PodPlacement]:
    """The placements that a job keeps without some pods; empty if all its other pods have ended."""
    if all(pod in gone or pod in holding.ended for pod in holding.placements):
        return []
    return [placement for pod, placement in holding.placements.items() if pod not in gone]


def _taken(cluster: ClusterGraph, placements: Iterable[PodPlacement]) -> tuple[Rows, Ints]:
    """The resources of some placements."""
    table, rows, amounts = cluster.fit.table, [], []
    for placement in placements:
        at = table.position.get(placement.node)
        if at is None:
            continue
        for kind, amount in placement.needs.items():
            if kind in table.pools:
                rows.append(int(table.pools[kind][at]))
                amounts.append(min(amount, MAX_AMOUNT))  # running pods can claim any amount
        rows += placement.devices
        amounts += [1] * len(placement.devices)
    return np.array(rows, np.int32), np.array(amounts, np.int64)
