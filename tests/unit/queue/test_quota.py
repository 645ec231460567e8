"""Quotas in the plan: starts that wait for a limit, and the reason that says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fluence.messages import text
from fluence.model.job_state import JobState
from fluence.model.queues import PerUser, Queue, QueueTime, QueueTree, Resource, Stop
from fluence.model.reason import Code
from fluence.queue import Dependency
from fluence.queue.job import FOREVER
from fluence.queue.reasons import BlockedBy, why
from tests.unit.queue.build import MINUTE, finish_at_limits, graph, job, pool, run

CORE = Resource("core")
MAKERS = (pool, graph)


def team(name: str, limit: int | None = None, parent: str | None = None, **more: Any) -> Queue:
    return Queue(name, parent, limit={} if limit is None else {CORE: limit}, **more)


def said(queue: Any, key: str) -> str:
    return " ".join(map(text, why(queue, key).reasons))


@pytest.mark.parametrize("make", MAKERS)
def test_a_job_waits_for_its_queue_while_cores_are_free(make: Callable[..., Any]) -> None:
    queue = make("conservative", queues=QueueTree([team("physics", 4), team("chem")]))
    queue.submit(job("one", 4, 10, queue="physics"))
    queue.submit(job("two", 2, 10, queue="physics"))
    queue.submit(job("other", 2, 10, queue="chem"))
    assert run(queue, 0) == ["one", "other"]
    two = queue.records["two"]
    assert two.reserved_at == two.no_later_than == 10 * MINUTE
    assert why(queue, "two").kind is BlockedBy.LIMIT
    assert said(queue, "two") == "Waiting for queue physics: core 4 of 4 in use until 10 min after the start"
    finish_at_limits(queue, 10 * MINUTE)
    assert run(queue, 10 * MINUTE) == ["two"]


def test_what_is_asked_for_is_said_where_some_is_free() -> None:
    queue = pool(queues=QueueTree([team("physics", 4)]))
    queue.submit(job("one", 3, 10, queue="physics"))
    queue.submit(job("two", 2, 10, queue="physics"))
    run(queue, 0)
    until = "10 min after the start"
    assert said(queue, "two") == f"Waiting for queue physics: core 3 of 4 in use until {until}, 2 requested"


def test_nothing_is_said_of_a_time_that_nobody_knows() -> None:
    queue = pool(queues=QueueTree([team("physics", 4)]))
    queue.submit(job("one", 4, None, queue="physics"))
    queue.submit(job("two", 2, 10, queue="physics"))
    run(queue, 0)
    assert said(queue, "two") == "Waiting for queue physics: core 4 of 4 in use"


def test_the_time_is_when_this_limit_has_enough_for_long_enough() -> None:
    """At 10 min the first job ends; the plan has given its cores away, so the third starts at 20 min."""
    queue = pool("conservative", queues=QueueTree([team("physics", 4)]))
    for key in ("one", "two", "three"):
        queue.submit(job(key, 4, 10, queue="physics"))
    run(queue, 0)
    assert said(queue, "three").endswith("4 of 4 in use until 20 min after the start")


def test_the_reason_is_what_a_job_waits_for_longer() -> None:
    """Its quota is free in 10 minutes, the cores in 30: it waits for cores."""
    queue = pool("conservative", queues=QueueTree([team("physics", 4), team("chem")]))
    queue.submit(job("quota", 4, 10, queue="physics"))
    queue.submit(job("cores", 12, 30, queue="chem"))
    run(queue, 0)
    queue.submit(job("large", 4, 30, queue="chem"))
    run(queue, 0)
    assert queue.records["large"].reserved_at == 10 * MINUTE
    queue.submit(job("late", 4, 20, queue="physics"))
    run(queue, 0)
    assert why(queue, "late").kind is BlockedBy.RESOURCE
    assert queue.records["late"].reserved_at == 30 * MINUTE


@pytest.mark.parametrize("make", MAKERS)
def test_cores_that_come_free_when_the_quota_is_reserved_are_not_taken(make: Callable[..., Any]) -> None:
    """At 0 the quota would do and the cores are taken; at 5 min it is the other way round."""
    queue = make("conservative", queues=QueueTree([team("a", 4), team("c")]))
    queue.submit(job("all", 16, 5, queue="c"))
    queue.submit(job("first", 4, 10, queue="a"))
    queue.submit(job("second", 4, 3, queue="a"))
    assert run(queue, 0) == ["all"]
    assert queue.records["first"].reserved_at == 5 * MINUTE
    assert queue.records["second"].reserved_at == 15 * MINUTE


def test_limits_of_every_queue_above_hold() -> None:
    tree = QueueTree([team("science", 6), team("physics", 4, "science"), team("chem", None, "science")])
    queue = pool("conservative", queues=tree)
    queue.submit(job("p", 4, 10, queue="physics"))
    queue.submit(job("c", 3, 10, queue="chem"))
    queue.submit(job("d", 2, 10, queue="chem"))
    assert run(queue, 0) == ["p", "d"]
    assert said(queue, "c") == "Waiting for queue science: core 6 of 6 in use until 10 min after the start"


def test_limits_per_user_count_overlap_in_time() -> None:
    tree = QueueTree([team("lab", per_user=PerUser(running=1))])
    queue = pool("conservative", queues=tree)
    for key in ("a1", "a2", "a3"):
        queue.submit(job(key, 1, 10, queue="lab", user="ada"))
    queue.submit(job("b1", 1, 10, queue="lab", user="bob"))
    assert run(queue, 0) == ["a1", "b1"]
    assert [queue.records[key].reserved_at for key in ("a2", "a3")] == [10 * MINUTE, 20 * MINUTE]
    until = "10 min after the start"
    assert said(queue, "a2") == f"Waiting for queue lab: ada has jobs 1 of 1 in use until {until}"


def test_what_no_quota_allows_is_refused_at_once_and_taken_when_the_limit_is_raised() -> None:
    queue = pool(queues=QueueTree([team("physics", 4)]))
    record = queue.submit(job("large", 5, 10, queue="physics"))
    assert record.state is JobState.UNSCHEDULABLE
    assert text(record.story[-1].reason) == (
        "It requests core 5, and the limit of queue physics is 4: request less"
    )
    queue.use_queues(QueueTree([team("physics", 5)]), 0)
    assert run(queue, 0) == ["large"]


def test_unknown_and_inner_queues_are_refused_with_the_nearest_and_the_leaves() -> None:
    tree = QueueTree([team("science"), team("physics", parent="science"), team("default")])
    queue = pool(queues=tree)
    unknown = queue.submit(job("a", 1, 10, queue="fysics"))
    inner = queue.submit(job("b", 1, 10, queue="science"))
    assert text(unknown.story[-1].reason) == "Queue 'fysics' does not exist: did you mean physics?"
    assert inner.story[-1].reason.code is Code.QUEUE_IS_INNER
    assert queue.submit(job("c", 1, 10)).job.queue == "default"


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative"])
def test_a_queue_that_is_stopped_keeps_no_other_waiting(policy: str) -> None:
    queue = pool(policy, queues=QueueTree([team("physics", stop=Stop.HOLD), team("chem")]))
    queue.submit(job("held", 1, 10, queue="physics"))
    queue.submit(job("next", 1, 10, queue="chem"))
    assert run(queue, 0) == ["next"]
    assert queue.records["held"].no_later_than is None
    assert said(queue, "held") == "Waiting for queue physics, which is stopped"
    queue.use_queues(QueueTree([team("physics"), team("chem")]), MINUTE)
    assert run(queue, MINUTE) == ["held"]


def test_a_job_without_a_limit_holds_its_quota_for_ever() -> None:
    queue = pool("conservative", queues=QueueTree([team("physics", 4)]))
    queue.submit(job("endless", 4, None, queue="physics"))
    queue.submit(job("next", 1, 10, queue="physics"))
    run(queue, 0)
    assert queue.records["next"].reserved_at is None
    assert queue.records["next"].no_later_than is None
    queue.finish("endless", MINUTE)
    assert run(queue, MINUTE) == ["next"]


def test_a_lower_limit_ends_nothing_and_starts_nothing_until_enough_has_ended() -> None:
    queue = pool("conservative", queues=QueueTree([team("physics", 8)]))
    for key, minutes in (("a", 10), ("b", 20), ("c", 10)):
        queue.submit(job(key, 4, minutes, queue="physics"))
    assert run(queue, 0) == ["a", "b"]
    assert queue.records["c"].no_later_than == 10 * MINUTE
    queue.use_queues(QueueTree([team("physics", 4)]), MINUTE)
    assert run(queue, MINUTE) == []
    assert sorted(queue.planner.allocations.running) == ["a", "b"]
    assert queue.records["c"].no_later_than == 20 * MINUTE
    assert queue.records["c"].broken[0].cause.code is Code.QUEUES_CHANGED


def test_a_queue_that_is_deleted_keeps_what_runs_and_refuses_what_waits() -> None:
    queue = pool("conservative", queues=QueueTree([team("physics", 4), team("chem")]))
    queue.submit(job("runs", 4, 10, queue="physics"))
    queue.submit(job("waits", 4, 10, queue="physics"))
    run(queue, 0)
    queue.use_queues(QueueTree([team("chem")]), MINUTE)
    assert run(queue, MINUTE) == []
    assert queue.records["runs"].state is JobState.RUNNING
    assert queue.records["waits"].state is JobState.UNSCHEDULABLE
    finish_at_limits(queue, 10 * MINUTE)
    assert queue.records["runs"].state is JobState.COMPLETED


def test_a_job_that_was_refused_while_it_waited_for_another_starts_once() -> None:
    queue = pool("conservative", queues=QueueTree([team("physics", 8)]))
    queue.submit(job("first", 2, 10, queue="physics"))
    queue.submit(job("second", 4, 10, queue="physics", after=(Dependency("afterok", "first"),)))
    assert run(queue, 0) == ["first"]
    queue.use_queues(QueueTree([team("physics", 2)]), MINUTE)
    assert queue.records["second"].state is JobState.UNSCHEDULABLE
    queue.use_queues(QueueTree([team("physics", 8)]), 2 * MINUTE)
    finish_at_limits(queue, 10 * MINUTE)
    assert run(queue, 10 * MINUTE) == ["second"]
    assert list(queue.pending) == []


@pytest.mark.parametrize("policy", ["fcfs", "easy", "conservative"])
def test_the_rest_of_an_array_waits_where_a_limit_has_become_too_small(policy: str) -> None:
    queue = pool(policy, queues=QueueTree([team("physics", 8)]))
    queue.submit(job("array", 7, 1, tasks=2, queue="physics"))
    assert run(queue, 0) == ["array[0]"]
    queue.use_queues(QueueTree([team("physics", 3)]), 0)
    finish_at_limits(queue, MINUTE)
    assert run(queue, MINUTE) == []
    assert said(queue, "array") == "It requests core 7, and the limit of queue physics is 3: request less"
    queue.use_queues(QueueTree([team("physics", 8)]), 2 * MINUTE)
    assert run(queue, 2 * MINUTE) == ["array[1]"]


def test_time_limits_of_a_queue_are_those_of_its_jobs() -> None:
    time = QueueTime(default=10 * MINUTE, max=60 * MINUTE)
    queue = pool(queues=QueueTree([team("science", time=time), team("physics", parent="science")]))
    assert queue.submit(job("a", 1, None, queue="physics")).limit == 10 * MINUTE
    too_long = queue.submit(job("b", 1, 61, queue="physics"))
    assert too_long.story[-1].reason.code is Code.LIMIT_ABOVE_QUEUE
    assert pool().submit(job("c", 1, None)).limit == FOREVER


@pytest.mark.parametrize("policy", ["fcfs", "first-fit", "easy", "conservative"])
@pytest.mark.parametrize("make", MAKERS)
def test_promises_count_quotas(policy: str, make: Callable[..., Any]) -> None:
    """Under every policy a job is promised no start that its quota does not allow, and starts by then."""
    queue = make(policy, queues=QueueTree([team("physics", 4)]))
    for number in range(4):
        queue.submit(job(f"j{number}", 4, 10, queue="physics"))
    run(queue, 0)
    promised = [queue.records[f"j{number}"].no_later_than for number in range(1, 4)]
    assert all(at is not None and at >= (number + 1) * 10 * MINUTE for number, at in enumerate(promised))
    for step in range(1, 4):
        finish_at_limits(queue, step * 10 * MINUTE)
        assert run(queue, step * 10 * MINUTE) == [f"j{step}"]
    assert not any(record.broken for record in queue.records.values())


class TestShares:
    """What a job is told whose turn is later because of shares."""

    def run_out(self, tree: QueueTree, first: str, other: str, users: tuple[str, str] = ("", "")) -> Any:
        """One job of ``first`` has all cores; then each queue gets a job, that of ``other`` later."""
        queue = pool(queues=tree, promises=0)
        queue.submit(job("runs", 16, 60, queue=first, user=users[0]))
        assert run(queue, 0) == ["runs"]
        queue.submit(job("early", 4, 10, 1, queue=first, user=users[0]))
        queue.submit(job("late", 4, 10, 2, queue=other, user=users[1]))
        run(queue, 2 * MINUTE)
        return queue

    def test_a_job_that_a_later_one_overtakes_is_told_by_which_share(self) -> None:
        queue = self.run_out(QueueTree([team("physics"), team("chem")]), "physics", "chem")
        assert [record.key for record in queue.pending] == ["late", "early"]
        assert said(queue, "early").endswith("physics has used 2.0 times its share this week, chem 0.0 times")
        assert "share" not in said(queue, "late")

    def test_queues_are_compared_where_they_part(self) -> None:
        tree = QueueTree(
            [team("science"), team("ops"), team("physics", None, "science"), team("night", None, "ops")]
        )
        queue = self.run_out(tree, "physics", "night")
        assert said(queue, "early").endswith("science has used 2.0 times its share this week, ops 0.0 times")

    def test_other_users_are_not_named(self) -> None:
        queue = self.run_out(QueueTree([team("lab")]), "lab", "lab", ("ada", "bob"))
        assert "Its user has used 2.0 times the share of a user of queue lab this week" in said(
            queue, "early"
        )
        assert "bob" not in said(queue, "early")

    def test_age_is_not_said_to_be_a_share(self) -> None:
        queue = pool(queues=QueueTree([team("physics"), team("chem")]), promises=0)
        queue.submit(job("runs", 16, 60, queue="chem"))
        run(queue, 0)
        queue.submit(job("early", 4, 10, 1, queue="physics"))
        queue.submit(job("late", 4, 10, 2, queue="physics"))
        run(queue, 2 * MINUTE)
        assert "share" not in said(queue, "late")


@pytest.mark.parametrize("make", MAKERS)
def test_work_within_a_guarantee_comes_first(make: Callable[..., Any]) -> None:
    """Before older work of a queue that has used nothing, and behind a higher priority. What runs takes of
    the guarantee, so one of two jobs is covered."""
    queue = make(queues=QueueTree([team("sure", guaranteed={CORE: 8}), team("other")]), promises=0)
    queue.submit(job("runs", 4, 60, queue="sure"))
    queue.submit(job("all", 12, 60, queue="other"))
    assert run(queue, 0) == ["runs", "all"]
    queue.submit(job("old", 4, 10, 1, queue="other"))
    queue.submit(job("within", 4, 10, 2, queue="sure"))
    queue.submit(job("beyond", 4, 10, 3, queue="sure"))
    queue.submit(job("urgent", 4, 10, 4, queue="other", priority=20))
    run(queue, MINUTE)
    keys = [record.key for record in queue.pending]
    assert keys[:2] == ["urgent", "within"]
    queue.cancel("runs", 2 * MINUTE)
    run(queue, 2 * MINUTE)
    # Nothing of the queue runs now, and the guarantee covers both.
    assert [record.key for record in queue.pending] == ["within", "beyond", "old"]
