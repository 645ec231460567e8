"""Why a gang does not fit: the filter that rejects each node, with counts (kube-scheduler's Diagnosis).

    0/8 nodes are available: 5 Insufficient cpu, 3 node(s) had untolerated taint {gpu: }. 3 of 8 pods of the
    group fit

As many pods as possible are placed in a trial; the nodes are then filtered for the next pod. So the cause is
found even if every node has room for some pod: the pods of the gang itself use the port, fill the domain or
take the cpu. For an empty cluster, it explains why a gang never fits, regardless of current use.

`ClusterGraph.why` uses it. Pods are named only if a gang has several kinds of them. Gangs of one kind share
their reasons, which must not name pods of other users.

`resource_reasons` finds the resources that a node lacks for a pod (NodeResourcesFit): in use now, or too
small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fluence.cluster.columns import NodeColumns
from fluence.cluster.filters.gang_rules import InterPodAttempt
from fluence.cluster.filters.node_rules import NodeFilters
from fluence.cluster.filters.volumes import VolumeAttempt
from fluence.cluster.layout import GraphLayout
from fluence.cluster.pod_index import PodShape
from fluence.graph.graph import Mask
from fluence.model.reason import Code, Reason, Value
from fluence.placer.gang_fit import GangFit
from fluence.placer.placer import Attempt, GangRequest, Members
from fluence.placer.profile import FreeView
from fluence.units import MAX_AMOUNT


def resource_reasons(
    needs: Mapping[str, int], fit: GangFit, view: FreeView, layout: GraphLayout
) -> Iterator[tuple[Reason, Mask]]:
    """For each set of resources that a node lacks, the nodes that it leaves open."""
    lacking: list[tuple[Mask, Mask, Reason, Reason]] = []  # short now, too small, and both reasons
    for type_, amount in needs.items():
        asked = min(amount, MAX_AMOUNT + 1)  # no node has more than MAX_AMOUNT
        short = fit.free(type_, view) < asked
        if short.any():
            size = fit.size(type_)
            largest = int(size.max(initial=0)) if amount > MAX_AMOUNT else None
            params: dict[str, Value] = {
                "resource": layout.resource(type_),
                "wanted": amount,
                "largest": largest,
            }
            lacking.append(
                (
                    short,
                    size < asked,
                    Reason.of(Code.RESOURCE_INSUFFICIENT, **params),
                    Reason.of(Code.RESOURCE_TOO_SMALL, **params),
                )
            )
    if not lacking:
        return
    # What each node lacks, as a number with one digit per resource: enough, in use, or too small.
    states = np.zeros(len(fit.nodes), np.int64)
    for short, small, *_ in lacking:
        states = 3 * states + np.where(short, np.where(small, 2, 1), 0)
    found, first = np.unique(states, return_index=True)
    for state in found[np.argsort(first)].tolist():
        if state:
            yield Reason.of(Code.RESOURCES_LACKING, resources=_told(state, lacking)), states != state


def _told(state: int, lacking: list[tuple[Mask, Mask, Reason, Reason]]) -> tuple[Reason, ...]:
    """The reasons of a node in this state."""
    told: list[Reason] = []
    for _, _, insufficient, too_small in reversed(lacking):
        state, digit = divmod(state, 3)
        if digit:
            told.append(too_small if digit == 2 else insufficient)
    return tuple(reversed(told))


_EXCLUDED = Reason.of(Code.NODE_EXCLUDED)
_HELD_WHOLE = Reason.of(Code.NODE_HELD_WHOLE)
_IN_USE = Reason.of(Code.NODE_IN_USE)


@dataclass(frozen=True, slots=True, eq=False)
class Diagnosis:
    """The state in which the next pod of a gang does not fit."""

    fit: GangFit
    view: FreeView  # what is free after placing the pods that fit
    node_filters: NodeFilters
    layout: GraphLayout
    attempt: Attempt | None  # the rules, with these pods counted
    whole: bool  # whole nodes are requested

    def nodes(
        self, members: Members, shape: PodShape, number: int, inside: Mask | None = None
    ) -> tuple[Reason, ...]:
        """Count each node under the first reason that rejects it; the most frequent reason first. ``inside``:
        only these nodes."""
        names = self.fit.names
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
        """Reasons in the order of the filters, each with the nodes that it leaves open."""
        view, nodes = self.view, self.fit.nodes
        yield from self.node_filters.open_nodes(shape.node)
        if members.allowed is not None:
            yield _EXCLUDED, members.allowed | ~self.node_filters.allowed(shape.node)
        yield _HELD_WHOLE, np.asarray(view.free[nodes] > 0)
        if self.whole:
            yield _IN_USE, np.asarray(view.users[nodes] == 0)
        yield from resource_reasons(members.needs, self.fit, view, self.layout)
        if isinstance(self.attempt, InterPodAttempt | VolumeAttempt):
            yield from self.attempt.reasons(number)

    def sums(self, members: Members, free: FreeView) -> tuple[Reason, ...]:
        """The resources whose total request exceeds the total of all suitable nodes."""
        wanted, found = len(members.pods), []
        suits = self.fit.table.up if members.allowed is None else members.allowed
        for type_, amount in members.needs.items():
            there = np.maximum(self.fit.free(type_, free), 0)[suits]
            if wanted > 1 and amount and sum(there.tolist()) < amount * wanted:
                resource = self.layout.resource(type_)
                total = amount * wanted
                found.append(
                    Reason.of(Code.RESOURCE_SUM, resource=resource, wanted=total, there=sum(there.tolist()))
                )
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Shortage:
    """Why some equal pods do not fit."""

    pod: str  # one of them; empty if the gang has only one kind
    wanted: int
    seats: int
    sums: tuple[Reason, ...] = ()
    causes: tuple[Reason, ...] = ()

    def reason(self, code: Code, *, nodes: int, empty: bool) -> Reason:
        """``empty``: the shortage exists even on the empty cluster."""
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
    """The reason that the pods fit in no domain of a label. ``begun``: other pods of the group are already in
    one. ``causes``: why the next pod does not fit in the domain in which the most pods fit."""
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
    gang: GangRequest, key: str, fit: GangFit, columns: NodeColumns, view: FreeView
) -> list[tuple[str, int]]:
    """The values of a label on the nodes of a gang, and the largest number of its pods that fit there."""
    assert gang.domains is not None
    room = fit.domain_seats(gang, gang.domains, view)
    values = {code: value for value, code in columns.label(key).codes.items()}
    return [(values[code], int(room[code])) for code in np.unique(gang.domains).tolist() if code >= 0]
