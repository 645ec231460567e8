"""What a named queue lays down: limits, defaults, and how much a user may run."""

from __future__ import annotations

from fluence.model.reason import Code, Reason
from fluence.queue import Phase, QueueRules
from fluence.queue.job import FOREVER, SECOND
from fluence.queue.reasons import BlockedBy, why
from tests.unit.queue.build import MINUTE, job, pool, run

HOUR = 60 * MINUTE


class TestLimits:
    def test_a_job_over_the_longest_limit_never_starts_and_is_told_so(self):
        queue = pool("easy", rules={"short": QueueRules(max_limit=HOUR)})
        record = queue.submit(job("a", 1, 61, queue="short"))
        assert record.phase is Phase.NEVER
        assert record.story[-1].reason == Reason.of(
            Code.LIMIT_ABOVE_QUEUE, limit_s=3660, max_s=3600, queue="short"
        )
        assert run(queue, 0) == []

    def test_a_job_at_the_longest_limit_starts_though_limits_are_rounded_up(self):
        queue = pool("easy", rules={"short": QueueRules(max_limit=HOUR)}, resolution=50 * MINUTE)
        queue.submit(job("a", 1, 60, queue="short"))
        assert run(queue, 0) == ["a"]

    def test_the_rules_of_one_queue_are_not_those_of_another(self):
        queue = pool("easy", rules={"short": QueueRules(max_limit=HOUR)})
        queue.submit(job("a", 1, 61))
        assert run(queue, 0) == ["a"]


class TestJobsWithoutAWalltime:
    def test_the_default_of_the_queue_holds_for_them(self):
        queue = pool("easy", rules={"q": QueueRules(default_limit=HOUR, max_limit=2 * HOUR)})
        record = queue.submit(job("a", 1, None, queue="q"))
        assert (record.limit, record.bounded) == (HOUR, True)

    def test_without_a_default_the_longest_limit_holds(self):
        queue = pool("easy", rules={"q": QueueRules(max_limit=HOUR)})
        record = queue.submit(job("a", 1, None, queue="q"))
        assert (record.limit, record.bounded) == (HOUR, True)
        assert run(queue, 0) == ["a"]

    def test_else_history_says_how_long_but_binds_nobody(self):
        queue = pool("easy")
        queue.submit(job("first", 1, None, user="ada"))
        run(queue, 0)
        queue.finish("first", 7 * MINUTE)
        record = queue.submit(job("second", 1, None, user="ada"))
        assert (record.limit, record.bounded) == (7 * MINUTE, False)

    def test_else_it_is_counted_on_for_ever(self):
        queue = pool("easy")
        record = queue.submit(job("a", 1, None))
        assert (record.limit, record.bounded) == (FOREVER, False)

    def test_it_is_never_backfilled_ahead_of_a_promise(self):
        """By history it would end before the head starts; nothing ends it there."""
        for policy in ("easy", "hybrid(2)", "conservative"):
            queue = pool(policy)
            queue.submit(job("past", 1, None, user="ada"))
            run(queue, 0)
            queue.finish("past", MINUTE)
            queue.submit(job("running", 8, 60, at=MINUTE))
            queue.submit(job("head", 16, 60, at=MINUTE))
            queue.submit(job("guess", 4, None, at=MINUTE, user="ada"))
            queue.submit(job("told", 4, 1, at=MINUTE, user="ada"))
            assert run(queue, MINUTE) == ["running", "told"]
            assert queue.records["guess"].limit == MINUTE

    def test_it_may_go_ahead_where_it_can_break_nothing(self):
        queue = pool("easy")
        queue.submit(job("running", 8, 60))
        queue.submit(job("head", 12, 60))
        queue.submit(job("guess", 4, None))  # four cores are left over beside the head, for ever
        assert run(queue, 0) == ["running", "guess"]

    def test_several_with_places_in_the_plan_do_not_step_behind_each_other_for_ever(self):
        for policy in ("hybrid(4)", "conservative"):
            for late in (0, 9):
                queue = pool(policy)
                queue.submit(job("past", 1, None, user="ada"))
                run(queue, 0)
                queue.finish("past", 10 * MINUTE)
                for key in "abcd":
                    queue.submit(job(key, 16, None, at=10 * MINUTE, user="ada"))
                assert run(queue, 10 * MINUTE) == ["a"]
                for number, (over, starts) in enumerate(("ab", "bc", "cd"), start=2):
                    queue.finish(over, number * 10 * MINUTE)
                    assert run(queue, number * 10 * MINUTE + late * SECOND) == [starts]

    def test_alone_it_starts(self):
        queue = pool("easy")
        queue.submit(job("guess", 16, None))
        assert run(queue, 0) == ["guess"]


