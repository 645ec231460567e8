"""Why a job waits, for whom, and what would start it now: every proposed change is really made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fluence.errors import NotFound
from fluence.messages import texts
from fluence.messages.whatif import change_text
from fluence.model.jobspec import Count
from fluence.model.reason import Code, Reason
from fluence.queue import JobState, Queue, Submission
from fluence.queue.job import SECOND
from fluence.queue.reasons import BlockedBy, Change, why
from fluence.units import spell_duration
from tests.unit.queue.build import MINUTE, graph, job, nodes, pool, run

PLANNERS = pytest.mark.parametrize("make", [pool, graph], ids=["counted", "matched"])


def changed(before: Submission, change: Change) -> Submission:
    """The same job, resubmitted with the change."""
    new = replace(before, key=f"{before.key}-{change.what}")
    if change.what == "limit":
        return replace(new, limit=change.value)
    spec = new.request
    if change.what == "constraint":
        return replace(new, request=replace(spec, attributes=replace(spec.attributes, constraints=None)))  # type: ignore[attr-defined, type-var]
    assert change.what == "size"
    top = replace(spec.resources[0], count=Count(change.value, change.value))  # type: ignore[arg-type, attr-defined]
    return replace(new, request=replace(spec, resources=(top,)))  # type: ignore[type-var]


def check(queue: Queue, key: str) -> list[str]:
    """Cancel the job and resubmit it with each proposed change; says which kinds there were."""
    now = queue.now
    changes = why(queue, key).changes
    for change in changes:
        before = queue.records[key].job
        queue.cancel(key, now)
        assert run(queue, now) == []
        new = changed(before, change)
        queue.submit(new)
        started = run(queue, now)
        if change.start <= now:
            assert started == [new.key], f"{change} does not start it now"
        else:
            at = queue.records[new.key].reserved_at
            assert at is None or at <= change.start
        queue.cancel(new.key, now)
        run(queue, now)
        key = f"{key}'"
        queue.submit(replace(before, key=key))
        assert run(queue, now) == []
    return [change.what for change in changes]


@PLANNERS
class TestResources:
    def test_too_few_are_free(self, make):
        queue = make("easy")
        queue.submit(job("a", 10, 10))
        queue.submit(job("b", 8, 10))
        run(queue, 0)
        reason = why(queue, "b")
        assert reason.kind is BlockedBy.RESOURCE
        assert reason.waits_for == ("a",)
        assert Change("size", 6, 0) in reason.changes
        assert check(queue, "b") == ["size"]

    def test_the_reason_says_how_many(self, make):
        queue = make("easy")
        queue.submit(job("a", 10, 10))
        queue.submit(job("b", 8, 10))
        run(queue, 0)
        assert why(queue, "b").reasons == (
            Reason.of(Code.UNITS_BUSY, units=8, unit="core", free=6, total=16)
            if make is pool
            else Reason.of(Code.MATCHER_EXPLAINS, cause="slot: 1 of 1 places fit, 6 in all (8 wanted)"),
        )

    def test_the_tasks_that_end_first_are_named_and_by_their_job(self, make):
        queue = make("easy")
        queue.submit(job("long", 6, 30))
        queue.submit(job("arr", 5, 10, tasks=2))
        queue.submit(job("b", 5, 10))
        run(queue, 0)
        assert why(queue, "b").waits_for[0] == "arr"

    def test_a_promise_to_another_stands_in_the_way(self, make):
        queue = make("easy")
        queue.submit(job("running", 8, 15))
        queue.submit(job("head", 16, 20))
        queue.submit(job("long", 8, 60))
        run(queue, 0)
        reason = why(queue, "long")
        assert reason.kind is BlockedBy.RESOURCE
        assert Change("limit", 15 * MINUTE, 0) in reason.changes
        if make is pool:
            assert reason.reasons == (Reason.of(Code.UNITS_PROMISED, unit="core", free=8, most=0),)
        assert check(queue, "long") == ["limit"]

    def test_a_change_holds_where_limits_are_rounded_up(self, make):
        queue = make("easy", resolution=10 * MINUTE)
        queue.submit(job("running", 8, 11))
        queue.submit(job("head", 16, 20))
        queue.submit(job("later", 16, 20))
        queue.submit(job("long", 8, 60))
        run(queue, 0)
        queue.finish("running", 5 * MINUTE)
        run(queue, 5 * MINUTE)
        queue.submit(job("x", 8, 60, at=5 * MINUTE))
        run(queue, 5 * MINUTE)
        check(queue, "x")
        queue = make("easy", resolution=10 * MINUTE)
        queue.submit(job("running", 8, 20))
        run(queue, 0)
        queue.submit(job("head", 16, 20, at=5 * MINUTE))
        queue.submit(job("long", 8, 60, at=5 * MINUTE))
        run(queue, 5 * MINUTE)
        # 15 minutes are free; a limit of 15 would be counted as 20.
        assert why(queue, "long").changes == (Change("limit", 10 * MINUTE, 5 * MINUTE),)
        assert check(queue, "long") == ["limit"]

    def test_its_own_place_in_the_plan_does_not_stand_in_its_way(self, make):
        queue = make("conservative")
        queue.submit(job("a", 10, 10))
        queue.submit(job("b", 8, 10))
        run(queue, 0)
        assert queue.records["b"].reserved_at == 10 * MINUTE
        before = dict(queue.planner.allocations.reserved)
        assert why(queue, "b").changes == (Change("size", 6, 0),)
        assert queue.planner.allocations.reserved == before  # asking changes nothing
        queue.finish("a", MINUTE)
        assert run(queue, MINUTE) == ["b"]

    def test_where_nothing_starts_it_now_a_shorter_limit_may_start_it_sooner(self, make):
        queue = make("conservative")
        queue.submit(job("a", 16, 10))
        queue.submit(job("b", 10, 20))
        run(queue, 0)
        queue.submit(job("c", 16, 60))
        queue.submit(job("d", 6, 60))
        run(queue, 0)
        assert queue.records["d"].reserved_at == 90 * MINUTE
        (change,) = why(queue, "d").changes
        assert (change.what, change.start) == ("limit", 10 * MINUTE)
        assert check(queue, "d") == ["limit"]


class TestOtherKinds:
    def test_a_constraint_that_leaves_too_little(self):
        queue = graph("easy", nodes=2, cores=4)
        queue.planner.matcher.graph.set_property(  # type: ignore[attr-defined]
            queue.planner.matcher.graph.vertices_at("/cluster0/node0")[0],  # type: ignore[attr-defined]
            "fast",
            "",
        )
        fast = nodes(1, 4, '{properties: ["fast"]}')
        queue.submit(job("a", 0, 10, request=fast))
        queue.submit(job("b", 0, 10, request=fast))
        assert run(queue, 0) == ["a"]
        reason = why(queue, "b")
        assert reason.kind is BlockedBy.CONSTRAINT
        (narrow,) = reason.reasons
        assert narrow.code is Code.CONSTRAINT_TOO_NARROW
        assert [cause.code for cause in narrow["causes"]] == [Code.MATCHER_EXPLAINS]
        assert reason.changes[0] == Change("constraint", None, 0)
        assert "constraint" in check(queue, "b")

    def test_nobody_overtakes_under_fcfs(self):
        queue = pool("fcfs")
        for key, size in (("a", 10), ("head", 16), ("next", 16), ("small", 1)):
            queue.submit(job(key, size, 10))
        run(queue, 0)
        for key, ahead in (("next", ("head",)), ("small", ("head", "next"))):
            reason = why(queue, key)
            assert reason.kind is BlockedBy.AHEAD
            assert reason.waits_for == ahead
            assert reason.changes == ()  # smaller or shorter, it would still wait
        assert why(queue, "small").reasons == (
            Reason.of(Code.MUST_START_FIRST, fits=True, jobs=("head", "next")),
        )
        assert why(queue, "next").reasons == (Reason.of(Code.MUST_START_FIRST, fits=False, jobs=("head",)),)
        assert why(queue, "head").kind is BlockedBy.RESOURCE
        queue.cancel("next", 0)
        queue.cancel("small", 0)
        assert check(queue, "head") == ["size"]

    def test_only_some_of_those_ahead_are_named_in_words(self):
        queue = pool("fcfs")
        queue.submit(job("a", 16, 10))
        for number in range(8):
            queue.submit(job(f"b{number}", 16, 10))
        run(queue, 0)
        reason = why(queue, "b7")
        assert texts(reason.reasons) == "b0, b1, b2, b3, b4 and 2 more must start first"
        assert len(reason.waits_for) == 7

    def test_one_that_the_next_cycle_starts(self):
        queue = pool("easy")
        queue.submit(job("a", 1, 10))
        assert why(queue, "a").kind is BlockedBy.NOTHING
        assert why(queue, "a").reasons == (Reason.of(Code.FIRST_IN_QUEUE),)

    def test_a_constraint_is_not_blamed_where_it_leaves_enough(self):
        queue = graph("easy", nodes=2, cores=4)
        queue.submit(job("a", 0, 10, request=nodes(1, 4, '{not: [{properties: ["slow"]}]}')))
        assert why(queue, "a").kind is BlockedBy.NOTHING

    def test_one_beyond_the_depth_that_is_looked_at(self):
        queue = pool("easy", depth=2)
        for key, size in (("running", 16), ("head", 16), ("second", 16), ("small", 1)):
            queue.submit(job(key, size, 10))
        run(queue, 0)
        queue.finish("running", MINUTE)
        queue.cycle(MINUTE)
        queue.submit(job("last", 1, 10, at=MINUTE))
        run(queue, MINUTE)
        reason = why(queue, "last")
        assert (reason.kind, reason.changes) == (BlockedBy.AHEAD, ())
        assert reason.reasons == (Reason.of(Code.BEYOND_DEPTH, depth=2, ahead=2),)

    def test_one_that_runs_or_is_over(self):
        queue = pool("easy")
        queue.submit(job("a", 1, 10))
        run(queue, 0)
        assert texts(why(queue, "a").reasons) == "It is Running: resources were bound"
        queue.finish("a", MINUTE)
        last = Reason.of(Code.ENDED)
        assert why(queue, "a").reasons == (Reason.of(Code.IN_PHASE, phase="completed", last=last),)

    def test_one_that_can_never_start(self):
        queue = pool("easy")
        queue.submit(job("huge", 17, 10))
        reason = why(queue, "huge")
        assert reason.kind is BlockedBy.NEVER
        assert reason.reasons == (Reason.of(Code.TOO_FEW_UNITS, units=17, unit="core", total=16),)

    def test_one_that_nodes_which_are_down_would_hold(self):
        queue = pool("easy", nodes=2, cores=4)
        queue.planner.matcher.set_status("/cluster0/node1", up=False)  # type: ignore[attr-defined]
        record = queue.submit(job("wide", 8, 10))
        run(queue, 0)
        assert record.state is JobState.PENDING
        busy = Reason.of(Code.UNITS_BUSY, units=8, unit="core", free=4, total=4)
        assert why(queue, "wide").reasons == (busy,)
        assert check(queue, "wide") == ["size"]

    def test_one_without_a_walltime(self):
        queue = pool("easy")
        queue.submit(job("running", 8, 10))
        queue.submit(job("head", 16, 10))
        queue.submit(job("guess", 4, None))
        run(queue, 0)
        assert why(queue, "guess").kind is BlockedBy.RESOURCE
        assert check(queue, "guess") == ["limit"]

    def test_one_that_nobody_knows(self):
        with pytest.raises(NotFound, match="no job x"):
            why(pool(), "x")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (Change("size", 6, 0), "request 6 instead: it would start now"),
        (Change("limit", 15 * MINUTE, 0), "lower its time limit to 15 min: it would start now"),
        (Change("constraint", None, 90 * SECOND), "remove its constraint: it would start in 1 min 30 s"),
    ],
)
def test_changes_in_words(change, words):
    assert change_text(change, 0) == words


@pytest.mark.parametrize(
    ("milliseconds", "words"),
    [(0, "0 s"), (1, "1 s"), (61_000, "1 min 1 s"), (90_061_000, "1 d 1 h"), (7_200_000, "2 h")],
)
def test_a_length_of_time_for_people(milliseconds, words):
    assert spell_duration(milliseconds) == words
