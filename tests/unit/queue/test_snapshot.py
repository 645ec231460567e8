"""A queue that is saved and restored goes on as if nothing had been; what is none gets one line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluence.errors import FluenceError, InvalidInput
from fluence.queue import Dependency, GraphPlanner, JobRecord, JobState, PoolPlanner, Queue
from fluence.queue.snapshot import restore, save
from tests.unit.queue.build import MINUTE, finish_at_limits, graph, job, nodes, pool, run

PLANNERS = pytest.mark.parametrize("make", [pool, graph], ids=["counted", "matched"])


def restored(queue: Queue) -> Queue:
    return restore(save(queue, queue.planner.matcher))  # type: ignore[attr-defined]


def spans(record: JobRecord) -> dict[str, tuple[int, int]]:
    return {task: (held.start, held.end) for task, held in record.running.items()}


def plan(queue: Queue) -> list[Any]:
    return [
        (e.key, e.state, e.waiting, spans(e), e.reserved_at, e.deadline, e.no_later_than)
        for e in sorted(queue.records.values(), key=lambda e: e.key)
        if not e.state.leaves_queue
    ]


def goes_on(queue: Queue, now: int) -> list[tuple[int, str]]:
    """All that still starts, if every task runs until its limit."""
    seen = []
    for _ in range(200):
        seen += [(now, task) for task in run(queue, now)]
        due = queue.next_due()
        if due is None:
            break
        now = max(now, due)
        finish_at_limits(queue, now)
    return seen


def busy(queue: Queue) -> int:
    """Jobs of all kinds, some of which ended early; says when it is."""
    for key, size, minutes in (("a", 10, 30), ("b", 8, 20), ("c", 16, 10), ("d", 3, 90), ("e", 2, 15)):
        queue.submit(job(key, size, minutes, user="ada"))
    queue.submit(job("arr", 5, 12, tasks=4))
    queue.submit(job("last", 1, 10, after=(Dependency("afterok", "a"), Dependency("afterany", "arr"))))
    run(queue, 0)
    queue.finish("a", 7 * MINUTE)
    run(queue, 7 * MINUTE)
    queue.submit(job("f", 6, 25, at=8 * MINUTE, priority=20))
    run(queue, 8 * MINUTE)
    return 8 * MINUTE


@PLANNERS
@pytest.mark.parametrize("policy", ["fcfs", "first-fit", "easy", "hybrid(2)", "conservative"])
class TestRoundTrip:
    def test_the_plan_is_the_same(self, make, policy):
        queue = make(policy)
        now = busy(queue)
        twin = restored(queue)
        assert plan(twin) == plan(queue)
        assert run(twin, now) == []
        assert plan(twin) == plan(queue)

    def test_the_same_starts_follow(self, make, policy):
        queue = make(policy)
        now = busy(queue)
        twin = restored(queue)
        assert goes_on(twin, now) == goes_on(queue, now)

    def test_a_newcomer_is_told_the_same(self, make, policy):
        queue = make(policy)
        now = busy(queue)
        twin = restored(queue)
        told = []
        for each in (queue, twin):
            record = each.submit(job("new", 12, 30, at=now, user="ada"))
            run(each, now)
            told.append((record.no_later_than, record.expected))
        assert told[0] == told[1]
        assert told[0][0] is not None and told[0][1] is not None

    def test_a_snapshot_of_a_restored_queue_is_the_same(self, make, policy):
        queue = make(policy)
        busy(queue)
        first = json.loads(save(queue, queue.planner.matcher))
        twin = restored(queue)
        again = json.loads(save(twin, twin.planner.matcher))  # type: ignore[attr-defined]
        assert again == first


class TestWhatIsKept:
    def test_the_kind_of_space(self):
        queue = pool()
        queue.submit(job("a", 4, 10))
        run(queue, 0)
        assert isinstance(restored(queue).planner, PoolPlanner)
        queue.submit(job("b", 0, 10, request=nodes(1, 4)))
        run(queue, 0)
        assert isinstance(restored(queue).planner, GraphPlanner)

    def test_a_job_that_waited_for_one_that_is_over(self):
        queue = pool("fcfs")
        queue.submit(job("a", 16, 10))
        queue.submit(job("b", 16, 10))
        queue.submit(job("c", 16, 10, after=(Dependency("afterok", "a"), Dependency("afterok", "b"))))
        run(queue, 0)
        queue.finish("a", MINUTE)
        run(queue, MINUTE)
        twin = restored(queue)
        assert twin.records["c"].job.after == (Dependency("afterok", "b"),)
        twin.finish("b", 2 * MINUTE)
        assert run(twin, 2 * MINUTE) == ["c"]

    def test_an_array_none_of_whose_tasks_runs_just_now(self):
        queue = pool("fcfs")
        record = queue.submit(job("arr", 8, 10, tasks=4))
        run(queue, 0)
        queue.submit(job("high", 16, 10, priority=31))
        queue.finish("arr[0]", MINUTE)
        queue.finish("arr[1]", MINUTE)
        assert run(queue, MINUTE) == ["high"]
        assert (record.running, record.waiting) == ({}, 2)
        twin = restored(queue)
        twin.finish("high", 2 * MINUTE)
        assert run(twin, 2 * MINUTE) == ["arr[2]", "arr[3]"]

    def test_depth_window_and_resolution(self):
        queue = pool("easy", depth=7, window=3 * MINUTE, resolution=MINUTE)
        twin = restored(queue)
        assert (twin.depth, twin.window, twin.resolution) == (7, 3 * MINUTE, MINUTE)

    def test_nodes_that_are_down(self):
        queue = pool("easy", nodes=2, cores=4)
        queue.planner.matcher.set_status("/cluster0/node1", up=False)  # type: ignore[attr-defined]
        queue.submit(job("a", 8, 10))
        run(queue, 0)
        twin = restored(queue)
        assert run(twin, MINUTE) == []
        assert twin.records["a"].state is JobState.PENDING

    def test_another_policy_makes_another_plan(self):
        queue = pool("conservative")
        now = busy(queue)
        twin = restore(save(queue, queue.planner.matcher), policy="fcfs")  # type: ignore[attr-defined]
        run(twin, now)
        assert all(e.reserved_at is None for e in twin.records.values())


def document() -> dict[str, Any]:
    queue = pool("conservative", nodes=2, cores=4)
    queue.submit(job("a", 5, 10, user="ada"))
    queue.submit(job("b", 6, 10))
    queue.submit(job("c", 1, 10, after=(Dependency("afterany", "b"),)))
    run(queue, 0)
    value: dict[str, Any] = json.loads(save(queue, queue.planner.matcher))  # type: ignore[attr-defined]
    return value


class TestBadSnapshots:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (b"", "state.json: is not a valid snapshot: "),
            (b"{}", "Object missing required field `version`"),
            (b"[1, 2]", "Expected `object`, got `array`"),
            (b"\xff\xfe", "state.json: is not a valid snapshot: "),
            (b'{"version": 1', "state.json: is not a valid snapshot: "),
        ],
    )
    def test_a_text_that_is_none(self, text, said):
        with pytest.raises(InvalidInput, match=said) as caught:
            restore(text, source="state.json")
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda d: d.update(version=2), "state.json: has version 2; this program reads 1"),
            (lambda d: d.update(policy="fifo"), "unknown queue policy 'fifo'"),
            (lambda d: d.update(match_policy="best"), "best"),
            (lambda d: d.update(resolution=0), "resolution"),
            (lambda d: d.update(calibration=-1), "calibration"),
            (lambda d: d.update(graph={"graph": {"nodes": [{}]}}), "state.json"),
            (lambda d: d["jobs"].append(d["jobs"][2]), "job c has been submitted already"),
            (lambda d: d["jobs"].pop(1), "job c waits for b, which was never submitted"),
            (lambda d: d["jobs"][0].update(tasks=0), "tasks"),
            (lambda d: d["jobs"][0].update(limit=-5), "limit"),
            (lambda d: d["jobs"][0].update(waiting=[7]), "state.json: job a"),
            (lambda d: d["jobs"][0]["running"]["a"].update(end=-1), "Expected `int` >= 0"),
            (lambda d: d["jobs"][0]["running"]["a"].update(end=0), "task a: ends at 0, and starts at 0"),
            (lambda d: d["jobs"][0]["running"]["a"]["holds"][0].__setitem__(0, "/x"), "/x"),
            (lambda d: d["jobs"][0]["running"]["a"]["holds"][0].__setitem__(1, -4), "Expected `int` >= 0"),
            (lambda d: d["jobs"][0].update(jobspec={}), "state.json: job a"),
            (lambda d: d["jobs"][1].update(running=d["jobs"][0]["running"]), "state.json: task a"),
            (lambda d: d["jobs"][1].update(reserved={"x": {"start": 5, "end": 2, "holds": []}}), "task x"),
            (lambda d: d.update(runs=[{"spec": 9, "runtime": 1}]), "state.json: a run is of spec 9"),
        ],
    )
    def test_one_that_cannot_be(self, change, said):
        value = document()
        change(value)
        with pytest.raises(FluenceError, match=said) as caught:
            restore(json.dumps(value).encode(), source="state.json")
        assert "\n" not in str(caught.value)

    def test_a_job_that_runs_though_it_cannot_is_refused_and_its_end_is_nobodys(self):
        value = document()
        value["jobs"][0]["jobspec"]["resources"][0]["count"] = 99
        queue = restore(json.dumps(value).encode())
        assert queue.records["a"].state is JobState.UNSCHEDULABLE
        end = value["jobs"][0]["running"]["a"]["end"]
        for now in (0, end, end + MINUTE):
            run(queue, now)
        assert queue.records["b"].waiting  # what a holds was never given back

    @settings(max_examples=150)
    @given(st.data())
    def test_whatever_is_changed_the_answer_is_a_queue_or_one_line(self, data):
        value = document()
        for _ in range(data.draw(st.integers(1, 3))):
            _mutate(value, data)
        try:
            queue = restore(json.dumps(value).encode())
            queue.cycle(queue.now)
        except FluenceError as error:
            assert "\n" not in str(error)


def _mutate(value: Any, data: st.DataObject) -> None:
    """Replace, remove or repeat one thing somewhere in a document."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        if isinstance(value[key], dict | list) and value[key] and data.draw(st.integers(0, 9)):
            value = value[key]
            continue
        break
    new = data.draw(
        st.none()
        | st.integers(-3, 2**40)
        | st.sampled_from(["", "a", "core", "/cluster0", 1e300, True, [], {}, -(2**63), 2**70])
    )
    if new is None:
        del value[key]
    else:
        value[key] = new
