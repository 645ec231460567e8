"""Nodes that go and come back, tasks that lose theirs, and jobs that outlive their limit."""

from __future__ import annotations

import pytest

from fluence.model.reason import Code, Reason
from fluence.queue import JobState
from fluence.queue.job import FOREVER, SECOND
from tests.unit.queue.build import MINUTE, because, finish_at_limits, graph, job, pool, run

PLANNERS = pytest.mark.parametrize("make", [pool, graph], ids=["counted", "matched"])


def down(queue, *nodes: int, up: bool = False) -> None:
    for node in nodes:
        queue.planner.matcher.set_status(f"/cluster0/node{node}", up=up)


def where(queue, task: str) -> set[str]:
    """The nodes on which a task holds cores."""
    matcher = queue.planner.matcher
    number = queue.planner.allocations.running[task].number
    rows = matcher.ledger.vertex[matcher.ledger.job(number).spans].tolist()
    return {path.split("/")[2] for row in rows if (path := matcher.graph.path(row)).count("/") == 3}


@PLANNERS
class TestNodesThatGoDown:
    def test_nothing_is_placed_there(self, make):
        queue = make("easy", nodes=2, cores=4)
        down(queue, 1)
        queue.submit(job("a", 4, 10))
        queue.submit(job("b", 4, 10))
        assert run(queue, 0) == ["a"]
        assert where(queue, "a") == {"node0"}

    def test_what_needs_them_waits_and_holds_nobody_up(self, make):
        queue = make("conservative", nodes=2, cores=4)
        down(queue, 1)
        wide = queue.submit(job("wide", 8, 10))
        queue.submit(job("small", 4, 10))
        assert wide.state is JobState.PENDING  # not never: the node may come back
        assert run(queue, 0) == ["small"]
        assert wide.no_later_than is None

    def test_what_waits_for_them_starts_when_they_come_back(self, make):
        queue = make("conservative", nodes=2, cores=4)
        down(queue, 1)
        queue.submit(job("wide", 8, 10))
        assert run(queue, 0) == []
        down(queue, 1, up=True)
        assert run(queue, MINUTE) == ["wide"]

    def test_a_promise_that_rested_on_one_is_broken_with_the_cause(self, make):
        queue = make("conservative", nodes=2, cores=4)
        for key in ("a", "b", "c", "d"):
            queue.submit(job(key, 4, 10))
        assert run(queue, 0) == ["a", "b"]
        assert [queue.records[key].promised for key in "cd"] == [10 * MINUTE, 10 * MINUTE]
        (lost,) = where(queue, "b")
        down(queue, int(lost.removeprefix("node")))
        queue.note_loss(because(f"{lost} went down"))
        assert run(queue, MINUTE) == []
        first, second = queue.records["c"], queue.records["d"]
        assert first.broken == []
        assert (first.reserved_at, second.reserved_at) == (10 * MINUTE, 20 * MINUTE)
        assert [(b.at, b.promised, b.cause) for b in second.broken] == [
            (MINUTE, 10 * MINUTE, because(f"{lost} went down"))
        ]
        assert second.no_later_than == 20 * MINUTE  # the new promise
        assert second.promised == 10 * MINUTE  # the first one is not forgotten

    def test_a_promise_that_nothing_can_keep_is_broken_at_once(self, make):
        queue = make("conservative", nodes=2, cores=4)
        queue.submit(job("a", 4, 10))
        wide = queue.submit(job("wide", 8, 10))
        run(queue, 0)
        assert wide.promised == 10 * MINUTE
        down(queue, 1)
        queue.note_loss(because("node1 went down"))
        run(queue, MINUTE)
        assert wide.reserved_at is None
        assert [broken.cause for broken in wide.broken] == [because("node1 went down")]
        assert wide.no_later_than is None  # nobody knows when
        down(queue, 1, up=True)
        run(queue, 2 * MINUTE)
        assert wide.no_later_than == 10 * MINUTE  # and now one does again
        queue.finish("a", 10 * MINUTE)
        assert run(queue, 10 * MINUTE) == ["wide"]
        assert len(wide.broken) == 1

    def test_a_node_that_comes_back_breaks_no_promise(self, make):
        queue = make("conservative", nodes=3, cores=4)
        down(queue, 2)
        for key, size, minutes in (("a", 8, 10), ("b", 8, 10), ("c", 4, 30), ("d", 8, 10), ("e", 4, 30)):
            queue.submit(job(key, size, minutes))
        now = 0
        run(queue, now)
        promised = {e.key: e.promised for e in queue.pending}
        down(queue, 2, up=True)
        for _ in range(20):
            run(queue, now)
            if (due := queue.next_due()) is None:
                break
            now = max(now, due)
            finish_at_limits(queue, now)
        for key, start in promised.items():
            record = queue.records[key]
            assert record.broken == []
            assert record.started is not None and record.started <= start

    def test_what_runs_there_is_counted_again_when_it_is_over(self, make):
        queue = make("easy", nodes=2, cores=4)
        for key in "ab":
            queue.submit(job(key, 4, 10))
        run(queue, 0)
        (gone,) = where(queue, "b")
        down(queue, int(gone.removeprefix("node")))
        run(queue, MINUTE)
        queue.finish("b", 2 * MINUTE, outcome=JobState.FAILED)
        queue.submit(job("c", 4, 10, at=2 * MINUTE))
        assert run(queue, 2 * MINUTE) == []
        queue.finish("a", 3 * MINUTE)
        assert run(queue, 3 * MINUTE) == ["c"]
        down(queue, int(gone.removeprefix("node")), up=True)
        queue.submit(job("d", 4, 10, at=4 * MINUTE))
        assert run(queue, 4 * MINUTE) == ["d"]


