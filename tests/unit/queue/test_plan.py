"""The plan: which reservations are due, and what is left of a pass in which a job cannot be planned."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pytest

from fluence.graph.ledger import LedgerJob
from fluence.model.reason import Code, Reason
from fluence.queue import GraphPlanner, JobRecord, JobState, PoolPlanner, Queue, QueuePolicy
from fluence.queue.allocations import Allocation
from fluence.queue.pending import Pending
from fluence.queue.plan import JobFault, Plan
from fluence.queue.policy import BUILT_IN, PluginGuard
from fluence.queue.rules import RuleBook, by_urgency
from fluence.queue.scheduling_pass import CycleBudget, SchedulingPass
from tests.unit.queue.build import MINUTE, because, graph, job, matcher, pool, run

PLANNERS = pytest.mark.parametrize("make", [pool, graph], ids=["counted", "matched"])


def plan() -> Plan:
    guard = PluginGuard(1.0, None)
    rules = RuleBook(None, by_urgency, guard)
    budget = CycleBudget(1.0, None)
    return Plan(Pending(), BUILT_IN["easy"], rules, guard, budget, depth=None, window=None, replan=False)


def reserved(key: str, start: int, serial: int, deadline: int | None = None) -> JobRecord:
    """A job with a place in the plan."""
    record = JobRecord(job(key, 1, 10), JobState.RESERVED, order=(0, 0, serial), deadline=deadline)
    record.reservation = Allocation(key, record.job.request, LedgerJob(-1, start, start + 10, True))
    return record


def adopt(plan: Plan, *records: JobRecord) -> None:
    for record in records:
        assert record.reservation is not None
        plan.adopt(record, record.reservation)


class TestDue:
    def test_they_come_in_the_order_of_the_queue_and_once(self):
        made = plan()
        adopt(made, reserved("late", 30, 1), reserved("b", 10, 3), reserved("a", 20, 2))
        assert made.next_start() == 10
        assert made.take_due(9) == []
        assert [record.key for record in made.take_due(20)] == ["a", "b"]
        assert made.take_due(20) == []
        assert made.next_start() == 30

    def test_a_place_that_was_moved_is_due_at_its_new_time_only(self):
        made = plan()
        record = reserved("a", 10, 1)
        adopt(made, record)
        record.reservation = Allocation("a", record.job.request, LedgerJob(-1, 20, 30, True))
        adopt(made, record)
        assert made.take_due(10) == []
        assert made.next_start() == 20

    def test_a_job_that_was_withdrawn_or_has_started_is_not_due(self):
        queue = pool("conservative")
        for key in "abc":
            queue.submit(job(key, 16, 10))
        run(queue, 0)
        assert queue.plan.next_start() == 10 * MINUTE
        queue.cancel("b", 0)
        assert queue.plan.next_start() == 20 * MINUTE
        assert {record.key for record in queue.plan.reserved} == {"c"}
        queue.finish("a", MINUTE)
        assert run(queue, MINUTE) == ["c"]
        assert queue.plan.next_start() is None


class TestSlip:
    def test_a_cycle_that_comes_late_moves_all_deadlines(self):
        made = plan()
        due, later, free = reserved("a", 10, 1, 10), reserved("b", 20, 2, 25), reserved("c", 30, 3)
        adopt(made, due, later, free)
        assert made.slip(made.take_due(14), 14)
        assert (due.deadline, later.deadline, free.deadline) == (14, 29, None)

    def test_one_in_time_moves_none(self):
        made = plan()
        due = reserved("a", 10, 1, 10)
        adopt(made, due)
        assert not made.slip(made.take_due(10), 10)
        assert not made.slip([], 99)
        assert due.deadline == 10


class Refusing:
    """Cannot plan a job whose name is bad."""

    def start(self, task: str, *args: Any, **kwargs: Any) -> Any:
        refuse(task)
        return super().start(task, *args, **kwargs)  # type: ignore[misc]

    def start_or_reserve(self, task: str, *args: Any, **kwargs: Any) -> Any:
        refuse(task)
        return super().start_or_reserve(task, *args, **kwargs)  # type: ignore[misc]


class FaultyPool(Refusing, PoolPlanner):
    """By counting."""


class FaultyGraph(Refusing, GraphPlanner):
    """By matching."""


def refuse(task: Hashable) -> None:
    if task == "bad":
        raise ZeroDivisionError("of all things")


def faulty_pool(policy: str) -> Queue:
    return Queue(FaultyPool(matcher(), "core"), policy)


def faulty_graph(policy: str) -> Queue:
    return Queue(FaultyGraph(matcher()), policy)


FAULTY = pytest.mark.parametrize("make", [faulty_pool, faulty_graph], ids=["counted", "matched"])


@FAULTY
class TestAJobThatCannotBePlanned:
    def test_it_is_named(self, make):
        queue = make("easy")
        queue.submit(job("a", 4, 10))
        queue.submit(job("bad", 4, 10))
        with pytest.raises(JobFault, match="job bad cannot be planned") as caught:
            queue.cycle(0)
        assert caught.value.job == "bad"
        assert isinstance(caught.value.__cause__, ZeroDivisionError)

    @pytest.mark.parametrize("policy", ["fcfs", "first-fit", "easy", "hybrid(2)", "conservative"])
    def test_once_it_is_taken_out_the_others_go_on_as_if_it_had_not_been(self, make, policy):
        queue, twin = make(policy), make(policy)
        for each in (queue, twin):
            for key, size, minutes in (("a", 10, 10), ("b", 10, 10), ("bad", 2, 10), ("c", 4, 5)):
                if key != "bad" or each is queue:
                    each.submit(job(key, size, minutes))
        with pytest.raises(JobFault):
            while True:  # fcfs comes to it when those in front of it have started
                run(queue, queue.now)
                run(twin, twin.now)
                later = queue.now + MINUTE
                for task in list(queue.planner.allocations.running):
                    for each in (queue, twin):
                        each.finish(task, later)
        queue.cancel("bad", queue.now, because("it cannot be planned"))
        assert run(queue, queue.now) == run(twin, queue.now)
        for record in twin.records.values():
            other = queue.records[record.key]
            assert (other.state, other.waiting, other.reserved_at) == (
                record.state,
                record.waiting,
                record.reserved_at,
            )
        assert list(queue.planner.allocations.running) == list(twin.planner.allocations.running)
        assert list(queue.planner.allocations.reserved) == list(twin.planner.allocations.reserved)

    def test_jobs_that_were_due_then_start(self, make):
        queue = make("easy")
        queue.submit(job("a", 16, 10))
        queue.submit(job("b", 16, 10))
        run(queue, 0)
        queue.finish("a", 10 * MINUTE)
        queue.submit(job("bad", 1, 10, at=10 * MINUTE))
        with pytest.raises(JobFault):
            queue.cycle(10 * MINUTE)
        assert queue.next_due() == 10 * MINUTE
        queue.cancel("bad", 10 * MINUTE)
        assert run(queue, 10 * MINUTE) == ["b"]

    def test_the_cause_of_a_loss_is_not_forgotten(self, make):
        queue = make("conservative")
        queue.submit(job("a", 16, 10))
        b = queue.submit(job("b", 16, 10))
        run(queue, 0)
        queue.submit(job("bad", 1, 10))
        now = 12 * MINUTE  # a runs past its limit
        with pytest.raises(JobFault):
            queue.cycle(now)
        queue.cancel("bad", now)
        assert run(queue, now) == []
        assert [broken.cause for broken in b.broken] == [Reason.of(Code.RUNS_PAST_LIMIT, job="a")]

    def test_a_policy_of_a_site_is_blamed_instead_and_then_easy_finds_it(self, make):
        def in_order(jobs: SchedulingPass) -> None:
            for record in jobs:
                jobs.start(record)

        queue = make(QueuePolicy("ours", in_order))
        queue.submit(job("bad", 4, 10))
        with pytest.raises(JobFault, match="bad"):
            queue.cycle(0)
        assert list(map(str, queue.take_faults())) == ["queue policy ours: ZeroDivisionError: of all things"]


@PLANNERS
def test_a_fault_before_any_job_is_tried_is_not_blamed_on_a_job(make):
    def fails(jobs: SchedulingPass) -> None:
        raise RuntimeError("nothing to do with jobs")

    queue = make(QueuePolicy("built in", fails, built_in=True))
    queue.submit(job("a", 4, 10))
    with pytest.raises(RuntimeError, match="nothing to do with jobs"):
        queue.cycle(0)
