"""Quarantine: objects that Fluence cannot handle are left out, so that one cannot stop the others.

Whatever fails while an object is worked on is laid to its account (`Subject`): a group, a pod, a node, a
claim. The object is left out of the scheduler's state, which is then built anew from the others, and is tried
again when it changes or after a pause that grows. Pods that run must still count on their nodes, so they are
left out in steps: first as members of their group, then, if counting them fails too, altogether: then nobody
knows what is free on their nodes, and these get no more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from cachetools import LRUCache
from msgspec.structs import replace

from fluence.model.pod import Pod
from fluence.schedule.events import Object

_FIRST = 10_000  # the first pause, in milliseconds
_MOST = 600_000
_REMEMBERED = 10_000  # subjects whose pauses are remembered after they were let out
_NOBODY = "quarantined"  # the scheduler of a pod that only counts on its node


@dataclass(frozen=True, slots=True)
class Subject:
    """What failed: its kind in Kubernetes' words, and its key."""

    kind: str
    key: str

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


@dataclass(frozen=True, slots=True)
class Fault:
    """What went wrong with a subject; the edge logs, counts and tells it."""

    subject: Subject | None  # None: nobody knows
    error: Exception
    pods: tuple[Pod, ...] = ()  # that wait, and are told
    first: bool = True  # it was not quarantined before


class _Level(IntEnum):
    WAITING = 1  # its pods that wait are left out
    RUNNING = 2  # and those that run count as somebody else's
    ALL = 3  # nothing of it is looked at


@dataclass(slots=True)
class _Case:
    level: _Level
    until: int


class Quarantine:
    """Who is left out, and until when."""

    def __init__(self) -> None:
        self._cases: dict[Subject, _Case] = {}
        self._pauses: LRUCache[Subject, int] = LRUCache(_REMEMBERED)

    def __bool__(self) -> bool:
        return bool(self._cases)

    def __contains__(self, subject: Subject) -> bool:
        return subject in self._cases

    def is_left_out(self, subject: Subject) -> bool:
        """Whether nothing of it is looked at."""
        case = self._cases.get(subject)
        return case is not None and case.level is _Level.ALL

    def add(self, subject: Subject, now: int) -> bool:
        """It failed, or failed again although it was left out in part; says whether it is new here."""
        case = self._cases.get(subject)
        if case is not None:
            case.level = _Level(min(case.level + 1, _Level.ALL))
            return False
        pause = self._pauses[subject] = min(2 * self._pauses.get(subject, _FIRST // 2), _MOST)
        whole = subject.kind not in ("group", "Pod")
        self._cases[subject] = _Case(_Level.ALL if whole else _Level.WAITING, now + pause)
        return True

    def changed(self, subject: Subject, now: int) -> None:
        """It is not what it was: it need not wait for long."""
        case = self._cases.get(subject)
        if case is not None:
            case.until = min(case.until, now + _FIRST)

    def take_due(self, now: int) -> list[Subject]:
        """Those whose pause is over; they are let out."""
        due = [subject for subject, case in self._cases.items() if case.until <= now]
        for subject in due:
            del self._cases[subject]
        return due

    def next_due(self) -> int | None:
        return min((case.until for case in self._cases.values()), default=None)

    def presented(self, found: Object, subject: Subject, group_of: Callable[[Pod], str]) -> Object | None:
        """An object as the scheduler may see it; None: not at all."""
        if not self._cases:
            return found
        case = self._cases.get(subject)
        if not isinstance(found, Pod):
            return None if case is not None else found
        levels = [case.level] if case is not None else []
        group = self._cases.get(Subject("group", group_of(found)))
        levels += [group.level] if group is not None else []
        level = max(levels, default=0)
        if not level:
            return found
        if found.spec.node_name is None or level is _Level.ALL:
            return None
        if level is _Level.RUNNING:
            return replace(found, spec=replace(found.spec, scheduler_name=_NOBODY))
        return found
