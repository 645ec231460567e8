"""The life of a job: phases and their table, arrays, ends, cancels, changes of priority, other requests."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from fluence.errors import Conflict, InvalidInput, NotFound
from fluence.graph.ledger import LedgerJob
from fluence.match.request import Operation
from fluence.model.reason import Code, Reason
from fluence.queue import GraphPlanner, JobRecord, JobState, Submission
from fluence.queue.allocations import Allocation
from fluence.queue.job import TRANSITIONS, StoryStep
from tests.unit.queue.build import MINUTE, because, cores, graph, job, nodes, pool, run, spec

PLANNERS = pytest.mark.parametrize("make", [pool, graph], ids=["counted", "matched"])
# In the order of the enum: a set would come out differently in each of the workers.
FORBIDDEN = [pair for pair in product(JobState, JobState) if pair not in TRANSITIONS]


# Each state and where a job may go from it, once more in words: the table in the code is held against it.
TABLE = {
    "gathering": "pending running",
    "pending": "reserved starting cancelled unschedulable",
    "reserved": "pending starting",
    "unschedulable": "pending",
    "preparing": "pending starting running completed failed timeout cancelled",
    "starting": "pending preparing running completed failed timeout cancelled",
    "running": "completed failed timeout cancelled",
}
SO_IT_WAS, WHY = because("so it was"), because("it is time")


def record_in(phase: JobState) -> JobRecord:
    return JobRecord(job("a", 1, 10), phase, story=[StoryStep(0, phase, SO_IT_WAS)])


class TestTransitions:
    @pytest.mark.parametrize(("one", "other"), FORBIDDEN, ids=lambda state: state.value)
    def test_what_the_table_does_not_have_is_refused_and_leaves_no_line(self, one, other):
        record = record_in(one)
        with pytest.raises(Conflict, match=f"job a is {one.value} and cannot become {other.value}"):
            record.move(other, 5, WHY)
        assert record.state is one
        assert record.story == [StoryStep(0, one, SO_IT_WAS)]

    @pytest.mark.parametrize(("one", "other"), TRANSITIONS, ids=lambda state: state.value)
    def test_what_it_has_is_kept_with_its_reason(self, one, other):
        record = record_in(one)
        if other is JobState.RESERVED:
            record.reservation = Allocation("a", record.job.request, LedgerJob(-1, 5, 6, True))
        record.move(other, 5, WHY)
        assert record.state is other
        assert record.story[-1] == StoryStep(5, other, WHY)

    def test_every_phase_is_in_the_table_with_what_may_follow(self):
        assert {(one.value, other.value) for one, other in TRANSITIONS} == {
            (one, other) for one, after in TABLE.items() for other in after.split()
        }

    def test_a_job_of_pods_gathers_and_prepares_its_volumes(self):
        record = record_in(JobState.GATHERING)
        for phase in (
            JobState.PENDING,
            JobState.STARTING,
            JobState.PREPARING,
            JobState.STARTING,
            JobState.RUNNING,
            JobState.COMPLETED,
        ):
            record.move(phase, 5, WHY)
        assert record.state is JobState.COMPLETED

    def test_one_whose_volumes_cannot_be_bound_waits_again(self):
        record = record_in(JobState.PREPARING)
        record.move(JobState.PENDING, 5, WHY)
        assert record.state is JobState.PENDING

    def test_what_is_over_stays_over(self):
        assert not any(one.is_over for one, _ in TRANSITIONS)

    def test_the_story_of_a_job_that_waited(self):
        queue = pool("conservative")
        queue.submit(job("a", 16, 10))
        queue.submit(job("b", 16, 10))
        run(queue, 0)
        queue.finish("a", 4 * MINUTE)
        run(queue, 4 * MINUTE)
        queue.finish("b", 9 * MINUTE, outcome=JobState.FAILED)
        assert [(s.at // MINUTE, s.state, s.reason.code) for s in queue.records["b"].story] == [
            (0, JobState.PENDING, Code.SUBMITTED),
            (0, JobState.RESERVED, Code.PLANNED),
            (4, JobState.STARTING, Code.ITS_TURN),
            (4, JobState.RUNNING, Code.RESOURCES_BOUND),
            (9, JobState.FAILED, Code.FAILED),
        ]


class TestRecordsOfTheCaller:
    """The live scheduler's records gather before they are submitted, and prepare before they run."""

    def test_one_that_has_gathered_is_submitted(self):
        queue = pool()
        mine = JobRecord(job("a", 4, 10), JobState.GATHERING)
        assert queue.submit(mine.job, mine) is mine is queue.records["a"]
        assert [(step.state, step.reason.code) for step in mine.story] == [(JobState.PENDING, Code.SUBMITTED)]
        assert run(queue, 0) == ["a"]
        assert mine.state is JobState.RUNNING

    def test_one_that_prepares_holds_its_resources_until_it_runs(self):
        queue = pool()
        record = queue.submit(job("a", 16, 10))
        queue.submit(job("b", 16, 10))
        queue.cycle(0)
        record.move(JobState.PREPARING, 0, because("its volumes are being bound"))
        assert queue.cycle(MINUTE) == []
        queue.running("a", 2 * MINUTE)
        assert record.state is JobState.RUNNING
        queue.finish("a", 3 * MINUTE)
        assert run(queue, 3 * MINUTE) == ["b"]

    def test_one_that_prepares_may_lose_its_resources_or_be_cancelled(self):
        queue = pool()
        lost, unwanted = queue.submit(job("a", 8, 10)), queue.submit(job("b", 8, 10))
        queue.cycle(0)
        for record in (lost, unwanted):
            record.move(JobState.PREPARING, 0, because("its volumes are being bound"))
        queue.requeue("a", MINUTE, because("its volume is elsewhere"))
        assert lost.state is JobState.PENDING
        queue.cancel("b", MINUTE)
        assert unwanted.state is JobState.CANCELLED
        assert run(queue, MINUTE) == ["a"]

    def test_one_that_could_never_start_may_be_submitted_anew(self):
        queue = pool()
        record = queue.submit(job("a", 17, 10))
        assert (record.state, record.succeeded) == (JobState.UNSCHEDULABLE, False)
        queue.forget("a")
        queue.submit(job("a", 16, 10, at=MINUTE), record)
        assert run(queue, MINUTE) == ["a"]
        assert record.ended is None
        queue.finish("a", 2 * MINUTE)
        assert (record.state, record.succeeded) == (JobState.COMPLETED, True)

    @PLANNERS
    def test_one_that_is_found_running_is_not_judged(self, make):
        queue = make("easy")
        matcher, planner = queue.planner.matcher, queue.planner
        request = cores(12)
        assert matcher.match(
            Operation.ALLOCATE, replace(matcher.compile(request), duration=10 * MINUTE), job=7
        )
        held = planner.adopt("a", 7, request, 0, 10 * MINUTE, MINUTE)
        mine = JobRecord(job("a", 12, 10), JobState.GATHERING)
        assert queue.adopt(mine.job, held, MINUTE, mine) is mine
        assert (mine.state, mine.started, mine.running) == (JobState.RUNNING, 0, {"a": held})
        assert [step.reason.code for step in mine.story] == [Code.FOUND_RUNNING]
        queue.submit(job("b", 8, 10, at=MINUTE))
        assert run(queue, MINUTE) == []
        assert queue.next_due() == 10 * MINUTE
        queue.finish("a", 2 * MINUTE)
        assert run(queue, 2 * MINUTE) == ["b"]
        with pytest.raises(Conflict, match="job a has been submitted already"):
            queue.adopt(mine.job, held, 3 * MINUTE)


