"""Two ways to the same plan: counted or matched, kept from cycle to cycle or made anew."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluence.queue import PoolPlanner, Queue
from fluence.queue import history as histories
from fluence.queue.job import SECOND
from tests.unit.queue.build import MINUTE, graph, job, matcher, pool, run

UNITS = 6

# minutes to the arrival before, size, minutes of its limit, and the part of it that it runs
arrivals = st.lists(
    st.tuples(
        st.integers(0, 4), st.integers(1, UNITS), st.integers(1, 9), st.sampled_from([1.0, 1.0, 0.5, 0.1])
    ),
    min_size=1,
    max_size=14,
)
History = list[tuple[int, str, dict[str, int]]]


def driven(queue: Queue, jobs: list[tuple[int, int, int, float]], *, anew: bool = False) -> History:
    """What starts when, and what is reserved then, with a cycle after every event."""
    events: list[tuple[int, int, str, Any]] = []
    at = 0
    for number, (after, size, minutes, part) in enumerate(jobs):
        at += after * 60 * SECOND
        events.append((at, 1, f"j{number:02}", (job(f"j{number:02}", size, minutes, at), part)))
    seen: History = []
    now = -1
    for _ in range(1000):
        due = queue.next_due()
        times = [event[0] for event in events] + ([due] if due is not None and due > now else [])
        if not times:
            break
        now = min(times)
        while events and (ready := sorted(events, key=lambda event: event[:3])[0])[0] == now:
            events.remove(ready)
            if ready[1] == 0:
                queue.finish(ready[2], now)
            else:
                queue.submit(ready[3][0])
        if anew:
            queue._disturbed = True
        starts = queue.cycle(now)
        for start in starts:
            queue.running(start.task, now)
            part = jobs[int(start.task[1:])][3]
            events.append((now + round(start.record.limit * part), 0, start.task, None))
        planned = {e.key: e.reserved_at for e in queue.pending if e.reserved_at is not None}
        if starts or not seen or planned != seen[-1][2]:
            seen.append((now, " ".join(sorted(start.task for start in starts)), planned))
    assert not queue.pending.records
    return seen


@pytest.mark.parametrize("policy", ["fcfs", "first-fit"])
@settings(max_examples=40)
@given(jobs=arrivals)
def test_counts_and_matches_start_the_same_jobs(policy: str, jobs: list[tuple[int, int, int, float]]) -> None:
    by_count = driven(pool(policy, nodes=UNITS, cores=1), jobs)
    by_match = driven(graph(policy, nodes=UNITS, cores=1), jobs)
    assert by_count == by_match


@pytest.mark.parametrize("policy", ["easy", "hybrid(2)", "conservative"])
@settings(max_examples=60)
@given(jobs=arrivals)
def test_a_plan_that_is_kept_is_the_plan_made_anew(
    policy: str, jobs: list[tuple[int, int, int, float]]
) -> None:
    """As long as nothing comes free before it was planned to. (Where units have names, a plan made anew may
    name others and so fit in more.)"""
    jobs = [(after, size, minutes, 1.0) for after, size, minutes, _ in jobs]
    kept = driven(pool(policy, nodes=UNITS, cores=1), jobs)
    anew = driven(pool(policy, nodes=UNITS, cores=1, replan=True), jobs, anew=True)
    assert kept == anew


@pytest.mark.parametrize("make", [pool, graph], ids=["counted", "matched"])
@settings(max_examples=40)
@given(jobs=arrivals)
def test_conservative_starts_every_job_by_its_first_promise(
    make: Any, jobs: list[tuple[int, int, int, float]]
) -> None:
    """Though jobs end early and the plan is made anew each time."""
    queue = make("conservative", nodes=UNITS, cores=1)
    driven(queue, jobs)
    for record in queue.records.values():
        assert record.broken == []
        assert record.started is not None
        assert record.promised is None or record.started <= record.promised


# minutes that pass, size and limit of what arrives, which task ends, whether names are asked for
steps = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.one_of(st.none(), st.tuples(st.integers(1, UNITS), st.integers(1, 9))),
        st.one_of(st.none(), st.integers(0, UNITS)),
        st.booleans(),
    ),
    max_size=20,
)


def names(queue: Queue) -> dict[str, list[int]]:
    planner = queue.planner
    assert isinstance(planner, PoolPlanner)
    ledger = planner.matcher.ledger
    return {
        task: ledger.vertex[ledger.job(held.number).spans].tolist()
        for task, held in planner.allocations.running.items()
    }


@pytest.mark.parametrize("policy", ["easy", "conservative"])
@given(steps)
@settings(deadline=None)
def test_units_that_are_named_late_are_those_that_would_have_been_named_at_once(
    policy: str, history: list[Any]
) -> None:
    late, early = (
        Queue(PoolPlanner(matcher(cores=UNITS), "core", names_late=is_late), policy)
        for is_late in (True, False)
    )
    now = 0
    for number, (passed, new, ends, asked) in enumerate(history):
        now += passed * MINUTE
        running = list(early.planner.allocations.running)
        for queue in (late, early):
            if ends is not None and ends < len(running):
                queue.finish(running[ends], now)
            if new is not None:
                queue.submit(job(f"j{number}", new[0], new[1], now))
        assert run(late, now) == run(early, now)  # some run past their limits
        told = [[(e.key, e.no_later_than, e.expected) for e in queue.pending] for queue in (late, early)]
        assert told[0] == told[1]
        if asked:
            late.planner.name()  # type: ignore[attr-defined]
            assert names(late) == names(early)
    late.planner.name()  # type: ignore[attr-defined]
    assert names(late) == names(early)
    ends_of = [{t: h.end for t, h in q.planner.allocations.running.items()} for q in (late, early)]
    assert ends_of[0] == ends_of[1]


class Anew(PoolPlanner):
    """Sketches from the beginning each time."""

    def sketch(self, *args: Any, **options: Any) -> list[int | None]:
        self._sketches.clear()
        return super().sketch(*args, **options)


class Forgetful(histories.History):
    """Says the same, and is asked each time."""

    def predict(self, *args: Any) -> int | None:
        self._said.clear()
        return super().predict(*args)


@pytest.mark.parametrize("policy", ["fcfs", "first-fit", "easy"])
@given(arrivals)
@settings(deadline=None)
def test_a_sketch_that_is_continued_promises_what_one_from_the_beginning_does(
    policy: str, jobs: list[Any]
) -> None:
    promised = []
    for make, predictor in ((PoolPlanner, histories.History()), (Anew, Forgetful())):
        queue = Queue(make(matcher(cores=UNITS), "core"), policy, predictor=predictor)
        driven(queue, jobs)
        promised.append([(each.promised, each.first_expected) for each in queue.records.values()])
    assert promised[0] == promised[1]


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 40)), max_size=60), st.integers(0, 40))
def test_a_prediction_is_a_share_of_the_last_runs_that_were_longer(
    ran: list[tuple[int, int]], elapsed: int
) -> None:
    made = histories.History()
    for minutes, lasted in ran:
        made.learn(job("a", 1, minutes), 0, lasted)
    asked = job("b", 1, 4)
    assert asked.limit is not None
    limit, place = asked.limit, 0.5 if elapsed else 0.8
    shares = [lasted / (minutes * MINUTE) * limit for minutes, lasted in ran][-40:]
    longer = sorted(share for share in shares if share > elapsed)
    otherwise = limit if not elapsed else (elapsed + limit) // 2
    wanted = round(longer[int(place * (len(longer) - 1) + 0.5)]) if longer else otherwise
    assert made.predict(asked, 1, elapsed) == wanted
