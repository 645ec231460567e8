"""Tables that are kept for speed stay small, however many different pods come by."""

from __future__ import annotations

import pytest

from fluence.cluster import columns, pod_index, requests
from fluence.cluster.claims import Claims
from fluence.cluster.filters import node_rules
from fluence.cluster.graph import ClusterGraph
from fluence.model.constraint import parse
from fluence.model.meta import LabelSelector, Requirement
from fluence.model.node import Taint
from fluence.model.pod import (
    Affinity,
    NodeSelector,
    NodeSelectorTerm,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    WeightedPodAffinityTerm,
)
from fluence.placer.placer import GangPlacement, GangRequest
from tests.amounts import amount
from tests.gangs import compiled
from tests.unit.cluster.build import HOST, node, pod
from tests.unit.cluster.test_claims import claim, kind, volume

MANY = amount(100_000, quick=10_000)


def distinct(number: int) -> Pod:
    """A pod like no other: in its size, its rules about nodes, and its rules about other pods."""
    own = LabelSelector(match_labels={"app": f"a{number}"})
    term = PodAffinityTerm(topology_key=HOST, label_selector=own)
    rather = WeightedPodAffinityTerm(weight=1, pod_affinity_term=term)
    return pod(
        f"p{number}",
        cpu=f"{1 + number % 100_000}m",
        node_selector={f"label-{number}": "yes"} if number % 2 else None,
        affinity=Affinity(pod_affinity=PodAffinity(preferred=[rather])) if number % 5 == 0 else None,
    )


def test_a_hundred_thousand_different_pods_leave_no_trace() -> None:
    cluster = ClusterGraph()
    cluster.load([node("n1", cpu="2000", pods="200000"), node("n2")])
    for number in range(MANY):
        one = distinct(number)
        gang = compiled(cluster, [one])
        assert isinstance(gang, GangRequest)
        if number % 10 == 0:
            cluster.try_now(gang, now=number)
        if number % 100 == 0 and isinstance(
            cluster.allocate(gang, job=number + 1, now=number), GangPlacement
        ):
            cluster.release(number + 1)
        if number % 3 == 0:
            cluster.remove_pod(one)
    made = cluster._requests
    filters = made._node_filters
    for table in (filters._masks, filters._selected, filters._scores):
        assert len(table) <= node_rules._MAX_RULES
    assert len(made._profiles) <= requests._MAX_PROFILES
    assert len(made.index._counts) <= pod_index._MAX_SELECTORS
    assert len(cluster.columns._labels) <= columns._MAX_LABELS
    assert len(cluster.fit.table._shapes) <= 4096
    assert len(cluster.fit.availability._windows) <= 16
    assert not made.index._existing and not made.index._terms_of and not made._ports._ports
    assert not cluster.fit.jobs


def test_pods_that_come_and_go_leave_no_trace() -> None:
    cluster = ClusterGraph()
    cluster.load([node("n1", pods="1000")])
    term = PodAffinityTerm(topology_key=HOST, label_selector=LabelSelector(match_labels={"app": "x"}))
    shy = Affinity(pod_anti_affinity=PodAffinity(required=[term]))
    for number in range(1000):
        one = pod(f"p{number}", on="n1", port=number + 1, affinity=shy)
        cluster.set_pod(one)
        cluster.sync()
        cluster.remove_pod(one)
    cluster.sync()
    made = cluster._requests
    assert not made.index._existing and not made._ports._ports and not cluster.pods.loads
    assert not cluster.fit.jobs


def test_constraints_are_forgotten() -> None:
    cluster = ClusterGraph()
    cluster.load([node("n1"), node("n2")])
    for number in range(1000):
        gang = compiled(cluster, [pod("p")], constraint=parse({"properties": [f"p{number}"]}))
        assert isinstance(gang, GangRequest) and gang.members[0].allowed is not None
        assert not gang.members[0].allowed.any()
    assert len(cluster._constrained) <= 128


def test_labels_and_taints_that_change_all_the_time_are_forgotten() -> None:
    cluster = ClusterGraph()
    cluster.load([node("n1"), node("n2")])
    cluster.columns.label("beat")
    for number in range(1000):
        taint = Taint(key=f"t{number}", effect="NoSchedule")
        cluster.set_node(node("n1", labels={"beat": str(number)}, taints=[taint]))
        assert cluster.columns.label("beat").equals(str(number)).tolist() == [True, False]
        assert cluster.columns.taints(0) == (taint,) and cluster.columns.taints(1) == ()
    assert len(cluster.columns.label("beat").codes) <= 70
    assert len(cluster.columns.taint_sets) <= 70


def test_claims_that_come_and_go_leave_no_trace() -> None:
    claims = Claims()
    claims.set_class(kind())
    claims.set_volume(volume("v", size="100Gi"))
    for number in range(3000):
        claims.set_claim(claim(size=f"{number + 1}Mi"))
    assert len(claims._found) <= 1024
    claims.set_claim(claim(kind="other"))  # its class was chosen late
    claims.set_claim(claim(kind="other", volumeName="v", phase="Bound"))
    claims.remove_claim(claim(kind="other"))
    claims.remove_volume(volume("v"))
    assert not claims._claims and not claims._bound and not claims._unbound and not claims._of_class


def test_namespaces_that_are_gone_are_forgotten() -> None:
    cluster = ClusterGraph()
    cluster.set_namespace("one", {"team": "physics"})
    assert cluster._requests.index.labels_of("one")["team"] == "physics"
    cluster.set_namespace("one", None)
    assert "team" not in cluster._requests.index.labels_of("one") and not cluster._requests.index._namespaces


@pytest.mark.parametrize("limits", [{"csi.example": 3}, {}])
def test_limits_of_nodes_without_drivers_are_forgotten(limits: dict[str, int]) -> None:
    cluster = ClusterGraph()
    cluster.set_attach_limits("n1", {"csi.example": 1})
    assert cluster.set_attach_limits("n1", limits)
    assert set(cluster._requests.claims.csi_limits._limits) == ({"n1"} if limits else set())


def test_a_gang_larger_than_the_table_of_profiles_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_MAX_PROFILES", 4)
    cluster = ClusterGraph()
    cluster.load([node("n1", cpu="100", pods="100")])
    pods = [pod(f"p{i}") for i in range(20)]
    gang = compiled(cluster, pods)
    assert isinstance(gang, GangRequest) and isinstance(cluster.allocate(gang, job=1, now=0), GangPlacement)
    assert len(cluster.pods.entries) == 20 and len(cluster._requests._profiles) == 4


def test_masks_of_selectors_are_forgotten() -> None:
    cluster = ClusterGraph()
    cluster.load([node("n1")])
    for number in range(2000):
        need = Requirement(key=HOST, operator="NotIn", values=[str(number)])
        selector = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_expressions=[need])])
        assert cluster.reaches(selector, "n1")
    assert len(cluster.columns._labels) == 1
