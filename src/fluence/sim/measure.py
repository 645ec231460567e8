"""The figures of a run: how long jobs waited, how full the cluster was, and which promises were kept.

Pure arithmetic over records. Times come in as milliseconds and go out as seconds. A percentile is the value
at that share of the sorted list, without interpolation, as in the reference results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

import msgspec

from fluence.messages.states import word

LATE = 60_000  # ms after the promised start from which a start is late
_SHORT = 10_000  # ms: a run shorter than this counts as this long in a bounded slowdown
_WIDE = 4  # a job is wide that holds one part in so many of the cluster


@dataclass(frozen=True, slots=True)
class Record:
    """What became of one job; times are milliseconds after the workload's beginning."""

    name: str
    user: str
    queue: str
    size: int
    submit: int
    start: int | None
    end: int | None
    runtime: int
    limit: int | None
    no_later_than: int | None
    """The first promised start; None if the job started as it arrived."""
    expected: int | None
    """The first expected start."""
    backfilled: bool
    state: str
    broken: str = ""
    """Why its promise was broken; empty if it was not."""

    @property
    def wait(self) -> int | None:
        return None if self.start is None else self.start - self.submit

    @property
    def run(self) -> int:
        """ms that it ran; as long as it would run where it has not ended."""
        return self.end - self.start if self.start is not None and self.end is not None else self.runtime

    @property
    def bounded_slowdown(self) -> float | None:
        if self.start is None:
            return None
        return max(1.0, (self.start - self.submit + self.run) / max(self.run, _SHORT))


class WaitFigures(msgspec.Struct, frozen=True):
    """Seconds from submission to start."""

    mean: float = 0
    p50: float = 0
    p95: float = 0
    max: float = 0


class Slowdown(msgspec.Struct, frozen=True):
    """(wait + run) / run, at least 1, where a run counts as 10 s at least."""

    mean: float = 0
    p95: float = 0


class WideWait(msgspec.Struct, frozen=True):
    """The wait, in seconds, of jobs that hold a quarter of the cluster or more."""

    mean: float = 0
    count: int = 0


class Promise(msgspec.Struct, frozen=True):
    """The start times given at first, against those that came; over the jobs that had to wait.

    An error is the seconds between the two, whichever came first; slack is how much sooner than promised a
    job started, in the mean; late is more than 60 s after.
    """

    waiting: int = 0
    started: int = 0
    late: int = 0
    late_rate: float = 0
    no_later_than_mae: float = 0
    no_later_than_median: float = 0
    no_later_than_slack: float = 0
    expected: int = 0
    expected_late_rate: float = 0
    expected_mae: float = 0
    expected_median: float = 0
    broken: dict[str, int] = {}


class Measures(msgspec.Struct, frozen=True):
    """The figures of a run; times in seconds."""

    jobs: int = 0
    started: int = 0
    finished: int = 0
    backfilled: int = 0
    wait: WaitFigures = WaitFigures()
    bounded_slowdown: Slowdown = Slowdown()
    wide_wait: WideWait = WideWait()
    makespan: float = 0
    utilisation: float = 0
    utilisation_while_arriving: float = 0
    """Of the time from the first arrival to the last, after which a log just ends."""
    promise: Promise = Promise()
    fairness: float = 0
    """Jain's index of the users' mean bounded slowdowns: 1 if all fare alike, 1/n if one bears it all."""
    states: dict[str, int] = {}


