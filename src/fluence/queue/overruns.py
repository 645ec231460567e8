"""Overruns: tasks that outlive their limit: what is planned with from then on, and who they are.

The queue has them extended at the start of a cycle. Whoever tells those that wait, or ends what runs too
long, asks here who overruns and since when.
"""

from __future__ import annotations

from collections.abc import Mapping

from fluence.model.reason import Code, Reason
from fluence.queue.job import FOREVER, SECOND, JobRecord
from fluence.queue.planner import Planner
from fluence.queue.promises import LATE
from fluence.queue.rules import RuleBook

_GRACE = 60 * SECOND  # how long a task that outlives a limit which something enforces is counted on,
_GRACES = 3  # and how often


class Overruns:
    """The tasks of one queue that run past their limit."""

    def __init__(self, rules: RuleBook) -> None:
        self.since: dict[str, int] = {}  # by task: when its limit passed
        self._rules = rules

    def extend(self, now: int, planner: Planner, tasks: Mapping[str, JobRecord]) -> Reason | None:
        """What is planned with for tasks whose end has come. This is the only place that decides it. Ending a
        job at its limit takes its time: that alone breaks no promise. Then nobody knows when it ends, and
        nothing is planned on it; where something enforces the limit, it is given a little longer first.
        Answers who overran, if anybody did."""
        cause = None
        for held in planner.allocations.overdue(now):
            record = tasks.get(held.task)
            if record is None:
                continue  # of a job that was refused when it was taken over
            limit = held.start + record.limit
            self.since[held.task] = limit
            first = limit + LATE // 2
            graces = [first]
            if self._rules.is_enforced(record.job):
                given = first + self._rules.of(record.job.queue).grace
                graces += [given + tries * _GRACE for tries in range(_GRACES + 1)]
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
