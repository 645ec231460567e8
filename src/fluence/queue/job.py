"""Jobs: submissions, the states that a job goes through, and the history of its transitions.

    gathering ─► pending ─► starting ─► running ─► completed, failed, timeout or cancelled
                  ▲ │ ▲      ▲  │ ▲
                  │ │ └──────┼──┘ │    a job that loses its nodes before it runs is pending again
                  │ ▼        │    ▼
       unschedulable reserved┘  preparing

There is one record per job. `TRANSITIONS` has one function for each pair of states, which changes the record.
The records of the live scheduler (`fluence.schedule.pod_set.PodSet`) add pods: they gather pods before they
are submitted, and prepare volumes between their start and their binds. Times are whole milliseconds, so that
a scaled trace and a real clock are both exact.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from fluence.errors import Conflict, InvalidInput
from fluence.model.job_state import JobState
from fluence.model.reason import Reason
from fluence.queue.allocations import Allocation

SECOND = 1000
# The key that sorts jobs, smallest first: the rank; the turn and the share if there are queues; the submit
# time, queued time and serial number of the job's place; the serial number of the job itself.
Order = tuple[int, ...]
FOREVER = 100 * 365 * 86_400 * SECOND  # the limit of a job without one


DEPENDENCIES = ("afterok", "afterany", "singleton")


@dataclass(frozen=True, slots=True)
class Dependency:
    """What must end before a job may start.

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
    """What a limit counts: the jobs or the devices of one type, of an account or of all accounts, in one
    queue; or the jobs of one array in all queues."""

    queue: str
    account: str | None  # None: all accounts
    device: str = ""  # empty: jobs
    array: str = ""


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as it was submitted. ``request`` is a type that the planner understands: a jobspec, or a gang's
    pods."""

    key: str
    request: Hashable
    submit: int
    limit: int | None = None  # walltime: the job is ended there, or says that it ends by then
    enforced: bool = True  # False: nothing ends it at its limit
    soft_limit: int | None = None  # when it will probably end; an expectation, never a bound
    user: str = ""
    account: str = ""  # such as its namespace: limits per user and trust in limits are by account
    payer: str = ""  # the user charged for limits and shares, if not the account
    name: str = ""  # for singleton
    queue: str = ""
    priority: int = 16  # Flux's default urgency; more is earlier
    favour: int = 0  # above 0: before others of its account; below 0: behind all of its priority
    after: tuple[Dependency, ...] = ()
    array: str = ""  # the array that the job belongs to
    max_running: int | None = None  # how many jobs of the array may run at a time
    tasks: int = 1  # of an array: equal tasks under one record, each placed separately
    devices: tuple[tuple[str, int], ...] = ()  # external resources by type, which limits count
    queued: int = 0  # microseconds: orders jobs with the same submit time, also after a restart
    asked: str | None = None  # the queue that its user named, if another one accepted it
    is_in_queue: bool = False  # it runs, and its queue is known from its grant, not from its user
    is_part: bool = False  # part of a job that is running: limits on jobs do not count it again

    def __post_init__(self) -> None:
        for what in ("limit", "soft_limit"):
            given = getattr(self, what)
            if given is not None and given <= 0:
                raise InvalidInput(f"{given} ms: must be more than 0; leave it out if unknown", where=what)
        if self.tasks < 1:
            raise InvalidInput(f"{self.tasks}: an array has at least one task", where="tasks")

    @property
    def charged(self) -> str:
        """The user or account that is charged for limits and shares. The user's name counts only if there is
        no account, because users can write any name there."""
        return self.payer or self.account or self.user

    @property
    def named_queue(self) -> str:
        """The queue that its user named."""
        return self.queue if self.asked is None else self.asked


@dataclass(frozen=True, slots=True)
class StoryStep:
    """One transition in the history of a job."""

    at: int
    state: JobState
    reason: Reason


@dataclass(frozen=True, slots=True)
class BrokenPromise:
    """A promise that was broken, and the cause."""

    at: int
    promised: int
    cause: Reason


@dataclass(slots=True, eq=False)
class JobRecord:
    """The state of a job in the queue. Its resources and their times are in its allocations."""

    job: Submission
    state: JobState = JobState.GATHERING
    order: Order = (0, 0, 0, 0, 0)  # its place in the queue
    shape: int = -1  # jobs of equal shape get equal answers
    limit: int = FOREVER  # for planning: the limit of the job or of its queue
    bounded: bool = False  # False: it has no limit, or one that is not trusted
    overdue: bool = False  # it exceeded its limit, and its end is unknown
    waiting: int = 1  # tasks that have not started
    fresh: int = 0  # the first task that was never started
    again: list[int] = field(default_factory=list)  # tasks to start once more
    running: dict[str, Allocation] = field(default_factory=dict)  # by task
    counted: Hashable | None = None  # what quotas count while it runs, if not the whole request
    reservation: Allocation | None = None  # its place in the plan
    deadline: int | None = None  # its first planned start, which later plans must keep
    no_later_than: int | None = None  # the current promise
    firm: bool = False  # the promise depends only on enforced limits
    told: int = 0  # when the promise was made
    asked: int = -1  # the counters of the planner at that time
    promised: int | None = None  # the first promise
    expected: int | None = None
    first_expected: int | None = None
    misjudged: int = 0  # how many of its expected starts have passed
    started: int | None = None
    ended: int | None = None
    outcome: JobState = JobState.COMPLETED  # of its tasks that have ended
    succeeded: bool = True
    backfilled: bool = False
    broken: list[BrokenPromise] = field(default_factory=list)
    story: list[StoryStep] = field(default_factory=list)

    @property
    def key(self) -> str:
        return self.job.key

    @property
    def charges(self) -> dict[Charge, int]:
        """What a running task of the job adds to the counts of limits: one job of its user in its queue, one
        job of its array, and its devices, both of its user and of the whole queue."""
        job = self.job
        whose = job.charged
        found = {Charge(job.queue, whose): 1}
        for type_, count in job.devices:
            found[Charge(job.queue, whose, type_)] = count
            found[Charge(job.queue, None, type_)] = count
        if job.array:
            found[Charge("", whose, array=job.array)] = 1
        return found

    @property
    def reserved_at(self) -> int | None:
        """The start of its reservation."""
        return None if self.reservation is None else self.reservation.start

    @property
    def latest(self) -> int | None:
        """The start that its user reads: the promise, or its reservation if that is later. Under a policy
        with backfill, the plan may show that a promise was too early before its time comes."""
        at = self.reserved_at
        if at is None or self.no_later_than is None:
            return self.no_later_than
        return max(at, self.no_later_than)

    def move(self, state: JobState, at: int, reason: Reason) -> None:
        """Change the state, if the table allows it, and record the reason."""
        transition = TRANSITIONS.get((self.state, state))
        if transition is None:
            raise Conflict(f"job {self.key} is {self.state} and cannot become {state}")
        self.state = state
        transition(self, at)
        self.story.append(StoryStep(at, state, reason))

    def task(self) -> str:
        """The key of the next task, under which its resources are allocated."""
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


# -- transitions ---------------------------------------------------------------------------------------------


def _enter_queue(record: JobRecord, at: int) -> None:
    """All of its tasks wait."""
    record.waiting, record.ended, record.succeeded = record.job.tasks, None, True


def _adopt(record: JobRecord, at: int) -> None:
    """It was found running, after a restart."""
    record.waiting, record.fresh, record.started = 0, 1, at


def _plan(record: JobRecord, at: int) -> None:
    """It got a reservation."""
    assert record.reservation is not None


def _leave_plan(record: JobRecord, at: int) -> None:
    assert record.reservation is None


def _refuse(record: JobRecord, at: int) -> None:
    """It can never start as it is. For jobs that depend on it, it did not succeed."""
    record.ended, record.succeeded = at, False


def _start(record: JobRecord, at: int) -> None:
    record.started = at


def _keep_nodes(record: JobRecord, at: int) -> None:
    """Its volumes or its pods are being bound, or are bound: its allocation does not change."""


def _return_to_queue(record: JobRecord, at: int) -> None:
    """It lost its nodes before it ran: it keeps its history, its place in the queue and its promise."""
    assert not record.running
    record.started, record.backfilled = None, False


def _end(record: JobRecord, at: int) -> None:
    record.waiting, record.ended = 0, at
    record.succeeded = record.state is JobState.COMPLETED


_ENDS: Final = (JobState.COMPLETED, JobState.FAILED, JobState.TIMEOUT, JobState.CANCELLED)
TRANSITIONS: Final[dict[tuple[JobState, JobState], Callable[[JobRecord, int], None]]] = {
    (JobState.GATHERING, JobState.PENDING): _enter_queue,
    (JobState.GATHERING, JobState.RUNNING): _adopt,
    (JobState.PENDING, JobState.RESERVED): _plan,
    (JobState.RESERVED, JobState.PENDING): _leave_plan,
    (JobState.PENDING, JobState.UNSCHEDULABLE): _refuse,
    (JobState.UNSCHEDULABLE, JobState.PENDING): _enter_queue,
    (JobState.PENDING, JobState.STARTING): _start,
    (JobState.RESERVED, JobState.STARTING): _start,
    (JobState.STARTING, JobState.PREPARING): _keep_nodes,
    (JobState.PREPARING, JobState.STARTING): _keep_nodes,
    (JobState.STARTING, JobState.RUNNING): _keep_nodes,
    (JobState.PREPARING, JobState.RUNNING): _keep_nodes,
    (JobState.STARTING, JobState.PENDING): _return_to_queue,
    (JobState.PREPARING, JobState.PENDING): _return_to_queue,
    (JobState.PENDING, JobState.CANCELLED): _end,
    **{
        (state, outcome): _end
        for state in (JobState.STARTING, JobState.PREPARING, JobState.RUNNING)
        for outcome in _ENDS
    },
}
"""The function of each transition. A pair of states that is not in the table is not allowed."""