def measure(records: Sequence[Record], *, capacity: int, until: int | None = None) -> Measures:
    """The figures of a run on a cluster of so many units; ``until``: when it was cut short."""
    if not records:
        return Measures()
    waits = sorted(record.wait for record in records if record.wait is not None)
    slowdowns = sorted(s for record in records if (s := record.bounded_slowdown) is not None)
    wide = [r.wait for r in records if r.wait is not None and r.size * _WIDE >= capacity]
    first = min(record.submit for record in records)
    last = until if until is not None else last_event(records)
    return Measures(
        jobs=len(records),
        started=len(waits),
        finished=sum(record.end is not None for record in records),
        backfilled=sum(record.backfilled for record in records),
        wait=WaitFigures(
            mean=_seconds(_mean(waits)),
            p50=_seconds(percentile(waits, 0.5)),
            p95=_seconds(percentile(waits, 0.95)),
            max=_seconds(waits[-1] if waits else 0),
        ),
        bounded_slowdown=Slowdown(mean=_rounded(_mean(slowdowns)), p95=_rounded(percentile(slowdowns, 0.95))),
        wide_wait=WideWait(mean=_seconds(_mean(wide)), count=len(wide)),
        makespan=_seconds(last - first),
        utilisation=_utilisation(records, capacity, first, last, last),
        utilisation_while_arriving=_utilisation(
            records, capacity, first, max(record.submit for record in records), last
        ),
        promise=_promise(records),
        fairness=_fairness(records),
        states=dict(Counter(word(record.state) for record in records)),
    )


def last_event(records: Iterable[Record]) -> int:
    """ms at which the last thing happened; a job that has not ended counts with its start."""
    return max((record.end or record.start or record.submit for record in records), default=0)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value at a share of a sorted list, without interpolation; 0 of an empty one."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0


def busy(records: Iterable[Record], *, until: int) -> list[tuple[int, int]]:
    """How many units are held from when on: (ms, units), a step for each change."""
    changes: Counter[int] = Counter()
    for record in records:
        if record.start is not None:
            changes[record.start] += record.size
            changes[until if record.end is None else record.end] -= record.size
    steps: list[tuple[int, int]] = []
    held = 0
    for at in sorted(changes):
        if changes[at]:
            held += changes[at]
            steps.append((at, held))
    return steps


def _utilisation(records: Sequence[Record], capacity: int, start: int, end: int, last: int) -> float:
    """The part of the cluster's time between two moments that jobs held."""
    if end <= start or capacity <= 0:
        return 0
    held = 0
    for record in records:
        if record.start is not None:
            stop = last if record.end is None else record.end
            held += record.size * max(0, min(stop, end) - max(record.start, start))
    return _rounded(held / capacity / (end - start))


def _promise(records: Sequence[Record]) -> Promise:
    waiting = [record for record in records if record.no_later_than is not None]
    promise_errors = [
        r.start - r.no_later_than for r in waiting if r.start is not None and r.no_later_than is not None
    ]
    expected_errors = [
        r.start - r.expected for r in waiting if r.start is not None and r.expected is not None
    ]
    late = sum(error > LATE for error in promise_errors)
    return Promise(
        waiting=len(waiting),
        started=len(promise_errors),
        late=late,
        late_rate=_share(late, promise_errors),
        no_later_than_mae=_seconds(_mean([abs(error) for error in promise_errors])),
        no_later_than_median=_seconds(percentile(sorted(abs(error) for error in promise_errors), 0.5)),
        no_later_than_slack=_seconds(_mean([max(0, -error) for error in promise_errors])),
        expected=len(expected_errors),
        expected_late_rate=_share(sum(error > LATE for error in expected_errors), expected_errors),
        expected_mae=_seconds(_mean([abs(error) for error in expected_errors])),
        expected_median=_seconds(percentile(sorted(abs(error) for error in expected_errors), 0.5)),
        broken=dict(Counter(record.broken for record in records if record.broken)),
    )


def _fairness(records: Sequence[Record]) -> float:
    by_user: dict[str, list[float]] = {}
    for record in records:
        if (slowdown := record.bounded_slowdown) is not None:
            by_user.setdefault(record.user, []).append(slowdown)
    means = [fmean(slowdowns) for slowdowns in by_user.values()]
    squares = sum(mean * mean for mean in means)
    return _rounded(sum(means) ** 2 / (len(means) * squares)) if squares else 0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0


def _share(part: int, whole: Sequence[int]) -> float:
    return _rounded(part / len(whole)) if whole else 0


def _seconds(milliseconds: float) -> float:
    return _rounded(milliseconds / 1000)


def _rounded(number: float) -> float:
    return round(number, 6)
