"""Fair share against what it must be: exact decay, ranks that are a total order, promises that hold.

F1: no new rank breaks a promise. F2: equal shares and endless equal demand give equal usage. F3: splitting a
job changes nothing. F4: usage that is written down and taken over ranks as before. F5: usage is never
negative or NaN, and no change of the queues resets it.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fluence.model.queues import Queue, QueueTree, Resource
from fluence.queue.fair_share import HYSTERESIS, NEGLIGIBLE, PAUSE, FairShare, due_shares
from fluence.queue.job import SECOND, Submission
from tests.unit.queue.build import cores, pool

CORE = Resource("core")
HALF = 3600 * SECOND
TREE = QueueTree(
    [Queue("top", weight=2), Queue("a", "top"), Queue("b", "top", weight=3), Queue("c", weight=0)]
)

tasks = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "c"]),
        st.sampled_from(["ada", "bob"]),
        st.floats(0, 1, allow_nan=False),
        st.integers(0, 10**7),
        st.integers(1, 10**7),
    ),
    max_size=12,
)


def play(given_: list[tuple[str, str, float, int, int]], until: int, looks: list[int]) -> FairShare:
    """All starts, ends and looks up to a time, in their order."""
    shares = FairShare(TREE, HALF)
    events: list[tuple[int, int, Any]] = [(at, 2, None) for at in looks]
    for number, (leaf, user, share, start, lasts) in enumerate(given_):
        events.append((start, 1, (f"t{number}", (leaf, user), share)))
        events.append((start + lasts, 0, f"t{number}"))
    for at, kind, what in sorted(events, key=lambda event: event[:2]):
        if at > until:
            break
        if kind == 1:
            task, account, share = what
            shares.started(task, account, share, at)
        elif kind == 0:
            shares.ended(what, at)
        else:
            shares.usage(at)
            shares.update(at)
    return shares


def integral(share: float, start: int, end: int, until: int) -> float:
    """Cluster-seconds with decay, in closed form."""
    if start >= until:
        return 0.0
    end = min(end, until)
    return (
        share
        * (HALF / SECOND / math.log(2))
        * (2 ** (-(until - end) / HALF) - 2 ** (-(until - start) / HALF))
    )


_TINY = [("a", "ada", 0.0, 0, 1), ("a", "ada", 0.0, 60_001, 1), ("a", "ada", 1.0, 0, 1)]


@settings(max_examples=200)
@given(tasks, st.integers(1, 3 * 10**7), st.lists(st.integers(0, 3 * 10**7), max_size=8))
@example(_TINY, 60_001, [0, 60_000])
def test_decay_is_exact_however_often_it_is_looked_at(
    given_: list[tuple[str, str, float, int, int]], until: int, looks: list[int]
) -> None:
    usage = play(given_, until, looks).usage(until)
    for account, value in usage.items():
        exact = sum(
            integral(share, start, start + lasts, until)
            for leaf, user, share, start, lasts in given_
            if (leaf, user) == account
        )
        # Next to nothing may be forgotten by each ranking, where nothing runs.
        assert value == pytest.approx(exact, rel=1e-9, abs=1e-9 + NEGLIGIBLE * len(looks))
        assert value >= 0  # F5


@given(tasks, st.integers(1, 3 * 10**7), st.integers(2, 5))
def test_splitting_a_job_changes_no_usage(
    given_: list[tuple[str, str, float, int, int]], until: int, parts: int
) -> None:
    split = [
        (leaf, user, share / parts, start, lasts)
        for leaf, user, share, start, lasts in given_
        for _ in range(parts)
    ]
    whole, in_parts = play(given_, until, []).usage(until), play(split, until, []).usage(until)
    assert whole == pytest.approx(in_parts, rel=1e-9, abs=1e-9)


@given(tasks, st.integers(1, 3 * 10**7))
def test_ranks_are_a_total_order_and_weight_0_is_last(
    given_: list[tuple[str, str, float, int, int]], until: int
) -> None:
    shares = play(given_, until, [])
    for leaf in "abc":
        shares.rank((leaf, "ada"))
    shares.update(until + PAUSE)
    ranks = {account: shares.rank(account) for account in shares.accounts}
    assert sorted(set(ranks.values())) == list(range(len(set(ranks.values()))))
    assert all(not math.isnan(ratio) for ratio in shares.ratios.values())
    worst = max(rank for (leaf, _), rank in ranks.items() if leaf != "c")
    assert all(rank > worst for (leaf, _), rank in ranks.items() if leaf == "c")


@given(tasks, st.integers(1, 10**7), st.integers(0, 10**7))
def test_usage_that_is_taken_over_ranks_as_before(
    given_: list[tuple[str, str, float, int, int]], until: int, later: int
) -> None:
    shares = play(given_, until, [])
    twin = FairShare(TREE, HALF)
    for account, value in shares.usage(until).items():
        twin.restore(account, float(f"{value:.17g}"), until)
    for number, task in enumerate(shares._running):  # whenever it started: that is in the value already
        account, share = shares._running[task]
        twin.started(task, account, share, until - number)
    now = until + later
    assert shares.usage(now) == pytest.approx(twin.usage(now), rel=1e-9, abs=1e-9)
    shares._is_incomplete = twin._is_incomplete = True
    shares.ratios.clear()
    shares.update(now)
    twin.update(now)
    close = {path: twin.ratios[path] for path in shares.ratios}
    assert shares.ratios == pytest.approx(close, rel=1e-9, abs=1e-9)


@given(tasks, st.integers(1, 3 * 10**7))
def test_no_change_of_the_queues_resets_usage(
    given_: list[tuple[str, str, float, int, int]], until: int
) -> None:
    shares = play(given_, until, [])
    before = shares.usage(until)
    shares.use(QueueTree([Queue("a", weight=5)]))
    shares.update(until)
    shares.use(TREE)
    shares.update(until)
    after = shares.usage(until)
    assert after == {account: before[account] for account in after}
    assert all(value < 1e-3 for account, value in before.items() if account not in after)


# -- in the queue --------------------------------------------------------------------------------------------


def run_all(queue: Any, jobs: list[tuple[Submission, int]]) -> dict[str, tuple[int, int]]:
    """Run all jobs, each as long as it says; its start and its end."""
    events: list[tuple[int, int, int, Any]] = []
    for serial, (submission, _) in enumerate(jobs):
        heappush(events, (submission.submit, 1, serial, submission))
    lasts = {submission.key: runtime for submission, runtime in jobs}
    ran: dict[str, tuple[int, int]] = {}
    serial, now = len(jobs), 0
    while True:
        due = queue.next_due()
        if not events and (due is None or not queue.pending.records):
            return ran
        at = events[0][0] if events else due
        now = due if due is not None and now < due < at else at
        while events and events[0][0] == now:
            what = heappop(events)[3]
            if isinstance(what, str):
                queue.finish(what, now)
            else:
                queue.submit(what)
        for start in queue.cycle(now):
            queue.running(start.task, now)
            end = now + min(lasts[start.record.key], start.record.limit)
            ran[start.record.key] = (now, end)
            heappush(events, (end, 0, serial, start.task))
            serial += 1


histories = st.lists(
    st.tuples(
        st.integers(1, 8),  # cores
        st.integers(1, 40),  # limit, minutes
        st.floats(0.1, 1),  # of which it runs
        st.integers(0, 90),  # arrival, minutes
        st.sampled_from(["a", "a", "b"]),
        st.sampled_from(["ada", "bob"]),
        st.sampled_from([16, 16, 16, 16]),
    ),
    min_size=2,
    max_size=25,
)


@pytest.mark.parametrize("policy", ["fcfs", "conservative"])
@settings(max_examples=100, deadline=None)
@given(history=histories, limit=st.none() | st.integers(8, 8))
def test_no_rank_breaks_a_promise(policy: str, history: list[Any], limit: int | None) -> None:
    """F1, where promises rest on reservations or on the order."""
    tree = QueueTree(
        [
            Queue("a", guaranteed={CORE: 2}, limit={} if limit is None else {CORE: limit}),
            Queue("b", weight=4, guaranteed={CORE: 1}),
        ]
    )
    queue = pool(policy, nodes=2, cores=4, queues=tree, half_life=HALF)
    jobs = [
        (
            Submission(
                f"j{number}",
                cores(size),
                at * 60 * SECOND,
                limit=minutes * 60 * SECOND,
                queue=leaf,
                user=user,
                priority=priority,
            ),
            max(1, round(part * minutes * 60 * SECOND)),
        )
        for number, (size, minutes, part, at, leaf, user, priority) in enumerate(history)
    ]
    ran = run_all(queue, sorted(jobs, key=lambda one: one[0].submit))
    assert len(ran) == len(jobs)
    assert not [record.key for record in queue.records.values() if record.broken]


@pytest.mark.parametrize("policy", ["fcfs", "easy", "hybrid(4)", "first-fit"])
@pytest.mark.parametrize("weights", [(1, 1), (2, 1), (3, 1)])
def test_endless_demand_is_served_by_weight(policy: str, weights: tuple[int, int]) -> None:
    """F2: usage follows weights, within the hysteresis and one job's size."""
    tree = QueueTree([Queue("a", weight=weights[0]), Queue("b", weight=weights[1])])
    queue = pool(policy, nodes=2, cores=4, queues=tree, half_life=24 * HALF, promises=2)
    minutes = 10
    jobs = [
        (
            Submission(
                f"{leaf}{number}", cores(2), number, limit=minutes * 60 * SECOND, queue=leaf, user="u"
            ),
            minutes * 60 * SECOND,
        )
        for number in range(300)
        for leaf in "ab"
    ]
    ran = run_all(queue, sorted(jobs, key=lambda one: one[0].submit))
    until = min(max(end for key, (_, end) in ran.items() if key[0] == leaf) for leaf in "ab") // 2
    used = {
        leaf: sum(max(0, min(end, until) - start) for key, (start, end) in ran.items() if key[0] == leaf)
        for leaf in "ab"
    }
    due = due_shares(tree, ["a", "b"])
    part = used["a"] / (used["a"] + used["b"])
    # Four jobs run at a time: one job's size is a quarter of the cluster for ten minutes.
    assert abs(part - due["a"]) <= HYSTERESIS * due["a"] + minutes * 60 * SECOND / until


