"""A plain model of the history: what the rows must be after any story of jobs, crashes included.

The model knows the truth of every run, and remembers of it what was said and what was written. It shares no
code with the store.

A crash forgets what was not written. A run of which a start is written and no end is over when the next one
is there, and nobody saw how. A run of which no start is written is the one that waits now: nobody can tell.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from hypothesis import strategies as st

from fluence.database_url import parse_url
from fluence.live.history_writer import HistoryBacklog
from fluence.model.job_state import JobEntry, JobState
from fluence.store import Writer, queries
from fluence.store.history_store import HistoryStore
from fluence.store.queries import JobFilter

Row: TypeAlias = tuple[int, int, str, int, int | None, int | None, int | None]
OUTCOMES = (JobState.COMPLETED, JobState.FAILED, JobState.TIMEOUT, JobState.CANCELLED)

_jobs = st.integers(1, 4)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), _jobs),
        st.tuples(st.just("promise"), _jobs),
        st.tuples(st.just("start"), _jobs),
        st.tuples(st.just("end"), _jobs, st.sampled_from(OUTCOMES)),
        st.tuples(st.just("withdraw"), _jobs),
        st.tuples(st.just("write"), st.integers(1, 3)),
        st.tuples(st.just("fail")),
        st.tuples(st.just("restart")),
    ),
    max_size=40,
)


@dataclass
class TrueRun:
    """One run of a job: what is so, what was said of it, what is written of it."""

    submitted: int
    since: int  # when its row says that it was submitted: the first that was said of it
    promised: int | None = None
    started: int | None = None
    ended: int | None = None
    state: JobState = JobState.PENDING
    remembers: bool = True  # its scheduler knows what it has promised
    said: tuple[Any, ...] | None = None
    written: tuple[Any, ...] | None = None

    def say(self) -> None:
        self.said = (self.state, self.since, self.promised, self.started, self.ended)

    def recall(self) -> None:
        """It is over: from now on it is what is written of it."""
        assert self.written is not None
        self.state, self.since, self.promised, self.started, self.ended = self.said = self.written
        self.remembers = False

    def lose(self, ended: int) -> None:
        """It is over, and nobody saw how."""
        self.state, self.ended = JobState.UNKNOWN, ended
        self.say()
        self.written = self.said


@dataclass
class World:
    """Jobs, the backlog of their scheduler, and a clock."""

    now: int = 0
    runs: dict[int, list[TrueRun]] = field(default_factory=dict)
    backlog: HistoryBacklog = field(default_factory=HistoryBacklog)

    def last(self, job: int) -> TrueRun | None:
        return self.runs[job][-1] if self.runs.get(job) else None

    def put(self, job: int) -> None:
        run = self.runs[job][-1]
        run.say()
        self.backlog.put([self._entry(job, run)], None, self.now)

    def _entry(self, job: int, run: TrueRun) -> JobEntry:
        return JobEntry(
            job=job,
            at=self.now,
            state=run.state,
            key=f"ns/{job}",
            namespace="ns",
            name=str(job),
            submitted=run.submitted,
            no_later_than=run.promised if run.remembers else None,
            started=run.started,
            ended=run.ended,
        )

    # -- what happens to jobs --------------------------------------------------------------------------------

    def submit(self, job: int) -> None:
        run = self.last(job)
        if run is not None and run.ended is None:
            return
        if run is not None and run.started is None:
            run.state, run.ended = JobState.PENDING, None  # it was withdrawn, and waits again
        else:
            self.runs.setdefault(job, []).append(TrueRun(self.now, self.now))
        self.put(job)

    def promise(self, job: int) -> None:
        run = self.last(job)
        if run is not None and run.ended is None and run.started is None and run.promised is None:
            run.promised, run.state, run.remembers = self.now + 100, JobState.RESERVED, True
            self.put(job)

    def start(self, job: int) -> None:
        run = self.last(job)
        if run is not None and run.ended is None and run.started is None:
            run.started, run.state = self.now, JobState.RUNNING
            self.put(job)

    def end(self, job: int, outcome: JobState) -> None:
        run = self.last(job)
        if run is not None and run.ended is None and run.started is not None:
            run.ended, run.state = self.now, outcome
            self.put(job)

    def withdraw(self, job: int) -> None:
        run = self.last(job)
        if run is not None and run.ended is None and run.started is None:
            run.ended, run.state = self.now, JobState.CANCELLED
            self.put(job)

    # -- what happens to the scheduler -----------------------------------------------------------------------

    async def write(self, store: HistoryStore, most: int | None = None) -> None:
        while batch := self.backlog.take(most or 1000):
            await store.write([(entry, "") for entry in batch])
            for entry in batch:
                for run in self.runs[entry.job]:
                    # The entry of a run is known by its submission, or by its end where it has one.
                    if run.said is not None and run.submitted == entry.submitted:
                        run.written = run.said
            if most is not None:
                return

    def fail(self) -> None:
        """A batch is taken, and cannot be written."""
        self.backlog.put_back(self.backlog.take(2))

    async def restart(self, store: HistoryStore) -> None:
        """What was not written is forgotten; the jobs that there are say what they know."""
        self.backlog = HistoryBacklog()
        self.now += 1
        self.runs = {job: self._remembered(runs) for job, runs in self.runs.items()}
        there = {job for job, runs in self.runs.items() if runs and runs[-1].said is None}
        for job in there:
            self.put(job)
        self.backlog.put([], frozenset(there), self.now)
        await self.write(store)
        roll = self.backlog.take_roll()
        assert roll is not None
        await store.call_roll(*roll)
        for job in set(self.runs) - there:
            for run in self.runs[job]:
                if run.ended is None:
                    run.lose(self.now)

    def _remembered(self, runs: list[TrueRun]) -> list[TrueRun]:
        """What a crash leaves of the runs of a job; nothing is said yet of one that is still there."""
        found: list[TrueRun] = []
        for run in runs:
            if run.ended is not None:
                if run.written is not None:
                    run.recall()
                    found.append(run)
                continue
            run.promised = None if run.written is None else run.written[2]
            run.remembers, run.said = False, None
            if found and found[-1].started is None:
                taken = found.pop()
                run.since, run.promised = taken.since, taken.promised
            elif found and found[-1].ended is None:
                found[-1].lose(run.submitted)
            found.append(run)
        return found

    def rows(self) -> list[Row]:
        """What the table must say: the runs of each job of which anything is written, in order."""
        found: list[Row] = []
        for job in sorted(self.runs):
            known = [run.written for run in self.runs[job] if run.written is not None]
            for number, (state, submitted, promised, started, ended) in enumerate(known, start=1):
                found.append((job, number, state.value, submitted, promised, started, ended))
        return found


async def play(url: str, story: list[tuple[Any, ...]]) -> None:
    """Live a story, and compare the table with the model after each thing that writes."""
    world = World()
    async with HistoryStore(parse_url(url), Writer("c", "s")) as store:
        await store.migrate()
        for name, *arguments in story:
            world.now += 1
            if name == "write":
                await world.write(store, *arguments)
            elif name == "restart":
                await world.restart(store)
            else:
                getattr(world, name)(*arguments)
        await world.write(store)
        rows = await queries.find_jobs(store, JobFilter())
    columns = ("job", "run", "state", "submitted", "no_later_than", "started", "ended")
    assert sorted(tuple(row[each] for each in columns) for row in rows) == world.rows()


def check(url: str, story: list[tuple[Any, ...]]) -> None:
    asyncio.run(play(url, story))
