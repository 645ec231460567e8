"""Quantities that no machine has: they are counted as far as can be counted, and nothing overflows."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from fluence.cluster.graph import ClusterGraph
from fluence.match.request import Never
from fluence.messages import text
from fluence.model.pod import Container, Pod, ResourceRequirements
from fluence.placer.placer import GangPlacement, GangRequest
from fluence.units import MAX_AMOUNT
from tests.gangs import compiled
from tests.gangs import why as why_not
from tests.unit.cluster.build import bound, node, pod

HUGE = ("1e17", "1e30", "9E", "7Ei", "9223372036854775807", "1e200", "1e999")


def asking(name: str, **requests: str) -> Pod:
    plain = pod(name)
    box = Container(name="c", resources=ResourceRequirements(requests=requests))
    return replace(plain, spec=replace(plain.spec, containers=[box]))


def cluster_of(*nodes: object) -> ClusterGraph:
    cluster = ClusterGraph(policy="low")
    cluster.load(nodes)  # type: ignore[arg-type]
    return cluster


def seat(cluster: ClusterGraph, *pods: Pod, job: int = 1) -> object:
    gang = compiled(cluster, pods)
    assert isinstance(gang, GangRequest)
    return cluster.allocate(gang, job=job, now=0, duration=10)


@pytest.mark.parametrize("amount", HUGE)
@pytest.mark.parametrize("resource", ["cpu", "memory", "nvidia.com/gpu", "example.com/nic"])
@pytest.mark.parametrize("count", [1, 3])
def test_what_nobody_has_never_fits(amount: str, resource: str, count: int) -> None:
    cluster = cluster_of(node("n1", gpu="2"), node("n2", cpu="8", memory="1e30"))
    pods = [asking(f"p{i}", **{resource: amount}) for i in range(count)]
    assert isinstance(seat(cluster, *pods), Never)
    gang = compiled(cluster, pods)
    assert isinstance(gang, GangRequest) and not cluster.fit.could_hold(gang)
    assert isinstance(cluster.earliest(gang, now=0), Never)


@pytest.mark.parametrize(
    ("resource", "amount", "told"),
    [
        ("cpu", "1e17", "cpu (1e17 requested, the largest node has 8)"),
        ("memory", "1e30", "memory (1e30 requested, the largest node has 16Gi)"),
        ("nvidia.com/gpu", "9E", "nvidia.com/gpu (9000000000000000000 requested, the largest node has 0)"),
    ],
)
def test_who_asks_for_too_much_is_told_of_the_largest_node(resource: str, amount: str, told: str) -> None:
    cluster = cluster_of(node("n1"), node("n2", cpu="8", memory="16Gi"))
    (why,) = why_not(cluster, [asking("p", **{resource: amount})], now=0)
    assert text(why) == f"0/2 nodes are available: 2 Insufficient {told}"


@pytest.mark.parametrize("amount", HUGE)
def test_a_pod_that_runs_and_asks_for_more_than_there_is_fills_its_node(amount: str) -> None:
    cluster = cluster_of(node("n1", gpu="2"), node("n2"))
    for number in range(300):
        needs = {"cpu": amount, "memory": amount, "nvidia.com/gpu": amount, "example.com/nic": amount}
        cluster.set_pod(bound(asking(f"x{number}", **needs), "n1"))
    assert cluster.fit.free("cpu")[0] < 0 < cluster.fit.free("cpu")[1]
    found = seat(cluster, pod("p"))
    assert isinstance(found, GangPlacement) and set(found.nodes.values()) == {"n2"}
    for number in range(300):
        cluster.remove_pod(f"uid-x{number}")
    assert cluster.fit.free("cpu").tolist() == [4000, 3000]
    assert cluster.fit.free("memory").tolist() == [8 << 30, 8 << 30]


@pytest.mark.parametrize("amount", HUGE)
def test_pods_that_run_with_too_much_are_adopted(amount: str) -> None:
    cluster = cluster_of(node("n1", gpu="2"))
    for number in range(40):
        cluster.set_pod(bound(asking(f"x{number}", **{"cpu": amount, "nvidia.com/gpu": amount}), "n1"))
        cluster.adopt(number + 1, [f"uid-x{number}"], start=0, end=5 + number)
    cluster.advance(1)
    assert cluster.fit.free("cpu")[0] < 0
    assert not isinstance(seat(cluster, pod("p"), job=1000), GangPlacement)
    for number in range(40):
        cluster.release(number + 1)
        cluster.remove_pod(f"uid-x{number}")
    assert cluster.fit.free("cpu").tolist() == [4000]


@pytest.mark.parametrize(("cpu", "memory"), [("1e30", "1e30"), ("5e15", "8e18"), ("1e999", "7Ei")])
def test_a_node_that_claims_to_have_too_much_is_counted_as_far_as_can_be(cpu: str, memory: str) -> None:
    cluster = cluster_of(node("n1", cpu=cpu, memory=memory, gpu="1e30", **{"example.com/nic": "1e40"}))  # type: ignore[arg-type]
    assert cluster.fit.size("cpu").tolist() == [MAX_AMOUNT]
    assert cluster.fit.size("gpu")[0] <= 4096
    assert isinstance(seat(cluster, pod("p")), GangPlacement)
    assert isinstance(seat(cluster, *(asking(f"h{i}", cpu="1e17") for i in range(2)), job=2), Never)
    cluster.set_node(node("n1"))
    assert cluster.fit.size("cpu").tolist() == [4000]
    cluster.set_node(node("n1", cpu="1e40"))
    assert cluster.fit.size("cpu").tolist() == [MAX_AMOUNT]


def test_thousands_of_nodes_at_the_bound_are_counted() -> None:
    big = {"cpu": "1e30", "memory": "1e30", "ephemeral_storage": "1e30", "hugepages_2Mi": "1e30"}
    cluster = cluster_of(*(node(f"n{i}", **big) for i in range(6000)))  # type: ignore[arg-type]
    free = cluster.fit.free("cpu")
    assert (free == MAX_AMOUNT).all() and int(free.sum()) == 6000 * MAX_AMOUNT
    found = seat(cluster, *(asking(f"p{i}", cpu="1e11") for i in range(3000)))
    assert isinstance(found, GangPlacement) and (cluster.fit.free("cpu") >= 0).all()
    assert (cluster.fit.look(0, 100).free[cluster.fit.table.pools["cpu"]] >= 0).all()


def test_a_cluster_that_together_has_too_much_is_counted_as_far_as_can_be() -> None:
    many = {f"example.com/r{i}": "1e30" for i in range(4500)}
    cluster = cluster_of(*(node(f"n{i}", **many) for i in range(10)))  # type: ignore[arg-type]
    assert isinstance(seat(cluster, pod("p")), GangPlacement)
    for again in range(2, 5):
        cluster.remove_node("n3")
        cluster.set_node(node("n3", **many))  # type: ignore[arg-type]
        assert isinstance(seat(cluster, pod(f"p{again}"), job=again), GangPlacement)
    cluster.set_node(node("n4", cpu="1e30"))
    assert isinstance(seat(cluster, pod("q"), job=9), GangPlacement)


def test_a_node_that_comes_and_goes_does_not_add_up() -> None:
    cluster = cluster_of(node("n0"))
    for _ in range(40):
        cluster.set_node(node("n1", memory="1e30"))
        cluster.sync()
        cluster.remove_node("n1")
    assert int(cluster.graph.size.sum()) < 2 * MAX_AMOUNT


def test_windows_at_the_bound_do_not_wrap() -> None:
    cluster = cluster_of(*(node(f"n{i}", cpu="1e30", pods="1000") for i in range(200)))
    for job in range(1, 60):
        gang = compiled(cluster, [asking(f"j{job}-{i}", cpu="1.2e11") for i in range(200)])
        assert isinstance(gang, GangRequest)
        cluster.reserve(gang, job=job, now=0, duration=10)
    view = cluster.fit.look(0, 10_000)
    assert (view.free[cluster.fit.table.pools["cpu"]] >= 0).all()
    assert np.abs(view.free).max() <= MAX_AMOUNT
