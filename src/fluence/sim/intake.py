"""Intake: the parts of a workload, and the checks of every record, in any format.

A workload is a list of jobs with arrival times. An invalid record is left out and counted by its cause; in
strict mode it is an error that names its place, its field and what to change. Arrivals become offsets here,
and equal requests share one object.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal

from fluence.errors import InvalidInput
from fluence.model.constraint import Constraint
from fluence.model.jobspec import MAX_COUNT, Count, Jobspec, JobspecAttributes, JobspecResource

Dependency = Literal["afterok", "afterany", "singleton"]


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a workload: its arrival, its request, and its run time."""

    name: str
    submit: int
    """ms after the workload's beginning; the first submission is at 0."""
    runtime: int
    """ms that it runs if nothing stops it."""
    jobspec: Jobspec
    """The request of one task, without a duration; equal requests share one object."""
    size: int
    """Units that one task holds (processors, nodes or parts of a pool), for the metrics."""
    limit: int | None
    """ms, hard walltime; None: not stated."""
    soft_limit: int | None = None
    user: str = ""
    queue: str = ""
    priority: int = 16
    """Flux's urgency, whose default this is."""
    after: tuple[tuple[Dependency, str], ...] = ()
    """What it waits for, each with the name of a job; a singleton names none."""
    tasks: int = 1
    """An array: this many equal tasks under one record."""
    succeeds: bool = True


