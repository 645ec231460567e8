"""What is seated together: the members of a gang, their rules about each other, and the seats they get."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, TypeAlias

from fluence.graph.graph import Ints, Mask, Rows, Tree
from fluence.graph.selection import Selection
from fluence.match.placement import Placed
from fluence.match.policy import MatchPolicy

Pod: TypeAlias = Hashable  # how the caller calls a pod: its uid
Columns: TypeAlias = tuple[Rows, Ints, Mask]  # vertices, amounts, exclusive


@dataclass(frozen=True, slots=True, eq=False)
class Members:
    """Pods of a gang that are alike. Masks and scores are columns over `Seats.nodes`."""

    pods: tuple[Pod, ...]
    needs: Mapping[str, int]  # amount by type of what is right below a node
    allowed: Mask | None = None  # None: every node that is up
    score: Ints | None = None  # nodes with a higher one are taken first; the policy decides among equals
    most: int | None = None  # pods of these on one node


class Attempt(Protocol):
    """One attempt to seat a gang whose pods have rules about each other."""

    def alone(self, members: int) -> bool:
        """Whether the next of these must be seated alone, because it changes what is open to the others."""

    def open(self, members: int) -> Mask | None:
        """The nodes that are open to the next of these, given who sits; None: all."""

    def score(self, members: int) -> Ints | None:
        """Where the next of these would rather be, given who sits, on top of their own; None: anywhere."""

    def together(self, members: int) -> Mapping[str, int] | None:
        """What the node of the next of these must have free, because others must follow it there."""

    def sit(self, members: int, node: int, count: int) -> None:
        """So many of these sit on a node now."""


class PodRules(Protocol):
    """Rules about other pods."""

    def arrange(self, turns: list[int]) -> list[int]:
        """The members in the order in which to seat them, given the order that the room suggests."""

    def begin(self, at: int) -> Attempt:
        """An attempt for a start at this time."""


@dataclass(frozen=True, slots=True, eq=False)
class GangRequest:
    """What is seated together: all of it, or at least ``minimum`` pods."""

    members: tuple[Members, ...]
    minimum: int | None = None
    policy: str | MatchPolicy = "first"
    rules: PodRules | None = None
    stamp: int | None = None  # the state of the nodes that the masks were made for, if the maker minds
    domains: Ints | None = None  # all must sit in one domain: which one each node is in, -1 for none

    @property
    def size(self) -> int:
        return sum(len(each.pods) for each in self.members)


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
    guest: bool = True  # it keeps others from having its nodes as a whole
    seats: dict[Pod, Seat] = field(default_factory=dict)
