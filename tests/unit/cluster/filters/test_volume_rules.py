"""Gangs with claims: where they sit, who shares, and which volume goes to whom."""

from __future__ import annotations

import numpy as np
import pytest

from fluence.cluster.claims import Choice, Claim
from fluence.cluster.graph import ClusterGraph, Refused
from fluence.messages import text
from fluence.model.meta import Requirement
from fluence.model.pod import ClaimVolumeSource, NodeSelector, NodeSelectorTerm, Pod, PodVolume
from fluence.placer.placer import GangPlacement
from tests.gangs import compiled
from tests.gangs import why as why_not
from tests.unit.cluster.build import HOST, ZONE, bound, node, pod


def at(key: str, *values: str) -> NodeSelector:
    term = NodeSelectorTerm(match_expressions=[Requirement(key=key, operator="In", values=list(values))])
    return NodeSelector(node_selector_terms=[term])


def local(volume: str, *hosts: str) -> Choice:
    return Choice(volume, at(HOST, *hosts) if hosts else None)


def static(*choices: Choice) -> Claim:
    return Claim("waits", provisions=False, choices=choices, class_name="local", one_node=True)


def made(nodes: NodeSelector | None = None, **more: object) -> Claim:
    return Claim("waits", nodes, class_name="fast", one_node=True, **more)  # type: ignore[arg-type]


def mounting(name: str, *claims: str, **more: object) -> Pod:
    volumes = [
        PodVolume(name=each, persistent_volume_claim=ClaimVolumeSource(claim_name=each)) for each in claims
    ]
    return pod(name, volumes=volumes, **more)  # type: ignore[arg-type]


def cluster_of(*names: str, **claims: Claim) -> ClusterGraph:
    cluster = ClusterGraph(policy="lonode")
    cluster.load([node(name, zone="ab"[i % 2]) for i, name in enumerate(names)])
    for name, claim in claims.items():
        cluster.set_claim("d", name, claim)
    return cluster


def seat(
    cluster: ClusterGraph, *pods: Pod, job: int = 1, minimum: int | None = None
) -> dict[str, str] | None:
    gang = compiled(cluster, pods, minimum=minimum or 0)
    assert not isinstance(gang, Refused), gang
    seated = cluster.allocate(gang, job=job, now=0)
    if not isinstance(seated, GangPlacement):
        return None
    return {str(uid).removeprefix("uid-"): node for uid, node in seated.nodes.items()}


def decided(cluster: ClusterGraph, job: int, *pods: Pod) -> dict[str, str | None]:
    found = cluster.volume_decisions(cluster.jobs[job], {each.metadata.uid: each for each in pods})
    return {each.claim[1]: each.volume for each in found}


def test_a_claim_that_waits_can_be_made_where_its_class_allows() -> None:
    cluster = cluster_of("n1", "n2", data=made(at(ZONE, "b")))
    p = mounting("p", "data")
    assert seat(cluster, p) == {"p": "n2"} and decided(cluster, 1, p) == {"data": None}


def test_pods_whose_claims_differ_in_name_only_are_alike() -> None:
    cluster = cluster_of("n1", "n2", **{f"data-{i}": made(at(ZONE, "a", "b")) for i in range(4)})
    gang = compiled(cluster, [mounting(f"p{i}", f"data-{i}") for i in range(4)])
    assert not isinstance(gang, Refused) and len(gang.members) == 1 and gang.rules is None


def test_a_gang_takes_each_volume_once() -> None:
    choices = (local("v1", "n1"), local("v2", "n1"), local("v3", "n2"))
    cluster = cluster_of("n1", "n2", **{f"data{i}": static(*choices) for i in range(4)})
    pods = [mounting(f"p{i}", f"data{i}") for i in range(4)]
    assert seat(cluster, *pods) is None
    homes = seat(cluster, *pods[:3])
    assert homes is not None and sorted(homes.values()) == ["n1", "n1", "n2"]
    given = decided(cluster, 1, *pods[:3])
    assert sorted(map(str, given.values())) == ["v1", "v2", "v3"]