class TestWhatIsRefused:
    def test_a_key_twice(self):
        queue = pool()
        queue.submit(job("a", 1, 10))
        with pytest.raises(Conflict, match="job a has been submitted already: choose another key"):
            queue.submit(job("a", 1, 10))

    def test_a_job_that_nobody_knows(self):
        queue = pool()
        for act in (
            lambda: queue.cancel("x", 0),
            lambda: queue.reprioritise("x", 20, 0),
            lambda: queue.forget("x"),
            lambda: queue.finish("x", 0),
            lambda: queue.running("x", 0),
            lambda: queue.requeue("x", 0, because("gone")),
        ):
            with pytest.raises(NotFound, match="x"):
                act()

    def test_a_cancel_of_what_is_over(self):
        queue = pool()
        queue.submit(job("a", 1, 10))
        queue.cancel("a", 0)
        with pytest.raises(Conflict, match="job a is cancelled already"):
            queue.cancel("a", 0)

    def test_to_forget_what_is_not_over(self):
        queue = pool()
        queue.submit(job("a", 1, 10))
        with pytest.raises(Conflict, match="job a is pending: cancel it first"):
            queue.forget("a")

    def test_a_priority_for_what_runs(self):
        queue = pool()
        queue.submit(job("a", 1, 10))
        run(queue, 0)
        with pytest.raises(Conflict, match="job a is running: only waiting jobs have a priority"):
            queue.reprioritise("a", 20, 0)

    @pytest.mark.parametrize(
        ("fields", "said"),
        [
            ({"limit": 0}, "limit: 0 ms"),
            ({"soft_limit": -1}, "soft_limit: -1 ms"),
            ({"tasks": 0}, "tasks: 0"),
        ],
    )
    def test_impossible_numbers(self, fields, said):
        with pytest.raises(InvalidInput, match=said):
            Submission("a", cores(1), 0, **fields)


