"""How long a cycle plans, where the next one goes on, and what a plan that is amended looks like."""

from __future__ import annotations

import pytest

from fluence.queue import Queue, scheduling_pass
from fluence.queue.scheduling_pass import CycleBudget, Sweep, SweepProgress
from tests.unit.queue.build import MINUTE, graph, job, pool, run

PLANNERS = pytest.mark.parametrize("make", [pool, graph], ids=["counted", "matched"])


class Clock:
    """A look at it takes a while."""

    def __init__(self, step: float) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


class TestSweepProgress:
    def test_it_begins_at_the_front_and_goes_on_where_it_stopped(self):
        progress = SweepProgress()
        assert progress.at(Sweep.TRY) is None and not progress
        progress.want(Sweep.TRY)
        assert progress.at(Sweep.TRY) < (0, 0, 0)
        progress.stop(Sweep.TRY, (0, 5, 1))
        assert progress.at(Sweep.TRY) == (0, 5, 1) and progress
        progress.end(Sweep.TRY)
        assert progress.at(Sweep.TRY) is None

    def test_one_that_is_wanted_again_is_finished_first(self):
        progress = SweepProgress()
        progress.want(Sweep.MOVE)
        progress.stop(Sweep.MOVE, (0, 5, 1))
        progress.want(Sweep.MOVE)
        assert progress.at(Sweep.MOVE) == (0, 5, 1)
        progress.end(Sweep.MOVE)
        assert progress.at(Sweep.MOVE) < (0, 0, 0)
        progress.end(Sweep.MOVE)
        assert not progress

    def test_what_was_done_by_other_means_is_not_wanted(self):
        progress = SweepProgress()
        progress.want(Sweep.START, Sweep.MOVE)
        progress.stop(Sweep.MOVE, (0, 5, 1))
        progress.want(Sweep.MOVE)
        assert progress.is_amending
        progress.done(Sweep.START, Sweep.MOVE)
        assert not progress and not progress.is_amending


class TestCycleBudget:
    def test_without_seconds_or_a_timer_there_is_no_end(self):
        for budget in (CycleBudget(None, Clock(9)), CycleBudget(1.0, None)):
            budget.begin()
            budget.learn(1)
            assert not budget.is_limited and not budget.is_spent and not budget.is_far_exceeded
            assert budget.allows(10**9)

    def test_it_is_spent_and_then_far_exceeded(self):
        budget = CycleBudget(1.0, Clock(0.5))
        budget.begin()
        assert [budget.is_spent for _ in range(2)] == [False, True]
        budget.begin()
        assert [budget.is_far_exceeded for _ in range(4)] == [False, False, False, True]

    def test_it_learns_what_a_try_costs(self):
        budget = CycleBudget(1.0, Clock(0.5))
        assert budget.allows(10**9)
        budget.begin()
        budget.learn(5)  # 0.1 s each
        assert budget.allows(10) and not budget.allows(11)


def slow(make, policy: str, **more) -> Queue:
    """Each cycle has time for one try."""
    return make(policy, cycle_budget=0.001, timer=Clock(1.0), **more)


def settle(queue: Queue, now: int) -> list[str]:
    """Cycles until nothing is left; what started, in order."""
    started = run(queue, now)
    for _ in range(100):
        if not queue.has_more:
            return started
        started += run(queue, now)
    raise AssertionError("cycles without end")


@PLANNERS
class TestAmending:
    def test_all_start_in_order_over_several_cycles(self, make):
        for policy in ("fcfs", "first-fit", "easy", "hybrid(2)", "conservative"):
            queue = slow(make, policy)
            for key in "abcd":
                queue.submit(job(key, 4, 10))
            assert len(run(queue, 0)) < 4 and queue.has_more and queue.next_due() <= 0
            assert sorted([*queue.planner.allocations.running, *settle(queue, 0)]) >= ["a", "b", "c", "d"]

    def test_promises_are_kept_when_something_comes_free(self, make):
        queue = slow(make, "conservative")
        for key, size, minutes in (("a", 16, 10), ("b", 16, 10), ("c", 8, 5), ("d", 8, 20)):
            queue.submit(job(key, size, minutes))
        assert settle(queue, 0) == ["a"]
        told = {record.key: record.no_later_than for record in queue.pending}
        queue.finish("a", 4 * MINUTE)
        assert settle(queue, 4 * MINUTE) == ["b"]
        for now in range(5, 60):
            for task in [
                t for t, held in queue.planner.allocations.running.items() if held.end <= now * MINUTE
            ]:
                queue.finish(task, now * MINUTE)
            settle(queue, now * MINUTE)
        for key, promised in told.items():
            assert promised is None or queue.records[key].started <= promised

    def test_one_that_is_due_a_little_late_starts_in_its_place(self, make):
        queue = slow(make, "conservative")
        for key in "abc":
            queue.submit(job(key, 16, 10))
        assert settle(queue, 0) == ["a"]
        queue.finish("a", 10 * MINUTE)
        assert settle(queue, 10 * MINUTE + 7) == ["b"]
        assert queue.records["c"].reserved_at == 20 * MINUTE  # it was planned behind the end that b had

    def test_a_newcomer_that_fits_starts_before_those_whose_turn_has_not_come(self, make):
        queue = slow(make, "easy")
        for number in range(9):
            queue.submit(job(f"wide{number}", 12, 60))
        assert run(queue, 0) == ["wide0"]
        queue.submit(job("small", 4, 1, at=MINUTE))
        assert "small" in run(queue, MINUTE) + run(queue, MINUTE)

    def test_an_account_has_so_many_places(self, make, monkeypatch):
        monkeypatch.setattr(scheduling_pass, "PLACES", 20)
        queue = make("conservative", cycle_budget=100.0, timer=Clock(0.0))
        queue.submit(job("long", 16, 10))
        for number in range(25):
            queue.submit(job(f"bad{number}", 16, 10, account="bad"))
        queue.submit(job("good", 16, 10, account="good"))
        settle(queue, 0)
        places = [record.job.account for record in queue.plan.reserved]
        assert places.count("bad") == 20 and places.count("good") == 1
