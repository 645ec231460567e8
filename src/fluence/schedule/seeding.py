"""Seeding: what earlier runs taught, given to a queue that knows nothing yet.

Shapes have other numbers after a restart, so a run teaches how long this user's jobs of this limit last, and
which share of their limits they use; the finer distinction by shape is learned anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from fluence.model.job_entry import PastRun
from fluence.queue import Queue
from fluence.queue.job import Submission
from fluence.queue.promises import LATE

_NO_SHAPE = -1


def seed(queue: Queue, runs: Iterable[PastRun]) -> int:
    """Learn from runs, the oldest first; returns from how many."""
    count = 0
    promises = queue.promises
    for run in runs:
        if run.ended < run.started:
            continue
        job = Submission(
            key="",
            request=None,
            submit=run.started,
            limit=run.limit or None,
            user=run.user,
            account=run.namespace,
            queue=run.queue,
        )
        promises.learn(job, _NO_SHAPE, run.ended - run.started)
        if run.no_later_than is not None and promises.rests_on_record(queue.planner):
            missed = run.broken > 0 or run.started > run.no_later_than + LATE
            promises.calibration.observe(missed=missed)
        count += 1
    return count