@PLANNERS
class TestArrays:
    def test_one_record_has_many_tasks(self, make):
        queue = make("easy")
        record = queue.submit(job("a", 4, 10, tasks=4))
        assert run(queue, 0) == ["a[0]", "a[1]", "a[2]", "a[3]"]
        assert list(queue.records) == ["a"]
        assert record.state is JobState.RUNNING
        assert not queue.pending.records

    def test_it_may_start_in_part(self, make):
        queue = make("easy")
        record = queue.submit(job("a", 6, 10, tasks=4))
        assert run(queue, 0) == ["a[0]", "a[1]"]
        assert (record.state, record.waiting) == (JobState.RUNNING, 2)
        queue.finish("a[1]", MINUTE)
        assert run(queue, MINUTE) == ["a[2]"]
        for task, minute in (("a[0]", 2), ("a[2]", 3)):
            queue.finish(task, minute * MINUTE)
        assert run(queue, 3 * MINUTE) == ["a[3]"]
        assert record.state is JobState.RUNNING
        queue.finish("a[3]", 5 * MINUTE)
        assert record.state is JobState.COMPLETED
        assert (record.started, record.ended) == (0, 5 * MINUTE)

    def test_its_next_task_holds_a_place_in_the_plan(self, make):
        queue = make("easy")
        record = queue.submit(job("a", 10, 10, tasks=2))
        queue.submit(job("b", 6, 30))  # would delay the second task
        assert run(queue, 0) == ["a[0]", "b"]
        assert record.reservation is not None
        assert (record.reservation.start, record.reservation.task) == (10 * MINUTE, "a[1]")

    def test_tasks_that_lose_their_nodes_before_they_run_start_again_under_their_own_names(self, make):
        queue = make("easy")
        record = queue.submit(job("a", 6, 10, tasks=4))
        assert [start.task for start in queue.cycle(0)] == ["a[0]", "a[1]"]
        queue.requeue("a", MINUTE, because("node0 is gone"))
        assert (record.state, record.waiting, record.running) == (JobState.PENDING, 4, {})
        assert sorted(run(queue, MINUTE)) == ["a[0]", "a[1]"]
        queue.finish("a[1]", 2 * MINUTE)
        assert run(queue, 2 * MINUTE) == ["a[2]"]

    def test_what_runs_has_lost_no_start(self, make):
        queue = make("easy")
        queue.submit(job("a", 4, 10))
        run(queue, 0)
        with pytest.raises(Conflict, match="job a is running: only one that starts can lose its start"):
            queue.requeue("a", MINUTE, because("node0 is gone"))

    def test_a_cancel_ends_all_of_it(self, make):
        queue = make("easy")
        record = queue.submit(job("a", 6, 10, tasks=4))
        run(queue, 0)
        queue.cancel("a", MINUTE)
        assert record.state is JobState.CANCELLED
        assert (record.running, record.waiting) == ({}, 0)
        queue.submit(job("b", 16, 10, at=MINUTE))
        assert run(queue, MINUTE) == ["b"]


@PLANNERS
class TestEndsAndCancels:
    def test_a_job_that_ends_early_moves_the_plan_ahead(self, make):
        queue = make("conservative")
        for key in "abc":
            queue.submit(job(key, 16, 10))
        run(queue, 0)
        queue.finish("a", MINUTE)
        assert run(queue, MINUTE) == ["b"]
        third = queue.records["c"]
        assert third.reserved_at == 11 * MINUTE
        assert third.no_later_than == 20 * MINUTE  # a promise is not made anew each time it gets better

    def test_a_reserved_job_that_is_cancelled_gives_up_its_place(self, make):
        queue = make("conservative")
        for key in "abc":
            queue.submit(job(key, 16, 10))
        run(queue, 0)
        queue.cancel("b", MINUTE)
        run(queue, MINUTE)
        assert queue.records["c"].reserved_at == 10 * MINUTE
        assert queue.records["b"].story[-1] == StoryStep(
            MINUTE, JobState.CANCELLED, Reason.of(Code.CANCELLED_BY_USER)
        )

    def test_the_head_of_easy_that_is_cancelled_lets_others_by(self, make):
        queue = make("easy")
        queue.submit(job("a", 10, 10))
        queue.submit(job("head", 16, 10))
        queue.submit(job("long", 6, 60))
        assert run(queue, 0) == ["a"]
        queue.cancel("head", MINUTE)
        assert run(queue, MINUTE) == ["long"]

    def test_a_running_job_that_is_cancelled_frees_what_it_held(self, make):
        queue = make("fcfs")
        queue.submit(job("a", 16, 10))
        queue.submit(job("b", 16, 10))
        run(queue, 0)
        queue.cancel("a", MINUTE, because("its budget is spent"))
        assert queue.records["a"].story[-1].reason == because("its budget is spent")
        assert run(queue, MINUTE) == ["b"]

    @pytest.mark.parametrize(
        ("outcome", "learned"),
        [(JobState.COMPLETED, 1), (JobState.FAILED, 1), (JobState.CANCELLED, 0)],
        ids=["completed", "failed", "cancelled"],
    )
    def test_a_cancelled_run_teaches_nothing_about_run_times(self, make, outcome, learned):
        queue = make("easy")
        queue.submit(job("a", 10, 60))
        assert run(queue, 0) == ["a"]
        queue.finish("a", MINUTE, outcome=outcome)
        assert [runtime for _, runtime in queue.runs] == [MINUTE] * learned

    def test_a_start_that_failed_is_tried_again(self, make):
        queue = make("easy")
        queue.submit(job("a", 16, 10))
        queue.cycle(0)
        queue.requeue("a", 1, because("the node refused it"))
        assert queue.records["a"].state is JobState.PENDING
        assert run(queue, 1) == ["a"]


