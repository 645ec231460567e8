"""What would become of a job: each answer is held against what becomes of it when it is submitted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluence.messages.whatif import lines, value
from fluence.queue import Queue, Submission
from fluence.queue.job import SECOND
from fluence.queue.reasons import WhatIfAnswer, ask
from fluence.queue.snapshot import restore, save
from tests.unit.queue.build import MINUTE, cores, graph, job, pool, run

PLANNERS = pytest.mark.parametrize("make", [pool, graph], ids=["counted", "matched"])


def answer_and_truth(queue: Queue, size: int, minutes: int) -> tuple[WhatIfAnswer, Submission, list[str]]:
    """The answer of a copy, and what the queue itself starts when the job is submitted."""
    copy = restore(save(queue, queue.planner.matcher))  # type: ignore[attr-defined]
    answer = ask(copy, cores(size), limit=minutes * MINUTE, user="ada")
    real = Submission("new", cores(size), queue.now, limit=minutes * MINUTE, user="ada")
    queue.submit(real)
    return answer, real, run(queue, queue.now)


@PLANNERS
class TestAnswers:
    def test_now(self, make):
        queue = make("easy")
        queue.submit(job("a", 8, 10))
        run(queue, 0)
        answer, _, started = answer_and_truth(queue, 8, 10)
        assert answer.starts_now and started == ["new"]
        assert answer.start == answer.now
        assert lines(answer) == ["it would start now", "no other job would start later"]

    def test_later(self, make):
        queue = make("conservative")
        queue.submit(job("a", 10, 10))
        run(queue, 0)
        answer, _, started = answer_and_truth(queue, 8, 20)
        assert not answer.starts_now and started == []
        assert answer.start == queue.records["new"].no_later_than == 10 * MINUTE
        assert answer.expected == queue.records["new"].expected
        assert answer.reason.waits_for == ("a",)
        told = lines(answer)
        assert told[0] == "it would wait and start in 10 min at the latest"
        assert "waiting for a" in told
        assert "sooner: request 6 instead: it would start now" in told

    def test_never(self, make):
        queue = make("easy")
        queue.submit(job("a", 8, 10))
        run(queue, 0)
        answer = ask(restore(save(queue, queue.planner.matcher)), cores(17), limit=MINUTE)
        assert answer.never and not answer.starts_now
        assert lines(answer)[0].startswith("Unschedulable: ")
        assert answer.start is answer.expected is None

    def test_at_a_time_that_nobody_knows(self, make):
        queue = make("easy", nodes=2, cores=4)
        queue.planner.matcher.set_status("/cluster0/node1", up=False)
        queue.submit(job("a", 1, 10))
        run(queue, 0)
        answer, _, started = answer_and_truth(queue, 8, 10)
        assert (answer.starts_now, answer.never, started) == (False, False, [])
        assert answer.start is None
        assert lines(answer)[0] == "it would wait; the start is unknown"
        likely = replace(answer, expected=5 * MINUTE)
        assert lines(likely)[:2] == [
            "it would wait; no start is promised",
            "expected, from earlier run times: in 5 min",
        ]

    def test_whom_it_would_delay(self, make):
        queue = make("easy")
        for key in ("a", "b", "c"):
            queue.submit(job(key, 16, 10))
        run(queue, 0)
        copy = restore(save(queue, queue.planner.matcher))
        answer = ask(copy, cores(16), limit=30 * MINUTE, priority=31)
        assert {d.job: (d.after - d.before) // MINUTE for d in answer.delays} == {"b": 30, "c": 30}
        assert "job b would start 30 min later" in lines(answer)
        assert lines(answer, shown=1)[-1] == "… and 1 more (see -o wide)"

    def test_one_at_the_end_of_the_queue_delays_nobody(self, make):
        queue = make("easy")
        for key in ("a", "b", "c"):
            queue.submit(job(key, 16, 10))
        run(queue, 0)
        answer, _, _ = answer_and_truth(queue, 16, 30)
        assert answer.delays == ()

    def test_for_programs_times_are_seconds(self, make):
        queue = make("conservative")
        queue.submit(job("a", 10, 10))
        run(queue, 0)
        answer, _, _ = answer_and_truth(queue, 8, 20)
        found = value(answer)
        assert found["start_no_later_than"] == 600
        assert found["reason"]["kind"] == "resource"
        assert found["changes"] == [{"what": "size", "to": 6, "start": 0}]
        assert found["delays"] == []


def test_nothing_changes_for_the_queue_that_was_saved():
    queue = pool("easy")
    queue.submit(job("a", 16, 10))
    run(queue, 0)
    before = save(queue, queue.planner.matcher)  # type: ignore[attr-defined]
    ask(restore(before), cores(4), limit=MINUTE)
    assert save(queue, queue.planner.matcher) == before  # type: ignore[attr-defined]


@pytest.mark.parametrize("policy", ["fcfs", "first-fit", "easy", "hybrid(2)", "conservative"])
@settings(max_examples=25)
@given(
    jobs=st.lists(st.tuples(st.integers(1, 16), st.integers(1, 60), st.booleans()), max_size=8),
    size=st.integers(1, 16),
    minutes=st.integers(1, 60),
)
def test_the_answer_is_what_happens(policy, jobs, size, minutes):
    queue = pool(policy)
    for number, (units, limit, ends) in enumerate(jobs):
        queue.submit(job(f"j{number}", units, limit, at=number * SECOND, user="ada"))
        run(queue, number * SECOND)
        if ends and queue.planner.allocations.running:
            queue.finish(next(iter(queue.planner.allocations.running)), number * SECOND + 1)
            run(queue, number * SECOND + 1)
    answer, _, started = answer_and_truth(queue, size, minutes)
    record = queue.records["new"]
    assert answer.starts_now == (started == ["new"])
    if not answer.starts_now:
        assert answer.start == record.no_later_than
        assert answer.expected == record.expected