def test_volumes_of_pods_on_their_way_are_taken() -> None:
    choices = (local("v1", "n1"), local("v2", "n2"))
    cluster = cluster_of("n1", "n2", a=static(*choices), b=static(*choices), c=static(*choices))
    assert seat(cluster, mounting("p", "a"), job=1) == {"p": "n1"}
    assert seat(cluster, mounting("q", "b"), job=2) == {"q": "n2"}
    assert seat(cluster, mounting("r", "c"), job=3) is None
    why = why_not(cluster, [mounting("r", "c")], now=0)
    assert (
        "2 node(s) didn't find available persistent volumes to bind (storage class local: all in use)"
        in text(why[0])
    )
    cluster.release(1)
    assert seat(cluster, mounting("r", "c"), job=3) == {"r": "n1"}


def test_a_claim_gives_way_if_another_volume_on_its_node_does_as_well() -> None:
    # The first takes the smaller volume, which is the only one that the second can have.
    cluster = cluster_of("n1", a=static(local("v1", "n1"), local("v2", "n1")), b=static(local("v1", "n1")))
    pods = [mounting("p", "a"), mounting("q", "b")]
    assert seat(cluster, *pods) == {"p": "n1", "q": "n1"}
    assert decided(cluster, 1, *pods) == {"a": "v2", "b": "v1"}


def test_a_pod_with_several_claims_finds_a_node_with_a_volume_for_each() -> None:
    choices = (local("v1", "n1"), local("v2", "n2"), local("v3", "n2"))
    cluster = cluster_of("n1", "n2", a=static(*choices), b=static(*choices))
    p = mounting("p", "a", "b")
    assert seat(cluster, p) == {"p": "n2"}
    assert set(decided(cluster, 1, p).values()) == {"v2", "v3"}


def test_a_volume_that_is_there_goes_before_one_that_is_made() -> None:
    cluster = cluster_of(
        "n1", "n2", a=made(choices=(local("v1", "n1"),)), b=made(choices=(local("v1", "n1"),))
    )
    pods = [mounting("p", "a"), mounting("q", "b")]
    assert seat(cluster, *pods) == {"p": "n1", "q": "n1"}
    assert sorted(map(str, decided(cluster, 1, *pods).values())) == ["None", "v1"]


def test_pods_that_share_a_claim_sit_on_one_node_that_has_room_for_all() -> None:
    cluster = cluster_of("n1", "n2", data=made())
    cluster.set_pod(pod("fills", on="n1", cpu="2"))
    homes = seat(cluster, *(mounting(f"p{i}", "data") for i in range(3)))
    assert homes is not None and set(homes.values()) == {"n2"}


def test_pods_that_share_a_claim_and_fit_on_no_node_together_wait() -> None:
    cluster = cluster_of("n1", "n2", data=made())
    pods = [mounting(f"p{i}", "data", cpu="2") for i in range(3)]
    assert seat(cluster, *pods) is None
    homes = seat(cluster, *pods, minimum=2)
    assert homes is not None and len(homes) == 2 and len(set(homes.values())) == 1


@pytest.mark.parametrize("state", ["waits", "bound"])
def test_a_claim_in_use_pins_those_who_come_later(state: str) -> None:
    cluster = cluster_of("n1", "n2", data=Claim(state, one_node=True))  # type: ignore[arg-type]
    cluster.set_pod(bound(mounting("there", "data"), "n2"))
    assert seat(cluster, mounting("p", "data")) == {"p": "n2"}
    why = why_not(cluster, [mounting("q", "data", cpu="4")], now=0)
    assert '1 node(s) unavailable due to persistentvolumeclaim "data" in use on another node' in text(why[0])


def test_a_claim_that_many_nodes_may_mount_keeps_nobody_together() -> None:
    cluster = cluster_of("n1", "n2", data=Claim("waits", class_name="fast"))
    pods = [mounting(f"p{i}", "data", cpu="3") for i in range(2)]
    homes = seat(cluster, *pods)
    assert homes is not None and sorted(homes.values()) == ["n1", "n2"]
    (told,) = cluster.volume_decisions(cluster.jobs[1], {each.metadata.uid: each for each in pods})
    assert len(told.pods) == 2


