"""The queue's view of a cluster's seats: starting, reserving, taking back, and what is remembered."""

from __future__ import annotations

import msgspec
import numpy as np

from fluence.cluster.graph import job_number
from fluence.cluster.planner import ClusterPlanner, PodSetRequest
from fluence.messages import text, texts
from fluence.model.constraint import Constraint
from fluence.model.node import Node, NodeSpec, Taint
from fluence.model.pod import Pod
from fluence.queue.job import FOREVER, Submission
from fluence.queue.planner import PlanRequest
from fluence.queue.queue import Queue
from fluence.sandbox.nodes import NodeKind, manifests
from fluence.schedule.scheduler import cluster_for

NOW = 1_800_000_000_000
HOUR = 3_600_000


def planner(count: int = 2, cpu: int = 4) -> ClusterPlanner:
    cluster = cluster_for()
    for body in manifests(NodeKind(count=count, cpu=cpu, labels={"disk": "fast"})):
        body["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        cluster.set_node(msgspec.convert(body, Node))
    found = ClusterPlanner(cluster)
    found.advance(NOW)
    return found


def pods(name: str, count: int, cpu: str = "1", minimum: int | None = None, **more: object) -> PodSetRequest:
    made = tuple(
        msgspec.convert(
            {
                "metadata": {"name": f"{name}-{i}", "namespace": "d", "uid": f"{name}-{i}"},
                "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
            },
            Pod,
        )
        for i in range(count)
    )
    return PodSetRequest(made, minimum or count, number=job_number(name), **more)  # type: ignore[arg-type]


def free(found: ClusterPlanner) -> list[int]:
    return found.cluster.fit.free("cpu").tolist()


def test_what_is_started_holds_its_seats_and_gives_them_back() -> None:
    found = planner()
    held = found.start("a", pods("a", 6), NOW, HOUR, HOUR)
    assert held is not None and sum(free(found)) == 2000
    assert not found.start("b", pods("b", 3), NOW, HOUR, HOUR)
    found.end(held, NOW + 1)
    assert sum(free(found)) == 8000
    assert found.freed == 1 and found.opened == 1


def test_a_gang_that_must_wait_gets_the_time_at_which_another_ends() -> None:
    found = planner()
    assert found.start("a", pods("a", 6), NOW, HOUR, HOUR)
    held = found.start_or_reserve("b", pods("b", 8), NOW, HOUR, HOUR)
    assert held is not None and held.reserved and held.start == NOW + HOUR
    assert not found.start("c", pods("c", 1), NOW, 2 * HOUR, 2 * HOUR)  # it would delay b
    assert found.start("d", pods("d", 1), NOW, HOUR, HOUR)
    found.drop(held)
    assert found.start("c", pods("c", 1), NOW, 2 * HOUR, 2 * HOUR)


def test_nothing_is_planned_on_the_end_of_what_has_no_limit() -> None:
    found = planner()
    assert found.start("a", pods("a", 6), NOW, FOREVER, FOREVER)
    assert found.start_or_reserve("b", pods("b", 8), NOW, HOUR, HOUR) is None
    assert not found.cluster.fit.availability.events


def test_a_mark_takes_back_starts_reservations_and_drops() -> None:
    found = planner()
    assert found.start("a", pods("a", 6), NOW, HOUR, HOUR)
    assert found.start_or_reserve("b", pods("b", 8), NOW, HOUR, HOUR)
    found.settle(NOW)
    mark, before = found.mark(), free(found)
    found.drop_all()
    assert found.start("c", pods("c", 2), NOW, 2 * HOUR, 2 * HOUR)
    found.undo(mark)
    assert free(found) == before
    assert set(found.allocations.reserved) == {"b"} and set(found.allocations.running) == {"a"}
    assert "c-0" not in found.cluster.pods.entries
    assert not found.start("c", pods("c", 2), NOW, 2 * HOUR, 2 * HOUR)


def test_a_sketch_holds_nothing() -> None:
    found = planner()
    assert found.start("a", pods("a", 6), NOW, HOUR, HOUR)
    before = free(found)
    asks = [PlanRequest(pods(name, 8), HOUR, HOUR) for name in ("x", "y")]
    assert found.sketch(NOW, asks, in_order=True) == [NOW + HOUR, NOW + 2 * HOUR]
    expected = found.expect(NOW, {"a": NOW + HOUR // 2}, asks, {0, 1})
    assert expected == {0: NOW + HOUR // 2, 1: NOW + HOUR // 2 + HOUR}
    assert free(found) == before and set(found.cluster.jobs) == {job_number("a")}


def test_in_a_sketch_a_gang_starts_at_its_place_in_the_plan() -> None:
    """By sums it might start before: what is free lies in pieces."""
    found = planner()
    asks = [PlanRequest(pods("x", 8), HOUR, HOUR, since=NOW + HOUR), PlanRequest(pods("y", 8), HOUR, HOUR)]
    assert found.sketch(NOW, asks, in_order=True) == [NOW + HOUR, NOW + 2 * HOUR]
    assert found.sketch(NOW, asks, in_order=False) == [NOW + HOUR, NOW]


def test_requests_that_are_alike_share_a_shape() -> None:
    found = planner()
    assert found.shape(pods("a", 2)) == found.shape(pods("b", 2))
    assert found.shape(pods("a", 2)) != found.shape(pods("b", 3))
    assert found.shape(pods("a", 2)) != found.shape(pods("b", 2, minimum=1))
    assert found.shape(pods("a", 2)) != found.shape(pods("b", 2, exclude=frozenset(("node-000",))))


def test_a_gang_with_a_minimum_starts_with_what_fits() -> None:
    found = planner()
    assert found.start("a", pods("a", 10, minimum=5), NOW, HOUR, HOUR)
    assert len(found.cluster.jobs[job_number("a")]) == 8


def test_a_constraint_rules_nodes_out() -> None:
    found = planner()
    assert not found.start("a", pods("a", 1, constraint=Constraint("properties", ("gpu",))), NOW, HOUR, HOUR)
    wanted = Constraint(
        "and", (), (Constraint("properties", ("disk",)), Constraint("hostlist", ("node-000",)))
    )
    assert found.start("b", pods("b", 4, constraint=wanted), NOW, HOUR, HOUR)
    assert set(found.cluster.jobs[job_number("b")].values()) == {"node-000"}
    assert "excluded" in texts(found.why(pods("c", 1, constraint=wanted), NOW, HOUR))


def test_what_no_node_can_hold_is_judged_once_and_again_when_nodes_change() -> None:
    found = planner()
    told = found.feasibility(pods("a", 1, cpu="8"))
    assert told is not None and "too small" in text(told)
    for body in manifests(NodeKind(name="big", count=1, cpu=16)):
        body["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        found.cluster.set_node(msgspec.convert(body, Node))
    assert found.feasibility(pods("a", 1, cpu="8")) is None


def test_the_outlook_says_what_is_missing_and_how_many_would_fit() -> None:
    found = planner()
    assert found.start("a", pods("a", 6), NOW, HOUR, HOUR)
    outlook = found.outlook(pods("b", 4), NOW, HOUR)
    assert outlook.start == NOW + HOUR and outlook.fewer == 2
    assert "Insufficient cpu" in texts(outlook.causes)


def test_a_queue_over_seats_backfills_without_delay() -> None:
    found = planner()
    queue = Queue(found, "easy")
    for name, count, limit in (("a", 6, HOUR), ("big", 8, HOUR), ("long", 1, 2 * HOUR), ("short", 1, HOUR)):
        queue.submit(Submission(name, pods(name, count), NOW, limit))
    assert [start.task for start in queue.cycle(NOW)] == ["a", "short"]
    assert queue.records["big"].reserved_at == NOW + HOUR
    queue.finish("a", NOW + 5)
    queue.finish("short", NOW + 5)
    assert [start.task for start in queue.cycle(NOW + 5)] == ["big"]


def test_ten_thousand_jobs_of_one_shape_that_cannot_start_cost_one_try() -> None:
    found = planner()
    assert found.start("full", pods("full", 8), NOW, FOREVER, FOREVER)
    queue = Queue(found, "easy")
    for index in range(2000):
        queue.submit(Submission(f"j{index}", pods(f"j{index}", 1), NOW))
    tried: list[int] = []
    reserve = found.cluster.reserve
    found.cluster.reserve = lambda *args, **more: (tried.append(1), reserve(*args, **more))[1]  # type: ignore[func-returns-value, method-assign]
    assert queue.cycle(NOW) == []
    assert len(tried) < 10
    assert np.all(found.cluster.fit.free("cpu") == 0)


def test_a_job_does_not_stand_in_its_own_way() -> None:
    found = planner()
    assert found.start("a", pods("a", 1, "4"), NOW, HOUR, HOUR)
    waits = pods("b", 2, "4")
    held = found.start_or_reserve("b", waits, NOW, HOUR, HOUR)
    assert held is not None and held.reserved and held.start == NOW + HOUR
    planned = dict(found.cluster.fit.jobs[waits.number].placements)
    (told,) = found.why(waits, NOW, 2 * HOUR)  # its own place in the plan is no obstacle
    assert "1 of 2 pods of the group fit" in text(told)
    assert found.cluster.fit.jobs[waits.number].placements == planned
    assert found.allocations.reserved == {"b": held}


def test_no_start_is_promised_before_the_place_in_the_plan() -> None:
    """Four cores are free, two on each node: enough by their sum, and no seat for a pod that wants four."""
    found = planner()
    queue = Queue(found, "easy")
    for name in "ab":
        queue.submit(Submission(name, pods(name, 1, "2"), NOW, HOUR))
    queue.cycle(NOW)
    for name, cpu in (("c", "2"), ("d", "2")):
        queue.submit(Submission(name, pods(name, 1, cpu), NOW, 2 * HOUR))
    queue.cycle(NOW)
    queue.finish("a", NOW + 1)
    queue.finish("c", NOW + 1)
    queue.submit(Submission("wide", pods("wide", 1, "4"), NOW + 1, HOUR))
    assert queue.cycle(NOW + 1) == []
    entry = queue.records["wide"]
    assert entry.reserved_at is not None and entry.reserved_at > NOW + 1
    assert entry.no_later_than == entry.reserved_at


def test_a_taint_that_goes_changes_what_could_ever_be_held() -> None:
    """A new node is born tainted: what was impossible with its taint must be judged again without it."""
    found = planner()
    born = found.cluster.nodes["node-001"]
    tainted = NodeSpec(taints=[Taint(key="node.kubernetes.io/not-ready", effect="NoSchedule")])
    found.cluster.set_node(msgspec.structs.replace(born, spec=tainted))
    told = found.feasibility(pods("a", 8))
    assert told is not None and "taint" in text(told)
    found.cluster.set_node(born)
    assert found.feasibility(pods("a", 8)) is None
