"""Why gangs find no seats, as codes; the texts are in `tests/unit/test_messages_cluster.py`."""

from __future__ import annotations

from typing import Any

from fluence.cluster.graph import ClusterGraph, TopologyDomain
from fluence.model.node import Taint
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.placer.placer import GangRequest
from tests.gangs import compiled
from tests.gangs import why as why_not
from tests.unit.cluster.build import ZONE, node, pod


def cluster_of(*nodes: Any) -> ClusterGraph:
    cluster = ClusterGraph(policy="low")
    cluster.load(nodes)
    return cluster


def why(cluster: ClusterGraph, *pods: Pod, **more: Any) -> list[dict[str, Any]]:
    return [{"code": each.code, **dict(each.params)} for each in why_not(cluster, pods, now=0, **more)]


def causes(told: dict[str, Any]) -> dict[Code, list[str]]:
    found: dict[Code, list[str]] = {}
    for each in told["causes"]:
        cause = each["cause"]
        assert isinstance(cause, Reason)
        found[cause.code] = list(each["names"])
    return found


def test_each_node_falls_to_the_first_filter_that_closes_it() -> None:
    gpu = [Taint(key="gpu", effect="NoSchedule")]
    cluster = cluster_of(
        node("cordoned", unschedulable=True, taints=gpu),
        node("tainted", taints=gpu, cpu="1"),
        node("small", cpu="1"),
        node("silent", ready=False),
    )
    (told,) = why(cluster, pod("p", cpu="2"))
    assert told["code"] is Code.TOO_FEW_SEATS and (told["seats"], told["wanted"], told["nodes"]) == (0, 1, 4)
    assert causes(told) == {
        Code.NODE_UNSCHEDULABLE: ["cordoned"],
        Code.NODE_NOT_READY: ["silent"],
        Code.TAINT_NOT_TOLERATED: ["tainted"],
        Code.RESOURCES_LACKING: ["small"],
    }


def test_pods_are_named_only_where_there_are_several_kinds() -> None:
    cluster = cluster_of(node("n1"))
    assert [each["pod"] for each in why(cluster, pod("p", cpu="8"))] == [""]
    both = why(cluster, pod("p", cpu="8"), pod("q", cpu="9"))
    assert [each["pod"] for each in both] == ["d/p", "d/q"]


def test_kinds_that_fit_alone_are_told_that_they_do_not_fit_together() -> None:
    cluster = cluster_of(node("n1"))
    (told,) = why(cluster, pod("p", cpu="3"), pod("q", cpu="2"))
    assert (told["code"], told["pod"]) == (Code.NOT_TOGETHER, "d/q")
    assert causes(told) == {Code.RESOURCES_LACKING: ["n1"]}
    assert why(cluster, pod("p")) == []


def test_whole_nodes_are_held_or_in_use() -> None:
    cluster = cluster_of(node("n1"), node("n2"))
    cluster.set_pod(pod("x", on="n2"))
    gang = compiled(cluster, [pod("a")], policy="lonodex")
    assert isinstance(gang, GangRequest) and cluster.allocate(gang, job=1, now=0)
    (told,) = why(cluster, pod("p"), policy="lonodex")
    assert causes(told) == {Code.NODE_HELD_WHOLE: ["n1"], Code.NODE_IN_USE: ["n2"]}


def test_domains_are_told_with_their_seats() -> None:
    cluster = cluster_of(node("n1", zone="a"), node("n2", zone="b", cpu="8"), node("n3"))
    told, *_ = why(cluster, *(pod(f"p{i}", cpu="2") for i in range(5)), topology=TopologyDomain(ZONE))
    assert told["code"] is Code.TOO_FEW_SEATS_IN_ONE_DOMAIN
    assert dict(told["domains"]) == {"a": 2, "b": 4} and not told["begun"]


def test_a_pod_that_is_refused_is_told_so() -> None:
    (told,) = why(cluster_of(node("n1")), pod("p", resource_claims=[]), exclude={"n1"})
    assert causes(told) == {Code.NODE_EXCLUDED: ["n1"]}
