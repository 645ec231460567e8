"""Jobs that wait for other jobs."""

from __future__ import annotations

import pytest

from fluence.errors import InvalidInput, NotFound
from fluence.model.reason import Code, Reason
from fluence.queue import Dependency, JobState
from fluence.queue.reasons import BlockedBy, why
from tests.unit.queue.build import MINUTE, job, pool, run


def after(kind: str, key: str = "") -> tuple[Dependency, ...]:
    return (Dependency(kind, key),)


@pytest.mark.parametrize("kind", ["afterok", "afterany"])
class TestAfterAJob:
    def test_it_waits_until_the_other_is_over(self, kind):
        queue = pool("easy")
        queue.submit(job("a", 1, 10))
        queue.submit(job("b", 1, 10, after=after(kind, "a")))
        assert run(queue, 0) == ["a"]
        assert why(queue, "b").kind is BlockedBy.DEPENDENCY
        assert why(queue, "b").waits_for == ("a",)
        assert why(queue, "b").reasons == (Reason.of(Code.DEPENDENCY, jobs=("a",)),)
        queue.finish("a", MINUTE)
        assert run(queue, MINUTE) == ["b"]

    def test_it_starts_at_once_if_the_other_is_over_already(self, kind):
        queue = pool("easy")
        queue.submit(job("a", 1, 10))
        run(queue, 0)
        queue.finish("a", MINUTE)
        queue.submit(job("b", 1, 10, at=MINUTE, after=after(kind, "a")))
        assert run(queue, MINUTE) == ["b"]

    def test_it_waits_for_every_task_of_an_array(self, kind):
        queue = pool("easy")
        queue.submit(job("a", 8, 10, tasks=3))
        queue.submit(job("b", 1, 10, after=after(kind, "a")))
        assert run(queue, 0) == ["a[0]", "a[1]"]
        queue.finish("a[0]", MINUTE)
        assert run(queue, MINUTE) == ["a[2]"]
        queue.finish("a[1]", 2 * MINUTE)
        assert run(queue, 2 * MINUTE) == []
        queue.finish("a[2]", 3 * MINUTE)
        assert run(queue, 3 * MINUTE) == ["b"]

    def test_the_other_must_be_known(self, kind):
        with pytest.raises(NotFound, match="job b waits for a, which was never submitted"):
            pool("easy").submit(job("b", 1, 10, after=after(kind, "a")))


class TestAfterOk:
    def test_a_failure_makes_it_hopeless_and_those_that_wait_for_it(self):
        queue = pool("easy")
        queue.submit(job("a", 1, 10))
        queue.submit(job("b", 1, 10, after=after("afterok", "a")))
        queue.submit(job("c", 1, 10, after=after("afterok", "b")))
        queue.submit(job("d", 1, 10, after=after("afterany", "b")))
        run(queue, 0)
        queue.finish("a", MINUTE, outcome=JobState.FAILED)
        phases = {key: queue.records[key].state for key in "bcd"}
        assert phases == {"b": JobState.UNSCHEDULABLE, "c": JobState.UNSCHEDULABLE, "d": JobState.PENDING}
        assert queue.records["b"].story[-1].reason == Reason.of(
            Code.DEPENDENCY_FAILED, job="a", phase="failed"
        )
        assert queue.records["c"].story[-1].reason == Reason.of(
            Code.DEPENDENCY_FAILED, job="b", phase="unschedulable"
        )
        assert run(queue, MINUTE) == ["d"]

    def test_one_failed_task_is_a_failed_array(self):
        queue = pool("easy")
        queue.submit(job("a", 1, 10, tasks=2))
        queue.submit(job("b", 1, 10, after=after("afterok", "a")))
        run(queue, 0)
        queue.finish("a[0]", MINUTE, outcome=JobState.FAILED)
        queue.finish("a[1]", 2 * MINUTE)
        assert queue.records["b"].state is JobState.UNSCHEDULABLE

    def test_what_is_cancelled_has_not_succeeded(self):
        queue = pool("easy")
        queue.submit(job("a", 1, 10))
        queue.submit(job("b", 1, 10, after=after("afterok", "a")))
        queue.cancel("a", MINUTE)
        assert queue.records["b"].state is JobState.UNSCHEDULABLE

    def test_what_can_never_start_will_not_succeed(self):
        queue = pool("easy")
        queue.submit(job("huge", 17, 10))
        assert queue.submit(job("b", 1, 10, after=after("afterok", "huge"))).state is JobState.UNSCHEDULABLE
        queue.submit(job("c", 1, 10, after=after("afterany", "huge")))
        assert run(queue, 0) == ["c"]

    def test_a_long_chain_falls_as_one(self):
        queue = pool("easy")
        queue.submit(job("j0", 1, 10))
        for number in range(1, 3000):
            queue.submit(job(f"j{number}", 1, 10, after=after("afterok", f"j{number - 1}")))
        queue.cancel("j0", 0)
        assert queue.records["j2999"].state is JobState.UNSCHEDULABLE
        assert not queue.held


