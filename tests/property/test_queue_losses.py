"""The queue while nodes go and come back, jobs outlive their limits, and cycles come late."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fluence.model.reason import Code
from fluence.queue import PoolPlanner, Queue
from fluence.queue.job import SECOND
from tests.unit.queue.build import MINUTE, because, finish_at_limits, graph, job, pool, run

NODES, CORES = 3, 2
events = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, NODES * CORES), st.integers(1, 6)),
        st.tuples(st.just("finish"), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("down"), st.integers(0, NODES - 1), st.just(0)),
        st.tuples(st.just("up"), st.integers(0, NODES - 1), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 200), st.sampled_from([0, 0, 7])),
        st.tuples(st.just("overrun"), st.integers(1, 200), st.just(0)),
    ),
    max_size=25,
)


def play(queue: Queue, history: list[tuple[str, int, int]]) -> tuple[int, bool]:
    """Let it happen; says when it is, and whether anything was lost or outlived its limit."""
    now, lossy = 0, False
    matcher = queue.planner.matcher  # type: ignore[attr-defined]
    for number, (what, one, other) in enumerate(history):
        tasks = sorted(queue._tasks)
        if what == "submit":
            queue.submit(job(f"j{number}", one, other, at=now))
        elif what == "finish" and tasks:
            queue.finish(tasks[one % len(tasks)], now)
        elif what in ("down", "up"):
            matcher.set_status(f"/cluster0/node{one}", up=what == "up")
            lossy = lossy or what == "down"
            queue.note_loss(because(f"node{one} went down"))
        elif what == "wait":
            until = now + one * SECOND
            while (due := queue.next_due()) is not None and due <= until:
                now = max(now, due)
                finish_at_limits(queue, now)
                now += other  # ms by which the timer is late
                check(queue, run(queue, now), now)
            now = max(now, until)
        elif what == "overrun":
            now += one * SECOND
            lossy = True
        check(queue, run(queue, now), now)
    return now, lossy


def check(queue: Queue, started: list[str], now: int) -> None:
    planner: Any = queue.planner
    graph_, ledger = planner.matcher.graph, planner.matcher.ledger
    for task in started:
        rows = ledger.vertex[ledger.job(planner.allocations.running[task].number).spans].tolist()
        for row in rows:
            path = graph_.path(row)
            node = graph_.vertices_at("/".join(path.split("/")[:3]))[0]
            assert graph_.up[node], f"{task} was started on a node that is down"
    if isinstance(planner, PoolPlanner):
        assert min(planner._base.free) >= 0
        fresh = planner._measure(now)
        times = {now, *fresh.times, *planner._base.times}
        for time in (time for time in times if time >= now):
            assert planner._base.at(time) == fresh.at(time)
            if planner._plan is not None:
                places = planner.allocations.reserved.values()
                held = sum(each.units for each in places if each.start <= time < each.end)
                assert planner._plan.at(time) == fresh.at(time) - held
                assert planner._plan.at(time) >= 0
    for record in queue.pending:
        if record.deadline is not None and record.reserved_at is not None:
            assert record.reserved_at <= record.deadline, f"{record.key} was pushed back and nobody said so"


@pytest.mark.parametrize("make", [pool, graph], ids=["counted", "matched"])
@pytest.mark.parametrize("policy", ["easy", "conservative"])
@settings(max_examples=60)
@given(history=events)
@example(
    history=[
        *(("submit", 1, 1), ("submit", 1, 1), ("submit", 5, 1), ("submit", 2, 2)),
        *(("finish", 0, 0), ("overrun", 60, 0)),
    ]
)
def test_nothing_is_started_where_nothing_is_and_promises_break_for_losses_only(
    make: Any, policy: str, history: list[tuple[str, int, int]]
) -> None:
    queue = make(policy, nodes=NODES, cores=CORES)
    now, lossy = play(queue, history)
    if policy == "conservative":
        for record in queue.records.values():
            assert lossy or record.broken == []
            for broken in record.broken:
                assert broken.cause.code in (Code.GIVEN, Code.RUNS_PAST_LIMIT)
    for node in range(NODES):
        queue.planner.matcher.set_status(f"/cluster0/node{node}", up=True)
    for _ in range(200):  # with all nodes back, every job ends
        run(queue, now)
        running = sorted(queue._tasks)
        if not running and not queue.pending.records:
            return
        if running:
            now += SECOND
            queue.finish(running[0], now)
        else:
            due = queue.next_due()
            assert due is not None, "jobs wait and nothing will ever start them"
            now = max(now, due)
    raise AssertionError("it does not end")


@pytest.mark.parametrize("make", [pool, graph], ids=["counted", "matched"])
@settings(max_examples=40)
@given(history=events)
def test_a_late_timer_delays_nobody_by_more_than_it_was_late(
    make: Any, history: list[tuple[str, int, int]]
) -> None:
    queue = make("conservative", nodes=NODES, cores=CORES)
    history = [event for event in history if event[0] in ("submit", "wait")]
    now, _ = play(queue, history)
    play(queue, [("wait", 3600, 0)])
    assert now >= 0
    late = sum(1 for event in history if event[0] == "wait") * len(history) * 7 + MINUTE
    for record in queue.records.values():
        assert record.broken == []
        if record.promised is not None and record.started is not None:
            assert record.started <= record.promised + late
