"""What a named queue lays down: limits, defaults, and how much a user may run."""

from __future__ import annotations

import pytest

from fluence.model.reason import Code, Reason
from fluence.queue import JobRecord, JobState, QueueRules
from fluence.queue.job import FOREVER, SECOND, Charge
from fluence.queue.policy import PluginGuard
from fluence.queue.reasons import BlockedBy, why
from fluence.queue.rules import RuleBook, by_urgency
from tests.unit.queue.build import MINUTE, job, pool, run

HOUR = 60 * MINUTE


class TestLimits:
    def test_a_job_over_the_longest_limit_never_starts_and_is_told_so(self):
        queue = pool("easy", rules={"short": QueueRules(max_limit=HOUR)})
        record = queue.submit(job("a", 1, 61, queue="short"))
        assert record.state is JobState.UNSCHEDULABLE
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


class TestNames:
    def test_a_queue_that_does_not_exist_is_refused_with_the_nearest_name(self):
        queue = pool("easy", names={"debug", "batch"})
        record = queue.submit(job("a", 1, 5, queue="debgu"))
        assert record.state is JobState.UNSCHEDULABLE
        assert record.story[-1].reason == Reason.of(
            Code.UNKNOWN_QUEUE, queue="debgu", nearest="debug", known=("batch", "debug")
        )
        assert run(queue, 0) == []

    def test_those_that_exist_and_no_queue_at_all_are_taken(self):
        queue = pool("easy", names={"debug"})
        queue.submit(job("a", 1, 5, queue="debug"))
        queue.submit(job("b", 1, 5))
        assert run(queue, 0) == ["a", "b"]

    def test_without_names_any_name_is_a_queue(self):
        queue = pool("easy")
        queue.submit(job("a", 1, 5, queue="whatever"))
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

    def test_else_it_is_counted_on_for_ever_however_long_such_jobs_ran(self):
        queue = pool("easy")
        queue.submit(job("first", 1, None, user="ada"))
        run(queue, 0)
        queue.finish("first", 7 * MINUTE)
        record = queue.submit(job("second", 1, None, user="ada"))
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
            assert queue.records["guess"].limit == FOREVER

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
                for number, (over, starts) in enumerate(("ab", "bc", "cd"), start=2):  # type: ignore[str-unpack]
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
            assert record.state is JobState.COMPLETED
            assert record.broken == []

    def test_the_reason_names_the_limit(self):
        queue = self.queue()
        for key in "ab":
            queue.submit(job(key, 1, 10, queue="q", user="ada"))
        run(queue, 0)
        reason = why(queue, "b")
        assert reason.kind is BlockedBy.LIMIT
        assert reason.reasons == (Reason.of(Code.USER_LIMIT, user="ada", account="", most=1, queue="q"),)


