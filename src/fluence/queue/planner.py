"""Planner: the interface of the queue to the resources.

The queue decides which job starts and when; a planner finds the resources. `PoolPlanner` plans with counts,
for jobs that request a number of equal units. `GraphPlanner` plans by matching jobspecs. The `ClusterPlanner`
of the live scheduler places gangs of pods on nodes. All keep their tasks in `Allocations`.

Three counters show the queue how the resources changed. `freed` grows when resources come free, at their
planned end or before; `opened` when they come free earlier than planned; `lost` when resources that the plan
needs are gone, so that promises may break.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from fluence.graph.graph import Ints
from fluence.model.queues import NOTHING, Amounts, QueueTree
from fluence.model.reason import Reason
from fluence.queue.allocations import Allocation, Allocations
from fluence.queue.quota import Claim, ClassAmounts


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A waiting request, with its limit and its predicted duration."""

    request: Hashable
    limit: int
    duration: int
    claim: Claim | None = None  # against the quotas of its queue
    since: int = 0  # the start of its reservation, if any: sums alone may allow an earlier one


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a request lacks to start now, and the changes that would help."""

    causes: tuple[Reason, ...]  # what is missing; empty: it would start
    start: int | None = None  # its earliest start; None: unknown
    fewer: int | None = None  # the number of units (nodes, slots) with which it could start now
    shorter: int | None = None  # with this limit it could start now
    blockers: tuple[str, ...] = ()  # tasks that have what it needs, by their ends


def limits(waiting: Iterable[PlanRequest]) -> dict[Hashable, int]:
    """The limits of queues that some requests count against."""
    return {
        line: limit
        for claim in {id(ask.claim): ask.claim for ask in waiting if ask.claim is not None}.values()
        for line, limit in claim.limits.items()
    }


class WithoutClasses:
    """The part of a planner whose resources have no classes of nodes."""

    def use_classes(self, tree: QueueTree) -> None:
        pass

    def nodes_in_classes(self) -> Hashable:
        return None

    def class_amounts(self, request: Hashable) -> ClassAmounts:
        return NOTHING, NOTHING

    def in_classes(self, allocation: Allocation) -> Amounts:
        return NOTHING

    def class_capacities(self) -> Amounts:
        return NOTHING


class Planner(Protocol):
    """The resources over time, as the queue sees them."""

    freed: int
    opened: int
    lost: int
    allocations: Allocations
    is_exact: bool  # sketches equal the plan; False: they use sums and ignore fragmentation

    def understands(self, request: Hashable) -> bool:
        """Whether this planner can plan the request; if not, `widened` returns a planner that can."""

    def widened(self) -> Planner:
        """A planner for every request, with the same running tasks and no reservations."""

    def shape(self, request: Hashable) -> int:
        """A small number for a request; requests of equal shape get equal results."""

    def feasibility(self, request: Hashable) -> Reason | None:
        """Why a request would not fit even on the empty cluster; None if it would."""

    def amounts(self, request: Hashable) -> Mapping[str, int]:
        """How much of each resource a request takes."""

    def capacities(self) -> Mapping[str, int]:
        """The total of each resource."""

    def use_classes(self, tree: QueueTree) -> None:
        """Set the classes of nodes that queues limit."""

    def nodes_in_classes(self) -> Hashable:
        """A value that changes when a node may have come into a class, or left it."""

    def class_amounts(self, request: Hashable) -> ClassAmounts:
        """What a request takes on classes of nodes: surely, and at most."""

    def in_classes(self, allocation: Allocation) -> Amounts:
        """What an allocation takes on the nodes of each class."""

    def class_capacities(self) -> Amounts:
        """What the nodes of each class have."""

    def advance(self, now: int) -> None:
        """Time has passed; the resources may have changed."""

    def start(self, task: str, request: Hashable, now: int, limit: int, clear: int) -> Allocation | None:
        """Allocate a request from now on for ``limit``, if its resources are free for ``clear``."""

    def start_or_reserve(
        self, task: str, request: Hashable, now: int, limit: int, clear: int, begin: int = 0
    ) -> Allocation | None:
        """Start a request now if it fits; otherwise reserve its earliest start, not before ``begin``."""

    def may_move(self, allocation: Allocation, now: int) -> bool:
        """Whether a reservation might move to an earlier time; only False is certain."""

    def may_start(self, allocation: Allocation, now: int, clear: int) -> bool:
        """Whether a request with a reservation might start now; only False is certain."""

    def displaced(self) -> Collection[Allocation]:
        """The reservations whose resources are no longer free, or may not be."""

    def drop(self, allocation: Allocation) -> None:
        """Give up a reservation."""

    def drop_all(self) -> None:
        """Give up all reservations."""

    def end(self, allocation: Allocation, now: int) -> None:
        """A task is over, or did not start after all: free its resources."""

    def extend(self, allocation: Allocation, end: int) -> None:
        """A task exceeds its limit: plan with ``end`` as its new end."""

    def mark(self) -> object:
        """Remember the current allocations and reservations."""

    def undo(self, mark: object) -> None:
        """Undo all starts, reservations and drops since the mark."""

    def settle(self, now: int) -> list[Allocation]:
        """Assign resources to the started tasks; returns the tasks for which the matcher found none."""

    def rule_out(self, shape: int, limit: int, blocked: Ints, now: int) -> None:
        """A shape did not fit with this limit: note it in ``blocked`` (per shape, the shortest limit that
        failed), for this shape and for all shapes that need as much or more."""

    def sketch(
        self,
        now: int,
        waiting: Sequence[PlanRequest],
        *,
        in_order: bool,
        wanted: Collection[int] | None = None,
    ) -> list[int | None]:
        """The start of each request in a plan behind the running tasks, by limits; nothing is recorded.

        ``in_order``: no request starts before the one in front of it. ``wanted``: the places whose starts are
        needed, if not all; the starts of the others may be less exact.
        """

    def expect(
        self, now: int, ends: Mapping[str, int], waiting: Sequence[PlanRequest], wanted: Collection[int]
    ) -> dict[int, int]:
        """The starts of the requests at the places ``wanted``, if running tasks end at ``ends`` and waiting
        requests run for their predicted durations."""

    def supported(self, request: Hashable, now: int, limit: int) -> int | None:
        """The earliest start that the ends of running and reserved tasks and all placement rules allow. None:
        no such time is known, so nothing may be promised. Planners for which a sketch is enough return
        ``now``."""

    def outlook(self, request: Hashable, now: int, limit: int) -> Outlook:
        """What a request lacks to start now."""

    def relaxed(self, request: Hashable) -> Hashable | None:
        """The request without its constraint; None if it has none."""