class TestRunningPerUser:
    def queue(self, policy="easy", most=1):
        return pool(policy, rules={"q": QueueRules(max_running_per_user=most)})

    def test_it_holds_within_one_cycle(self):
        queue = self.queue()
        for key in "abc":
            queue.submit(job(key, 1, 10, queue="q", user="ada"))
        assert run(queue, 0) == ["a"]

    def test_it_holds_for_the_tasks_of_an_array(self):
        queue = self.queue(most=2)
        queue.submit(job("a", 1, 10, queue="q", user="ada", tasks=5))
        assert run(queue, 0) == ["a[0]", "a[1]"]
        queue.finish("a[0]", MINUTE)
        assert run(queue, MINUTE) == ["a[2]"]

    def test_others_go_past_who_has_enough(self):
        queue = self.queue()
        for key, user in (("a", "ada"), ("b", "ada"), ("c", "bob")):
            queue.submit(job(key, 1, 10, queue="q", user=user))
        queue.submit(job("d", 1, 10, user="ada"))  # of another queue
        assert run(queue, 0) == ["a", "c", "d"]

    def test_the_next_one_starts_when_one_ends(self):
        queue = self.queue()
        for key in "ab":
            queue.submit(job(key, 1, 10, queue="q", user="ada"))
        run(queue, 0)
        queue.finish("a", 3 * MINUTE)
        assert run(queue, 3 * MINUTE) == ["b"]

    def test_who_has_enough_holds_no_place_in_the_plan(self):
        queue = self.queue("conservative")
        queue.submit(job("running", 16, 10))
        queue.submit(job("a", 16, 10, queue="q", user="ada"))
        queue.submit(job("b", 1, 10, queue="q", user="ada"))
        queue.submit(job("c", 16, 10))
        run(queue, 0)
        records = queue.records
        assert records["a"].reserved_at == 10 * MINUTE
        assert records["b"].reserved_at is None  # it could not start beside a, whose start is promised
        assert records["c"].reserved_at == 20 * MINUTE

    def test_a_promise_is_not_broken_by_the_limit(self):
        queue = self.queue("conservative")
        queue.submit(job("running", 16, 10))
        for key in "abc":
            queue.submit(job(key, 4, 10, queue="q", user="ada"))
        now = 0
        for _ in range(8):
            run(queue, now)
            now += 10 * MINUTE
            for task in list(queue.planner.allocations.running):
                queue.finish(task, now)
        for record in queue.records.values():
            assert record.phase is Phase.DONE
            assert record.broken == []

    def test_the_reason_names_the_limit(self):
        queue = self.queue()
        for key in "ab":
            queue.submit(job(key, 1, 10, queue="q", user="ada"))
        run(queue, 0)
        reason = why(queue, "b")
        assert reason.kind is BlockedBy.LIMIT
        assert reason.reasons == (Reason.of(Code.USER_LIMIT, user="ada", most=1, queue="q"),)


def test_a_limit_is_in_milliseconds():
    assert job("a", 1, 1).limit == 60 * SECOND
