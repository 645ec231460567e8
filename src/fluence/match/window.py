"""When a search looks, and what it found: the window that the matcher asks about, and the answer to it."""

from __future__ import annotations

from dataclasses import dataclass

from fluence.graph.selection import Selection


@dataclass(frozen=True, slots=True)
class Window:
    """When a job would run, and what stands in its way then."""

    start: int
    end: int
    allocate: bool = True  # runs now: a vertex that an overrunning job still has is not free
    empty: bool = False  # nobody holds anything
    healthy: bool = False  # nothing is down


EMPTY = Window(0, 1, allocate=False, empty=True, healthy=True)  # could it ever fit?
# The same with an eye on the ledger, where a search must see what it took itself a moment ago.
FAR = Window(2**61, 2**61 + 1, allocate=False, healthy=True)


@dataclass(frozen=True, slots=True)
class Found:
    """What came of a search: a selection if it matched, and the last obstacle met on the way.

    A match can leave an empty selection: what was chosen hangs below a vertex that nobody asked for, or
    nothing in the request is exclusive. Fluxion then fails with whatever errno was set last.
    """

    selection: Selection | None
    obstacle: int = 0  # EBUSY, EINVAL or 0
    conflict: str | None = None


class TooFar(Exception):
    """A walk has met more vertices than it may."""
