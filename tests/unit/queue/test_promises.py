"""What waiting jobs are told, and that it holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fluence.match.request import Operation
from fluence.model.reason import Code
from fluence.queue import Queue
from fluence.queue.history import History
from fluence.queue.job import SECOND, Submission
from fluence.queue.promises import Calibration
from tests.unit.queue.build import MINUTE, cores, finish_at_limits, graph, job, pool, run

PLANNERS = pytest.mark.parametrize("make", [pool, graph], ids=["counted", "matched"])


def told(queue: Queue) -> dict[str, int | None]:
    return {e.key: e.no_later_than and e.no_later_than // MINUTE for e in queue.pending}


@PLANNERS
class TestConservative:
    def test_each_is_promised_its_place_in_the_plan(self, make):
        queue = make("conservative")
        for key in "abcd":
            queue.submit(job(key, 16, 10))
        run(queue, 0)
        assert told(queue) == {"b": 10, "c": 20, "d": 30}

    def test_later_arrivals_never_push_a_promise_back(self, make):
        queue = make("conservative")
        for key in "ab":
            queue.submit(job(key, 16, 10))
        run(queue, 0)
        for number in range(5):
            queue.submit(job(f"later{number}", 9, 10, at=MINUTE, priority=20 + number))
        run(queue, MINUTE)
        assert queue.records["b"].reserved_at == 10 * MINUTE
        queue.finish("a", 5 * MINUTE)
        assert run(queue, 5 * MINUTE) == ["b"]  # later4 would have ended after b was to start

    @pytest.mark.parametrize("policy", ["hybrid(2)", "conservative"])
    def test_the_next_task_of_an_array_does_not_take_a_place_that_was_promised(self, make, policy):
        queue = make(policy, cores=8)
        queue.submit(job("array", 5, 3, tasks=3))
        queue.submit(job("b", 5, 4))
        assert run(queue, 0) == ["array[0]"]
        assert told(queue) == {"array": 3, "b": 6}
        queue.submit(job("urgent", 6, 1, priority=20))  # all places are looked at again
        queue.finish("array[0]", 3 * MINUTE)
        assert run(queue, 3 * MINUTE) == ["array[1]"]
        assert queue.records["b"].reserved_at == 6 * MINUTE

    def test_a_plan_made_anew_that_would_break_a_promise_is_not_taken(self, make):
        """An early end makes room for a wide job that stands before others; made anew, the plan would start
        it first and the small ones after their promise."""
        queue = make("conservative")
        queue.submit(job("a", 8, 20))
        queue.submit(job("b", 8, 40))
        queue.submit(job("wide", 16, 60))
        queue.submit(job("c", 8, 20))
        run(queue, 0)
        assert told(queue) == {"wide": 40, "c": 20}
        queue.finish("b", MINUTE)
        assert run(queue, MINUTE) == ["c"]
        now = MINUTE
        for _ in range(10):
            due = queue.next_due()
            if due is None:
                break
            now = due
            finish_at_limits(queue, now)
            run(queue, now)
        for record in queue.records.values():
            assert record.broken == []
            assert record.promised is None or record.started <= record.promised

    def test_with_replan_it_may_be(self, make):
        queue = make("conservative", replan=True)
        for key, size, minutes in (("a", 8, 20), ("b", 8, 40), ("wide", 16, 60), ("c", 8, 20)):
            queue.submit(job(key, size, minutes))
        run(queue, 0)
        queue.finish("b", MINUTE)
        assert run(queue, MINUTE) == []
        assert queue.records["wide"].reserved_at == 20 * MINUTE
        assert queue.records["c"].reserved_at == 80 * MINUTE


@PLANNERS
class TestOrder:
    def test_fcfs_promises_a_plan_in_order(self, make):
        queue = make("fcfs")
        for key, size in (("a", 16), ("b", 10), ("c", 10), ("d", 2)):
            queue.submit(job(key, size, 10))
        run(queue, 0)
        assert told(queue) == {"b": 10, "c": 20, "d": 20}

    def test_it_is_kept(self, make):
        queue = make("fcfs")
        for key, size in (("a", 16), ("b", 10), ("c", 10), ("d", 2)):
            queue.submit(job(key, size, 10))
        now = 0
        run(queue, now)
        while queue.planner.allocations.running:
            now = min(held.end for held in queue.planner.allocations.running.values())
            finish_at_limits(queue, now)
            run(queue, now)
        for record in queue.records.values():
            assert record.broken == []
            assert record.promised is None or record.started <= record.promised


@PLANNERS
class TestEasy:
    def test_a_place_that_is_later_than_the_promise_is_told(self, make):
        """Who waits is told what the plan says, and the promise is still judged when its time has come."""
        queue = make("easy")
        queue.submit(job("a", 8, 10))
        queue.submit(job("head", 12, 10))
        queue.submit(job("wide", 16, 10))
        run(queue, 0)
        wide = queue.records["wide"]
        assert wide.no_later_than == wide.latest == 20 * MINUTE
        queue.submit(job("small", 4, 60, at=MINUTE))
        assert run(queue, MINUTE) == ["small"]  # beside the head; it delays whoever comes after that
        finish_at_limits(queue, 10 * MINUTE)
        queue.promises.take_changed()
        assert run(queue, 10 * MINUTE) == ["head"]
        assert wide.reserved_at == wide.latest == 61 * MINUTE
        assert queue.promises.take_changed() == [wide]
        assert (wide.promised, wide.broken) == (20 * MINUTE, [])
        queue.finish("head", 15 * MINUTE)
        queue.finish("small", 15 * MINUTE)
        assert run(queue, 15 * MINUTE) == ["wide"]
        assert (queue.promises.tally.kept, queue.promises.tally.broken.total()) == (2, 0)

    def test_and_if_its_time_passes_it_is_broken(self, make):
        queue = make("easy")
        for key, cores_, minutes in (("a", 8, 10), ("head", 12, 10), ("wide", 16, 10), ("small", 4, 60)):
            queue.submit(job(key, cores_, minutes))
            run(queue, 0)
        finish_at_limits(queue, 10 * MINUTE)
        run(queue, 10 * MINUTE)
        finish_at_limits(queue, 20 * MINUTE)
        run(queue, 20 * MINUTE)
        assert (due := queue.next_due()) is not None and due <= 21 * MINUTE + 1
        run(queue, 21 * MINUTE + 1)
        wide = queue.records["wide"]
        [broken] = wide.broken
        assert (broken.promised, broken.cause.code) == (20 * MINUTE, Code.OVERTAKEN)
        assert wide.reserved_at == 60 * MINUTE and wide.latest == wide.no_later_than >= 60 * MINUTE

    def test_the_head_is_promised_its_place_in_the_plan(self, make):
        queue = make("easy")
        queue.submit(job("a", 16, 10))
        queue.submit(job("head", 16, 10))
        run(queue, 0)
        head = queue.records["head"]
        assert head.no_later_than == head.reserved_at == 10 * MINUTE

    def test_nobody_delays_the_head(self, make):
        queue = make("easy")
        queue.submit(job("a", 8, 10))
        queue.submit(job("head", 16, 10))
        run(queue, 0)
        for number in range(20):
            queue.submit(job(f"s{number}", 1 + number % 8, 1 + number, at=MINUTE))
        now = MINUTE
        run(queue, now)
        while queue.records["head"].started is None:
            now = min(held.end for held in queue.planner.allocations.running.values())
            finish_at_limits(queue, now)
            run(queue, now)
        assert now == 10 * MINUTE

    def test_the_bound_of_others_is_widened_when_one_did_not_hold(self, make):
        before = make("easy")
        after = make("easy")
        after.promises.calibration.observe(missed=True)
        bounds = []
        for queue in (before, after):
            for key, size in (("a", 16), ("head", 16), ("small", 2), ("last", 4)):
                queue.submit(job(key, size, 10))
            run(queue, 0)
            bounds.append(queue.records["last"].no_later_than)
        assert bounds[1] > bounds[0]

    def test_each_start_is_remembered_once(self, make):
        queue = make("easy")
        place = queue.promises.calibration.place
        queue.submit(job("a", 16, 10))
        run(queue, 0)
        assert queue.promises.calibration.place == place  # it did not wait
        queue.submit(job("b", 16, 10))
        run(queue, 0)
        queue.finish("a", 10 * MINUTE)
        run(queue, 10 * MINUTE)
        kept = Calibration()
        kept.observe(missed=False)
        assert queue.promises.calibration.place == kept.place


class TestExpected:
    def history(self, *minutes: int, user: str = "ada") -> History:
        history = History()
        for each in minutes:
            history.learn(Submission("x", cores(8), 0, limit=60 * MINUTE, user=user), 0, each * MINUTE)
        return history

    def test_it_comes_from_how_long_such_jobs_ran(self):
        queue = pool("easy", predictor=self.history(10, 10, 10))
        queue.submit(job("a", 16, 60, user="ada"))
        record = queue.submit(job("b", 16, 60, user="ada"))
        run(queue, 0)
        assert record.no_later_than == 60 * MINUTE
        # 10 minutes by history, and 15 % of the rest of the limit, for history misses the long runs
        assert record.expected == (10 + 0.15 * 50) * MINUTE

    def test_without_history_it_is_the_soft_limit(self):
        queue = pool("easy")
        queue.submit(job("a", 16, 60, soft_limit=20 * MINUTE))
        record = queue.submit(job("b", 16, 60))
        run(queue, 0)
        assert record.expected == (20 + 0.15 * 40) * MINUTE

    def test_without_either_it_is_the_limit(self):
        queue = pool("easy")
        queue.submit(job("a", 16, 60))
        record = queue.submit(job("b", 16, 60))
        run(queue, 0)
        assert record.expected == 60 * MINUTE

    def test_of_others_only_the_share_of_their_limits_counts(self):
        queue = pool("easy", predictor=self.history(10, user="bob"))
        queue.submit(job("a", 16, 30, user="ada"))
        record = queue.submit(job("b", 16, 30, user="ada"))
        run(queue, 0)
        assert record.expected == (30 / 6 + 0.15 * (30 - 30 / 6)) * MINUTE

    def test_runs_that_would_be_over_by_now_are_left_out(self):
        history = self.history(10, 10, 10, 40)
        ada = Submission("x", cores(8), 0, limit=60 * MINUTE, user="ada")
        assert history.predict(ada, 0, 0) == 10 * MINUTE
        assert history.predict(ada, 0, 15 * MINUTE) == 40 * MINUTE
        assert history.predict(ada, 0, 50 * MINUTE) == 55 * MINUTE  # half of what is left

    def test_a_prediction_never_exceeds_the_limit(self):
        history = self.history(70)  # of 60: it ran past its limit
        assert history.predict(Submission("x", cores(8), 0, limit=5 * MINUTE, user="ada"), 0, 0) == 5 * MINUTE

    def test_it_can_be_left_out(self):
        queue = pool("easy", forecasts=False)
        queue.submit(job("a", 16, 60))
        record = queue.submit(job("b", 16, 60))
        run(queue, 0)
        assert record.expected is None
        assert record.no_later_than is not None


def test_a_job_that_need_not_wait_is_promised_nothing():
    queue = pool("conservative")
    record = queue.submit(job("a", 1, 10))
    run(queue, 0)
    assert (record.promised, record.no_later_than, record.expected) == (None, None, None)


def test_a_start_that_the_matcher_refuses_keeps_no_promise():
    """Somebody else holds what was counted on: the job waits on, by the time that it was promised."""
    queue = pool("conservative")
    matcher = queue.planner.matcher  # type: ignore[attr-defined]
    queue.submit(job("a", 16, 10))
    queue.submit(job("b", 16, 10))
    assert run(queue, 0) == ["a"]
    queue.finish("a", 10 * MINUTE)
    theirs = replace(matcher.compile(cores(1)), duration=30 * MINUTE)
    assert matcher.match(Operation.ALLOCATE, theirs, job=999, now=10 * MINUTE)
    assert run(queue, 10 * MINUTE) == []
    b = queue.records["b"]
    assert (b.waiting, b.no_later_than, b.deadline) == (1, 10 * MINUTE, 10 * MINUTE)


def test_history_remembers_a_bounded_number_of_kinds():
    history = History()
    for number in range(30_000):
        history.learn(Submission(f"j{number}", number, 0, user=f"u{number}"), number, 60 * SECOND)
    assert len(history._runs) <= 20_000
    assert history.predict(Submission("x", 29_999, 0, user="u29999"), 29_999, 0) == 60 * SECOND


def test_a_place_that_was_lost_untold_is_no_promise_once_it_has_passed():
    """Found by the scheduler's machine: the plan had a place, it was given up, and its time went by."""
    queue = pool("easy")
    queue.submit(job("runs", 16, 60))
    run(queue, 0)
    for key in ("first", "second"):
        queue.submit(job(key, 16, 10))
    record = queue.records["second"]  # only the first has a place in the plan
    record.deadline = 5 * MINUTE
    run(queue, 20 * MINUTE)
    assert record.no_later_than is not None and record.no_later_than >= 70 * MINUTE