@PLANNERS
class TestPriorities:
    def test_a_job_that_is_raised_goes_first(self, make):
        queue = make("fcfs")
        for key in "abc":
            queue.submit(job(key, 16, 10))
        run(queue, 0)
        queue.reprioritise("c", 20, MINUTE)
        queue.finish("a", 2 * MINUTE)
        assert run(queue, 2 * MINUTE) == ["c"]

    def test_it_takes_no_promised_start_from_others(self, make):
        queue = make("conservative")
        for key in "abc":
            queue.submit(job(key, 16, 10))
        run(queue, 0)
        queue.reprioritise("c", 31, MINUTE)
        run(queue, MINUTE)
        assert queue.records["b"].reserved_at == 10 * MINUTE
        assert queue.records["c"].no_later_than == 20 * MINUTE

    def test_who_is_moved_gives_up_what_it_was_promised(self, make):
        queue = make("conservative")
        for key in "abc":
            queue.submit(job(key, 16, 10))
        run(queue, 0)
        queue.reprioritise("b", 1, MINUTE)
        run(queue, MINUTE)
        assert [queue.records[key].reserved_at for key in "bc"] == [20 * MINUTE, 10 * MINUTE]
        assert queue.records["b"].broken == []


class TestRequestsThatNeedMore:
    """A planner of counts gives way to one of matches when a request asks for more than counts."""

    def test_what_runs_goes_on_and_what_waits_is_planned_anew(self):
        queue = pool("conservative", nodes=2, cores=8)
        queue.submit(job("a", 10, 10))
        queue.submit(job("b", 16, 10))
        assert run(queue, 0) == ["a"]
        queue.submit(job("c", 0, 10, request=nodes(2, 3), at=MINUTE))
        assert run(queue, MINUTE) == []
        assert isinstance(queue.planner, GraphPlanner)
        assert {e.key: e.reserved_at for e in queue.pending} == {"b": 10 * MINUTE, "c": 20 * MINUTE}
        queue.finish("a", 10 * MINUTE)
        assert run(queue, 10 * MINUTE) == ["b"]

    def test_jobs_of_equal_size_that_now_differ_are_told_apart(self):
        queue = pool("first-fit")
        one = spec("[{type: slot, count: 1, label: a, with: [{type: core, count: 2}]}]")
        queue.submit(job("running", 15, 60))
        queue.submit(job("a", 2, 10))
        queue.submit(job("b", 0, 10, request=one))
        assert run(queue, 0) == ["running"]
        queue.submit(job("c", 1, 10, at=MINUTE))
        queue.submit(job("node", 0, 10, request=nodes(1, 16), at=MINUTE))
        queue.submit(job("b2", 0, 10, request=one, at=MINUTE, priority=20))
        assert run(queue, MINUTE) == ["c"]

    def test_resources_that_somebody_else_took_are_waited_for(self):
        """The matcher has the last word: what it cannot name is not started."""
        queue = pool("conservative")
        queue.planner.matcher.match(Operation.ALLOCATE, cores(4), job=99)  # type: ignore[attr-defined]
        for key, size in (("a", 16), ("b", 16), ("c", 2)):
            queue.submit(job(key, size, 10))
        assert run(queue, 0) == ["c"]
        queue.cancel("b", 2)
        run(queue, 2)
        queue.planner.matcher.cancel(99)  # type: ignore[attr-defined]
        queue.finish("c", 3)
        assert run(queue, 3) == ["a"]
