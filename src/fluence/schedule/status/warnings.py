"""Warnings and reminders: declarations without effect, once; why a pod still waits, every 45 minutes.

The cycle asks when a group changed, and the edge turns the answers into events. `fluence explain` shows the
same at any time, from the group itself.

The API server keeps events for an hour. For a pod that waits longer, `kubectl describe` would show none. So
the reason is repeated after 45 minutes, for a batch of pod sets at a time. Conditions stay as they are; the
edge makes an event of each reminder.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from cachetools import LRUCache

from fluence.model.owner import controller_of
from fluence.model.pod import Pod
from fluence.model.reason import Reason
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.status.reports import StatusReports
from fluence.schedule.step import Step

if TYPE_CHECKING:
    from fluence.schedule.cycle import Decisions


_KEPT = 16_384  # remembered warnings


@dataclass(frozen=True, slots=True)
class GangWarning:
    """A warning, and the pod that gets it."""

    pod: Pod
    reason: Reason


class Warnings:
    """Remembers warnings up to a bound, so the oldest may be repeated."""

    def __init__(self) -> None:
        self._told: LRUCache[tuple[str, Reason], bool] = LRUCache(_KEPT)

    def new(self, gang: Gang) -> list[GangWarning]:
        """The new warnings of a group."""
        pod = next(iter((*gang.members, *gang.gated, *gang.placed)), None)
        if pod is None:
            return []
        # All pods of a Job have the same template, so one of them gets the warning.
        owner = controller_of(pod.metadata) or gang.uid
        new = [each for each in gang.warnings if (owner, each) not in self._told]
        self._told.update(dict.fromkeys(((owner, each) for each in new), True))
        return [GangWarning(pod, each) for each in new]


_AFTER = 45 * 60_000
_PAUSE, _BATCH_SIZE = 5_000, 50


class Reminders(Step):
    """Repeats the report of each waiting job after a while."""

    def __init__(self, reports: StatusReports) -> None:
        self._reports = reports
        self._due: dict[str, int] = {}  # by key of `StatusReports.said`, earliest first
        self._next_batch = 0

    def next_due(self) -> int | None:
        said = self._reports.said
        while (first := next(iter(self._due), None)) is not None and first not in said:
            del self._due[first]  # it does not wait any more
        return None if first is None else max(self._due[first], self._next_batch)

    def run(self, now: int, decisions: Decisions) -> None:
        said = self._reports.said
        for key in self._reports.take_told():
            self._put(key, now)
        if len(self._due) > 2 * len(said) + 100:
            self._due = {key: at for key, at in self._due.items() if key in said}
        if now < self._next_batch:
            return
        for key, at in list(islice(self._due.items(), _BATCH_SIZE)):
            if at > now:
                break
            self._put(key, now)
            if key in said:
                decisions.reminders.append(said[key])
                self._next_batch = now + _PAUSE

    def _put(self, key: str, now: int) -> None:
        self._due.pop(key, None)
        if key in self._reports.said:
            self._due[key] = now + _AFTER