@given(tasks, st.integers(1, 10**7), st.randoms(use_true_random=False))
def test_tasks_that_are_found_in_any_order_count_the_same(
    given_: list[tuple[str, str, float, int, int]], until: int, random: Random
) -> None:
    some = list(given_)
    shares, twin = FairShare(TREE, HALF), FairShare(TREE, HALF)
    for number, (leaf, user, share, start, _) in sorted(enumerate(some), key=lambda item: item[1][3]):
        shares.started(str(number), (leaf, user), share, start)
    order = list(enumerate(some))
    random.shuffle(order)
    for number, (leaf, user, share, start, _) in order:
        twin.started(str(number), (leaf, user), share, start)
    now = max([until, *(start for _, _, _, start, _ in some)])
    assert shares.usage(now) == pytest.approx(twin.usage(now), rel=1e-9, abs=1e-9)


def test_accounts_that_do_not_count_any_more_are_forgotten() -> None:
    shares = FairShare(TREE, HALF)
    for number in range(1000):
        account = ("a", f"user{number}")
        shares.started(f"task{number}", account, 0.001, 0)
        shares.ended(f"task{number}", 1000)
        assert shares.rank(account) >= 0
    shares.rank(("a", "ada"))
    shares.update(0)
    shares.rank(("a", "ada"))  # waits
    shares.started("runs", ("b", "bob"), 0.5, 0)
    shares.update(100 * HALF)
    shares.rank(("a", "ada"))
    shares.started("late", ("b", "bob"), 0.5, 100 * HALF)
    shares.update(200 * HALF)
    assert set(shares.accounts) == {("a", "ada"), ("b", "bob")}


@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan, 1e16])
def test_usage_that_is_nonsense_is_not_taken_over(value: float) -> None:
    shares = FairShare(TREE, HALF)
    shares.restore(("a", "ada"), value, 0)
    assert shares.usage(0) == {}
