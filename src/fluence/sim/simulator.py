"""Drive the live scheduler's queue and the matcher over a workload, with a clock that jumps.

Decisions are made when jobs arrive, end, or are due by the plan. A job runs as long as its record says, and
is ended at its limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush

from fluence.match.matcher import HORIZON, Matcher
from fluence.match.policy import MatchPolicy
from fluence.messages import text
from fluence.queue import Dependency, JobRecord, Queue, Start, Submission, history, planner_for
from fluence.queue import priority as priorities
from fluence.queue.job import SECOND
from fluence.sim.measure import Record
from fluence.sim.platform import Platform
from fluence.sim.submission import TraceJob, TraceWorkload

_END, _ARRIVE = 0, 1  # what has ended is free before what arrives at the same moment is placed


@dataclass(slots=True)
class Simulation:
    """What came of a run, whole or interrupted."""

    queue: Queue
    matcher: Matcher
    records: list[Record] = field(default_factory=list)
    now: int = 0
    wall_s: float = 0.0
    decisions: int = 0  # placements tried
    interrupted: bool = False
    stopped_at: int | None = None
    """ms at which the run was cut short; None: it came to its end."""

    @property
    def decisions_per_s(self) -> float:
        return self.decisions / self.wall_s if self.wall_s else 0.0


def simulate(
    workload: TraceWorkload,
    platform: Platform,
    *,
    policy: str = "easy",
    match_policy: str | MatchPolicy = "first",
    depth: int | None = None,
    window: int | None = None,
    resolution: int = 1,
    replan: bool = False,
    forecasts: bool = True,
    priority: str = "urgency",
    predictor: str = "history",
    until: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Simulation:
    """Run a workload to its end; Ctrl-C ends it earlier, with what is known by then."""
    matcher = Matcher(platform.graph, match_policy, extensions=platform.extensions, horizon=HORIZON * SECOND)
    first = workload.submissions[0].jobspec if workload.submissions else None
    queue = Queue(
        planner_for(matcher, first),
        policy,
        depth=depth,
        window=window,
        resolution=resolution,
        replan=replan,
        forecasts=forecasts,
        priority=priorities.find(priority),
        predictor=history.find(predictor),
        timer=time.perf_counter,
    )
    run = Simulation(queue, matcher)
    began = time.perf_counter()
    try:
        _run(run, workload, until, progress)
    except KeyboardInterrupt:
        run.interrupted, run.stopped_at = True, run.now
    run.wall_s = time.perf_counter() - began
    run.decisions = queue.tries
    run.records = [_record(s, queue.records.get(s.name), queue) for s in workload.submissions]
    return run


def _run(
    run: Simulation, workload: TraceWorkload, until: int | None, progress: Callable[[int], None] | None
) -> None:
    queue = run.queue
    tasks = {submission.name: submission for submission in workload.submissions}
    events: list[tuple[int, int, int, TraceJob | Start]] = []
    for serial, submission in enumerate(workload.submissions):
        heappush(events, (submission.submit, _ARRIVE, serial, submission))
    serial = len(events)
    while True:
        due = queue.next_due()
        if not events and due is None:
            return
        now = events[0][0] if events else due
        assert now is not None
        if due is not None and run.now < due < now:
            now = due
        if until is not None and now > until:
            run.stopped_at = until
            return
        run.now = now
        while events and events[0][0] == now:
            what = heappop(events)[3]
            if isinstance(what, Start):
                queue.finish(what.task, now, succeeded=tasks[what.record.key].succeeds)
                if progress is not None:
                    progress(1)
            else:
                queue.submit(_job(what))
        for start in queue.cycle(now):
            queue.running(start.task, now)
            runtime = tasks[start.record.key].runtime
            heappush(events, (min(now + runtime, start.end), _END, serial, start))
            serial += 1


def _job(submission: TraceJob) -> Submission:
    return Submission(
        key=submission.name,
        request=submission.jobspec,
        submit=submission.submit,
        limit=submission.limit,
        soft_limit=submission.soft_limit,
        user=submission.user,
        # NB no name: those of a workload are unique, so that a singleton waits for all jobs of its user.
        queue=submission.queue,
        priority=submission.priority,
        after=tuple(Dependency(kind, job) for kind, job in submission.after),
        tasks=submission.tasks,
    )


def _record(submission: TraceJob, entry: JobRecord | None, queue: Queue) -> Record:
    return Record(
        name=submission.name,
        user=submission.user,
        queue=submission.queue,
        size=submission.size,
        submit=submission.submit,
        start=entry.started if entry else None,
        end=entry.ended if entry and entry.started is not None else None,
        runtime=submission.runtime,
        limit=submission.limit,
        no_later_than=entry.promised if entry else None,
        expected=entry.first_expected if entry else None,
        backfilled=entry.backfilled if entry else False,
        state=entry.phase.value if entry else "pending",
        broken=text(entry.broken[0].cause) if entry and entry.broken else "",
    )
