"""Gangs whose pods must all lie in one domain of a label."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fluence.cluster.graph import ClusterGraph, Refused, TopologyDomain
from fluence.match.request import Never
from fluence.messages import text
from fluence.model.pod import Pod
from fluence.placer.placer import GangPlacement
from tests.gangs import compiled
from tests.gangs import why as why_not
from tests.unit.cluster.build import ZONE, node, pod


def cluster_of(*zones: str, cpu: str = "4") -> ClusterGraph:
    cluster = ClusterGraph(policy="lonode")
    cluster.load([node(f"n{i}", zone=zone or None, cpu=cpu) for i, zone in enumerate(zones, 1)])
    return cluster


def seat(
    cluster: ClusterGraph, *pods: Pod, topology: TopologyDomain, minimum: int | None = None
) -> dict[str, str] | Never | None:
    gang = compiled(cluster, pods, minimum=minimum or 0, topology=topology)
    assert not isinstance(gang, Refused)
    seated = cluster.allocate(gang, job=1, now=0)
    if isinstance(seated, GangPlacement):
        return {str(uid).removeprefix("uid-"): name for uid, name in seated.nodes.items()}
    return seated if isinstance(seated, Never) else None


def gang(count: int, cpu: str = "2") -> list[Pod]:
    return [pod(f"p{i}", cpu=cpu) for i in range(count)]


def test_all_pods_are_in_the_first_domain_that_holds_them() -> None:
    cluster = cluster_of("a", "b", "b", "c", "c")
    homes = seat(cluster, *gang(4), topology=TopologyDomain(ZONE))
    assert isinstance(homes, dict) and set(homes.values()) == {"n2", "n3"}


def test_a_node_without_the_label_is_in_no_domain() -> None:
    cluster = cluster_of("", "b")
    assert seat(cluster, *gang(1), topology=TopologyDomain(ZONE)) == {"p0": "n2"}
    why, *_ = why_not(cluster, gang(1), now=0, topology=TopologyDomain("rack"))
    assert "No node has the label rack" in text(why)


def test_a_gang_that_no_domain_could_hold_never_fits() -> None:
    cluster = cluster_of("a", "a", "b", "b")
    assert isinstance(seat(cluster, *gang(5), topology=TopologyDomain(ZONE)), Never)
    why, *_ = why_not(cluster, gang(5), now=0, topology=TopologyDomain(ZONE))
    assert f"{ZONE}=a fits 4 of 5 pods, and no other value fits more" in text(why)


def test_a_domain_that_is_busy_is_passed_over_or_waited_for() -> None:
    cluster = cluster_of("a", "a", "b", "b")
    cluster.set_pod(pod("other", on="n1", cpu="1"))
    homes = seat(cluster, *gang(4), topology=TopologyDomain(ZONE))
    assert isinstance(homes, dict) and set(homes.values()) == {"n3", "n4"}
    cluster.release(1)
    cluster.set_pod(pod("another", on="n3", cpu="1"))
    assert seat(cluster, *gang(4), topology=TopologyDomain(ZONE)) is None


def test_late_members_join_the_domain_of_the_others() -> None:
    cluster = cluster_of("a", "b", "b")
    assert seat(cluster, *gang(1), topology=TopologyDomain(ZONE, frozenset({"n3"}))) == {"p0": "n2"}
    why, *_ = why_not(cluster, gang(5), now=0, topology=TopologyDomain(ZONE, frozenset({"n1"})))
    assert "a fits 2 of 5 pods, and other pods of the group run there" in text(why)


def test_with_a_minimum_all_in_one_domain_go_before_some_in_the_first() -> None:
    cluster = cluster_of("a", "b", "b")
    homes = seat(cluster, *gang(4), topology=TopologyDomain(ZONE), minimum=2)
    assert isinstance(homes, dict) and len(homes) == 4
    cluster.release(1)
    homes = seat(cluster, *gang(5), topology=TopologyDomain(ZONE), minimum=2)
    assert homes == {"p0": "n1", "p1": "n1"}


def test_members_of_several_shapes_share_a_domain() -> None:
    cluster = cluster_of("a", "b", "b")
    homes = seat(cluster, pod("big", cpu="4"), *gang(2), topology=TopologyDomain(ZONE))
    assert isinstance(homes, dict) and set(homes.values()) == {"n2", "n3"}


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c", ""]), st.integers(1, 4)), min_size=1, max_size=8),
    st.integers(1, 6),
    st.integers(1, 2),
)
def test_seats_are_found_whenever_one_domain_has_them(
    nodes: list[tuple[str, int]], count: int, cpu: int
) -> None:
    cluster = ClusterGraph()
    cluster.load([node(f"n{i}", zone=zone or None, cpu=str(has)) for i, (zone, has) in enumerate(nodes)])
    room = {zone: sum(has // cpu for of, has in nodes if of == zone) for zone, _ in nodes if zone}
    homes = seat(cluster, *gang(count, str(cpu)), topology=TopologyDomain(ZONE))
    assert isinstance(homes, dict) == any(seats >= count for seats in room.values())
    if isinstance(homes, dict):
        assert len({nodes[int(name[1:])][0] for name in homes.values()}) == 1
