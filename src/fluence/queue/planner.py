"""What the queue asks of the resources: start this now, hold that for later, what would come when.

The queue decides who and when; a space knows what and where. `PoolSpace` plans by counts, for jobs that ask
for some of many equal units; `GraphSpace` plans by matching, for all others.

Three counters tell the queue what became of its answers. While ``freed`` stands still, what was refused is
still refused. While ``opened`` stands still, nothing came free before it was planned to, so that a plan made
in order would come out the same. When ``lost`` moves, something is gone and promises may have to break.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fluence.graph.graph import Ints


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A request that waits: what it is, its limit, and how long it will probably last."""

    request: Hashable
    limit: int
    duration: int


@dataclass(frozen=True, slots=True)
class Outlook:
    """How near a request is to starting now."""

    cause: str  # what is missing, in words
    start: int | None = None  # the first time at which it could start; None: at no time that is known
    fewer: int | None = None  # with so many units (nodes, slots) it could start now
    shorter: int | None = None  # with this limit it could start now
    blockers: tuple[str, ...] = ()  # tasks that hold what it needs, those that end first in front


class Planner(Protocol):
    """Resources in time, as the queue sees them."""

    freed: int
    opened: int
    lost: int

    def understands(self, request: Hashable) -> bool:
        """Whether this space can plan for the request; if not, `widened` gives one that can."""

    def widened(self) -> Planner:
        """A space for every request, with the same tasks and no reservations."""

    def shape(self, request: Hashable) -> int:
        """A small number for a request; requests of equal shape get equal answers."""

    def judge(self, request: Hashable) -> str | None:
        """Why no empty cluster could hold a request; None if it could."""

    def advance(self, now: int) -> None:
        """Time has passed; the resources may have changed."""

    def start(self, task: str, request: Hashable, now: int, limit: int, clear: int) -> bool:
        """Hold a request for ``limit`` from now on, if what it takes is free for as long as ``clear``."""

    def start_or_reserve(self, task: str, request: Hashable, now: int, limit: int, clear: int) -> int | None:
        """The same at the earliest time; says when that is. A request that fits now is started."""

    def may_move(self, task: str, now: int) -> bool:
        """Whether a reservation could be for an earlier time; only False is certain."""

    def drop(self, task: str) -> None:
        """Give up a reservation."""

    def drop_all(self) -> None:
        """Give up all reservations."""

    def end(self, task: str, now: int) -> None:
        """A task is over, or did not start after all: what it held is free."""

    def stretch(self, task: str, end: int) -> None:
        """A task outlives its limit: count on it until ``end``."""

    def mark(self) -> object:
        """Remember what is held and reserved."""

    def undo(self, mark: object) -> None:
        """Forget what was started and reserved, or dropped, since the mark."""

    def settle(self, now: int) -> list[str]:
        """Name what the started tasks hold; returns those for which the matcher found nothing."""

    def rule_out(self, shape: int, limit: int, blocked: Ints, now: int) -> None:
        """A shape did not fit with this limit: note it in ``blocked`` (per shape, the shortest limit that
        failed), for this shape and for all that need as much."""

    def sketch(self, now: int, asks: Sequence[PlanRequest], *, in_order: bool) -> list[int | None]:
        """Where a plan over what runs now would put each of these, by limits; nothing is held.

        ``in_order``: none before the one in front of it.
        """

    def expect(
        self, now: int, ends: Mapping[str, int], asks: Sequence[PlanRequest], wanted: Collection[int]
    ) -> dict[int, int]:
        """When those at the places ``wanted`` would start, if running tasks ended when ``ends`` says and each
        of these lasted as long as it probably will."""

    def room(self, request: Hashable, now: int, limit: int) -> Outlook:
        """How near a request is to starting now."""

    def relaxed(self, request: Hashable) -> Hashable | None:
        """The request without its constraint; None if it has none."""
