"""Queue policies: which jobs are tried, in which order, and which get a reservation.

A policy is a small function of a `SchedulingPass`. The built-in ones are Fluxion's (qmanager), which differ
in the number of reservations, and first-fit for comparison. A site adds its own as a plug-in
(`fluence.plugins`): a `QueuePolicy`, or a function of a pass. It runs with a time budget; if it fails, `easy`
runs in that cycle instead.

This module also contains faults of plug-ins. Policies, priorities and predictors of a site may raise an
exception, or exceed their time by the timer that is passed in. The queue then continues with a built-in
answer, and keeps the fault until the live scheduler takes it to log and count it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from fluence import plugin_loader
from fluence.errors import InvalidInput

if TYPE_CHECKING:
    from fluence.queue.scheduling_pass import SchedulingPass


_T = TypeVar("_T")
_MAX_FAULTS = 100  # kept until they are taken


class OverBudget(Exception):
    """Site code took too long."""


@dataclass(frozen=True, slots=True)
class PluginFault:
    """A fault of site code, and the job, if it is known."""

    plugin: str
    error: Exception
    job: str = ""

    @property
    def summary(self) -> str:
        """The fault without the job, to count it by."""
        return f"{self.plugin}: {type(self.error).__name__}: {self.error}"

    def __str__(self) -> str:
        of = f" of job {self.job}" if self.job else ""
        return f"{self.plugin}{of}: {type(self.error).__name__}: {self.error}"


class PluginGuard:
    """Guards calls of site code. ``timer`` returns seconds; without one, only exceptions are caught."""

    def __init__(self, budget: float, timer: Callable[[], float] | None) -> None:
        self.budget = budget
        self.timer = timer
        self.faults: list[PluginFault] = []

    def call(self, plugin: str, job: str, run: Callable[[], _T], otherwise: _T) -> _T:
        """The result of ``run``, or ``otherwise`` if it fails."""
        check = self.deadline()
        try:
            answer = run()
            check()
        except Exception as error:
            self.note(plugin, error, job)
            return otherwise
        return answer

    def deadline(self) -> Callable[[], None]:
        """A function that raises once the budget is spent."""
        timer = self.timer
        if timer is None:
            return lambda: None
        end = timer() + self.budget

        def check() -> None:
            if timer() > end:
                raise OverBudget(f"took more than {self.budget} s")

        return check

    def note(self, plugin: str, error: Exception, job: str = "") -> None:
        if len(self.faults) < _MAX_FAULTS:
            self.faults.append(PluginFault(plugin, error, job))

    def take(self) -> list[PluginFault]:
        """The faults since the last call."""
        found, self.faults = self.faults, []
        return found


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """A way to go through the queue, and the kind of promise that it allows."""

    name: str
    run: Callable[[SchedulingPass], None]
    # The base of a promised start. "reservation": every job has one, and the plan keeps it. "order": jobs
    # start in order, so the plan in order is a bound. "record": a plan, widened by the record of earlier
    # bounds.
    promise: str = "record"
    built_in: bool = False


def fcfs(jobs: SchedulingPass) -> None:
    """First come, first served: no job overtakes another."""
    for record in jobs:
        if not jobs.start(record):
            return


def first_fit(jobs: SchedulingPass) -> None:
    """Start every job that fits, in order, without reservations."""
    jobs.backfill()


def backfill(depth: int | None) -> Callable[[SchedulingPass], None]:
    """The first ``depth`` jobs that must wait get a reservation; the others go ahead if they delay none of
    these. None: all waiting jobs get a reservation."""

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
    found = plugin_loader.find(
        plugin_loader.QUEUE_POLICIES, name, "queue policy", [*BUILT_IN, "hybrid(DEPTH)"]
    )
    if isinstance(found, QueuePolicy):
        return replace(found, name=name)
    if not callable(found):
        raise InvalidInput(f"the queue policy {name!r} is neither a QueuePolicy nor a function of a pass")
    return QueuePolicy(name, found)


def names() -> list[str]:
    """The names of all policies."""
    return [*BUILT_IN, *plugin_loader.names(plugin_loader.QUEUE_POLICIES)]
