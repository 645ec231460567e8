"""How long jobs really ran: what a job's expected end is taken from.

A predictor is a plug-in (entry point group `fluence.predictors`): any object with the two methods of
`Predictor`.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable
from typing import Protocol

from fluence.errors import InvalidInput
from fluence.queue import plugins
from fluence.queue.job import FOREVER, Job

_KEEP = 20  # runs that are remembered per kind of job
_SHARE = 0.8  # of them end before the prediction: a start that comes too early is the worse error


class Predictor(Protocol):
    """Learns from jobs that ended and says how long others will run."""

    def learn(self, job: Job, shape: int, runtime: int) -> None:
        """A task of this job ran so long."""

    def predict(self, job: Job, shape: int, elapsed: int) -> int | None:
        """How long a task of this job will have run at its end, having run ``elapsed``; None: no idea."""


class History:
    """The last runs of the same user: of this shape and limit, else of this limit, else of any job."""

    def __init__(self) -> None:
        self._runs: defaultdict[Hashable, deque[int]] = defaultdict(lambda: deque(maxlen=_KEEP))
        # What was said of jobs that have not started, by user: all of them are asked about again and again.
        self._said: defaultdict[str, dict[Hashable, int | None]] = defaultdict(dict)

    def learn(self, job: Job, shape: int, runtime: int) -> None:
        self._said.pop(job.user, None)
        for kind in _kinds(job, shape):
            self._runs[kind].append(runtime)

    def predict(self, job: Job, shape: int, elapsed: int) -> int | None:
        if elapsed:
            return self._predict(job, shape, elapsed)
        said, kind = self._said[job.user], (shape, job.limit, job.soft_limit)
        if kind not in said:
            said[kind] = self._predict(job, shape, 0)
        return said[kind]

    def _predict(self, job: Job, shape: int, elapsed: int) -> int | None:
        limit = FOREVER if job.limit is None else job.limit
        for kind in _kinds(job, shape):
            runs = self._runs.get(kind)
            if not runs:
                continue
            # Runs that were over by now say nothing about one that goes on.
            longer = sorted(run for run in runs if run > elapsed)
            if longer:
                return min(longer[int(_SHARE * (len(longer) - 1) + 0.5)], limit)
        if job.soft_limit is not None and job.soft_limit > elapsed:
            return job.soft_limit
        if job.limit is None:
            return None
        return limit if not elapsed else max((elapsed + limit) // 2, elapsed + 1)


def _kinds(job: Job, shape: int) -> tuple[Hashable, ...]:
    return (job.user, shape, job.limit), (job.user, job.limit), (job.user,)


def find(name: str) -> Predictor:
    """A predictor by name: ``history``, or one that a site added (a class, or a function that makes one)."""
    if name == "history":
        return History()
    made = plugins.load(plugins.PREDICTORS, name, "predictor", ["history"])
    predictor = made() if callable(made) else made
    if not hasattr(predictor, "learn") or not hasattr(predictor, "predict"):
        raise InvalidInput(f"the predictor {name!r} lacks learn or predict")
    return predictor
