"""Rules: what a named queue lays down for its jobs: limits, priority, how many a user may run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from fluence.model.reason import Code, Reason
from fluence.queue.guard import PluginGuard
from fluence.queue.job import FOREVER, SECOND, JobRecord, Submission
from fluence.queue.priority import Priority, by_urgency


@dataclass(frozen=True, slots=True)
class QueueRules:
    """What a named queue lays down for its jobs."""

    default_limit: int | None = None
    max_limit: int | None = None
    max_running_per_user: int | None = None
    priority: int = 0  # added to that of its jobs


_NONE = QueueRules()


class RuleBook:
    """The rules of all queues, and who runs how much in each. The queue asks it when jobs come and start."""

    def __init__(
        self, rules: Mapping[str, QueueRules] | None, priority: Priority, guard: PluginGuard
    ) -> None:
        self.rules = dict(rules or {})
        self.priority = priority
        self.limits_users = any(each.max_running_per_user is not None for each in self.rules.values())
        self._guard = guard
        self._running: defaultdict[tuple[str, str], int] = defaultdict(int)  # by queue and user

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

    def limit(self, job: Submission, resolution: int, predict: Callable[[], int | None]) -> tuple[int, bool]:
        """What to plan with: the job's own limit, its queue's, or history; and whether it is a limit."""
        rules = self.of(job.queue)
        given = next((x for x in (job.limit, rules.default_limit, rules.max_limit) if x is not None), None)
        bounded = given is not None
        if given is None:
            given = predict() or FOREVER
        return min(-(-given // resolution) * resolution, FOREVER), bounded

    def rank(self, job: Submission, now: int) -> int:
        """The job's priority; a plug-in that fails or takes too long must not lose a job."""
        rank = job.priority
        if self.priority is not by_urgency:
            rank = self._guard.call("priority", job.key, lambda: int(self.priority(job, now)), rank)
        return rank + self.of(job.queue).priority

    # -- limits per user -------------------------------------------------------------------------------------

    def count(self, record: JobRecord, change: int) -> None:
        """A task of a job has started, or is over."""
        self._running[record.owner] += change
        if not self._running[record.owner]:
            del self._running[record.owner]

    def admits(self, record: JobRecord, claims: int) -> bool:
        """Whether its user may run one more job in its queue, beside those that run and are to run."""
        most = self.of(record.job.queue).max_running_per_user
        return most is None or self._running.get(record.owner, 0) + claims < most

    @staticmethod
    def claims(record: JobRecord, reserved: Iterable[JobRecord]) -> int:
        """How many places in the plan count against the same limit."""
        return sum(other.owner == record.owner for other in reserved if other is not record)
