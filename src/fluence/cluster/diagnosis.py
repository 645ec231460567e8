"""Why a gang finds no seats: which filter each node fell to, with counts (kube-scheduler's Diagnosis).

    3 of 8 seats on 8 nodes: 5 insufficient cpu (2 wanted); 3 taint gpu:NoSchedule

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
from fluence.placer.availability import FreeView
from fluence.placer.gang import GangRequest, Members
from fluence.placer.gang_fit import GangFit

_EXCLUDED = Reason.of(Code.NODE_EXCLUDED)
_HELD_WHOLE = Reason.of(Code.NODE_HELD_WHOLE)
_IN_USE = Reason.of(Code.NODE_IN_USE)


@dataclass(frozen=True, slots=True, eq=False)
class Diagnosis:
    """What is known when a gang found no seats."""

    seats: GangFit
    view: FreeView  # what is free
    columns: NodeColumns
    node_filters: NodeFilters
    layout: GraphLayout
    attempt: InterPodAttempt | VolumeAttempt | None
    whole: bool  # whole nodes are asked for

    def nodes(self, members: Members, shape: PodShape, number: int) -> tuple[Reason, ...]:
        """Each node under the first reason that it falls to; the most frequent reason first."""
        names = self.seats.names
        left = np.ones(len(names), np.bool_)
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
        if self.attempt is not None:
            yield from self.attempt.reasons(number)


def too_few_seats(pod: str, wanted: int, seats: int, *, nodes: int, causes: Sequence[Reason]) -> Reason:
    """What stands in the way of some pods that are alike; ``pod`` is empty where the gang has no others."""
    return Reason.of(
        Code.TOO_FEW_SEATS, pod=pod, wanted=wanted, seats=seats, nodes=nodes, causes=tuple(causes)
    )


def too_few_in_one_domain(
    key: str, *, wanted: int, domains: Sequence[tuple[str, int]], begun: bool
) -> Reason:
    """That no domain of a label has enough seats; ``begun``: others of the group are in one already."""
    return Reason.of(
        Code.TOO_FEW_SEATS_IN_ONE_DOMAIN, wanted=wanted, key=key, domains=tuple(domains), begun=begun
    )


def domain_seats(
    gang: GangRequest, key: str, seats: GangFit, columns: NodeColumns, *, now: int, duration: int | None
) -> list[tuple[str, int]]:
    """The values of a label that a gang's nodes may have, and how many of its pods fit there at most."""
    assert gang.domains is not None
    room = seats.domain_seats(gang, gang.domains, now=now, duration=duration)
    values = {code: value for value, code in columns.label(key).codes.items()}
    return [(values[code], int(room[code])) for code in np.unique(gang.domains).tolist() if code >= 0]