class TestRuleBook:
    def book(self, priority=by_urgency, **rules: QueueRules) -> RuleBook:
        return RuleBook(rules, priority, PluginGuard(1.0, None))

    def test_a_queue_that_nobody_named_has_no_rules(self):
        assert self.book().of("q") == QueueRules()
        assert RuleBook(None, by_urgency, PluginGuard(1.0, None)).of("q") == QueueRules()

    def test_it_refuses_what_is_over_the_longest_limit(self):
        book = self.book(short=QueueRules(max_limit=HOUR))
        assert book.refusal(job("a", 1, 60, queue="short")) is None
        assert book.refusal(job("a", 1, None, queue="short")) is None
        assert book.refusal(job("a", 1, 61)) is None
        reason = book.refusal(job("a", 1, 61, queue="short"))
        assert reason == Reason.of(Code.LIMIT_ABOVE_QUEUE, limit_s=3660, max_s=3600, queue="short")

    @pytest.mark.parametrize(
        ("minutes", "rules", "limit", "bounded"),
        [
            (5, QueueRules(default_limit=HOUR), 5 * MINUTE, True),
            (None, QueueRules(default_limit=HOUR, max_limit=2 * HOUR), HOUR, True),
            (None, QueueRules(max_limit=2 * HOUR), 2 * HOUR, True),
            (None, QueueRules(), FOREVER, False),
        ],
        ids=["its own", "the default", "the longest", "none"],
    )
    def test_the_limit_that_is_planned_with(self, minutes, rules, limit, bounded):
        found = self.book(q=rules).limit(job("a", 1, minutes, queue="q"), 1)
        assert found == (limit, bounded)

    def test_limits_are_rounded_up_but_never_beyond_for_ever(self):
        book = self.book()
        assert book.limit(job("a", 1, 11), 10 * MINUTE) == (20 * MINUTE, True)
        assert book.limit(job("a", 1, 20), 10 * MINUTE) == (20 * MINUTE, True)
        assert book.limit(job("a", 1, None), FOREVER - 1) == (FOREVER, False)

    def test_a_rank_is_the_priority_and_what_its_queue_adds(self):
        book = self.book(urgent=QueueRules(priority=5))
        assert book.rank(job("a", 1, 1, priority=20), 0) == 20
        assert book.rank(job("a", 1, 1, priority=20, queue="urgent"), 0) == 25

    def test_a_site_may_rank_by_other_things(self):
        book = self.book(lambda job, now: now + len(job.user), urgent=QueueRules(priority=5))
        assert book.rank(job("a", 1, 1, user="ada", queue="urgent"), 100) == 108

    def test_users_are_counted_by_queue_and_none_are_kept_that_run_nothing(self):
        book = self.book(q=QueueRules(max_running_per_user=2))
        ada, bob = (
            JobRecord(job("a", 1, 1, queue="q", user="ada")),
            JobRecord(job("b", 1, 1, queue="q", user="bob")),
        )
        other = JobRecord(job("c", 1, 1, user="ada"))
        assert book.limits_users and not self.book(q=QueueRules(priority=1)).limits_users
        for record in (ada, other, other, other):
            book.count(record, 1)
        of_ada, of_bob, elsewhere = Charge("q", "ada"), Charge("q", "bob"), Charge("", "ada")
        assert book.admits(ada, {}) and book.admits(bob, {of_bob: 1}) and book.admits(other, {elsewhere: 9})
        assert not book.admits(ada, {of_ada: 1})  # one is promised
        book.count(ada, 1)
        assert book.exceeded(ada, {}) == (of_ada, 2)
        for record in (ada, ada, other, other, other):
            book.count(record, -1)
        assert not book._running

    def test_places_in_the_plan_count_but_not_ones_own(self):
        first, second, other = (
            JobRecord(job(key, 1, 1, queue="q", user=user))
            for key, user in (("a", "ada"), ("b", "ada"), ("c", "bob"))
        )
        of_ada, of_bob = Charge("q", "ada"), Charge("q", "bob")
        assert RuleBook.claims(first, [first, second, other]) == {of_ada: 1, of_bob: 1}
        assert RuleBook.claims(other, [first, second]) == {of_ada: 2}

    def test_devices_are_counted_for_their_user_and_for_all(self):
        rules = QueueRules(max_devices_per_user={"qpu": 2}, max_devices={"qpu": 3})
        book = self.book(q=rules)
        ada, bob = (
            JobRecord(job(key, 1, 1, queue="q", user=user, devices=(("qpu", 2),)))
            for key, user in (("a", "ada"), ("b", "bob"))
        )
        assert book.limits_users and book.admits(ada, {})
        book.count(ada, 1)
        assert book.exceeded(ada, {}) == (Charge("q", "ada", "qpu"), 2)
        assert book.exceeded(bob, {}) == (Charge("q", None, "qpu"), 3)
        book.count(ada, -1)
        assert not book._running


def test_a_limit_is_in_milliseconds():
    assert job("a", 1, 1).limit == 60 * SECOND
