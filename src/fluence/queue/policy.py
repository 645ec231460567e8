"""Queue policies: who is tried, in which order, and who gets a place in the plan.

A policy is a small function of a `SchedulingPass`. These are Fluxion's (qmanager), by their depth of
reservation, and first-fit for comparison. A site adds its own by an entry point in the group
`fluence.queue_policies` that names a `QueuePolicy`, or a function of a pass; it runs with a time budget, and
`easy` takes its place for a cycle in which it fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fluence.errors import InvalidInput
from fluence.queue import plugins

if TYPE_CHECKING:
    from fluence.queue.scheduling_pass import SchedulingPass


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """A way to go through the queue, and what it can promise."""

    name: str
    run: Callable[[SchedulingPass], None]
    # What a promised start rests on. "reservation": every job has one, and it is kept. "order": jobs start in
    # order, so the plan in order is a bound. "record": a plan, widened by how well such plans held so far.
    promise: str = "record"
    built_in: bool = False


def fcfs(jobs: SchedulingPass) -> None:
    """First come, first served: nobody overtakes."""
    for record in jobs:
        if not jobs.start(record):
            return


def first_fit(jobs: SchedulingPass) -> None:
    """Whoever fits, in order; nobody holds anything for later."""
    jobs.backfill()


def backfill(depth: int | None) -> Callable[[SchedulingPass], None]:
    """The first ``depth`` jobs that must wait get a reservation; the others go ahead if they delay none of
    those. None: all get one."""

    def run(jobs: SchedulingPass) -> None:
        for record in jobs:
            if depth is not None and jobs.reserved >= depth:
                jobs.backfill()
                return
            jobs.start_or_reserve(record)

    return run


HYBRID_DEPTH = 64  # Fluxion's default
BUILT_IN = {
    policy.name: policy
    for policy in (
        QueuePolicy("fcfs", fcfs, "order", built_in=True),
        QueuePolicy("first-fit", first_fit, built_in=True),
        QueuePolicy("easy", backfill(1), built_in=True),
        QueuePolicy("hybrid", backfill(HYBRID_DEPTH), built_in=True),
        QueuePolicy("conservative", backfill(None), "reservation", built_in=True),
    )
}
_HYBRID = re.compile(r"hybrid[(:](\d{1,6})\)?")


def find(name: str) -> QueuePolicy:
    """A policy by name: built in, ``hybrid(8)``, or added by a site."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    if depth := _HYBRID.fullmatch(name):
        return QueuePolicy(name, backfill(int(depth[1])), built_in=True)
    found = plugins.load(plugins.POLICIES, name, "queue policy", [*BUILT_IN, "hybrid(DEPTH)"])
    if isinstance(found, QueuePolicy):
        return found
    if not callable(found):
        raise InvalidInput(f"the queue policy {name!r} is neither a QueuePolicy nor a function of a pass")
    return QueuePolicy(name, found)


def names() -> list[str]:
    """All policies there are."""
    return [*BUILT_IN, *plugins.names(plugins.POLICIES)]
