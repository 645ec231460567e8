"""Steps: the interface that every concern of the scheduler has, and the group that a step works on.

A concern is a room with one object, a `Step`. It observes events, does its part once per cycle, says when it
is due next, and forgets groups that are gone. `fluence.schedule.cycle` has the list of all steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fluence.queue.plan import JobFault

if TYPE_CHECKING:
    from fluence.schedule.cycle import Decisions
    from fluence.schedule.events import Event, NotBound


class Step:
    """One concern. A room overrides the verbs that it needs."""

    def observe(self, event: Event | NotBound, now: int) -> None:
        """Observe one event. Decide nothing here."""

    def run(self, now: int, decisions: Decisions) -> None:
        """Do this step of the cycle. Add orders for the API server to ``decisions``."""

    def next_due(self) -> int | None:
        """When to run a cycle even if nothing happens."""
        return None

    def forget(self, group: str) -> None:
        """Drop the state of a group that is gone with all its pods."""


class GroupFault(Exception):
    """Work on a group failed. ``__cause__`` is the error."""

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.group = group


@contextmanager
def working_on(group: str) -> Iterator[None]:
    """Blame this group for any error inside the block, so that only the group is quarantined."""
    try:
        yield
    except (GroupFault, JobFault):
        raise
    except Exception as error:
        raise GroupFault(group) from error
