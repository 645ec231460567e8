"""Jobs: what was submitted, the phases that it goes through, and its story.

    gathering ─► pending ─► binding ─► running ─► done
                  ▲  │       ▲   │        │
                  │  ▼       │   ▼        │     a job that loses its nodes goes back to pending;
                reserved ────┘ preparing  │     any job that is not over can be cancelled;
                  ▲                       │     never: this cluster cannot hold it, or it waits for
                  └────── pending ◄───────┘            what cannot come

There is one record per job and one table of transitions. The queue moves a record between pending, reserved,
binding and its ends. The live scheduler's records (`fluence.schedule.pod_set.PodSet`) are the same with pods:
they gather before they are submitted, and prepare volumes between their start and their binds. Times are
whole milliseconds, so that a scaled trace and a real clock are both exact.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from fluence.errors import Conflict, InvalidInput
from fluence.model.reason import Reason
from fluence.queue.allocations import Allocation

SECOND = 1000
Order = tuple[int, int, int, int]  # rank, submit, queued, serial: less is earlier
FOREVER = 100 * 365 * 86_400 * SECOND  # the limit of a job that has none


class Phase(Enum):
    """Where a job is; it is in one phase at a time."""

    GATHERING = "gathering"  # some of it is not there yet
    PENDING = "pending"
    RESERVED = "reserved"  # pending, with a place in the plan
    PREPARING = "preparing"  # its resources are held; its volumes are being bound
    BINDING = "binding"  # its resources are held; the order to start it is on its way
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    NEVER = "never"

    @property
    def is_waiting(self) -> bool:
        return self in (Phase.GATHERING, Phase.PENDING, Phase.RESERVED)

    @property
    def holds(self) -> bool:
        """Whether it has resources."""
        return self in (Phase.PREPARING, Phase.BINDING, Phase.RUNNING)

    @property
    def is_over(self) -> bool:
        return self in (Phase.DONE, Phase.CANCELLED, Phase.NEVER)


_ENDS = frozenset((Phase.DONE, Phase.CANCELLED))
TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.GATHERING: frozenset((Phase.PENDING, Phase.RUNNING, Phase.CANCELLED, Phase.NEVER)),
    Phase.PENDING: frozenset((Phase.RESERVED, Phase.BINDING, Phase.CANCELLED, Phase.NEVER)),
    Phase.RESERVED: frozenset((Phase.PENDING, Phase.RESERVED, Phase.BINDING, Phase.CANCELLED, Phase.NEVER)),
    # To running: those of its pods that wait for volumes are gone, and the others are bound.
    Phase.PREPARING: frozenset((Phase.BINDING, Phase.RUNNING, Phase.PENDING)) | _ENDS,
    Phase.BINDING: frozenset((Phase.PREPARING, Phase.RUNNING, Phase.PENDING)) | _ENDS,
    Phase.RUNNING: frozenset((Phase.PENDING,)) | _ENDS,
    Phase.DONE: frozenset(),
    Phase.CANCELLED: frozenset(),
    Phase.NEVER: frozenset((Phase.PENDING,)),  # the cluster has grown
}

DEPENDENCIES = ("afterok", "afterany", "singleton")


@dataclass(frozen=True, slots=True)
class Dependency:
    """What must be over before a job may start.

    afterok: the named job succeeded; afterany: it is over; singleton: no earlier job of this user and name
    is left (Slurm's word).
    """

    kind: str
    job: str = ""

    def __post_init__(self) -> None:
        if self.kind not in DEPENDENCIES:
            raise InvalidInput(f"unknown dependency {self.kind!r}: use {', '.join(DEPENDENCIES)}")
        if (self.kind == "singleton") == bool(self.job):
            raise InvalidInput(f"{self.kind} needs {'no' if self.job else 'a'} job to wait for")


class Charge(NamedTuple):
    """What a limit counts: jobs, or units of a type of device, of an account or of all, in one queue."""

    queue: str
    account: str | None  # None: of all
    device: str = ""  # empty: jobs


@dataclass(frozen=True, slots=True)
class Submission:
    """What was submitted. ``request`` is whatever the planner understands: a jobspec, or a gang's pods."""

    key: str
    request: Hashable
    submit: int
    limit: int | None = None  # walltime: the job is ended there, or says that it ends by then
    enforced: bool = True  # False: nothing ends it at its limit
    soft_limit: int | None = None  # when it will probably end; an expectation, never a bound
    user: str = ""
    account: str = ""  # whose word its limit is, and whom limits count for, such as its namespace
    name: str = ""  # for singleton
    queue: str = ""
    priority: int = 16  # Flux's default urgency; more is earlier
    after: tuple[Dependency, ...] = ()
    tasks: int = 1  # an array: so many equal tasks under one record, each placed by itself
    devices: tuple[tuple[str, int], ...] = ()  # units by type that belong to no node: limits count them
    queued: int = 0  # microseconds: who came first of those with one submit time, also after a restart

    def __post_init__(self) -> None:
        for what in ("limit", "soft_limit"):
            given = getattr(self, what)
            if given is not None and given <= 0:
                raise InvalidInput(f"{given} ms: must be more than 0; leave it out if unknown", where=what)
        if self.tasks < 1:
            raise InvalidInput(f"{self.tasks}: an array has at least one task", where="tasks")


@dataclass(frozen=True, slots=True)
class StoryStep:
    """One line of a job's story."""

    at: int
    phase: Phase
    reason: Reason


@dataclass(frozen=True, slots=True)
class BrokenPromise:
    """A promise that could not be kept, and why."""

    at: int
    promised: int
    cause: Reason


@dataclass(slots=True, eq=False)
class JobRecord:
    """A job on its way through the queue; what it holds and until when is in its allocations."""

    job: Submission
    phase: Phase = Phase.PENDING
    order: Order = (0, 0, 0, 0)  # its place in the queue
    shape: int = -1  # jobs of equal shape get equal answers
    limit: int = FOREVER  # what is planned with: the job's own limit, its queue's default, or history
    bounded: bool = False  # False: it has no limit that can be planned with
    overdue: bool = False  # it ran past its limit, and nobody knows when it ends
    waiting: int = 1  # tasks that have not started
    fresh: int = 0  # the first task that was never started
    again: list[int] = field(default_factory=list)  # tasks that are to be started once more
    running: dict[str, Allocation] = field(default_factory=dict)  # by task
    reservation: Allocation | None = None  # its place in the plan
    deadline: int | None = None  # the first start that the plan had for it: the plan keeps to it
    no_later_than: int | None = None  # what the user was told
    firm: bool = False  # that rests only on limits which something enforces
    told: int = 0  # when that was
    asked: int = -1  # how much had happened to the resources then
    promised: int | None = None  # what the user was told first
    expected: int | None = None
    first_expected: int | None = None
    misjudged: int = 0  # how often it had not started when it was expected to
    started: int | None = None
    ended: int | None = None
    succeeded: bool = True
    backfilled: bool = False
    broken: list[BrokenPromise] = field(default_factory=list)
    story: list[StoryStep] = field(default_factory=list)

    @property
    def key(self) -> str:
        return self.job.key

    @property
    def charges(self) -> dict[Charge, int]:
        """What counts against limits when a task of it runs: one job of its account in its queue, and
        devices, of its account and of all in the queue. Where there are accounts, users may write any
        name."""
        job = self.job
        whose = job.account or job.user
        found = {Charge(job.queue, whose): 1}
        for type_, count in job.devices:
            found[Charge(job.queue, whose, type_)] = count
            found[Charge(job.queue, None, type_)] = count
        return found

    @property
    def reserved_at(self) -> int | None:
        """The start of its place in the plan."""
        return None if self.reservation is None else self.reservation.start

    def move(self, phase: Phase, at: int, reason: Reason) -> None:
        """Go to a phase, if the table allows it, and remember why."""
        if phase not in TRANSITIONS[self.phase]:
            raise Conflict(f"job {self.key} is {self.phase.value} and cannot become {phase.value}")
        self.phase = phase
        self.story.append(StoryStep(at, phase, reason))

    def task(self) -> str:
        """The key under which the next task holds resources."""
        if self.job.tasks == 1:
            return self.key
        return f"{self.key}[{self.again[-1] if self.again else self.fresh}]"

    def take(self) -> None:
        """The next task starts."""
        self.waiting -= 1
        if self.again:
            self.again.pop()
        else:
            self.fresh += 1

    def put_back(self, task: str) -> None:
        """A task that was started waits again."""
        self.waiting += 1
        index = 0 if self.job.tasks == 1 else int(task[len(self.key) + 1 : -1])
        if index == self.fresh - 1 and not self.again:
            self.fresh = index
        else:
            self.again.append(index)
