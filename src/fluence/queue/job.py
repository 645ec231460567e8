"""Jobs: what was submitted, the states it goes through, and its story.

    pending ─► starting ─► running ─► done
      ▲  │        │           │
      │  ▼        │           │      a job that loses its nodes goes back to pending;
    reserved ─────┘           │      any job that is not over can be cancelled;
      ▲                       │      never: this cluster cannot hold it, or it waits for what cannot come
      └───────── pending ◄────┘

Times are whole milliseconds, so that a scaled trace and a real clock are both exact.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum

from fluence.errors import Conflict, InvalidInput

SECOND = 1000
FOREVER = 100 * 365 * 86_400 * SECOND  # the limit of a job that has none


class Phase(Enum):
    """Where a job is; it is in one state at a time."""

    PENDING = "pending"
    RESERVED = "reserved"  # pending, with a place in the plan
    STARTING = "starting"  # its resources are held; the order to start it is on its way
    RUNNING = "running"
    DONE = "done"
    CANCELLED = "cancelled"
    NEVER = "never"

    @property
    def is_waiting(self) -> bool:
        return self in (Phase.PENDING, Phase.RESERVED)

    @property
    def is_over(self) -> bool:
        return self in (Phase.DONE, Phase.CANCELLED, Phase.NEVER)


_ENDS = frozenset((Phase.DONE, Phase.CANCELLED))
TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.PENDING: frozenset((Phase.RESERVED, Phase.STARTING, Phase.CANCELLED, Phase.NEVER)),
    Phase.RESERVED: frozenset((Phase.PENDING, Phase.RESERVED, Phase.STARTING, Phase.CANCELLED, Phase.NEVER)),
    Phase.STARTING: frozenset((Phase.RUNNING, Phase.PENDING)) | _ENDS,
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


@dataclass(frozen=True, slots=True)
class Submission:
    """What was submitted. ``request`` is whatever the space understands: a jobspec, or the pods of a gang."""

    key: str
    request: Hashable
    submit: int
    limit: int | None = None  # walltime: the job is ended there
    soft_limit: int | None = None  # when it will probably end; an expectation, never a bound
    user: str = ""
    name: str = ""  # for singleton
    queue: str = ""
    priority: int = 16  # Flux's default urgency; more is earlier
    after: tuple[Dependency, ...] = ()
    tasks: int = 1  # an array: so many equal tasks under one record, each placed by itself

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
    state: Phase
    reason: str


@dataclass(frozen=True, slots=True)
class BrokenPromise:
    """A promise that could not be kept, and why."""

    at: int
    promised: int
    cause: str


@dataclass(slots=True, eq=False)
class JobRecord:
    """A job on its way through the queue."""

    job: Submission
    order: tuple[int, int, int]
    shape: int  # jobs of equal shape get equal answers
    limit: int  # what is planned with: the job's own limit, its queue's default, or history
    bounded: bool  # False: nothing ends the job at its limit
    state: Phase = Phase.PENDING
    waiting: int = 1  # tasks that have not started
    fresh: int = 0  # the first task that was never started
    again: list[int] = field(default_factory=list)  # tasks that are to be started once more
    running: dict[str, int] = field(default_factory=dict)  # task -> when it started
    reserved_at: int | None = None  # start of its place in the plan
    reserved_as: str = ""  # the task that the place is for
    deadline: int | None = None  # the first such start: the plan keeps to it
    no_later_than: int | None = None  # what the user was told
    told: int = 0  # when that was
    promised: int | None = None  # what the user was told first
    expected: int | None = None
    first_expected: int | None = None
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
    def owner(self) -> tuple[str, str]:
        """Whose limit it counts against: its queue and user."""
        return self.job.queue, self.job.user

    def move(self, state: Phase, at: int, reason: str) -> None:
        """Go to a state, if the table allows it, and remember why."""
        if state not in TRANSITIONS[self.state]:
            raise Conflict(f"job {self.key} is {self.state.value} and cannot become {state.value}")
        self.state = state
        self.story.append(StoryStep(at, state, reason))

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
