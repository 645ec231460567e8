"""Site code that raises or takes too long: the queue goes on, and the fault is kept."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fluence.queue import Dependency
from fluence.queue.policy import OverBudget, PluginFault, PluginGuard
from tests.unit.queue.build import MINUTE, job, pool, run


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def takes(self, seconds: float) -> Callable[[], str]:
        def work() -> str:
            self.now += seconds
            return "an answer"

        return work


def fails() -> str:
    raise ValueError("no such account")


class TestCall:
    def test_an_answer_is_passed_on(self):
        guard = PluginGuard(1.0, None)
        assert guard.call("priority", "a", lambda: 5, 0) == 5
        assert guard.take() == []

    def test_a_fault_gives_the_other_answer_and_is_kept(self):
        guard = PluginGuard(1.0, None)
        assert guard.call("priority", "a", fails, "otherwise") == "otherwise"
        (fault,) = guard.take()
        assert (fault.plugin, fault.job, type(fault.error)) == ("priority", "a", ValueError)
        assert str(fault) == "priority of job a: ValueError: no such account"

    def test_an_answer_within_the_budget_counts(self):
        clock = Clock()
        guard = PluginGuard(2.0, clock)
        assert guard.call("priority", "a", clock.takes(2.0), "otherwise") == "an answer"
        assert guard.take() == []

    def test_one_that_comes_too_late_does_not(self):
        clock = Clock()
        guard = PluginGuard(2.0, clock)
        assert guard.call("priority", "a", clock.takes(2.5), "otherwise") == "otherwise"
        assert list(map(str, guard.take())) == ["priority of job a: OverBudget: took more than 2.0 s"]

    def test_without_a_timer_it_may_take_as_long_as_it_likes(self):
        clock = Clock()
        assert PluginGuard(2.0, None).call("priority", "a", clock.takes(99), "otherwise") == "an answer"

    def test_a_user_who_interrupts_is_not_taken_for_a_fault(self):
        def interrupted() -> str:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            PluginGuard(1.0, None).call("priority", "a", interrupted, "otherwise")


class TestDeadline:
    def test_it_raises_once_the_budget_is_spent(self):
        clock = Clock()
        check = PluginGuard(3, clock).deadline()
        clock.now = 3.0
        check()
        clock.now = 3.1
        with pytest.raises(OverBudget, match="took more than 3 s"):
            check()

    def test_each_call_has_its_own(self):
        clock = Clock()
        guard = PluginGuard(3, clock)
        guard.deadline()
        clock.now = 10.0
        guard.deadline()()


class TestFaults:
    def test_they_are_taken_once(self):
        guard = PluginGuard(1.0, None)
        guard.note("predictor", ValueError("x"))
        assert list(map(str, guard.take())) == ["predictor: ValueError: x"]
        assert guard.take() == []

    def test_only_so_many_are_kept_if_nobody_takes_them(self):
        guard = PluginGuard(1.0, None)
        for number in range(1000):
            guard.note("predictor", ValueError(number))
        faults = guard.take()
        assert len(faults) == 100
        assert str(faults[0]) == "predictor: ValueError: 0"  # the first are the ones that tell
        guard.note("predictor", ValueError("again"))
        assert len(guard.take()) == 1

    def test_without_a_job_none_is_named(self):
        fault = PluginFault("queue policy ours", RuntimeError("oops"))
        assert str(fault) == "queue policy ours: RuntimeError: oops"


class FaultyPredictor:
    """A site's predictor whose every call fails."""

    def learn(self, job, shape, runtime):
        raise RuntimeError("the database is away")

    def predict(self, job, shape, elapsed):
        raise RuntimeError("the model is away")


class TestPluginsOfAQueue:
    def test_a_predictor_that_fails_is_taken_to_know_nothing(self):
        queue, twin = pool("easy", predictor=FaultyPredictor()), pool("easy")
        for each in (queue, twin):
            each.submit(job("a", 16, 10))
            each.submit(job("b", 16, 10))
            each.submit(job("c", 16, None, after=(Dependency("afterok", "a"),)))
            assert run(each, 0) == ["a"]
        assert queue.records["b"].no_later_than == twin.records["b"].no_later_than
        assert queue.records["b"].expected == twin.records["b"].expected
        queue.finish("a", MINUTE)
        assert run(queue, MINUTE) == ["b"]
        faults = list(map(str, queue.take_faults()))
        assert "predictor of job b: RuntimeError: the model is away" in faults
        assert "predictor of job a: RuntimeError: the database is away" in faults
        assert queue.take_faults() == []

    def test_a_priority_that_takes_too_long_is_not_waited_for_again(self):
        clock = Clock()

        def slow(job, now):
            clock.now += 2
            return 31

        queue = pool("fcfs", priority=slow, budget=1.0, timer=clock)
        queue.submit(job("a", 16, 10, priority=1))
        queue.submit(job("b", 16, 10, priority=2))
        assert run(queue, 0) == ["b"]
        assert [fault.job for fault in queue.take_faults()] == ["a", "b"]