def test_pods_that_share_a_claim_share_one_volume() -> None:
    choices = (local("v1", "n1"), local("v2", "n2"))
    cluster = cluster_of("n1", "n2", data=static(*choices), more=static(*choices))
    pods = [mounting("p", "data"), mounting("q", "data"), mounting("r", "more")]
    homes = seat(cluster, *pods)
    assert homes is not None and homes["p"] == homes["q"] != homes["r"]


def test_a_volume_that_many_nodes_reach_serves_a_claim_on_all_of_them() -> None:
    many = Claim("waits", provisions=False, choices=(local("v1", "n1"), local("v2", "n1", "n2")))
    cluster = cluster_of("n1", "n2", data=many)
    pods = [mounting(f"p{i}", "data", cpu="3") for i in range(2)]
    assert seat(cluster, *pods) == {"p0": "n1", "p1": "n2"} and decided(cluster, 1, *pods) == {"data": "v2"}


def test_a_node_takes_no_more_volumes_than_its_driver_can_attach() -> None:
    cluster = cluster_of("n1", "n2", **{f"data{i}": made(driver="csi.example") for i in range(5)})
    cluster.set_attach_limits("n1", {"csi.example": 1})
    cluster.set_attach_limits("n2", {"csi.example": 2, "other": 0})
    pods = [mounting(f"p{i}", f"data{i}") for i in range(5)]
    assert seat(cluster, *pods[:4]) is None
    homes = seat(cluster, *pods[:3])
    assert homes is not None and sorted(homes.values()) == ["n1", "n2", "n2"]
    assert seat(cluster, pods[3], job=2) is None
    why, *_ = why_not(cluster, [pods[3]], now=0)
    assert "2 node(s) exceed max volume count (csi.example)" in text(why)
    assert seat(cluster, pod("plain"), job=3) is not None
    cluster.release(1)
    assert seat(cluster, pods[3], job=2) is not None


def test_a_volume_that_is_attached_already_counts_once() -> None:
    many = Claim("waits", class_name="fast", driver="csi.example")
    cluster = cluster_of("n1", "n2", data=many, more=many)
    for name in ("n1", "n2"):
        cluster.set_attach_limits(name, {"csi.example": 1})
    pods = [mounting(f"p{i}", "data") for i in range(3)]
    homes = seat(cluster, *pods)
    assert homes is not None and set(homes.values()) == {"n1"}
    assert seat(cluster, mounting("late", "data"), job=2) == {"late": "n1"}
    assert seat(cluster, mounting("other", "more"), job=3) == {"other": "n2"}
    assert seat(cluster, mounting("both", "data", "more"), job=4) is None


def test_two_pods_of_a_gang_cannot_both_have_a_claim_for_one_pod() -> None:
    cluster = cluster_of("n1", data=Claim("waits", one_pod=True))
    refused = compiled(cluster, [mounting("p", "data"), mounting("q", "data")])
    assert isinstance(refused, Refused) and "pod d/p requests it too" in text(refused.reason)


def test_a_claim_made_for_a_pod_must_be_its_own() -> None:
    cluster = cluster_of("n1", **{"p-scratch": Claim("waits", owner="uid-other")})
    p = pod("p", volumes=[PodVolume(name="scratch", ephemeral={})])
    refused = compiled(cluster, [p])
    assert isinstance(refused, Refused) and '"p-scratch" was not created for this pod' in text(refused.reason)
    cluster.set_claim("d", "p-scratch", Claim("waits", owner="uid-p"))
    assert seat(cluster, p) == {"p": "n1"}
    missing = compiled(cluster, [pod("q", volumes=[PodVolume(name="scratch", ephemeral={})])])
    assert isinstance(missing, Refused) and "waiting for ephemeral volume controller" in text(missing.reason)


def test_pods_with_other_volumes_pay_nothing() -> None:
    cluster = cluster_of("n1")
    token = pod("p", volumes=[PodVolume(name="token")])
    assert cluster.equivalence_key([token]) is not None
    gang = compiled(cluster, [token])
    assert not isinstance(gang, Refused) and gang.rules is None
    assert np.asarray(gang.members[0].allowed).all()
