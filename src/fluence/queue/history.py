"""Predictions of run times, from the run times of earlier jobs.

A site adds its own predictor as a plug-in (`fluence.plugins`): any object with the two methods of
`Predictor`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Hashable, Iterator
from typing import Protocol

from cachetools import FIFOCache, LRUCache

from fluence import plugin_loader
from fluence.errors import InvalidInput
from fluence.queue.job import FOREVER, Submission

HISTORY = "history"  # the name of the built-in predictor
_MAX_RUNS = 40  # runs that are remembered per kind of job
_MAX_KINDS = 20_000  # of jobs that are distinguished
_BEFORE, _AFTER = 0.8, 0.5  # the quantile of a prediction for a waiting job, and for a running one


class Predictor(Protocol):
    """Learns from jobs that have ended, and predicts the run times of others."""

    def learn(self, job: Submission, shape: int, runtime: int) -> None:
        """Learn the run time of a task of this job."""

    def predict(self, job: Submission, shape: int, elapsed: int) -> int | None:
        """The total run time of a task of this job that has run for ``elapsed``; None if unknown."""


class _Last:
    """The last values of one kind, by arrival and sorted."""

    __slots__ = ("_came", "ordered")

    def __init__(self) -> None:
        self._came: deque[float] = deque()
        self.ordered: list[float] = []

    def add(self, value: float) -> None:
        if len(self._came) == _MAX_RUNS:
            del self.ordered[bisect_left(self.ordered, self._came.popleft())]
        self._came.append(value)
        insort(self.ordered, value)


class History:
    """Predicts from the last runs of the same user with this limit and shape, else with this limit; else from
    the share of their limits that jobs of this user used, else all jobs. Users with the same name in
    different accounts are different users."""

    def __init__(self) -> None:
        # The caches are bounded, because users can make up any number of shapes and user names.
        self._runs: LRUCache[Hashable, _Last] = LRUCache(_MAX_KINDS)
        self._shares: LRUCache[Hashable, _Last] = LRUCache(_MAX_KINDS)
        # Predictions for jobs that have not started, because many are alike; cleared by `learn`.
        self._said: FIFOCache[Hashable, int | None] = FIFOCache(_MAX_KINDS)

    def learn(self, job: Submission, shape: int, runtime: int) -> None:
        self._said.clear()
        for kind in _kinds(job, shape):
            self._runs.setdefault(kind, _Last()).add(runtime)
        if job.limit is not None:
            for whose in (_whose(job), None):
                self._shares.setdefault(whose, _Last()).add(runtime / job.limit)

    def predict(self, job: Submission, shape: int, elapsed: int) -> int | None:
        if elapsed:
            return self._predict(job, shape, elapsed)
        kind = (job.account, job.user, shape, job.limit, job.soft_limit)
        if kind in self._said:
            return self._said[kind]
        lasts = self._said[kind] = self._predict(job, shape, 0)
        return lasts

    def _predict(self, job: Submission, shape: int, elapsed: int) -> int | None:
        limit = FOREVER if job.limit is None else job.limit
        for last, unit in self._alike(job, shape):
            # Runs that ended earlier than this one has lasted say nothing about it.
            runs = last.ordered
            if unit == 1:
                over = bisect_right(runs, elapsed)
            else:
                over = bisect_right(runs, elapsed, key=float(unit).__mul__)  # type: ignore[arg-type]
            if over < len(runs):
                place = (_AFTER if elapsed else _BEFORE) * (len(runs) - over - 1)
                lasts = round(runs[over + int(place + 0.5)] * unit)
                return min(lasts, limit) if elapsed < limit else lasts
        if job.soft_limit is not None and job.soft_limit > elapsed:
            return job.soft_limit
        if job.limit is None or elapsed >= limit:
            return None
        return limit if not elapsed else max((elapsed + limit) // 2, elapsed + 1)

    def _alike(self, job: Submission, shape: int) -> Iterator[tuple[_Last, int]]:
        """Runs of similar jobs, the most similar first, each with the unit of its values."""
        for kind in _kinds(job, shape):
            if (last := self._runs.get(kind)) is not None:
                yield last, 1
        if job.limit is not None and job.soft_limit is None:
            for whose in (_whose(job), None):
                if (last := self._shares.get(whose)) is not None:
                    yield last, job.limit


def _kinds(job: Submission, shape: int) -> tuple[Hashable, ...]:
    whose = _whose(job)
    return (whose, shape, job.limit), (whose, job.limit)


def _whose(job: Submission) -> tuple[str, str]:
    return job.account, job.user


def find(name: str) -> Predictor:
    """A predictor by name: ``history``, or one that a site added (a class, or a function that makes one)."""
    if name == HISTORY:
        return History()
    made = plugin_loader.find(plugin_loader.PREDICTORS, name, "predictor", [HISTORY])
    try:
        predictor = made() if callable(made) else made
    except Exception as fault:
        raise InvalidInput(f"the predictor {name!r} cannot be made: {fault}") from fault
    if not hasattr(predictor, "learn") or not hasattr(predictor, "predict"):
        raise InvalidInput(f"the predictor {name!r} lacks learn or predict")
    return predictor