def test_one_node_for_another_is_a_loss_if_the_one_that_comes_is_taken():
    """The cluster is as large as before; what is free is less."""
    queue = pool("conservative", nodes=3, cores=4)
    queue.submit(job("a", 12, 10))
    run(queue, 0)
    down(queue, 1)
    run(queue, 0)
    queue.cancel("a", 0)
    for key in "ab":
        queue.submit(job(f"{key}2", 4, 30))
    run(queue, 0)
    (taken,) = where(queue, "b2")
    (other,) = {"node0", "node2"} - {taken}
    down(queue, int(taken.removeprefix("node")))  # b2 goes on there, out of reach
    run(queue, 0)
    down(queue, 1, up=True)
    run(queue, 0)
    queue.submit(job("wide", 8, 10))
    run(queue, 0)
    wide = queue.records["wide"]
    assert wide.promised == 30 * MINUTE
    queue.submit(job("next", 4, 10))
    assert run(queue, 0) == ["next"]
    late = queue.submit(job("late", 4, 10))
    run(queue, 0)
    assert late.promised == 10 * MINUTE
    # In one step the node of b2 comes back, still taken, and the one on which late was planned goes.
    down(queue, int(taken.removeprefix("node")), up=True)
    down(queue, 1)
    queue.note_loss(because("node1 went down"))
    run(queue, MINUTE)
    assert [b.cause for b in late.broken] == [because("node1 went down")]
    assert other


@PLANNERS
class TestTasksThatLoseTheirNode:
    def test_they_wait_again_in_their_old_place(self, make):
        queue = make("fcfs", nodes=2, cores=4)
        for key in "abc":
            queue.submit(job(key, 4, 10))
        queue.cycle(0)
        queue.requeue("a", MINUTE, because("node0 is gone"))
        record = queue.records["a"]
        assert record.state is JobState.PENDING
        assert record.story[-1].reason == because("node0 is gone")
        assert record.started is None
        assert run(queue, MINUTE) == ["a"]  # before c, which came later
        assert record.started == MINUTE

    def test_a_promise_that_cannot_be_kept_is_broken_for_that_reason(self, make):
        queue = make("conservative", nodes=1, cores=4)
        queue.submit(job("a", 4, 10))
        queue.submit(job("b", 4, 10))
        run(queue, 0)
        queue.finish("a", 10 * MINUTE)
        queue.cycle(10 * MINUTE)
        assert queue.promises.tally.kept == 1
        queue.requeue("b", 11 * MINUTE + 1, because("node0 is gone"))
        down(queue, 0)
        run(queue, 11 * MINUTE + 1)
        assert [b.cause for b in queue.records["b"].broken] == [because("node0 is gone")]
        assert queue.records["b"].no_later_than is None and queue.promises.tally.kept == 0
        down(queue, 0, up=True)
        assert run(queue, 12 * MINUTE) == ["b"]
        assert len(queue.records["b"].broken) == 1

    def test_a_promise_that_can_still_be_kept_stands(self, make):
        queue = make("conservative", nodes=1, cores=4)
        queue.submit(job("a", 4, 10))
        b, c = queue.submit(job("b", 4, 10)), queue.submit(job("c", 4, 10))
        run(queue, 0)
        queue.finish("a", 2 * MINUTE)
        queue.cycle(2 * MINUTE)
        queue.requeue("b", 3 * MINUTE, because("the server refused it"))
        assert (b.state, b.started, b.no_later_than) == (JobState.PENDING, None, 10 * MINUTE)
        assert run(queue, 3 * MINUTE) == ["b"]
        assert (b.no_later_than, b.broken, c.no_later_than, c.broken) == (10 * MINUTE, [], 20 * MINUTE, [])
        assert queue.promises.tally.kept == 1


