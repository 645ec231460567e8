"""What an operation of the matcher answers: placed, wait, or never; and the operations there are."""

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
    """The request fits: these vertices, from ``at`` until ``end``."""

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
    """Not now: others hold what is needed, or it is down."""

    reason: str

    def __bool__(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Never:
    """This graph cannot hold the request, however empty."""

    reason: str

    def __bool__(self) -> bool:
        return False


Outcome = Placed | Wait | Never
