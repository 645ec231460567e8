"""Rules: what a named queue lays down for its jobs: limits, priority, how many a user may run."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cachetools import LRUCache

from fluence.model.reason import Code, Reason
from fluence.queue.guard import PluginGuard
from fluence.queue.job import FOREVER, SECOND, Charge, JobRecord, Submission
from fluence.queue.priority import Priority, by_urgency


@dataclass(frozen=True, slots=True)
class QueueRules:
    """What a named queue lays down for its jobs. What is per user counts jobs by their account, if they have
    one: a pod's is its namespace."""

    default_limit: int | None = None
    max_limit: int | None = None
    max_running_per_user: int | None = None
    max_devices_per_user: Mapping[str, int] = field(default_factory=dict)  # units by type
    max_devices: Mapping[str, int] = field(default_factory=dict)  # of all its jobs together
    priority: int = 0  # added to that of its jobs
    enforced: bool = False  # the scheduler ends its jobs that run past their limit,
    grace: int = 0  # so long after it


_NONE = QueueRules()
_ACCOUNTS = 10_000  # of which overruns are remembered
_OVERRUNS = 5  # after how many runs in time a user is trusted again, at most


class RuleBook:
    """The rules of all queues, and who runs how much in each. The queue asks it when jobs come and start."""

    def __init__(
        self, rules: Mapping[str, QueueRules] | None, priority: Priority, guard: PluginGuard
    ) -> None:
        self.rules = dict(rules or {})
        self.priority = priority
        self.limits_users = any(
            each.max_running_per_user is not None or each.max_devices_per_user or each.max_devices
            for each in self.rules.values()
        )
        self._guard = guard
        # Those that count against each account, where Kubernetes ends its jobs and where nothing does.
        self._overruns: LRUCache[tuple[str, bool], int] = LRUCache(_ACCOUNTS)
        self._running: defaultdict[Charge, int] = defaultdict(int)

    def of(self, queue: str) -> QueueRules:
        return self.rules.get(queue, _NONE)

    def refusal(self, job: Submission) -> Reason | None:
        """Why a queue does not take a job."""
        longest = self.of(job.queue).max_limit
        if longest is None or job.limit is None or job.limit <= longest:
            return None
        return Reason.of(
            Code.LIMIT_ABOVE_QUEUE, limit_s=job.limit // SECOND, max_s=longest // SECOND, queue=job.queue
        )

    def limit(self, job: Submission, resolution: int) -> tuple[int, bool]:
        """What to plan with: the job's own limit or its queue's, and whether there is one. How long such jobs
        ran is no limit: nothing may be promised on it."""
        rules = self.of(job.queue)
        given = next((x for x in (job.limit, rules.default_limit, rules.max_limit) if x is not None), None)
        if given is None or not (rules.enforced or self.is_trusted(job)):
            return FOREVER, False
        return min(-(-given // resolution) * resolution, FOREVER), True

    def is_enforced(self, job: Submission) -> bool:
        """Whether something ends a job at its limit: Kubernetes, or the scheduler."""
        return job.enforced or self.of(job.queue).enforced

    # -- trust -----------------------------------------------------------------------------------------------

    def is_trusted(self, job: Submission) -> bool:
        """Whether the limits that its user gives, and that we do not enforce, are planned with."""
        return not self._overruns.get((job.account, job.enforced), 0)

    def overran(self, job: Submission) -> None:
        """A job ran past a limit that we do not enforce: the next ones of its user count as having none.
        Those that Kubernetes enforces count apart: the deadline of a Job can be taken back while it runs."""
        whose = job.account, job.enforced
        if not self.of(job.queue).enforced:
            self._overruns[whose] = min(self._overruns.get(whose, 0) + 1, _OVERRUNS)

    def kept(self, job: Submission) -> None:
        """A job ended within such a limit: trust comes back as it went."""
        whose = job.account, job.enforced
        if not self.of(job.queue).enforced and job.limit is not None and whose in self._overruns:
            self._overruns[whose] -= 1
            if not self._overruns[whose]:
                del self._overruns[whose]

    def rank(self, job: Submission, now: int) -> int:
        """The job's priority; a plug-in that fails or takes too long must not lose a job."""
        rank = job.priority
        if self.priority is not by_urgency:
            rank = self._guard.call("priority", job.key, lambda: int(self.priority(job, now)), rank)
        return rank + self.of(job.queue).priority

    # -- limits per user -------------------------------------------------------------------------------------

    def count(self, record: JobRecord, change: int) -> None:
        """A task of a job has started, or is over."""
        for charge, amount in record.charges.items():
            self._running[charge] += amount * change
            if not self._running[charge]:
                del self._running[charge]

    def admits(self, record: JobRecord, claims: Mapping[Charge, int]) -> bool:
        """Whether its user may run one more job in its queue, beside those that run and are to run."""
        return self.exceeded(record, claims) is None

    def exceeded(self, record: JobRecord, claims: Mapping[Charge, int]) -> tuple[Charge, int] | None:
        """The first limit that a job would pass, and how much it allows."""
        for charge, amount in record.charges.items():
            most = self._most(charge)
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
        """What places in the plan count against limits, its own aside."""
        found: Counter[Charge] = Counter()
        for other in reserved:
            if other is not record:
                found.update(other.charges)
        return found
