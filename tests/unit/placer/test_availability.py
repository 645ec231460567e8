"""What is free, and jobs that run past their end."""

from __future__ import annotations

import pytest

from fluence.graph.graph import CONTAINMENT, Batch, ResourceGraph
from fluence.match.matcher import Matcher
from fluence.match.request import Extensions, Wait
from fluence.placer.gang_fit import GangFit
from fluence.placer.placer import GangPlacement, GangRequest, Members


def fit(*, keeps_overdue: bool) -> GangFit:
    batch = Batch()
    root = batch.roots[CONTAINMENT] = batch.vertex("cluster", id=0, uniq_id=0)
    for number in range(2):
        node = batch.vertex("node", id=number, uniq_id=len(batch.type), rank=number)
        batch.edge(root, node)
        batch.edge(node, batch.vertex("cpu", id=0, uniq_id=len(batch.type), size=4))
    graph = ResourceGraph()
    graph.extend(batch)
    matcher = Matcher(graph, "low", horizon=1000, extensions=Extensions(quantities=frozenset({"cpu"})))
    return GangFit(matcher, keeps_overdue=keeps_overdue)


def gang(cpu: int, count: int = 1) -> GangRequest:
    return GangRequest((Members(tuple(f"p{i}" for i in range(count)), {"cpu": cpu}),), policy="low")


def test_what_starts_inside_a_window_is_not_free_throughout_it() -> None:
    seats = fit(keeps_overdue=False)
    assert isinstance(seats.allocate(gang(4, 2), job=1, now=0, duration=10), GangPlacement)
    later = seats.reserve(gang(3), job=2, now=0, duration=10)
    assert isinstance(later, GangPlacement) and later.at == 10
    rows = seats.table.pools["cpu"]
    assert seats.look(0, 5).free[rows].tolist() == [0, 0]
    assert seats.look(10, 5).free[rows].tolist() == [1, 4]
    assert seats.look(20, 5).free[rows].tolist() == [4, 4]


@pytest.mark.parametrize("recount", [False, True])
def test_a_job_past_its_end_is_free_or_held(recount: bool) -> None:
    for keeps, expected in ((False, [4, 4]), (True, [0, 4])):
        seats = fit(keeps_overdue=keeps)
        seats.allocate(gang(4), job=1, now=0, duration=10)
        seats.look(5)
        if recount:
            seats.matcher.ledger.generation += 1  # as if somebody else had changed it
        rows = seats.table.pools["cpu"]
        assert seats.look(10).free[rows].tolist() == expected
        assert seats.look(11, 100).free[rows].tolist() == expected
        seats.release(1)
        assert seats.look(11).free[rows].tolist() == [4, 4]
        assert not seats.availability.events


def test_nothing_is_promised_on_a_job_past_its_end() -> None:
    seats = fit(keeps_overdue=True)
    seats.allocate(gang(4, 2), job=1, now=0, duration=10)
    later = seats.earliest(gang(4), now=5)
    assert isinstance(later, GangPlacement) and later.at == 10
    assert seats.earliest(gang(4), now=10) == Wait("busy")
    seats.prolong(1, 50)
    later = seats.earliest(gang(4), now=12)
    assert isinstance(later, GangPlacement) and later.at == 50


def test_a_start_after_the_latest_that_matters_is_not_looked_for() -> None:
    seats = fit(keeps_overdue=True)
    seats.allocate(gang(4, 2), job=1, now=0, duration=10)
    assert seats.earliest(gang(4), now=5, latest=9) == Wait("busy")
    later = seats.earliest(gang(4), now=5, latest=10)
    assert isinstance(later, GangPlacement) and later.at == 10


def test_a_promise_past_its_end_is_over() -> None:
    seats = fit(keeps_overdue=True)
    seats.allocate(gang(4, 2), job=1, now=0, duration=10)
    seats.reserve(gang(4), job=2, now=0, duration=5)
    seats.release(1)
    assert seats.look(20).free[seats.table.pools["cpu"]].tolist() == [4, 4]
