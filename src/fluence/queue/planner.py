"""What the queue asks of the resources: start this now, hold that for later, what would come when.

The queue decides who and when; a planner knows what and where. `PoolPlanner` plans by counts, for jobs that
ask for some of many equal units; `GraphPlanner` plans by matching jobspecs; the live scheduler's
`ClusterPlanner` places gangs of pods on nodes. All keep their tasks in `Allocations`.

Three counters tell the queue what happened to the resources: `freed` grows when something came free, at its
planned end or before; `opened` when something came free that the plan did not count on; `lost` when
something that the plan counted on is gone, so that promises may have to break.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fluence.graph.graph import Ints
from fluence.model.reason import Reason
from fluence.queue.allocations import Allocation, Allocations


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A request that waits: what it is, its limit, and how long it will probably last."""

    request: Hashable
    limit: int
    duration: int


@dataclass(frozen=True, slots=True)
class Outlook:
    """How near a request is to starting now."""

    causes: tuple[Reason, ...]  # what is missing; nothing: it would start
    start: int | None = None  # the first time at which it could start; None: at no time that is known
    fewer: int | None = None  # with so many units (nodes, slots) it could start now
    shorter: int | None = None  # with this limit it could start now
    blockers: tuple[str, ...] = ()  # tasks that hold what it needs, those that end first in front


class Planner(Protocol):
    """Resources in time, as the queue sees them."""

    freed: int
    opened: int
    lost: int
    allocations: Allocations
    is_exact: bool  # a sketch is what the plan will be; else it counts sums, and what is free is in pieces

    def understands(self, request: Hashable) -> bool:
        """Whether this planner can plan for the request; if not, `widened` gives one that can."""

    def widened(self) -> Planner:
        """A planner for every request, with the same running tasks and no reservations."""

    def shape(self, request: Hashable) -> int:
        """A small number for a request; requests of equal shape get equal answers."""

    def feasibility(self, request: Hashable) -> Reason | None:
        """Why no empty cluster could hold a request; None if it could."""

    def advance(self, now: int) -> None:
        """Time has passed; the resources may have changed."""

    def start(self, task: str, request: Hashable, now: int, limit: int, clear: int) -> Allocation | None:
        """Hold a request for ``limit`` from now on, if what it takes is free for as long as ``clear``."""

    def start_or_reserve(
        self, task: str, request: Hashable, now: int, limit: int, clear: int
    ) -> Allocation | None:
        """The same at the earliest time. A request that fits now is started; else it is reserved."""

    def may_move(self, allocation: Allocation, now: int) -> bool:
        """Whether a reservation could be for an earlier time; only False is certain."""

    def may_start(self, allocation: Allocation, now: int, clear: int) -> bool:
        """Whether a request with a reservation could start now; only False is certain."""

    def displaced(self) -> Collection[Allocation]:
        """The reservations whose place is not free any more, as far as that can be told."""

    def drop(self, allocation: Allocation) -> None:
        """Give up a reservation."""

    def drop_all(self) -> None:
        """Give up all reservations."""

    def end(self, allocation: Allocation, now: int) -> None:
        """A task is over, or did not start after all: what it held is free."""

    def extend(self, allocation: Allocation, end: int) -> None:
        """A task outlives its limit: count on it until ``end``."""

    def mark(self) -> object:
        """Remember what is held and reserved."""

    def undo(self, mark: object) -> None:
        """Forget what was started and reserved, or dropped, since the mark."""

    def settle(self, now: int) -> list[Allocation]:
        """Name what the started tasks hold; returns those for which the matcher found nothing."""

    def rule_out(self, shape: int, limit: int, blocked: Ints, now: int) -> None:
        """A shape did not fit with this limit: note it in ``blocked`` (per shape, the shortest limit that
        failed), for this shape and for all that need as much."""

    def sketch(
        self,
        now: int,
        waiting: Sequence[PlanRequest],
        *,
        in_order: bool,
        wanted: Collection[int] | None = None,
    ) -> list[int | None]:
        """Where a plan over what runs now would put each of these, by limits; nothing is held.

        ``in_order``: none before the one in front of it. ``wanted``: the places that are asked about, if not
        all: for the others, which are in their way, less may be known.
        """

    def expect(
        self, now: int, ends: Mapping[str, int], waiting: Sequence[PlanRequest], wanted: Collection[int]
    ) -> dict[int, int]:
        """When those at the places ``wanted`` would start, if running tasks ended when ``ends`` says and each
        of these lasted as long as it probably will."""

    def supported(self, request: Hashable, now: int, limit: int) -> int | None:
        """The earliest start that the ends of what runs and is reserved, and all rules about where it may be,
        allow; None: no such time is known, so that none may be promised. Where a sketch is enough: now."""

    def outlook(self, request: Hashable, now: int, limit: int) -> Outlook:
        """How near a request is to starting now."""

    def relaxed(self, request: Hashable) -> Hashable | None:
        """The request without its constraint; None if it has none."""
