"""Why a gang finds no seats: which filter each node fell to, with counts (kube-scheduler's Diagnosis).

    no seat on 8 nodes: 5 insufficient cpu (2 wanted); 3 taint gpu:NoSchedule
    3 of 8 seats on 8 nodes, none for the next: 5 insufficient cpu (2 wanted); 3 taint gpu:NoSchedule

As many pods as can be are given seats; the nodes are then judged as the next pod finds them. So what limits a
gang is named though every node has some seat: its own pods have the port, fill the domain, take the cpu.
Asked about an empty cluster, it says why a gang never fits, whatever is taken now.

`ClusterGraph.why` asks. Pods are named only where a gang has several kinds of them: gangs of one kind share
their answers, and nobody is told of somebody else's pods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fluence.cluster.columns import NodeColumns
from fluence.cluster.filters import resources
from fluence.cluster.filters.gang_rules import InterPodAttempt
from fluence.cluster.filters.node_rules import NodeFilters
from fluence.cluster.filters.pod_shape import PodShape
from fluence.cluster.filters.volume_rules import VolumeAttempt
from fluence.cluster.layout import GraphLayout
from fluence.graph.graph import Mask
from fluence.model.reason import Code, Reason
from fluence.placer.gang import Attempt, GangRequest, Members
from fluence.placer.gang_fit import GangFit
from fluence.placer.profile import FreeView

_EXCLUDED = Reason.of(Code.NODE_EXCLUDED)
_HELD_WHOLE = Reason.of(Code.NODE_HELD_WHOLE)
_IN_USE = Reason.of(Code.NODE_IN_USE)


@dataclass(frozen=True, slots=True, eq=False)
class Diagnosis:
    """What is known when the next pod of a gang found no seat."""

    seats: GangFit
    view: FreeView  # what is free beside the pods that have seats
    node_filters: NodeFilters
    layout: GraphLayout
    attempt: Attempt | None  # the rules, which know of those pods
    whole: bool  # whole nodes are asked for

    def nodes(
        self, members: Members, shape: PodShape, number: int, inside: Mask | None = None
    ) -> tuple[Reason, ...]:
        """Each node under the first reason that it falls to; the most frequent reason first. ``inside``: only
        these are asked about."""
        names = self.seats.names
        left = np.ones(len(names), np.bool_) if inside is None else inside.copy()
        found: list[tuple[int, Reason]] = []
        for cause, open_ in self._filters(members, shape, number):
            fallen = left & ~open_
            if fallen.any():
                theirs = tuple(names[i] for i in np.flatnonzero(fallen).tolist())
                found.append((len(theirs), Reason.of(Code.NODES, cause=cause, names=theirs)))
                left &= open_
        return tuple(reason for _, reason in sorted(found, key=lambda each: -each[0]))

    def _filters(self, members: Members, shape: PodShape, number: int) -> Iterator[tuple[Reason, Mask]]:
        """Reasons in the order in which they are tested, each with the nodes that it leaves open."""
        view, nodes = self.view, self.seats.nodes
        yield from self.node_filters.open_nodes(shape.node)
        if members.allowed is not None:
            yield _EXCLUDED, members.allowed | ~self.node_filters.allowed(shape.node)
        yield _HELD_WHOLE, np.asarray(view.free[nodes] > 0)
        if self.whole:
            yield _IN_USE, np.asarray(view.users[nodes] == 0)
        yield from resources.open_nodes(members.needs, self.seats, view, self.layout)
        if isinstance(self.attempt, InterPodAttempt | VolumeAttempt):
            yield from self.attempt.reasons(number)

    def sums(self, members: Members, free: FreeView, inside: Mask | None = None) -> tuple[Reason, ...]:
        """The resources of which all these pods want more than all nodes that suit have together."""
        wanted, found = len(members.pods), []
        suits = self.seats.table.up if members.allowed is None else members.allowed
        for type_, amount in members.needs.items():
            there = np.maximum(self.seats.free(type_, free), 0)[suits if inside is None else suits & inside]
            if wanted > 1 and amount and sum(there.tolist()) < amount * wanted:
                resource = self.layout.resource(type_)
                total = amount * wanted
                found.append(
                    Reason.of(Code.RESOURCE_SUM, resource=resource, wanted=total, there=sum(there.tolist()))
                )
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Shortage:
    """What stands in the way of some pods that are alike."""

    pod: str  # one of them; empty where the gang has no others
    wanted: int
    seats: int
    sums: tuple[Reason, ...] = ()
    causes: tuple[Reason, ...] = ()

    def reason(self, code: Code, *, nodes: int, empty: bool) -> Reason:
        """``empty``: there are so few seats even if nobody else is there."""
        return Reason.of(
            code,
            pod=self.pod,
            wanted=self.wanted,
            seats=self.seats,
            nodes=nodes,
            sums=self.sums if self.seats else (),
            causes=self.causes,
            empty=empty,
        )


def too_few_in_one_domain(
    key: str,
    *,
    wanted: int,
    domains: Sequence[tuple[str, int]],
    begun: bool,
    causes: Sequence[Reason] = (),
    empty: bool = False,
) -> Reason:
    """That no domain of a label has enough seats; ``begun``: others of the group are in one already;
    ``causes``: what the next pod finds in the domain with the most seats."""
    return Reason.of(
        Code.TOO_FEW_SEATS_IN_ONE_DOMAIN,
        wanted=wanted,
        key=key,
        domains=tuple(domains),
        begun=begun,
        causes=tuple(causes),
        empty=empty,
    )


def domain_seats(
    gang: GangRequest, key: str, seats: GangFit, columns: NodeColumns, view: FreeView
) -> list[tuple[str, int]]:
    """The values of a label that a gang's nodes may have, and how many of its pods fit there at most."""
    assert gang.domains is not None
    room = seats.domain_seats(gang, gang.domains, view)
    values = {code: value for value, code in columns.label(key).codes.items()}
    return [(values[code], int(room[code])) for code in np.unique(gang.domains).tolist() if code >= 0]
