"""The queue policies are Fluxion's: its golden scenario, and what each promises."""

from __future__ import annotations

import pytest

from fluence.errors import InvalidInput
from fluence.model.reason import Code, Reason
from fluence.queue import JobState, Queue, QueuePolicy, QueueRules
from fluence.queue import policy as policies
from fluence.queue.policy import BUILT_IN
from fluence.queue.scheduling_pass import SchedulingPass
from tests.unit.queue.build import MINUTE, graph, job, pool, run

# fluxion.md §11: one node of 16 cores, all submitted at 0; cores × minutes
GOLDEN = {
    "1": (8, 60), "2": (10, 60), "3": (12, 60), "4": (14, 60), "5": (16, 60), "6": (6, 121), "7": (4, 179),
    "8": (4, 239), "9": (2, 239), "10": (2, 299), "11": (2, 59),
}  # fmt: skip


def golden(queue: Queue, order: str = "1 2 3 4 5 6 7 8 9 10 11") -> list[str]:
    for key in order.split():
        queue.submit(job(key, *GOLDEN[key]))
    return run(queue, 0)


def reserved(queue: Queue) -> dict[str, int]:
    return {e.key: e.reserved_at // 1000 for e in queue.pending if e.reserved_at is not None}


@pytest.mark.parametrize("make", [pool, graph], ids=["counted", "matched"])
class TestGoldenScenario:
    def test_easy(self, make):
        queue = make("easy")
        assert golden(queue) == ["1", "6", "11"]
        assert reserved(queue) == {"2": 3600}
        queue.cancel("6", 0)
        assert run(queue, 0) == ["7", "9"]

    def test_hybrid(self, make):
        queue = make("hybrid(3)")
        assert golden(queue) == ["1", "7", "11"]
        assert reserved(queue) == {"2": 3600, "3": 7200, "4": 10800}
        queue.cancel("7", 0)
        assert run(queue, 0) == ["9"]

    def test_conservative(self, make):
        queue = make("conservative", replan=True)
        assert golden(queue, "1 2 3 5 4 6 7 8 9 10 11") == ["1", "7", "11"]
        queue.cancel("7", 0)
        assert run(queue, 0) == []

    def test_fcfs_stops_at_the_first_that_must_wait(self, make):
        queue = make("fcfs")
        assert golden(queue) == ["1"]
        assert reserved(queue) == {}

    def test_first_fit_takes_whoever_fits(self, make):
        queue = make("first-fit")
        assert golden(queue) == ["1", "6", "9"]


def test_priority_goes_before_arrival():
    queue = pool("fcfs")
    queue.submit(job("low", 16, 10))
    queue.submit(job("high", 16, 10, priority=20))
    assert run(queue, 0) == ["high"]


def test_a_queue_may_add_to_the_priority_of_its_jobs():
    queue = pool("fcfs", rules={"urgent": QueueRules(priority=5)})
    queue.submit(job("low", 16, 10))
    queue.submit(job("high", 16, 10, queue="urgent"))
    assert run(queue, 0) == ["high"]


def test_depth_bounds_what_is_looked_at():
    queue = pool("easy", depth=2)
    for key, size in (("running", 16), ("head", 16), ("second", 16), ("small", 1)):
        queue.submit(job(key, size, 10))
    assert run(queue, 0) == ["running"]
    assert queue.records["small"].no_later_than is None  # beyond the depth nothing is promised
    assert queue.records["second"].no_later_than is not None


def test_window_bounds_how_far_ahead_is_planned():
    queue = pool("conservative", window=30 * MINUTE)
    for key in "abcde":
        queue.submit(job(key, 16, 20))
    run(queue, 0)
    assert reserved(queue) == {"b": 1200}


def test_resolution_rounds_limits_up():
    queue = pool("conservative", resolution=10 * MINUTE)
    queue.submit(job("a", 16, 11))
    queue.submit(job("b", 16, 11))
    run(queue, 0)
    assert reserved(queue) == {"b": 1200}


def test_a_depth_is_read_from_the_name():
    assert policies.find("hybrid(8)").name == "hybrid(8)"
    assert policies.find("hybrid:8").name == "hybrid:8"


def test_an_unknown_policy_names_those_there_are():
    with pytest.raises(
        InvalidInput, match=r"unknown queue policy 'fifo': choose one of fcfs, first-fit, easy"
    ):
        policies.find("fifo")


class TestPolicyOfASite:
    def test_it_is_a_function_of_a_pass(self):
        def smallest_first(jobs: SchedulingPass) -> None:
            for record in sorted(jobs, key=lambda e: e.shape):
                jobs.start(record)

        queue = pool(QueuePolicy("smallest", smallest_first))  # type: ignore[arg-type]
        queue.submit(job("a", 4, 10))
        queue.submit(job("b", 8, 10))
        assert run(queue, 0) == ["a", "b"]

    def test_a_fault_changes_nothing_and_easy_takes_over(self):
        def faulty(jobs: SchedulingPass) -> None:
            for record in jobs:
                jobs.start_or_reserve(record)
                raise RuntimeError("oops")

        queue = pool(QueuePolicy("faulty", faulty))  # type: ignore[arg-type]
        twin = pool("easy")
        assert golden(queue) == golden(twin)
        assert reserved(queue) == reserved(twin)
        assert list(map(str, queue.take_faults())) == ["queue policy faulty: RuntimeError: oops"]

    def test_it_has_a_budget(self):
        ticks = iter(range(1000))

        def slow(jobs: SchedulingPass) -> None:
            for record in jobs:
                jobs.start(record)

        queue = pool(QueuePolicy("slow", slow), budget=3, timer=lambda: float(next(ticks)))  # type: ignore[arg-type]
        assert golden(queue) == ["1", "6", "11"]
        assert list(map(str, queue.take_faults())) == ["queue policy slow: OverBudget: took more than 3 s"]

    def test_a_priority_that_fails_falls_back_to_the_urgency(self):
        def broken(job, now):
            raise KeyError("no such account")

        queue = pool("fcfs", priority=broken)
        queue.submit(job("a", 1, 10))
        assert run(queue, 0) == ["a"]
        (fault,) = queue.take_faults()
        assert str(fault) == "priority of job a: KeyError: 'no such account'"


def test_every_policy_says_what_its_promise_rests_on():
    assert {p.name: p.promise for p in BUILT_IN.values()} == {
        "fcfs": "order",
        "first-fit": "record",
        "easy": "record",
        "hybrid": "record",
        "conservative": "reservation",
    }


def test_a_job_of_no_cluster_is_told_so_at_once():
    queue = pool("easy")
    record = queue.submit(job("huge", 17, 10))
    assert record.state is JobState.UNSCHEDULABLE
    assert record.story[-1].reason == Reason.of(Code.TOO_FEW_UNITS, units=17, unit="core", total=16)
