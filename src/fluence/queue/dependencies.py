"""Jobs that wait for other jobs to end: afterok, afterany, singleton."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

from fluence.errors import NotFound
from fluence.model.reason import Code, Reason
from fluence.queue.job import Dependency, JobRecord, Submission


class Dependencies:
    """Which jobs are held, and for whom. The queue asks it when jobs come and when they are over."""

    def __init__(self, records: Mapping[str, JobRecord]) -> None:
        self.held: dict[str, JobRecord] = {}
        self._records = records
        self._waiters: defaultdict[str, list[JobRecord]] = defaultdict(list)  # by the job that each waits for
        self._namesakes: defaultdict[tuple[str, str], dict[str, JobRecord]] = defaultdict(dict)

    def check(self, job: Submission) -> None:
        """Refuse a job that waits for one that nobody knows."""
        for dependency in job.after:
            if dependency.job and dependency.job not in self._records:
                raise NotFound(f"job {job.key} waits for {dependency.job}, which was never submitted")

    def add(self, record: JobRecord) -> None:
        self._namesakes[record.job.user, record.job.name][record.key] = record

    def forget(self, record: JobRecord) -> list[tuple[JobRecord, Reason]]:
        """A job that is over is left out; those that waited for its success can never start."""
        key, hopeless = record.key, []
        for other in list(self.held.values()):
            mine = [each for each in other.job.after if each.job == key]
            if not record.succeeded and any(each.kind == "afterok" for each in mine):
                del self.held[other.key]
                hopeless.append((other, _failed(record)))
            elif mine:
                rest = tuple(each for each in other.job.after if each.job != key)
                other.job = replace(other.job, after=rest)
        namesakes = self._namesakes[record.job.user, record.job.name]
        namesakes.pop(key, None)
        if not namesakes:
            del self._namesakes[record.job.user, record.job.name]
        return hopeless

    def hold(self, record: JobRecord) -> Reason | None:
        """Hold a job while it must wait; says why it can never start, if so."""
        blocker, hopeless = self._blocked_by(record)
        if blocker and hopeless is None:
            self.held[record.key] = record
            self._waiters[blocker].append(record)
        else:
            self.held.pop(record.key, None)
        return hopeless

    def released_by(self, record: JobRecord) -> list[JobRecord]:
        """The held jobs that waited for this one: each is to be held again or let go."""
        return [other for other in self._waiters.pop(record.key, ()) if other.key in self.held]

    def of(self, record: JobRecord) -> tuple[str, ...]:
        """The jobs that a job waits for."""
        return tuple(
            other.key
            for dependency in record.job.after
            for other in self._before(record, dependency)
            if not other.phase.is_over
        )

    def _blocked_by(self, record: JobRecord) -> tuple[str, Reason | None]:
        for dependency in record.job.after:
            for other in self._before(record, dependency):
                if dependency.kind == "afterok" and other.phase.is_over and not other.succeeded:
                    return other.key, _failed(other)
                if not other.phase.is_over:
                    return other.key, None
        return "", None

    def _before(self, record: JobRecord, dependency: Dependency) -> Iterable[JobRecord]:
        if dependency.job:
            return (self._records[dependency.job],)
        namesakes = self._namesakes.get((record.job.user, record.job.name), {})
        return (other for other in namesakes.values() if other.order[-1] < record.order[-1])


def _failed(record: JobRecord) -> Reason:
    return Reason.of(Code.DEPENDENCY_FAILED, job=record.key, phase=record.phase.value)
