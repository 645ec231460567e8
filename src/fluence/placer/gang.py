"""What is placed together: the members of a gang, their rules about other pods, and the seats they get.

A *seat* is what one pod needs of one node; several seats may share a node.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, TypeAlias

from fluence.graph.graph import Ints, Mask, Rows, Tree
from fluence.graph.selection import Selection
from fluence.match.placement import Placed
from fluence.match.policy import MatchPolicy
from fluence.model.device import DeviceGrant
from fluence.placer.backends import DeviceNeed

Pod: TypeAlias = Hashable  # how the caller calls a pod: its uid
Columns: TypeAlias = tuple[Rows, Ints, Mask]  # vertices, amounts, exclusive


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Pods of a gang that are alike. Masks and scores are columns over `GangFit.nodes`."""

    pods: tuple[Pod, ...]
    needs: Mapping[str, int]  # amount by type of what is right below a node
    allowed: Mask | None = None  # None: every node that is up
    score: Ints | None = None  # nodes with a higher one are taken first; the policy decides among equals
    most: int | None = None  # pods of these on one node


class Attempt(Protocol):
    """One attempt to place a gang whose pods have rules about other pods."""

    def one_at_a_time(self, members: int) -> bool:
        """Whether the next of these must be placed alone, because it changes what is open to the others."""

    def open_nodes(self, members: int) -> Mask | None:
        """The nodes that are open to the next of these, given who is placed; None: all."""

    def score(self, members: int) -> Ints | None:
        """Which nodes the next of these prefers, given who is placed, on top of their score; None: any."""

    def required_free(self, members: int) -> Mapping[str, int] | None:
        """What the node of the next of these must have free, because others must follow it there."""

    def assign(self, members: int, node: int, count: int) -> None:
        """So many of these are placed on a node."""


class GangRules(Protocol):
    """The rules of a gang about other pods."""

    def order(self, turns: list[int]) -> list[int]:
        """The members in the order in which to place them, given the order by what is free."""

    def begin(self, at: int) -> Attempt:
        """An attempt for a start at this time."""

    def alone(self) -> GangRules | None:
        """What holds on empty nodes too: rules of its pods about each other that no other pod can ease."""


@dataclass(frozen=True, slots=True, eq=False)
class GangRequest:
    """What is placed together: all of it, or at least ``minimum`` pods."""

    members: tuple[Members, ...]
    minimum: int | None = None
    policy: str | MatchPolicy = "first"
    rules: GangRules | None = None
    stamp: int | None = None  # the state of the nodes that the masks were made for, if the maker minds
    domains: Ints | None = None  # all must be in one domain: which one each node is in, -1 for none
    devices: tuple[DeviceNeed, ...] = ()  # that belong to no node, with the nodes or not at all

    @property
    def size(self) -> int:
        return sum(len(each.pods) for each in self.members)

    def without_rules(self) -> GangRequest:
        """The same, its rules about other pods aside."""
        return GangRequest(
            self.members, self.minimum, self.policy, domains=self.domains, devices=self.devices
        )

    def on_empty_nodes(self) -> GangRequest:
        """As it would be placed if nobody else were there."""
        found = self.without_rules()
        return found if self.rules is None else replace(found, rules=self.rules.alone())


class Seat(NamedTuple):
    """One pod's place."""

    pod: Pod
    node: str
    needs: Mapping[str, int]
    devices: tuple[int, ...] = ()  # the vertices that are the pod's own, such as GPUs


@dataclass(frozen=True, slots=True)
class Seated:
    """The gang has its seats, from ``at`` until ``end``."""

    job: int
    at: int
    end: int
    reserved: bool  # for later; False: it starts now
    seats: tuple[Seat, ...]
    left: tuple[Pod, ...]  # pods beyond the minimum that found no seat
    whole: bool  # the nodes are the job's own
    held: Columns
    tree: Tree
    grants: tuple[DeviceGrant, ...] = ()

    @property
    def nodes(self) -> dict[Pod, str]:
        """Which pod got which node."""
        return {seat.pod: seat.node for seat in self.seats}

    @property
    def selection(self) -> Selection:
        """What is held, with the way to it from the root, as the graph stands."""
        return Selection.of(self.tree, *self.held)

    @property
    def placed(self) -> Placed:
        """The same for the writers."""
        return Placed(self.job, self.at, self.end, self.reserved, self.selection)

    def __bool__(self) -> bool:
        return True


@dataclass(slots=True)
class Seating:
    """What a job holds, seat by seat."""

    job: int
    start: int
    end: int
    reserved: bool
    whole: bool = False  # its nodes are its own
    uses_node: bool = True  # it keeps others from having its nodes as a whole
    seats: dict[Pod, Seat] = field(default_factory=dict)
    grants: tuple[DeviceGrant, ...] = ()
    shares: tuple[DeviceGrant, ...] = ()  # that `lender` holds for this job, too
    lender: int | None = None  # another job