class TestSingleton:
    def test_one_of_a_name_and_user_runs_at_a_time(self):
        queue = pool("easy")
        for key in ("a", "b"):
            queue.submit(job(key, 1, 10, user="ada", name="nightly", after=after("singleton")))
        queue.submit(job("c", 1, 10, user="bob", name="nightly", after=after("singleton")))
        queue.submit(job("d", 1, 10, user="ada", name="other", after=after("singleton")))
        assert run(queue, 0) == ["a", "c", "d"]
        assert why(queue, "b").waits_for == ("a",)
        queue.finish("a", MINUTE, outcome=JobState.FAILED)
        assert run(queue, MINUTE) == ["b"]

    def test_a_later_one_does_not_hold_up_an_earlier_one(self):
        queue = pool("easy")
        queue.submit(job("a", 1, 10, user="ada", name="x", after=after("singleton")))
        queue.submit(job("b", 1, 10, user="ada", name="x", priority=31))
        assert run(queue, 0) == ["b", "a"]


def test_all_of_several_must_be_over():
    queue = pool("easy")
    queue.submit(job("a", 1, 10))
    queue.submit(job("b", 1, 10))
    queue.submit(job("c", 1, 10, after=(*after("afterok", "a"), *after("afterany", "b"))))
    run(queue, 0)
    assert why(queue, "c").waits_for == ("a", "b")
    queue.finish("a", MINUTE)
    assert run(queue, MINUTE) == []
    queue.finish("b", 2 * MINUTE, outcome=JobState.FAILED)
    assert run(queue, 2 * MINUTE) == ["c"]


def test_a_job_that_waits_for_another_can_be_cancelled_and_moved():
    queue = pool("fcfs")
    queue.submit(job("a", 16, 10))
    for key in "bcd":
        queue.submit(job(key, 16, 10, after=after("afterany", "a")))
    run(queue, 0)
    queue.cancel("b", MINUTE)
    queue.reprioritise("d", 31, MINUTE)
    queue.finish("a", 2 * MINUTE)
    assert run(queue, 2 * MINUTE) == ["d"]
    assert queue.records["b"].state is JobState.CANCELLED


def test_it_holds_no_place_in_the_plan_while_it_waits():
    queue = pool("conservative")
    queue.submit(job("a", 16, 10))
    queue.submit(job("b", 16, 10, after=after("afterok", "a")))
    run(queue, 0)
    assert queue.records["b"].no_later_than is None
    queue.submit(job("c", 16, 10, at=MINUTE))
    run(queue, MINUTE)
    assert queue.records["c"].promised == 10 * MINUTE
    queue.finish("a", 5 * MINUTE)
    run(queue, 5 * MINUTE)
    assert [queue.records[key].waiting > 0 for key in "bc"].count(True) == 1


class TestJobsThatAreForgotten:
    def test_who_waited_for_one_that_is_over_waits_for_the_rest(self):
        queue = pool("easy")
        queue.submit(job("a", 1, 10))
        queue.submit(job("b", 1, 10))
        queue.submit(job("c", 1, 10, after=(*after("afterany", "b"), *after("afterok", "a"))))
        run(queue, 0)
        queue.finish("a", MINUTE)
        queue.forget("a")
        assert why(queue, "c").waits_for == ("b",)
        queue.finish("b", 2 * MINUTE)
        queue.forget("b")
        assert run(queue, 2 * MINUTE) == ["c"]

    def test_a_failure_is_not_forgotten_with_it(self):
        queue = pool("easy")
        queue.submit(job("a", 1, 10))
        queue.submit(job("b", 1, 10))
        queue.submit(job("c", 1, 10, after=(*after("afterany", "b"), *after("afterok", "a"))))
        run(queue, 0)
        queue.finish("a", MINUTE, outcome=JobState.FAILED)
        queue.forget("a")
        assert queue.records["c"].state is JobState.UNSCHEDULABLE
        assert not queue.held

    def test_nor_where_those_that_waited_for_it_wait_for_each_other(self):
        queue = pool("easy")
        for key in "ab":
            queue.submit(job(key, 1, 10))
        run(queue, 0)
        queue.submit(job("c", 1, 10, after=(*after("afterany", "b"), *after("afterok", "a"))))
        queue.submit(job("d", 1, 10, after=(*after("afterok", "c"), *after("afterok", "a"))))
        queue.finish("a", MINUTE, outcome=JobState.FAILED)
        queue.forget("a")
        assert [queue.records[key].state for key in "cd"] == [JobState.UNSCHEDULABLE, JobState.UNSCHEDULABLE]
        assert [queue.records[key].story[-1].reason["job"] for key in "cd"] == ["a", "a"]
        assert not queue.held

    def test_a_name_that_nobody_has_any_more_is_forgotten_too(self):
        queue = pool("easy")
        for number in range(3):
            queue.submit(job(f"j{number}", 1, 10, user="ada", name=f"n{number}"))
            queue.cancel(f"j{number}", 0)
            queue.forget(f"j{number}")
        assert not queue.dependencies._namesakes
        assert not queue.records


@pytest.mark.parametrize(
    ("kind", "key", "said"),
    [
        ("afternoon", "a", "unknown dependency 'afternoon': use afterok, afterany, singleton"),
        ("afterok", "", "afterok needs a job to wait for"),
        ("singleton", "a", "singleton needs no job to wait for"),
    ],
)
def test_a_wrong_dependency_is_refused(kind, key, said):
    with pytest.raises(InvalidInput, match=said):
        Dependency(kind, key)
