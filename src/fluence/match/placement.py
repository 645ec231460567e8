"""Placement: the operations of the matcher, the windows that they try, and their results."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from fluence.graph.selection import Selection


class Operation(Enum):
    """What to do with a request; the values are Fluxion's names."""

    ALLOCATE = "allocate"
    ALLOCATE_OR_RESERVE = "allocate_orelse_reserve"
    ALLOCATE_OR_JUDGE = "allocate_with_satisfiability"
    JUDGE = "satisfiability"
    TRY = "without_allocating"
    TRY_FUTURE = "without_allocating_future"


@dataclass(frozen=True, slots=True)
class Placed:
    """The request fits on these vertices, from ``at`` until ``end``."""

    job: int
    at: int
    end: int
    reserved: bool  # for later; False: it starts now
    selection: Selection
    queue: str | None = None

    def __bool__(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Wait:
    """The request does not fit now: the resources are in use or down."""

    reason: str

    def __bool__(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Never:
    """The request does not fit even on the empty graph."""

    reason: str

    def __bool__(self) -> bool:
        return False


Outcome = Placed | Wait | Never


@dataclass(frozen=True, slots=True)
class Window:
    """The time in which a job would run, and what counts as an obstacle."""

    start: int
    end: int
    allocate: bool = True  # it runs now: a vertex of an overrunning job is not free
    empty: bool = False  # ignore all allocations
    healthy: bool = False  # ignore vertices that are down


EMPTY = Window(0, 1, allocate=False, empty=True, healthy=True)  # could it ever fit?
# The same, but with the ledger, for a search that must see its own earlier choices.
FAR = Window(2**61, 2**61 + 1, allocate=False, healthy=True)


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a search: a selection if it matched, and the last obstacle on the way.

    A match can have an empty selection: the chosen vertices are below a vertex that the request does not
    name, or nothing in the request is exclusive. Fluxion then fails with the errno that was set last.
    """

    selection: Selection | None
    obstacle: int = 0  # EBUSY, EINVAL or 0
    conflict: str | None = None


class TooFar(Exception):
    """A walk has visited more vertices than its limit."""
