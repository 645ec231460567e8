"""Rules of named queues, such as limits and priority, and jobs that exceed their limit.

The queue asks `RuleBook` when jobs are submitted and started. `Overruns` decides which end is planned for a
job that exceeds its limit. Code that reports overruns or ends such jobs reads them there.
"""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from cachetools import LRUCache

from fluence import plugin_loader
from fluence.errors import InvalidInput
from fluence.model.reason import Code, Reason
from fluence.queue.job import FOREVER, SECOND, Charge, JobRecord, Submission
from fluence.queue.planner import Planner
from fluence.queue.policy import PluginGuard
from fluence.queue.promises import LATE

Priority = Callable[[Submission, int], int]


def by_urgency(job: Submission, now: int) -> int:
    """The priority with which the job was submitted."""
    return job.priority


@dataclass(frozen=True, slots=True)
class QueueRules:
    """The rules of a named queue. Limits per user count jobs by their account, if they have one: the account
    of a pod is its namespace."""

    default_limit: int | None = None
    max_limit: int | None = None
    max_running_per_user: int | None = None
    max_devices_per_user: Mapping[str, int] = field(default_factory=dict)  # units by type
    max_devices: Mapping[str, int] = field(default_factory=dict)  # for all its jobs together
    priority: int = 0  # added to that of its jobs
    enforced: bool = False  # the scheduler ends jobs that exceed their limit
    grace: int = 0  # time after the limit before it does


_ENDING = 10 * SECOND  # added to the planned end of a task that is being ended
_GRACE = 60 * SECOND  # added to the planned end of a task that exceeds an enforced limit
_MAX_GRACES = 3  # how often that is added
_NONE = QueueRules()
_MAX_NAME = 60  # characters of an unknown queue's name that are reported
_MAX_ACCOUNTS = 10_000  # whose overruns are remembered
_MAX_OVERRUNS = 5  # the most runs in time that are needed before a user is trusted again


