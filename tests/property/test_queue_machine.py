"""The queue under random events, with both planners: what must hold whatever happens."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import Phase as HypothesisPhase
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fluence.queue import Dependency, JobState, Queue, Submission
from fluence.queue.job import SECOND
from tests.unit.queue.build import because, cores, graph, nodes, pool

CORES = 8
POLICIES = ("fcfs", "first-fit", "easy", "hybrid(2)", "conservative")


class QueueMachine(RuleBasedStateMachine):
    """Jobs come, end, are cancelled and moved; time passes. ``log`` can be replayed."""

    make = staticmethod(pool)

    @initialize(policy=st.sampled_from(POLICIES))
    def begin(self, policy: str) -> None:
        self.policy = policy
        self.queue = self.make(policy, nodes=2, cores=CORES // 2)
        self.now = 0
        self.log: list[tuple[str, Any]] = []
        self.head: tuple[str, int] | None = None

    def do(self, what: str, *args: Any) -> None:
        self.log.append((what, args))
        act(self.queue, what, *args)
        if what == "cycle":
            self.check_promises()

    @rule(
        size=st.integers(1, CORES),
        minutes=st.integers(1, 5),
        priority=st.sampled_from([16, 16, 16, 20]),
        tasks=st.sampled_from([1, 1, 1, 3]),
        after=st.none() | st.tuples(st.sampled_from(["afterok", "afterany"]), st.integers(0, 30)),
    )
    def submit(
        self, size: int, minutes: int, priority: int, tasks: int, after: tuple[str, int] | None
    ) -> None:
        key = f"j{len(self.queue.records)}"
        waits: tuple[Dependency, ...] = ()
        if after is not None and self.queue.records:
            keys = list(self.queue.records)
            waits = (Dependency(after[0], keys[after[1] % len(keys)]),)
        request = self.request(size)
        self.do(
            "submit",
            Submission(
                key,
                request,
                self.now,
                limit=minutes * 60 * SECOND,
                priority=priority,
                tasks=tasks,
                after=waits,
            ),
        )

    def request(self, size: int) -> Any:
        return cores(size)

    @rule()
    def cycle(self) -> None:
        self.do("cycle", self.now)

    @rule(step=st.integers(1, 200))
    def wait(self, step: int) -> None:
        """Time passes; what reaches its limit ends there, as limits are enforced."""
        until = self.now + step * SECOND
        while True:
            ends = sorted(
                (held.start + e.limit, task)
                for e in self.queue.records.values()
                for task, held in e.running.items()
            )
            due = self.queue.next_due()
            times = [end for end, _ in ends[:1]] + ([due] if due is not None else [])
            if not times or min(times) > until:
                break
            self.now = max(self.now, min(times))
            for end, task in ends:
                if end <= self.now:
                    self.do("finish", task, self.now, True)
            self.do("cycle", self.now)
        self.now = until

    @precondition(lambda self: any(e.running for e in self.queue.records.values()))
    @rule(which=st.integers(0, 30), succeeded=st.booleans())
    def finish_early(self, which: int, succeeded: bool) -> None:
        tasks = [task for e in self.queue.records.values() for task in e.running]
        self.do("finish", tasks[which % len(tasks)], self.now, succeeded)
        self.do("cycle", self.now)

    @precondition(lambda self: any(not e.state.leaves_queue for e in self.queue.records.values()))
    @rule(which=st.integers(0, 30))
    def cancel(self, which: int) -> None:
        alive = [e.key for e in self.queue.records.values() if not e.state.leaves_queue]
        self.do("cancel", alive[which % len(alive)], self.now)
        self.do("cycle", self.now)

    @precondition(lambda self: len(self.queue.pending) > 0)
    @rule(which=st.integers(0, 30), priority=st.integers(10, 20))
    def reprioritise(self, which: int, priority: int) -> None:
        records = self.queue.pending.records
        self.do("reprioritise", records[which % len(records)].key, priority, self.now)
        self.do("cycle", self.now)

    @precondition(lambda self: any(e.state is JobState.STARTING for e in self.queue.records.values()))
    @rule(which=st.integers(0, 30))
    def requeue(self, which: int) -> None:
        keys = [e.key for e in self.queue.records.values() if e.state is JobState.STARTING]
        self.do("requeue", keys[which % len(keys)], self.now, because("its node is gone"))
        self.do("cycle", self.now)

    # -- what holds ------------------------------------------------------------------------------------------

    def check_promises(self) -> None:
        """A promise that rests on a place in the plan is kept: limits are enforced and nothing is lost."""
        for record in self.queue.records.values():
            if record.deadline is not None and not (record.state.has_nodes or record.state.leaves_queue):
                assert record.reserved_at is not None or not record.waiting, f"{record.key} lost its place"
                assert record.reserved_at is None or record.reserved_at <= record.deadline

    @invariant()
    def nothing_is_oversubscribed(self) -> None:
        held = sum(e.job.request.resources[0].count.min * len(e.running) for e in self.queue.records.values())  # type: ignore[attr-defined]
        if self.make is pool:
            assert held <= CORES
        ledger = self.queue.planner.matcher.ledger  # type: ignore[attr-defined]
        for vertex in range(len(ledger.head)):
            users = [
                job
                for job in ledger.jobs.values()
                for span in job.spans.tolist()
                if ledger.vertex[span] == vertex and ledger.exclusive[span] and ledger.needs[span]
            ]
            for one in users:
                for other in users:
                    if one is not other:
                        assert one.end <= other.start or other.end <= one.start

    @invariant()
    def counts_agree_with_what_is_named(self) -> None:
        """The count of free units is what the matcher has left."""
        planner = self.queue.planner
        if self.make is pool:
            busy = sum(task.units for task in planner.allocations.running.values())
            assert planner._base.at(self.now) == CORES - busy  # type: ignore[attr-defined]
            assert min(planner._base.free) >= 0  # type: ignore[attr-defined]
            assert planner._plan is None or min(planner._plan.free) >= 0  # type: ignore[attr-defined]

    @invariant()
    def each_job_is_in_one_place(self) -> None:
        pending = set(self.queue.pending.records)
        for record in self.queue.records.values():
            places = (record in pending) + (record.key in self.queue.held)
            assert places == (1 if record.waiting and not record.state.leaves_queue else 0)
            assert bool(record.running) <= (record.state in (JobState.STARTING, JobState.RUNNING))
            assert record.story[-1].state is record.state or record.state is JobState.RESERVED
        tasks = [task for e in self.queue.records.values() for task in e.running]
        allocations = self.queue.planner.allocations
        assert sorted(tasks) == sorted(allocations.running)
        for e in self.queue.records.values():
            assert all(allocations.running[task] is held for task, held in e.running.items())
        assert allocations.reserved == {
            e.reservation.task: e.reservation for e in self.queue.pending if e.reservation is not None
        }

    @invariant()
    def every_task_that_runs_has_an_end_that_is_looked_at(self) -> None:
        allocations = self.queue.planner.allocations
        ends = [held.end for held in allocations.running.values()]
        assert allocations.next_end() == min(ends, default=None)

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        twin = self.make(self.policy, nodes=2, cores=CORES // 2)
        for what, args in self.log:
            act(twin, what, *args)
        assert state_of(twin) == state_of(self.queue), "replaying the log gives another state"
        self.drain()

    def drain(self) -> None:
        """Every job that fits an empty cluster ends."""
        for _ in range(1000):
            act(self.queue, "cycle", self.now)
            running = [task for e in self.queue.records.values() for task in e.running]
            if not running and not self.queue.pending.records and not self.queue.held:
                break
            if running:
                self.now += SECOND
                act(self.queue, "finish", running[0], self.now, True)
            else:
                due = self.queue.next_due()
                assert due is not None, "jobs wait and nothing will ever start them"
                self.now = max(self.now, due)
        assert all(e.state.leaves_queue for e in self.queue.records.values())


def act(queue: Queue, what: str, *args: Any) -> None:
    if what == "cycle":
        for start in queue.cycle(*args):
            queue.running(start.task, args[0])
    elif what == "finish":
        task, now, succeeded = args
        queue.finish(task, now, outcome=JobState.COMPLETED if succeeded else JobState.FAILED)
    else:
        getattr(queue, what)(*args)


def state_of(queue: Queue) -> Any:
    return [
        (
            *(e.key, e.state, e.order, e.waiting, e.reserved_at, e.no_later_than, e.expected, e.story),
            {task: (held.start, held.end) for task, held in e.running.items()},
        )
        for e in queue.records.values()
    ]


class GraphMachine(QueueMachine):
    make = staticmethod(graph)

    def request(self, size: int) -> Any:
        return cores(size) if size % 2 else nodes(1, min(size, CORES // 2))


_SETTINGS = settings(
    phases=(HypothesisPhase.explicit, HypothesisPhase.reuse, HypothesisPhase.generate),
    deadline=None,
    max_examples=120,
    stateful_step_count=30,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestQueueOfUnits = QueueMachine.TestCase
TestQueueOfUnits.settings = _SETTINGS
TestQueueOnAGraph = GraphMachine.TestCase
TestQueueOnAGraph.settings = settings(_SETTINGS, max_examples=40)
