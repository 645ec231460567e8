"""Gangs: pods that are placed together, their rules about other pods, and their placements."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, TypeAlias

from fluence.graph.graph import Ints, Mask, Rows
from fluence.graph.ledger import LedgerJob
from fluence.match.policy import MatchPolicy
from fluence.model.external_resources import DeviceGrant
from fluence.placer.backends import DeviceNeed

Pod: TypeAlias = Hashable  # the caller's id of a pod: its uid
Columns: TypeAlias = tuple[Rows, Ints, Mask]  # vertices, amounts, exclusive


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Equal pods of a gang. Masks and scores are columns over `GangFit.nodes`."""

    pods: tuple[Pod, ...]
    needs: Mapping[str, int]  # amounts by type, of vertices directly below a node
    allowed: Mask | None = None  # None: every node that is up
    score: Ints | None = None  # nodes with a higher score are taken first; the policy breaks ties
    most: int | None = None  # the largest number of these pods on one node
    least_allocated: bool = False  # also prefer nodes with more resources left


class Attempt(Protocol):
    """One attempt to place a gang whose pods have rules about other pods."""

    def one_at_a_time(self, members: int) -> bool:
        """Whether the next pod must be placed alone, because it changes which nodes are open to the
        others."""

    def open_nodes(self, members: int) -> Mask | None:
        """The nodes that are open to the next pod, given the pods that are placed; None: all."""

    def score(self, members: int) -> Ints | None:
        """The score of nodes for the next pod, given the pods that are placed; added to that of its members.
        None: all are equal."""

    def required_free(self, members: int) -> Mapping[str, int] | None:
        """What the node of the next pod must have free, because other pods must be placed there too."""

    def assign(self, members: int, node: int, count: int) -> None:
        """This number of pods is placed on a node."""


class GangRules(Protocol):
    """The rules of a gang about other pods."""

    def order(self, turns: list[int]) -> list[int]:
        """The members in the order in which to place them, given their order by free resources."""

    def begin(self, at: int) -> Attempt:
        """An attempt for a start at this time."""

    def alone(self) -> GangRules | None:
        """The rules that also apply on empty nodes: rules of its pods about each other that other pods cannot
        satisfy."""


@dataclass(frozen=True, slots=True, eq=False)
class GangRequest:
    """The pods to place together: all of them, or at least ``minimum``."""

    members: tuple[Members, ...]
    minimum: int | None = None
    policy: str | MatchPolicy = "first"
    rules: GangRules | None = None
    stamp: int | None = None  # the state of the nodes for which the masks are valid, if checked
    domains: Ints | None = None  # all pods must be in one domain: the domain of each node, -1 for none
    devices: tuple[DeviceNeed, ...] = ()  # external resources, allocated together with the nodes

    @property
    def size(self) -> int:
        return sum(len(each.pods) for each in self.members)

    def without_rules(self) -> GangRequest:
        """The same without its rules about other pods."""
        return GangRequest(
            self.members, self.minimum, self.policy, domains=self.domains, devices=self.devices
        )

    def on_empty_nodes(self) -> GangRequest:
        """The same as on empty nodes."""
        found = self.without_rules()
        return found if self.rules is None else replace(found, rules=self.rules.alone())


class PodPlacement(NamedTuple):
    """The part of one node that a pod uses."""

    pod: Pod
    node: str
    needs: Mapping[str, int]
    devices: tuple[int, ...] = ()  # the vertices that only this pod uses, such as GPUs


@dataclass(frozen=True, slots=True)
class GangPlacement:
    """The result of a search: the placement of a gang from ``at`` until ``end``."""

    job: int
    at: int
    end: int
    reserved: bool  # for later; False: it starts now
    placements: tuple[PodPlacement, ...]
    left: tuple[Pod, ...]  # pods beyond the minimum that did not fit
    whole: bool  # the job uses whole nodes
    columns: Columns  # for the ledger
    grants: tuple[DeviceGrant, ...] = ()

    @property
    def nodes(self) -> dict[Pod, str]:
        """The node of each pod."""
        return {placement.pod: placement.node for placement in self.placements}

    def __bool__(self) -> bool:
        return True


@dataclass(slots=True, eq=False)
class GangHolding(LedgerJob):
    """A job in the ledger whose vertices are the placements of pods and the devices granted to them."""

    whole: bool = False  # it uses whole nodes
    uses_node: bool = True  # no other job can get its nodes as whole nodes
    placements: dict[Pod, PodPlacement] = field(default_factory=dict)
    grants: tuple[DeviceGrant, ...] = ()
    shares: tuple[DeviceGrant, ...] = ()  # devices that `lender` also holds for this job
    lender: int | None = None  # another job
    ended: set[Pod] = field(default_factory=set)  # pods that have ended while the job keeps their placements

    def holds(self, lacking: Mapping[str, Collection[str]]) -> bool:
        """Whether it holds something that some nodes lack (`NodeTable.lacking`), by name."""
        return any(
            (self.whole and "node" in lacking[pod.node]) or holds_some(pod.needs, lacking[pod.node])
            for pod in self.placements.values()
            if pod.node in lacking
        )


def holds_some(needs: Mapping[str, int], types: Collection[str]) -> bool:
    """Whether a pod has some of these types."""
    return any(needs.get(type_, 0) > 0 for type_ in types)
