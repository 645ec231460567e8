"""A gang's rules about other pods: host ports, (anti)affinity, required in both directions, topology spread.

This is what kube-scheduler's NodePorts, InterPodAffinity and PodTopologySpread filter, for several pods that
are seated one after the other: each that sits changes what is open to the next. Counts are kept per *domain*,
the nodes that share a value of a topology label, so a pod that sits costs a few additions.

A start in the future is judged by the pods that will still be there: those of jobs that end before are not
counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np

from fluence.cluster.columns import Column, NodeColumns
from fluence.cluster.node_affinity import NodeFilters, NodeRules
from fluence.cluster.pod_index import (
    AffinityTerm,
    PodIndex,
    Ports,
    SpreadConstraint,
    affinity_terms,
    anti_affinity_terms,
    preferred_terms,
    selector_keys,
    spreads,
)
from fluence.cluster.preferred_affinity import PreferredAffinity
from fluence.cluster.spread import SpreadScene, spreadings
from fluence.graph.graph import Ints, Mask
from fluence.model.pod import Pod, ports_clash


@dataclass(frozen=True, slots=True, eq=False)
class InterPodTerms:
    """What one pod demands of its company."""

    affinity: tuple[AffinityTerm, ...]
    anti: tuple[AffinityTerm, ...]
    spread: tuple[SpreadConstraint, ...]
    ports: Ports
    preferred: tuple[tuple[AffinityTerm, int], ...]  # these two forbid nothing
    even: tuple[SpreadConstraint, ...]
    key: tuple[object, ...]  # equal for equal demands

    @classmethod
    def of(cls, pod: Pod) -> InterPodTerms:
        affinity, anti, preferred = affinity_terms(pod), anti_affinity_terms(pod), preferred_terms(pod)
        spread, even = spreads(pod, "DoNotSchedule"), spreads(pod, "ScheduleAnyway")
        ports = pod.host_ports()
        limits = tuple(
            (
                each.key,
                each.constraint.when_unsatisfiable,
                each.constraint.topology_key,
                each.constraint.max_skew,
                each.constraint.min_domains,
                each.constraint.node_affinity_policy,
                each.constraint.node_taints_policy,
            )
            for each in (*spread, *even)
        )
        key = (affinity, anti, limits, ports, preferred)
        return cls(affinity, anti, spread, ports, preferred, even, key)

    @property
    def forbid(self) -> bool:
        """Whether there are nodes on which the pod may not be because of others."""
        return bool(self.affinity or self.anti or self.spread or self.ports)

    @property
    def prefer(self) -> bool:
        return bool(self.preferred or self.even)

    @property
    def label_keys(self) -> set[str]:
        """The labels of other pods that these look at."""
        selectors = [
            *(each.selector for each in (*self.affinity, *self.anti)),
            *(each.selector for each in (*self.spread, *self.even)),
            *(each.selector for each, _ in self.preferred),
        ]
        return {key for selector in selectors for key in selector_keys(selector)}


@dataclass(frozen=True, slots=True, eq=False)
class PodShape:
    """One of some pods that are alike, to speak for all of them."""

    pod: Pod
    demands: InterPodTerms
    rules: NodeRules


class InterPodAffinity:
    """The rules of one gang; see `fluence.placer.gang.Rules`."""

    def __init__(
        self,
        guests: Sequence[PodShape],
        neighbours: PodIndex,
        columns: NodeColumns,
        book: NodeFilters,
        gone_by: Callable[[int], Collection[str]],
    ) -> None:
        self.guests = guests
        self.neighbours = neighbours
        self.columns = columns
        self.book = book
        self.gone_by = gone_by

    def begin(self, at: int) -> AffinityAttempt:
        return AffinityAttempt(self, self.gone_by(at))

    def arrange(self, turns: list[int]) -> list[int]:
        """Who wants company sits after those whose company it wants."""
        labels_of = self.neighbours.labels_of
        done: list[int] = []
        left = list(turns)
        while left:
            for turn in left:
                terms = self.guests[turn].demands.affinity
                waits = terms and any(
                    other != turn and all(term.matches(self.guests[other].pod, labels_of) for term in terms)
                    for other in left
                )
                if not waits:
                    break
            else:
                turn = left[0]  # they want each other: somebody begins
            done.append(turn)
            left.remove(turn)
        return done

    def once_per_node(self, guest: PodShape) -> bool:
        """Whether two pods like this one can never share a node, and nothing else is between them."""
        if guest.demands.ports:
            return True
        return any(self._parts_hosts(term, guest) for term in guest.demands.anti)

    def _parts_hosts(self, term: AffinityTerm, guest: PodShape) -> bool:
        column = self.columns.label(term.topology_key)
        return (
            term.matches(guest.pod, self.neighbours.labels_of)
            and bool(column.present.all())
            and column.is_unique
        )


class AffinityAttempt:
    """One attempt to seat the gang; see `fluence.placer.gang.Sitting`."""

    def __init__(self, company: InterPodAffinity, without: Collection[str]) -> None:
        members = [guest.pod for guest in company.guests]
        scene = SpreadScene(company.neighbours, company.columns, company.book, members, without)
        self._places = [_MemberState(company, number, scene) for number in range(len(members))]

    def alone(self, members: int) -> bool:
        return self._places[members].alone

    def open(self, members: int) -> Mask:
        return self._places[members].open()

    def score(self, members: int) -> Ints | None:
        preference = self._places[members].preference
        return None if preference is None else preference.score()

    def together(self, members: int) -> None:
        """Nobody must follow anybody to a node: affinity knows domains."""

    def causes(self, members: int) -> list[tuple[str, Mask]]:
        """Each rule with the nodes that it leaves open."""
        return self._places[members].causes()

    def sit(self, members: int, node: int, count: int) -> None:
        for place in self._places:
            place.texts(members, node, count)


class _MemberState:
    """What is open to some members of the gang, as it fills."""

    def __init__(self, company: InterPodAffinity, number: int, scene: SpreadScene) -> None:
        self.company = company
        guest = company.guests[number]
        demands, without = guest.demands, scene.without
        neighbours, columns = scene.neighbours, scene.columns
        labels_of = neighbours.labels_of
        others = company.guests

        # Host ports: with others on the node, and among the gang.
        self.ports: Mask | None = None
        if demands.ports:
            self.ports = neighbours.ports_free(demands.ports, without)
        self.port_rivals = [ports_clash(demands.ports, other.demands.ports) for other in others]

        # Affinity: every term must find its domain among the pods that all terms match.
        self.affinity: list[tuple[Column, Mask]] = []  # per term: the domains with company
        self.lonely = False  # there is no such pod anywhere, and the first may begin
        self.companions = [False] * len(others)
        if demands.affinity:
            there = neighbours.counts_all(demands.affinity, without)
            for term in demands.affinity:
                column = columns.label(term.topology_key)
                self.affinity.append((column, _domains(column, there)))
            self.companions = [
                all(term.matches(other.pod, labels_of) for term in demands.affinity) for other in others
            ]
            self.lonely = not any(found.any() for _, found in self.affinity) and self.companions[number]

        # Anti-affinity, own and others': domains that are closed.
        self.closed: list[tuple[Column, Mask, list[bool]]] = []
        for term in demands.anti:
            column = columns.label(term.topology_key)
            rivals = [term.matches(other.pod, labels_of) for other in others]
            self.closed.append((column, _domains(column, neighbours.counts(term, without)), rivals))
        self.shut: list[tuple[Column, Mask]] = []
        for term, holders in neighbours.against(guest.pod, without):
            column = columns.label(term.topology_key)
            self.shut.append((column, _domains(column, holders)))
        self.rivals: list[list[tuple[Column, Mask]]] = []  # per other: its terms that mean us
        for other in others:
            means = []
            for term in other.demands.anti:
                if term.matches(guest.pod, labels_of):
                    column = columns.label(term.topology_key)
                    means.append((column, np.zeros(len(column.codes) + 1, np.bool_)))
            self.rivals.append(means)

        self.spread = spreadings(demands.spread, guest.pod, guest.rules, scene)
        self.preference: PreferredAffinity | None = None
        if demands.prefer:
            self.preference = PreferredAffinity(
                demands.preferred, demands.even, guest.pod, guest.rules, scene
            )
        self._always_alone = (
            any(each.counts_self for each in self.spread)
            or (self.preference is not None and self.preference.counts_self)
            or any(
                rivals[number] and not company._parts_hosts(term, guest)
                for term, (_, _, rivals) in zip(demands.anti, self.closed, strict=True)
            )
        )

    @property
    def alone(self) -> bool:
        return self.lonely or self._always_alone

    def causes(self) -> list[tuple[str, Mask]]:
        found: list[tuple[str, Mask]] = []
        if self.ports is not None:
            found.append(("host ports are taken", self.ports))
        for each in self.spread:
            found.append((f"topology spread over {each.column.key}", each.open()))
        for column, there in self.affinity:
            mask = column.present if self.lonely else there[column.of]
            found.append((f"pod affinity: no such pod in the same {column.key}", mask))
        for column, closed, _ in self.closed:
            found.append((f"pod anti-affinity: such a pod is in the same {column.key}", ~closed[column.of]))
        for column, closed in (*self.shut, *(each for means in self.rivals for each in means)):
            found.append(
                (f"anti-affinity of a pod in the same {column.key} against this one", ~closed[column.of])
            )
        return found

    def open(self) -> Mask:
        mask = np.ones(len(self.company.columns), np.bool_)
        for _, each in self.causes():
            mask &= each
        return mask

    def texts(self, members: int, node: int, count: int) -> None:
        """Members of the gang sit on a node now."""
        if self.ports is not None and self.port_rivals[members]:
            self.ports[node] = False
        if self.companions[members]:
            self.lonely = False
            for column, there in self.affinity:
                _mark(column, there, node)
        for column, closed, rivals in self.closed:
            if rivals[members]:
                _mark(column, closed, node)
        for column, closed in self.rivals[members]:
            _mark(column, closed, node)
        for each in self.spread:
            each.texts(members, node, count)
        if self.preference is not None:
            self.preference.texts(members, node, count)


def _domains(column: Column, counts: Ints) -> Mask:
    """The domains with somebody in them; the last entry, for nodes without the label, is never one."""
    found = np.zeros(len(column.codes) + 1, np.bool_)
    found[column.of[counts > 0]] = True
    found[-1] = False
    return found


def _mark(column: Column, domains: Mask, node: int) -> None:
    if column.of[node] >= 0:
        domains[column.of[node]] = True