@dataclass(frozen=True, slots=True)
class TraceWorkload:
    """The submissions of one source, by time of arrival."""

    submissions: tuple[TraceJob, ...]
    source: str
    processors: int | None = None
    """The size of the machine that the log says it is of (MaxProcs, else MaxNodes)."""
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Records that were left out: cause -> how many."""
    reordered: int = 0
    """Records that stood after one with a later arrival, and were put into their place."""


CPU_PER_CORE = 1000  # a pool of cpu counts in thousandths of a core


def processors_jobspec(count: int, unit: str) -> Jobspec:
    """A request for processors on any nodes: `slot[n] > core[1]`."""
    amount = CPU_PER_CORE if unit == "cpu" else 1
    return _jobspec(_slot(count, (_resource(unit, amount),)))


def nodes_jobspec(
    count: int, *, cores: int = 0, gpus: int = 0, constraint: Constraint | None = None
) -> Jobspec:
    """A request for nodes with cores and gpus on each; without those, whole nodes."""
    parts = tuple(_resource(type_, n) for type_, n in (("core", cores), ("gpu", gpus)) if n)
    if not parts:
        return _jobspec(_slot(count, (_resource("node", 1),)), constraint)
    return _jobspec(_resource("node", count, (_slot(1, parts),)), constraint)


def pod_jobspec(amounts: Sequence[tuple[str, int]], models: Sequence[str] = ()) -> Jobspec:
    """Parts of the pools of one node, whose GPUs are of one of some models."""
    parts = tuple(_resource(type_, amount) for type_, amount in amounts if amount)
    choices = tuple(Constraint("properties", (model,)) for model in models)
    constraint = Constraint("or", children=choices) if len(choices) > 1 else choices[0] if choices else None
    return _jobspec(_resource("node", 1, (_slot(1, parts),)), constraint)


def _jobspec(top: JobspecResource, constraint: Constraint | None = None) -> Jobspec:
    return Jobspec((top,), attributes=JobspecAttributes(constraints=constraint))


def _slot(count: int, with_: tuple[JobspecResource, ...]) -> JobspecResource:
    return JobspecResource("slot", Count(count, count), label="default", with_=with_)


def _resource(type_: str, count: int, with_: tuple[JobspecResource, ...] = ()) -> JobspecResource:
    return JobspecResource(type_, Count(count, count), with_=with_)


MAX_SECONDS = 3_153_600_000  # seconds, a hundred years: the horizon of a matcher


@dataclass(frozen=True, slots=True)
class IntakeTerms:
    """The options for reading a workload, as documented in `fluence.sim.workload.read`."""

    jobs: int | None = None
    arrival_scale: float = 1.0
    strict: bool = False
    seed: int = 0
    unit: str = "core"
    node_size: int = 1
    processors: int | None = None
    queue_field: str = "queue"

    def __post_init__(self) -> None:
        if not 0 <= self.arrival_scale <= 1_000_000:
            raise InvalidInput(f"the scale of arrivals must be 0 to 1,000,000, not {self.arrival_scale:g}")
        if self.jobs is not None and self.jobs < 1:
            raise InvalidInput(f"the number of jobs must be at least 1, not {self.jobs}")


class BadRecord(Exception):
    """A record cannot be used: the cause, for counting, and the error with its place, for people."""

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
        """Add the result of *read*, or count the cause of its failure; *where* returns the place in the
        source."""
        try:
            self._add(read())
        except BadRecord as bad:
            if self.terms.strict:
                place = where if isinstance(where, str) else where()
                raise InvalidInput(str(bad), where=f"{self.source}: {place}") from None
            self._skipped[bad.cause] = self._skipped.get(bad.cause, 0) + 1

    def same(self, key: Hashable, make: Callable[[], Jobspec]) -> Jobspec:
        """The one jobspec for all requests that are alike."""
        jobspec = self._jobspecs.get(key)
        if jobspec is None:
            jobspec = self._jobspecs[key] = make()
        return jobspec

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

    def _add(self, job: IntakeJob) -> None:
        if job.name in self._taken:
            raise BadRecord("repeated name", f"{job.name} is the name of a job above: rename one of them")
        if job.at < 0:
            raise BadRecord(
                "negative time", f"must be 0 or more seconds, not {job.at:g}", field="submit time"
            )
        if not job.runtime > 0:
            raise BadRecord(
                "no runtime", f"must be more than 0 seconds, not {job.runtime:g}", field="runtime"
            )
        for name in ("at", "runtime", "limit", "soft_limit"):
            seconds = getattr(job, name)
            if seconds is not None and not seconds <= MAX_SECONDS:
                raise BadRecord("impossible time", f"must be at most {MAX_SECONDS} seconds", field=name)
        for name in ("limit", "soft_limit"):
            seconds = getattr(job, name)
            if seconds is not None and not seconds > 0:
                raise BadRecord("negative time", f"must be more than 0 seconds, not {seconds:g}", field=name)
        self._check_size(job)
        self._check_dependencies(job.after, job.at)
        if job.at < self._latest and self.keeps_order:
            if self.terms.strict:
                raise BadRecord(
                    "out of order",
                    f"{job.at:g} is before {self._latest:g}, above it: sort the records by arrival",
                    field="submit time",
                )
            self._reordered += 1
        self._latest = max(self._latest, job.at)
        self._taken[job.name] = job

    def _check_size(self, job: IntakeJob) -> None:
        if not 0 <= job.size <= MAX_COUNT:
            raise BadRecord("impossible size", f"must be 1 to {MAX_COUNT}, not {job.size}", field="size")
        if not 1 <= job.tasks <= MAX_COUNT:
            raise BadRecord("impossible size", f"must be 1 to {MAX_COUNT}, not {job.tasks}", field="array")
        most = self.terms.processors
        if most is not None and job.size > most:
            raise BadRecord(
                "larger than the machine",
                f"{job.size} are asked for and the machine has {most}: give a larger cluster",
                field="size",
            )

    def _check_dependencies(self, after: Iterable[tuple[str, str]], at: float) -> None:
        for kind, name in after:
            if kind == "singleton":
                continue
            # NB only for a job that exists when it arrives, so that no two jobs wait for each other.
            if name not in self._taken or self._taken[name].at > at:
                raise BadRecord(
                    "unknown dependency",
                    f"{kind} names {name!r}, not a job above that arrives before: list that one first",
                    field="after",
                )


def _submission(job: IntakeJob, first: float, scale: float) -> TraceJob:
    return TraceJob(
        name=job.name,
        submit=round((job.at - first) * scale * 1000),
        runtime=_milliseconds(job.runtime),
        jobspec=job.jobspec,
        size=job.size,
        limit=None if job.limit is None else _milliseconds(job.limit),
        soft_limit=None if job.soft_limit is None else _milliseconds(job.soft_limit),
        user=job.user,
        queue=job.queue,
        priority=job.priority,
        after=job.after,
        tasks=job.tasks,
        succeeds=job.succeeds,
    )


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))  # what runs at all takes time


def left_out(skipped: Mapping[str, int]) -> str:
    """What was left out of a workload, as the end of a sentence."""
    causes = ", ".join(f"{count} {cause}" for cause, count in sorted(skipped.items()))
    return f"; left out: {causes}" if causes else ""