def test_a_loss_is_no_mark_against_the_bounds_of_easy():
    """They are widened when a plan did not hold, not when a node breaks."""
    queue = pool("easy", nodes=1, cores=4)
    queue.submit(job("a", 4, 10))
    queue.submit(job("b", 4, 10))
    run(queue, 0)
    queue.finish("a", 10 * MINUTE)
    queue.cycle(10 * MINUTE)
    place = queue.promises.calibration.place
    queue.requeue("b", 11 * MINUTE, because("node0 is gone"))
    down(queue, 0)
    run(queue, 11 * MINUTE)
    down(queue, 0, up=True)
    assert run(queue, 100 * MINUTE) == ["b"]
    assert queue.promises.calibration.place <= place


def test_a_loss_is_blamed_only_for_promises_made_before_it():
    queue = pool("first-fit", nodes=2, cores=4)
    down(queue, 1)
    queue.note_loss(because("node1 went down"))
    queue.submit(job("a", 3, 10, at=MINUTE))
    run(queue, MINUTE)
    wide = queue.submit(job("wide", 4, 10, at=2 * MINUTE))
    run(queue, 2 * MINUTE)
    now = 2 * MINUTE
    for number in range(8):  # small ones go ahead, again and again
        queue.submit(job(f"s{number}", 1, 20, at=now))
        run(queue, now)
        now += 10 * MINUTE
        finish_at_limits(queue, now)
        run(queue, now)
    for task in list(queue.planner.allocations.running):
        queue.finish(task, now)
    assert run(queue, now) == ["wide"]
    assert [b.cause.code for b in wide.broken] == [Code.OVERTAKEN]


