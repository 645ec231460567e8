"""How long jobs really ran: what a job's expected end is taken from.

A predictor is a plug-in (entry point group `fluence.predictors`): any object with the two methods of
`Predictor`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from typing import Protocol

from cachetools import LRUCache

from fluence.errors import InvalidInput
from fluence.queue import plugins
from fluence.queue.job import FOREVER, Submission

_KEEP = 40  # runs that are remembered per kind of job
_KINDS = 20_000  # of jobs that are told apart
_BEFORE, _AFTER = 0.8, 0.5  # the share of them that a prediction exceeds: of a job that waits, or that runs


class Predictor(Protocol):
    """Learns from jobs that ended and says how long others will run."""

    def learn(self, job: Submission, shape: int, runtime: int) -> None:
        """A task of this job ran so long."""

    def predict(self, job: Submission, shape: int, elapsed: int) -> int | None:
        """How long a task of this job will have run at its end, having run ``elapsed``; None: no idea."""


class History:
    """The last runs of the same user with this limit and shape, else with this limit; else the share of their
    limits that this user's jobs used, else that all jobs used. A user's name counts within its account."""

    def __init__(self) -> None:
        # Users can make up any number of shapes, and of users.
        self._runs: LRUCache[Hashable, deque[int]] = LRUCache(_KINDS)
        self._shares: LRUCache[Hashable, deque[float]] = LRUCache(_KINDS)
        # What was said, since something was learned, of jobs that have not started: many are alike.
        self._said: LRUCache[Hashable, int | None] = LRUCache(_KINDS)

    def learn(self, job: Submission, shape: int, runtime: int) -> None:
        self._said.clear()
        for kind in _kinds(job, shape):
            self._runs.setdefault(kind, deque(maxlen=_KEEP)).append(runtime)
        if job.limit is not None:
            for whose in (_whose(job), None):
                self._shares.setdefault(whose, deque(maxlen=_KEEP)).append(runtime / job.limit)

    def predict(self, job: Submission, shape: int, elapsed: int) -> int | None:
        if elapsed:
            return self._predict(job, shape, elapsed)
        kind = (_whose(job), shape, job.limit, job.soft_limit)
        if kind not in self._said:
            self._said[kind] = self._predict(job, shape, 0)
        return self._said[kind]

    def _predict(self, job: Submission, shape: int, elapsed: int) -> int | None:
        limit = FOREVER if job.limit is None else job.limit
        for runs in self._alike(job, shape):
            # Runs that were over by now say nothing about one that goes on.
            longer = sorted(run for run in runs if run > elapsed)
            if longer:
                place = (_AFTER if elapsed else _BEFORE) * (len(longer) - 1)
                lasts = round(longer[int(place + 0.5)])
                return min(lasts, limit) if elapsed < limit else lasts
        if job.soft_limit is not None and job.soft_limit > elapsed:
            return job.soft_limit
        if job.limit is None or elapsed >= limit:
            return None
        return limit if not elapsed else max((elapsed + limit) // 2, elapsed + 1)

    def _alike(self, job: Submission, shape: int) -> Iterator[Iterable[float]]:
        for kind in _kinds(job, shape):
            yield self._runs.get(kind, ())
        if job.limit is not None and job.soft_limit is None:
            for whose in (_whose(job), None):
                yield [share * job.limit for share in self._shares.get(whose, ())]


def _kinds(job: Submission, shape: int) -> tuple[Hashable, ...]:
    whose = _whose(job)
    return (whose, shape, job.limit), (whose, job.limit)


def _whose(job: Submission) -> tuple[str, str]:
    return job.account, job.user


def find(name: str) -> Predictor:
    """A predictor by name: ``history``, or one that a site added (a class, or a function that makes one)."""
    if name == "history":
        return History()
    made = plugins.load(plugins.PREDICTORS, name, "predictor", ["history"])
    predictor = made() if callable(made) else made
    if not hasattr(predictor, "learn") or not hasattr(predictor, "predict"):
        raise InvalidInput(f"the predictor {name!r} lacks learn or predict")
    return predictor
