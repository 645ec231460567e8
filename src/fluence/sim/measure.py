"""The figures of a run: how long jobs waited, how full the cluster was, which promises were kept, and of each
queue.

Pure arithmetic over records. Times come in as milliseconds and go out as seconds. A percentile is the value
at that share of the sorted list, without interpolation, as in the reference results.

Shares are compared over the time in which every queue with jobs has waiting jobs: a queue without demand
needs no share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import fmean

import msgspec

from fluence.model.job_state import JobState
from fluence.model.queues import QueueTree
from fluence.queue.fair_share import due_shares

LATE = 60_000  # ms after the promised start from which a start is late
_SHORTEST_RUN_MS = 10_000  # ms: a run shorter than this counts as this long in a bounded slowdown
_WIDE_FRACTION = 4  # a job is wide if it holds at least this fraction (1/4) of the cluster


@dataclass(frozen=True, slots=True)
class Record:
    """The result of one job; times are milliseconds after the beginning of the workload."""

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
    priority: int = 0
    preempted: bool = False
    """Whether it was ended for other work. The pods that its controller then creates are another record."""

    @property
    def wait(self) -> int | None:
        return None if self.start is None else self.start - self.submit

    @property
    def run(self) -> int:
        """How long it ran, in ms; if it has not ended, how long it would run."""
        return self.end - self.start if self.start is not None and self.end is not None else self.runtime

    @property
    def bounded_slowdown(self) -> float | None:
        if self.start is None or self.preempted:
            return None
        return max(1.0, (self.start - self.submit + self.run) / max(self.run, _SHORTEST_RUN_MS))


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
    """The first promised and expected starts, compared with the actual starts, of jobs that had to wait.

    An error is the absolute difference in seconds; slack is how much earlier than promised a job started, on
    average; late means more than 60 s after the promise.
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


class PreemptionFigures(msgspec.Struct, frozen=True):
    """The work that was preempted, and the effect."""

    jobs: int = 0
    """Jobs that were ended as a whole, counted each time."""
    pods: int = 0
    lost: float = 0
    """Lost work in cluster-seconds: 1 is the whole cluster for a second."""
    waits: dict[str, WaitFigures] = {}
    """By priority, the highest first."""


def preemption_figures(records: Sequence[Record], *, pods: int, lost: float) -> PreemptionFigures:
    """``lost`` is in cluster-seconds."""
    waits: dict[int, list[int]] = {}
    for record in records:
        if record.wait is not None:
            waits.setdefault(record.priority, []).append(record.wait)
    return PreemptionFigures(
        jobs=sum(record.preempted for record in records),
        pods=pods,
        lost=_rounded(lost),
        waits={str(each): _waits(sorted(waits[each])) for each in sorted(waits, reverse=True)},
    )


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
    """Jain's index of the mean bounded slowdowns of users: 1 if all are equal, 1/n if one user has all of
    it."""
    states: dict[str, int] = {}


def measure(records: Sequence[Record], *, capacity: int, until: int | None = None) -> Measures:
    """The figures of a run on a cluster with this capacity; ``until``: when it was cut short."""
    if not records:
        return Measures()
    waits = sorted(record.wait for record in records if record.wait is not None)
    slowdowns = sorted(s for record in records if (s := record.bounded_slowdown) is not None)
    wide = [r.wait for r in records if r.wait is not None and r.size * _WIDE_FRACTION >= capacity]
    first = min(record.submit for record in records)
    last = until if until is not None else last_event(records)
    return Measures(
        jobs=len(records),
        started=len(waits),
        finished=sum(record.end is not None and not record.preempted for record in records),
        backfilled=sum(record.backfilled for record in records),
        wait=_waits(waits),
        bounded_slowdown=Slowdown(mean=_rounded(_mean(slowdowns)), p95=_rounded(percentile(slowdowns, 0.95))),
        wide_wait=WideWait(mean=_seconds(_mean(wide)), count=len(wide)),
        makespan=_seconds(last - first),
        utilisation=_utilisation(records, capacity, first, last, last),
        utilisation_while_arriving=_utilisation(
            records, capacity, first, max(record.submit for record in records), last
        ),
        promise=_promise(records),
        fairness=_fairness(records),
        states=dict(Counter(JobState(record.state).phase for record in records)),
    )


def _waits(ordered: Sequence[int]) -> WaitFigures:
    return WaitFigures(
        mean=_seconds(_mean(ordered)),
        p50=_seconds(percentile(ordered, 0.5)),
        p95=_seconds(percentile(ordered, 0.95)),
        max=_seconds(ordered[-1] if ordered else 0),
    )


def last_event(records: Iterable[Record]) -> int:
    """ms at which the last thing happened; a job that has not ended counts with its start."""
    return max((record.end or record.start or record.submit for record in records), default=0)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value at a share of a sorted list, without interpolation; 0 of an empty one."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0


def busy(records: Iterable[Record], *, until: int) -> list[tuple[int, int]]:
    """The number of units in use over time: (ms, units), a step for each change."""
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
    """The fraction of the cluster that jobs used between two times."""
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


MATCHER = "matcher (Fluxion's answers on a graph)"
LIVE_CYCLE = "live cycle (gang placer, Kubernetes' rules)"