@PLANNERS
class TestOverruns:
    def test_a_job_past_its_limit_is_counted_on_a_little_longer(self, make):
        queue = make("conservative")
        queue.submit(job("long", 16, 10))
        queue.submit(job("next", 16, 10))
        run(queue, 0)
        assert queue.next_due() == 10 * MINUTE
        assert run(queue, 10 * MINUTE) == []
        assert queue.planner.allocations.running["long"].end == 10 * MINUTE + 30 * SECOND
        assert run(queue, 10 * MINUTE + 30 * SECOND) == []
        assert queue.planner.allocations.running["long"].end == 11 * MINUTE + 30 * SECOND
        assert queue.next_due() == 11 * MINUTE + 30 * SECOND

    def test_after_some_minutes_nobody_knows_when_it_ends(self, make):
        queue = make("easy")
        queue.submit(job("long", 16, 600))
        run(queue, 0)
        run(queue, 601 * MINUTE)
        held = queue.planner.allocations.running["long"]
        assert held.end == 601 * MINUTE + 30 * SECOND
        run(queue, 604 * MINUTE)
        assert held.end == FOREVER
        assert queue.records["long"].overdue

    def test_at_once_where_nothing_enforces_its_limit_and_its_account_is_trusted_less(self, make):
        queue = make("easy")
        queue.submit(job("long", 1, 5, enforced=False, account="ns"))
        run(queue, 0)
        run(queue, 5 * MINUTE)
        run(queue, 5 * MINUTE + 30 * SECOND)
        assert queue.planner.allocations.running["long"].end == FOREVER
        again = queue.submit(job("again", 1, 5, at=6 * MINUTE, enforced=False, account="ns"))
        assert (again.limit, again.bounded) == (FOREVER, False)
        assert queue.submit(job("enforced", 1, 5, at=6 * MINUTE, account="ns")).bounded
        assert queue.submit(job("other", 1, 5, at=6 * MINUTE, enforced=False, account="b")).bounded
        run(queue, 6 * MINUTE)
        queue.finish("again", 7 * MINUTE)  # in time: trust comes back
        assert queue.submit(job("third", 1, 5, at=7 * MINUTE, enforced=False, account="ns")).bounded

    def test_one_that_takes_seconds_to_end_breaks_no_promise(self, make):
        """A kubelet that kills a pod at its deadline first asks it to go."""
        queue = make("conservative")
        for key in ("long", "next", "third"):
            queue.submit(job(key, 16, 10))
        run(queue, 0)
        assert run(queue, 10 * MINUTE) == []
        queue.finish("long", 10 * MINUTE + 20 * SECOND)
        assert run(queue, 10 * MINUTE + 20 * SECOND) == ["next"]
        assert [record.broken for record in queue.records.values()] == [[], [], []]

    def test_the_promises_that_it_breaks_name_it(self, make):
        queue = make("conservative")
        queue.submit(job("long", 16, 10))
        queue.submit(job("next", 16, 10))
        queue.submit(job("third", 16, 10))
        run(queue, 0)
        run(queue, 10 * MINUTE)
        run(queue, 10 * MINUTE + 30 * SECOND)
        for key, promised in (("next", 10), ("third", 20)):
            record = queue.records[key]
            assert [(b.promised, b.cause) for b in record.broken] == [
                (promised * MINUTE, Reason.of(Code.RUNS_PAST_LIMIT, job="long"))
            ]
            assert record.no_later_than == (promised + 1) * MINUTE + 30 * SECOND
        queue.finish("long", 10 * MINUTE + 35 * SECOND)
        assert run(queue, 10 * MINUTE + 35 * SECOND) == ["next"]

    def test_nothing_starts_on_what_it_still_holds(self, make):
        queue = make("easy")
        queue.submit(job("long", 10, 10))
        queue.submit(job("next", 10, 10))
        queue.submit(job("small", 6, 10))
        assert run(queue, 0) == ["long", "small"]
        queue.finish("small", 10 * MINUTE)
        assert run(queue, 10 * MINUTE) == []
        for minute in (11, 12, 13):
            assert run(queue, minute * MINUTE) == []
        queue.finish("long", 14 * MINUTE)
        assert run(queue, 14 * MINUTE) == ["next"]


@PLANNERS
class TestCyclesThatComeLate:
    """A live scheduler's timer is never exact."""

    def test_the_job_that_was_due_starts_before_the_one_after_it(self, make):
        queue = make("conservative")
        for key in "abc":
            queue.submit(job(key, 16, 10))
        assert run(queue, 0) == ["a"]
        queue.finish("a", 10 * MINUTE)
        assert run(queue, 10 * MINUTE + 5) == ["b"]
        queue.finish("b", 20 * MINUTE + 5)
        assert run(queue, 20 * MINUTE + 9) == ["c"]

    def test_one_long_after_a_limit_counts_on_the_job_from_then(self, make):
        queue = make("easy", cores=6)
        queue.submit(job("a", 1, 1))
        queue.submit(job("wide", 6, 1))
        run(queue, 0)
        assert run(queue, 2 * MINUTE) == []
        assert queue.planner.allocations.running["a"].end == 2 * MINUTE + 30 * SECOND

    def test_it_takes_a_place_from_nobody(self, make):
        queue = make("conservative")
        queue.submit(job("a", 16, 10))
        for number in range(6):
            queue.submit(job(f"b{number}", 16, 10))
        now = 0
        assert run(queue, now) == ["a"]
        running = "a"
        for number in range(6):
            now = queue.planner.allocations.running[running].end
            queue.finish(running, now)
            now += 3
            assert run(queue, now) == [f"b{number}"]
            running = f"b{number}"
        for record in queue.records.values():
            assert record.promised is None or record.started - record.promised <= 6 * 3
