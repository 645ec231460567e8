"""Why pods find no seat: which rule or resource each node fell to, with counts, in words.

    3 of 8 seats on 8 nodes: 5 insufficient cpu (2 wanted); 3 taint gpu:NoSchedule

Pods are named only where a gang has several kinds of them: gangs of one kind share their answers, and nobody
is told of somebody else's pods.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fluence.cluster.columns import NodeColumns
from fluence.cluster.interpod_affinity import AffinityAttempt, PodShape
from fluence.cluster.layout import GraphLayout
from fluence.cluster.node_affinity import NodeFilters
from fluence.cluster.volume_matching import VolumeAttempt
from fluence.graph.graph import Mask
from fluence.model.node import Taint
from fluence.placer.availability import FreeView
from fluence.placer.gang import Members
from fluence.placer.gang_fit import GangFit
from fluence.units import MOST, format_amount


@dataclass(frozen=True, slots=True)
class Cause:
    """Nodes that fell to one cause."""

    text: str
    nodes: tuple[str, ...]

    def __str__(self) -> str:
        return f"{len(self.nodes)} {self.text}"


@dataclass(frozen=True, slots=True)
class Shortage:
    """What stands in the way of some pods that are alike."""

    pod: str  # namespace/name of the first; empty: the gang has no others
    wanted: int
    seats: int  # that there are for these alone
    nodes: int
    causes: tuple[Cause, ...]

    def __str__(self) -> str:
        like = f" (and {self.wanted - 1} like it)" if self.wanted > 1 else ""
        if self.seats >= self.wanted:
            return f"{self.pod}{like}: enough seats by itself, but not together with the others"
        found = "no seat" if not self.seats else f"{self.seats} of {self.wanted} seats"
        whose = f" for {self.pod}{like}" if self.pod else ""
        none = "the nodes that suit are full with these" if self.nodes else "there are no nodes"
        causes = "; ".join(map(str, self.causes)) or none
        return f"{found}{whose} on {self.nodes} nodes: {causes}"


@dataclass(frozen=True, slots=True)
class Scattered:
    """No domain has enough seats."""

    wanted: int
    key: str
    domains: tuple[tuple[str, int], ...]  # the label's values, and how many of the pods could sit there
    begun: bool  # some of the group are there already, so there is no choice

    def __str__(self) -> str:
        if not self.domains:
            return f"no node has the label {self.key}, which its PodGroup names"
        best, most = max(self.domains, key=lambda each: each[1])
        if most >= self.wanted:
            why = f"{self.key}={best} has seats for each, but not for all together"
        else:
            why = f"{self.key}={best} has seats for {most} of {self.wanted}"
        why += ", and others of the group are there" if self.begun else ", and no other value has more"
        return f"no seats in one domain of {self.key}: {why}"


def causes(
    members: Members,
    guest: PodShape,
    *,
    seats: GangFit,
    view: FreeView,
    columns: NodeColumns,
    book: NodeFilters,
    layout: GraphLayout,
    table: AffinityAttempt | VolumeAttempt | None,
    number: int,
    whole: bool,
) -> Iterator[tuple[str, Mask]]:
    """Causes in the order in which they are tested, each with the nodes that it leaves open."""
    rules = guest.rules
    for name, open_ in book.steps(rules):
        if name == "taint":
            closed: dict[Taint | None, list[int]] = {}
            for index in np.flatnonzero(~open_).tolist():
                closed.setdefault(columns.taint(index, rules.tolerations), []).append(index)
            for taint, nodes in closed.items():
                mask = np.ones(len(columns), np.bool_)
                mask[nodes] = False
                yield f"taint {_taint(taint)}", mask
        elif name == "nodeSelector":
            yield _selector(rules.selector), open_
        elif name == "node affinity":
            yield "required node affinity does not match", open_
        else:
            yield name, open_
    if members.allowed is not None:
        yield "excluded for this group", members.allowed | ~book.allowed(rules)
    yield "held as a whole by another job", np.asarray(view.free[seats.nodes] > 0)
    if whole:
        yield "in use, and a whole node is wanted", np.asarray(view.guests[seats.nodes] == 0)
    yield from _resources(members.needs, seats, view, layout)
    if table is not None:
        yield from table.causes(number)


def sort_out(steps: Iterator[tuple[str, Mask]], names: list[str]) -> tuple[Cause, ...]:
    """Each node under the first cause that it falls to; the most frequent cause first."""
    left = np.ones(len(names), np.bool_)
    found: list[Cause] = []
    for text, open_ in steps:
        fallen = left & ~open_
        if fallen.any():
            found.append(Cause(text, tuple(names[i] for i in np.flatnonzero(fallen).tolist())))
            left &= open_
    return tuple(sorted(found, key=lambda cause: -len(cause.nodes)))


def _resources(
    needs: Mapping[str, int], seats: GangFit, view: FreeView, layout: GraphLayout
) -> Iterator[tuple[str, Mask]]:
    """One cause per set of resources that a node lacks."""
    lacking: dict[str, tuple[Mask, Mask]] = {}
    for type_, amount in needs.items():
        asked = min(amount, MOST + 1)  # no node has more than MOST
        short = seats.free(type_, view) < asked
        if short.any():
            lacking[type_] = (short, seats.size(type_) < asked)
    if not lacking:
        return
    groups: dict[str, list[int]] = {}
    for index in np.flatnonzero(np.any([short for short, _ in lacking.values()], axis=0)).tolist():
        words = []
        for type_, (short, small) in lacking.items():
            if short[index]:
                name = layout.resource(type_)
                wanted = f"{format_amount(name, needs[type_])} wanted"
                if needs[type_] > MOST:
                    largest = int(seats.size(type_).max(initial=0))
                    wanted += f", the largest node has {format_amount(name, largest)}"
                wanted = f"{name} ({wanted})"
                words.append(f"too small: {wanted}" if small[index] else f"insufficient {wanted}")
        groups.setdefault(" and ".join(words), []).append(index)
    for text, nodes in groups.items():
        mask = np.ones(len(seats.nodes), np.bool_)
        mask[nodes] = False
        yield text, mask


def _taint(taint: Taint | None) -> str:
    if taint is None:
        return "not tolerated"
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def _selector(selector: Mapping[str, str]) -> str:
    told = ", ".join(f"{key}={value}" for key, value in selector.items())
    return f"nodeSelector {told} does not match"