@dataclass(frozen=True)
class Run:
    """A run of a workload on a cluster under one policy."""

    policy: str
    """What the run is called beside others."""
    records: Sequence[Record]
    capacity: int
    unit: str = "core"
    settings: Mapping[str, object] = field(default_factory=dict)
    """How it was made, for people: trace, cluster, scale of arrivals, and what else was chosen."""
    decisions_per_s: float = 0
    wall_s: float = 0
    skipped: Mapping[str, int] = field(default_factory=dict)
    """Records of the workload that were left out: cause -> how many."""
    interrupted: bool = False
    engine: str = MATCHER
    """What decided: `MATCHER` or `LIVE_CYCLE`."""
    stopped_at: int | None = None
    """ms at which the run was cut short, by Ctrl-C or --until; None: it came to its end."""
    plugin_faults: Mapping[str, int] = field(default_factory=dict)
    """What plug-ins did wrong, and how often. Built-in code decided in their place."""
    queues: QueueTree | None = None
    """The queues that the jobs were in, if there were any."""
    preemption: PreemptionFigures | None = None
    """None: what decided does not preempt, or was not to."""
    not_arrived: int = field(default=0, init=False)
    """Jobs that the run was cut short before; they are in no figure."""

    def __post_init__(self) -> None:
        if self.stopped_at is not None:
            arrived = [record for record in self.records if record.submit <= self.stopped_at]
            object.__setattr__(self, "not_arrived", len(self.records) - len(arrived))
            object.__setattr__(self, "records", arrived)

    @cached_property
    def measures(self) -> Measures:
        return measure(self.records, capacity=self.capacity, until=self.stopped_at)

    @cached_property
    def tenants(self) -> Tenants | None:
        """The figures of each queue; None: there were no queues."""

        return None if self.queues is None else tenants(self.records, self.queues, self.last)

    @cached_property
    def last(self) -> int:
        """ms at which the run ended."""
        return last_event(self.records) if self.stopped_at is None else self.stopped_at

    @cached_property
    def steps(self) -> list[tuple[int, int]]:
        """How many units were held from when on, in ms."""
        return busy(self.records, until=self.last)


Interval = tuple[int, int]


class TenantFigures(msgspec.Struct, frozen=True):
    """The figures of one queue; times in seconds."""

    jobs: int = 0
    wait_mean: float = 0
    wait_p95: float = 0
    due: float = 0
    """The part of the cluster that its weight gives it, beside the other queues that have jobs."""
    used: float | None = None
    """Its part of what all used while all had jobs that waited; None: there was no such time."""


class Tenants(msgspec.Struct, frozen=True):
    """The figures of all queues that have jobs."""

    queues: dict[str, TenantFigures] = {}
    contended: float = 0
    """Seconds in which all of them had jobs that waited."""
    share_error: float | None = None
    """The part of the cluster that went to another queue than was due; 0: all had their share."""


def tenants(records: Sequence[Record], tree: QueueTree, last: int) -> Tenants:
    """The figures of the leaves of a tree that took jobs, until a time in ms."""
    by_queue: dict[str, list[Record]] = {}
    for record in records:
        if tree.leaf(record.queue) == record.queue:
            by_queue.setdefault(record.queue, []).append(record)
    contended: list[Interval] = [(0, last)] if by_queue else []
    for jobs in by_queue.values():
        waits = ((job.submit, last if job.start is None else job.start) for job in jobs)
        contended = _common(contended, _merged(waits))
    used = {name: sum(_used(job, contended, last) for job in jobs) for name, jobs in by_queue.items()}
    total, due = sum(used.values()), due_shares(tree, by_queue)
    parts = {name: used[name] / total if total else None for name in by_queue}
    queues = {}
    for name, jobs in sorted(by_queue.items()):
        waits_s = sorted(job.wait / 1000 for job in jobs if job.wait is not None)
        part = parts[name]
        queues[name] = TenantFigures(
            jobs=len(jobs),
            wait_mean=round(sum(waits_s) / len(waits_s), 6) if waits_s else 0,
            wait_p95=percentile(waits_s, 0.95),
            due=round(due[name], 6),
            used=None if part is None else round(part, 6),
        )
    error = sum(abs((parts[name] or 0) - due[name]) for name in by_queue) / 2 if total else None
    length = sum(end - start for start, end in contended) / 1000
    return Tenants(queues, length, None if error is None else round(error, 6))


def _merged(intervals: Iterable[Interval]) -> list[Interval]:
    merged: list[Interval] = []
    for start, end in sorted(intervals):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _common(one: list[Interval], other: list[Interval]) -> list[Interval]:
    """The time in two lists of intervals, each in order and apart."""
    common: list[Interval] = []
    first = second = 0
    while first < len(one) and second < len(other):
        start, end = max(one[first][0], other[second][0]), min(one[first][1], other[second][1])
        if start < end:
            common.append((start, end))
        if one[first][1] < other[second][1]:
            first += 1
        else:
            second += 1
    return common


def _used(job: Record, intervals: list[Interval], last: int) -> int:
    """Units times ms that a job held within some intervals."""
    if job.start is None:
        return 0
    stop = last if job.end is None else job.end
    return job.size * sum(end - start for start, end in _common([(job.start, stop)], intervals))