class RuleBook:
    """The rules of all queues, and the running jobs that count against their limits."""

    def __init__(
        self,
        rules: Mapping[str, QueueRules] | None,
        priority: Priority,
        guard: PluginGuard,
        *,
        names: Collection[str] | None = None,
    ) -> None:
        """``names``: the queues that exist; None: any name is a queue."""
        self.rules = dict(rules or {})
        self.names = None if names is None else frozenset(names)
        self.priority = priority
        self.limits_users = any(
            each.max_running_per_user is not None or each.max_devices_per_user or each.max_devices
            for each in self.rules.values()
        )
        self._guard = guard
        # Overruns by account: of limits that Kubernetes enforces, and of limits that nothing enforces.
        self._overruns: LRUCache[tuple[str, bool], int] = LRUCache(_MAX_ACCOUNTS)
        self._running: defaultdict[Charge, int] = defaultdict(int)

    def of(self, queue: str) -> QueueRules:
        return self.rules.get(queue, _NONE)

    def refusal(self, job: Submission) -> Reason | None:
        """Why a queue refuses a job: the queue does not exist, or the time limit is above its maximum."""
        if self.names is not None and job.queue and job.queue not in self.names:
            known = sorted(self.names)
            near = difflib.get_close_matches(job.queue, known, 1)
            nearest = near[0] if near else None
            return Reason.of(
                Code.UNKNOWN_QUEUE, queue=job.queue[:_MAX_NAME], nearest=nearest, known=tuple(known)
            )
        longest = self.of(job.queue).max_limit
        if longest is None or job.limit is None or job.limit <= longest:
            return None
        return Reason.of(
            Code.LIMIT_ABOVE_QUEUE, limit_s=job.limit // SECOND, max_s=longest // SECOND, queue=job.queue
        )

    def limit(self, job: Submission, resolution: int) -> tuple[int, bool]:
        """The limit for planning, and whether there is one: that of the job, or of its queue. Run times of
        earlier jobs are not a limit: no promise may depend on them."""
        rules = self.of(job.queue)
        given = next((x for x in (job.limit, rules.default_limit, rules.max_limit) if x is not None), None)
        if given is None or not (rules.enforced or self.is_trusted(job)):
            return FOREVER, False
        return min(-(-given // resolution) * resolution, FOREVER), True

    def is_enforced(self, job: Submission) -> bool:
        """Whether Kubernetes or the scheduler ends a job at its limit."""
        return job.enforced or self.of(job.queue).enforced

    def ends_after(self, job: Submission) -> int | None:
        """How long a job may run before Kubernetes or the scheduler ends it; None: its limit is not
        enforced."""
        rules = self.of(job.queue)
        given = next((x for x in (job.limit, rules.default_limit, rules.max_limit) if x is not None), None)
        if given is None or not self.is_enforced(job):
            return None
        return given if job.enforced else given + rules.grace

    # -- trust -----------------------------------------------------------------------------------------------

    def is_trusted(self, job: Submission) -> bool:
        """Whether to plan with limits of its user that the scheduler does not enforce."""
        return not self._overruns.get((job.account, job.enforced), 0)

    def overran(self, job: Submission) -> None:
        """A job exceeded a limit that the scheduler does not enforce: the limits of its account's next jobs
        are ignored. Limits that Kubernetes enforces are counted separately: users can remove the deadline of
        a Job while it runs."""
        whose = job.account, job.enforced
        if not self.of(job.queue).enforced:
            self._overruns[whose] = min(self._overruns.get(whose, 0) + 1, _MAX_OVERRUNS)

    def kept(self, job: Submission) -> None:
        """A job ended within such a limit: one overrun fewer counts against its account."""
        whose = job.account, job.enforced
        if not self.of(job.queue).enforced and job.limit is not None and whose in self._overruns:
            self._overruns[whose] -= 1
            if not self._overruns[whose]:
                del self._overruns[whose]

    def rank(self, job: Submission, now: int) -> int:
        """The priority of a job. If the plug-in fails or takes too long, the submitted priority is used."""
        rank = job.priority
        if self.priority is not by_urgency:
            rank = self._guard.call("priority", job.key, lambda: int(self.priority(job, now)), rank)
        return rank + min(0, job.favour) + self.of(job.queue).priority

    # -- limits per user -------------------------------------------------------------------------------------

    def count(self, record: JobRecord, change: int) -> None:
        """A task of a job has started, or is over."""
        for charge, amount in record.charges.items():
            self._running[charge] += amount * change
            if not self._running[charge]:
                del self._running[charge]

    def admits(self, record: JobRecord, claims: Mapping[Charge, int]) -> bool:
        """Whether its user may run one more job in its queue, counting running and reserved jobs."""
        return self.exceeded(record, claims) is None

    def exceeded(self, record: JobRecord, claims: Mapping[Charge, int]) -> tuple[Charge, int] | None:
        """The first limit that a job would exceed, and its value."""
        for charge, amount in record.charges.items():
            most = record.job.max_running if charge.array else self._most(charge)
            if most is not None and self._running.get(charge, 0) + claims.get(charge, 0) + amount > most:
                return charge, most
        return None

    def _most(self, charge: Charge) -> int | None:
        rules = self.of(charge.queue)
        if not charge.device:
            return rules.max_running_per_user
        limits = rules.max_devices if charge.account is None else rules.max_devices_per_user
        return limits.get(charge.device)

    @staticmethod
    def claims(record: JobRecord, reserved: Iterable[JobRecord]) -> Counter[Charge]:
        """What reservations of other jobs count against limits."""
        found: Counter[Charge] = Counter()
        for other in reserved:
            if other is not record:
                found.update(other.charges)
        return found


def find_priority(name: str) -> Priority:
    """A priority by name: ``urgency``, or a function that a site added."""
    if name == "urgency":
        return by_urgency
    found = plugin_loader.find(plugin_loader.PRIORITIES, name, "priority", ["urgency"])
    if not callable(found):
        raise InvalidInput(f"the priority {name!r} is not a function of a job and a time")
    return found


class Overruns:
    """The tasks of one queue that exceed their limit."""

    def __init__(self, rules: RuleBook) -> None:
        self.since: dict[str, int] = {}  # by task: when its limit passed
        self._rules = rules

    def extend(self, now: int, planner: Planner, tasks: Mapping[str, JobRecord]) -> Reason | None:
        """Set new planned ends of tasks whose end has passed; nothing else does that. Ending a job at its
        limit takes some time, which alone breaks no promise. After that its end is unknown, and nothing is
        planned behind it; if its limit is enforced, it first gets a little longer. Returns the overrun as a
        cause, if there is one."""
        cause = None
        for held in planner.allocations.overdue(now):
            record = tasks.get(held.task)
            if record is None:
                continue  # its job was refused after a restart
            limit = held.start + record.limit
            if now < limit:  # it is being ended before its limit, for another job
                planner.extend(held, min(limit, now + _ENDING))
                continue
            self.since[held.task] = limit
            first = limit + LATE // 2
            graces = [first]
            if self._rules.is_enforced(record.job):
                given = first + self._rules.of(record.job.queue).grace
                graces += [given + tries * _GRACE for tries in range(_MAX_GRACES + 1)]
            end = next((each for each in graces if now < each), None)
            if end is None and not record.overdue:
                record.overdue = True
                self._rules.overran(record.job)
            planner.extend(held, held.start + FOREVER if end is None else end)
            cause = Reason.of(Code.RUNS_PAST_LIMIT, job=record.key)
        return cause

    def over(self, task: str) -> None:
        """A task has ended, or is gone."""
        self.since.pop(task, None)
