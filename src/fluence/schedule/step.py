"""Steps: the interface that every concern of the scheduler has, and the quarantine of objects that a step
fails on.

A concern is a room with one object, a `Step`. It observes events, does its part once per cycle, says when it
is due next, and forgets groups that are gone. `fluence.schedule.cycle` has the list of all steps.

If work on an object fails, the object is blamed (`Subject`): a group, a pod, a node, a claim. It is left out
of the scheduler's state, which is rebuilt from the other objects. It is tried again when it changes, or after
a pause that grows. Running pods must still count on their nodes, so they are left out in steps: first as
members of their group, then, if counting them fails too, altogether. In that case the free capacity of their
nodes is unknown, and these nodes get no more pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

from cachetools import LRUCache
from msgspec.structs import replace

from fluence.backoff import Backoff
from fluence.model.pod import Pod
from fluence.queue.plan import JobFault
from fluence.schedule.events import Object

if TYPE_CHECKING:
    from fluence.schedule.cycle import Decisions
    from fluence.schedule.events import Event, NotBound


_BACKOFF = Backoff(10_000, 600_000)  # ms
_REMEMBERED = 10_000  # former subjects whose last pause is remembered
_NOBODY = "quarantined"  # the scheduler name of a pod that only counts on its node


@dataclass(frozen=True, slots=True)
class Subject:
    """The object that failed: its Kubernetes kind and its key."""

    kind: str
    key: str

    def __str__(self) -> str:
        return f"{self.kind} {self.key}"


@dataclass(frozen=True, slots=True)
class Fault:
    """An error with its subject. The edge logs, counts and reports it."""

    subject: Subject | None  # None: unknown
    error: Exception
    pods: tuple[Pod, ...] = ()  # waiting pods that get a report
    first: bool = True  # it was not in quarantine before


class _Level(IntEnum):
    WAITING = 1  # its waiting pods are left out
    RUNNING = 2  # its running pods count as pods of another scheduler
    ALL = 3  # everything of it is left out


@dataclass(slots=True)
class _Case:
    level: _Level
    until: int


class Quarantine:
    """The objects that are left out, and until when."""

    def __init__(self) -> None:
        self._cases: dict[Subject, _Case] = {}
        self._pauses: LRUCache[Subject, int] = LRUCache(_REMEMBERED)

    def __bool__(self) -> bool:
        return bool(self._cases)

    def __contains__(self, subject: Subject) -> bool:
        return subject in self._cases

    def subjects(self) -> list[Subject]:
        """All subjects in quarantine now."""
        return list(self._cases)

    def is_left_out(self, subject: Subject) -> bool:
        """Whether everything of a subject is left out."""
        case = self._cases.get(subject)
        return case is not None and case.level is _Level.ALL

    def add(self, subject: Subject, now: int) -> bool:
        """Quarantine a subject that failed, or leave out more of it if it failed again. Returns whether it is
        new."""
        case = self._cases.get(subject)
        if case is not None:
            case.level = _Level(min(case.level + 1, _Level.ALL))
            return False
        pause = self._pauses[subject] = _BACKOFF.longer(self._pauses.get(subject, _BACKOFF.first // 2))
        whole = subject.kind not in ("group", "Pod")
        self._cases[subject] = _Case(_Level.ALL if whole else _Level.WAITING, now + pause)
        return True

    def changed(self, subject: Subject, now: int) -> None:
        """Shorten the quarantine of a subject that has changed."""
        case = self._cases.get(subject)
        if case is not None:
            case.until = min(case.until, now + _BACKOFF.first)

    def take_due(self, now: int) -> list[Subject]:
        """End the quarantine of the subjects whose pause is over, and return them."""
        due = [subject for subject, case in self._cases.items() if case.until <= now]
        for subject in due:
            del self._cases[subject]
        return due

    def next_due(self) -> int | None:
        return min((case.until for case in self._cases.values()), default=None)

    def presented(self, found: Object, subject: Subject, group_of: Callable[[Pod], str]) -> Object | None:
        """An object as the scheduler may see it; None if it is left out."""
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
