"""Producers: the Jobs, groups and pods that other jobs wait for, found by name, with their progress.

A name refers to an object in the same namespace. Once a consumer has seen the object, the name refers to it
by uid: a later object with the same name is another producer. Outcomes come from the status: the conditions
Complete and Failed of Jobs, and the phases of pods. The roles `view`, `edit` and `admin` cannot write these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from fluence.model.owner import Job, Owner
from fluence.model.pod import Pod
from fluence.schedule.eligibility.depends_on import Producer, ProducerKind, Progress
from fluence.schedule.events import Object
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.gangs.groups import Groups

OVER = frozenset((Progress.SUCCEEDED, Progress.FAILED, Progress.GONE))
_PHASES = {"Running": Progress.STARTED, "Succeeded": Progress.SUCCEEDED, "Failed": Progress.FAILED}


@dataclass(slots=True)
class Sighting:
    """A producer as one consumer knows it."""

    kind: ProducerKind
    uid: str
    progress: Progress


class Producers:
    """``find`` returns an object by kind, namespace and name."""

    def __init__(self, *, groups: Groups, find: Callable[[str, str, str], Object | None]) -> None:
        self._groups = groups
        self._find = find

    def look(self, namespace: str, producer: Producer, before: Sighting | None) -> Sighting | None:
        """The current state of a producer; None if no object has this name. An outcome is final."""
        if before is None:
            kinds = ProducerKind if producer.kind is None else (producer.kind,)
            found = (self._of_kind(namespace, producer.name, kind) for kind in kinds)
            return next((sighting for sighting in found if sighting is not None), None)
        if before.progress in OVER:
            return before
        now = self._of_kind(namespace, producer.name, before.kind)
        if now is not None and (now.uid == before.uid or before.kind is ProducerKind.GROUP):
            return now
        return Sighting(before.kind, before.uid, Progress.GONE)

    def gangs(self, namespace: str, name: str, sighting: Sighting) -> set[str]:
        """The gangs of a producer."""
        if sighting.kind is ProducerKind.GROUP:
            return {f"{namespace}/{name}"}
        found = self._find("Job" if sighting.kind is ProducerKind.JOB else "Pod", namespace, name)
        if isinstance(found, Job):
            return self._groups.made_by(found)
        return {self._groups.of(found)} if isinstance(found, Pod) else set()

    def _of_kind(self, namespace: str, name: str, kind: ProducerKind) -> Sighting | None:
        if kind is ProducerKind.GROUP:
            gang = self._groups.gang(f"{namespace}/{name}")
            return None if gang is None else Sighting(kind, gang.uid, self._of_gang(gang))
        found = self._find("Job" if kind is ProducerKind.JOB else "Pod", namespace, name)
        if not isinstance(found, Job | Pod):
            return None
        return Sighting(kind, found.metadata.uid, progress_of(found))

    def _of_gang(self, gang: Gang) -> Progress:
        """A group has ended when its Jobs have or, without Jobs, when all its pods have."""
        pods = (*gang.members, *gang.placed, *gang.gated, *gang.ended)
        jobs = {
            owner.identity: owner
            for pod in pods
            for owner in self._groups.owners(pod)[0]
            if isinstance(owner, Job)
        }
        if jobs:
            of_jobs = {progress_of(job) for job in jobs.values()}
            if of_jobs <= OVER:
                return Progress.FAILED if Progress.FAILED in of_jobs else Progress.SUCCEEDED
        elif gang.is_over and len(gang.ended) >= gang.minimum:
            failed = any(pod.status.phase != "Succeeded" for pod in gang.ended)
            return Progress.FAILED if failed else Progress.SUCCEEDED
        has_started = any(pod.status.phase in _PHASES for pod in pods)
        return Progress.STARTED if has_started else Progress.WAITING


def progress_of(found: Job | Pod) -> Progress:
    """The progress of an object, from its status."""
    if isinstance(found, Pod):
        return _PHASES.get(found.status.phase, Progress.WAITING)
    ends = {each.type for each in found.status.conditions or () if each.status == "True"}
    if "Failed" in ends:
        return Progress.FAILED
    if "Complete" in ends:
        return Progress.SUCCEEDED
    return Progress.STARTED if has_begun(found) else Progress.WAITING


def has_begun(owner: Owner) -> bool:
    """Whether pods of an owner have run, by its status."""
    status = owner.status
    return bool(status.ready or status.succeeded or status.failed)


# -- series --------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Series:
    """The unfinished work of each series, for `singleton`: Jobs, pods, and groups of pods."""

    _units: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict)  # creation times
    _of: dict[str, set[tuple[str, str]]] = field(default_factory=dict)  # the series of each unit

    def put(self, unit: str, names: Iterable[tuple[str, str]], created: int) -> None:
        """Put a unit into these series, each with its namespace, and into no others."""
        names = set(names)
        for name in self._of.pop(unit, set()) - names:
            self._drop(name, unit)
        for name in names:
            units = self._units.setdefault(name, {})
            units[unit] = min(created, units.get(unit, created))
        if names:
            self._of[unit] = names

    def remove(self, unit: str) -> set[tuple[str, str]]:
        """Remove a unit that has ended or is gone. Returns the series in which other units may start now."""
        names = self._of.pop(unit, set())
        for name in names:
            self._drop(name, unit)
        return names

    def earlier(self, name: tuple[str, str], units: Iterable[str]) -> Iterator[str]:
        """The units that must end before these may start."""
        there = self._units.get(name, {})
        own = [(there[unit], unit) for unit in units if unit in there]
        first = min(own, default=None)
        for unit, created in there.items():
            if first is not None and (created, unit) < first:
                yield unit

    def __bool__(self) -> bool:
        return bool(self._of)

    def __contains__(self, unit: str) -> bool:
        return unit in self._of

    def _drop(self, name: tuple[str, str], unit: str) -> None:
        units = self._units.get(name, {})
        units.pop(unit, None)
        if not units:
            self._units.pop(name, None)
