"""What every record of a workload must pass before it counts, whatever it was read from.

A record that does not pass is left out and counted by its cause; under strict terms it is refused with its
place, its field and the cure. Arrivals become offsets here, and equal requests one object.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from operator import attrgetter

from fluence.errors import InvalidInput
from fluence.model.jobspec import MAX_COUNT, Jobspec
from fluence.sim.submission import Dependency, TraceJob, TraceWorkload

LONGEST = 3_153_600_000  # seconds, a hundred years: what a matcher plans for


@dataclass(frozen=True, slots=True)
class IntakeTerms:
    """How a workload is to be read; `fluence.sim.workload.read` says what each of them means."""

    jobs: int | None = None
    arrival_scale: float = 1.0
    strict: bool = False
    seed: int = 0
    unit: str = "core"
    node_size: int = 1
    processors: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.arrival_scale <= 1_000_000:
            raise InvalidInput(f"the scale of arrivals must be 0 to 1,000,000, not {self.arrival_scale:g}")
        if self.jobs is not None and self.jobs < 1:
            raise InvalidInput(f"the number of jobs must be at least 1, not {self.jobs}")


class BadRecord(Exception):
    """A record cannot be used: its cause, for counting, and what is wrong where, for people."""

    def __init__(self, cause: str, message: str, *, field: str = "") -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class IntakeJob:
    """A record as a reader found it, times still in seconds."""

    name: str
    at: float
    runtime: float
    jobspec: Jobspec
    size: int
    limit: float | None = None
    soft_limit: float | None = None
    user: str = ""
    queue: str = ""
    priority: int = 16
    after: tuple[tuple[Dependency, str], ...] = ()
    tasks: int = 1
    succeeds: bool = True


class Intake:
    """Takes candidates, keeps the good ones and counts the others."""

    def __init__(self, source: str, terms: IntakeTerms) -> None:
        self.source = source
        self.terms = terms
        self.processors: int | None = None
        self.keeps_order = True  # a log is written in the order of arrivals; a list need not be
        self._skipped: dict[str, int] = {}
        self._taken: dict[str, IntakeJob] = {}
        self._jobspecs: dict[Hashable, Jobspec] = {}
        self._latest = -math.inf
        self._reordered = 0

    @property
    def is_full(self) -> bool:
        """Whether as many records were taken as are wanted."""
        return self.keeps_order and self.terms.jobs is not None and len(self._taken) >= self.terms.jobs

    def take(self, read: Callable[[], IntakeJob], where: str | Callable[[], str]) -> None:
        """Take what *read* gives, or count why not; *where* is its place in the source, told when asked."""
        try:
            self._add(read())
        except BadRecord as bad:
            if self.terms.strict:
                place = where if isinstance(where, str) else where()
                raise InvalidInput(str(bad), where=f"{self.source}: {place}") from None
            self._skipped[bad.cause] = self._skipped.get(bad.cause, 0) + 1

    def same(self, key: Hashable, make: Callable[[], Jobspec]) -> Jobspec:
        """The one jobspec for all requests that are alike."""
        found = self._jobspecs.get(key)
        if found is None:
            found = self._jobspecs[key] = make()
        return found

    def workload(self) -> TraceWorkload:
        """All that was taken, by time of arrival; the first arrives at 0."""
        first = min((candidate.at for candidate in self._taken.values()), default=0.0)
        scale = self.terms.arrival_scale
        submissions = (_submission(candidate, first, scale) for candidate in self._taken.values())
        return TraceWorkload(
            submissions=tuple(sorted(submissions, key=attrgetter("submit"))[: self.terms.jobs]),
            source=self.source,
            processors=self.processors,
            skipped=self._skipped,
            reordered=self._reordered,
        )

    def _add(self, found: IntakeJob) -> None:
        if found.name in self._taken:
            raise BadRecord("repeated name", f"{found.name} is the name of a job above: rename one of them")
        if found.at < 0:
            raise BadRecord(
                "negative time", f"must be 0 or more seconds, not {found.at:g}", field="submit time"
            )
        if not found.runtime > 0:
            raise BadRecord(
                "no runtime", f"must be more than 0 seconds, not {found.runtime:g}", field="runtime"
            )
        for field in ("at", "runtime", "limit", "soft_limit"):
            seconds = getattr(found, field)
            if seconds is not None and not seconds <= LONGEST:
                raise BadRecord("impossible time", f"must be at most {LONGEST} seconds", field=field)
        for field in ("limit", "soft_limit"):
            seconds = getattr(found, field)
            if seconds is not None and not seconds > 0:
                raise BadRecord("negative time", f"must be more than 0 seconds, not {seconds:g}", field=field)
        self._check_size(found)
        self._check_dependencies(found.after, found.at)
        if found.at < self._latest and self.keeps_order:
            if self.terms.strict:
                raise BadRecord(
                    "out of order",
                    f"{found.at:g} is before {self._latest:g}, above it: sort the records by arrival",
                    field="submit time",
                )
            self._reordered += 1
        self._latest = max(self._latest, found.at)
        self._taken[found.name] = found

    def _check_size(self, found: IntakeJob) -> None:
        if not 0 <= found.size <= MAX_COUNT:
            raise BadRecord("impossible size", f"must be 1 to {MAX_COUNT}, not {found.size}", field="size")
        if not 1 <= found.tasks <= MAX_COUNT:
            raise BadRecord("impossible size", f"must be 1 to {MAX_COUNT}, not {found.tasks}", field="array")
        most = self.terms.processors
        if most is not None and found.size > most:
            raise BadRecord(
                "larger than the machine",
                f"{found.size} are asked for and the machine has {most}: give a larger cluster",
                field="size",
            )

    def _check_dependencies(self, after: Iterable[tuple[str, str]], at: float) -> None:
        for kind, name in after:
            if kind == "singleton":
                continue
            # NB only for one that is there when it arrives: so no two wait for each other.
            if name not in self._taken or self._taken[name].at > at:
                raise BadRecord(
                    "unknown dependency",
                    f"{kind} names {name!r}, not a job above that arrives before: list that one first",
                    field="after",
                )


def _submission(found: IntakeJob, first: float, scale: float) -> TraceJob:
    return TraceJob(
        name=found.name,
        submit=round((found.at - first) * scale * 1000),
        runtime=_milliseconds(found.runtime),
        jobspec=found.jobspec,
        size=found.size,
        limit=None if found.limit is None else _milliseconds(found.limit),
        soft_limit=None if found.soft_limit is None else _milliseconds(found.soft_limit),
        user=found.user,
        queue=found.queue,
        priority=found.priority,
        after=found.after,
        tasks=found.tasks,
        succeeds=found.succeeds,
    )


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))  # what runs at all takes time


def left_out(skipped: Mapping[str, int]) -> str:
    """What was left out of a workload, as the end of a sentence."""
    told = ", ".join(f"{count} {cause}" for cause, count in sorted(skipped.items()))
    return f"; left out: {told}" if told else ""
