"""Gangs with rules about other pods: each that sits obeys kube-scheduler's filters at that moment."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from fluence.cluster.graph import ClusterGraph
from fluence.model.meta import Condition, LabelSelector, ObjectMeta
from fluence.model.node import Node, NodeStatus
from fluence.model.pod import (
    Affinity,
    Container,
    ContainerPort,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from fluence.placer.placer import GangPlacement, GangRequest
from tests.gangs import compiled, nominated
from tests.property.kubernetes import World

HOST, ZONE = "kubernetes.io/hostname", "zone"
APPS = ("red", "blue")

topology = st.sampled_from([HOST, ZONE])
selectors = st.sampled_from(APPS).map(lambda app: LabelSelector(match_labels={"app": app}))
terms = st.builds(PodAffinityTerm, topology_key=topology, label_selector=selectors)
affinities = st.builds(PodAffinity, required=st.lists(terms, min_size=1, max_size=2))
weighted = st.builds(WeightedPodAffinityTerm, weight=st.sampled_from([1, 3, 10]), pod_affinity_term=terms)
softly = st.builds(PodAffinity, preferred=st.lists(weighted, min_size=1, max_size=2))
spread = st.builds(
    TopologySpreadConstraint,
    max_skew=st.integers(1, 2),
    topology_key=topology,
    label_selector=selectors,
    min_domains=st.sampled_from([None, 2, 3]),
)
anyway = st.builds(
    TopologySpreadConstraint,
    max_skew=st.integers(1, 2),
    topology_key=topology,
    label_selector=selectors,
    when_unsatisfiable=st.just("ScheduleAnyway"),
)
templates = st.builds(
    lambda app, affinity, limits, port: (
        app,
        PodSpec(
            containers=[Container(name="c", ports=[ContainerPort(host_port=port)] if port else None)],
            affinity=affinity,
            topology_spread_constraints=limits,
        ),
    ),
    st.sampled_from(APPS),
    st.builds(
        Affinity,
        pod_affinity=st.one_of(st.none(), st.none(), affinities, softly),
        pod_anti_affinity=st.one_of(st.none(), affinities, softly),
    ),
    st.one_of(st.none(), st.none(), st.lists(st.one_of(spread, anyway), min_size=1, max_size=2)),
    st.sampled_from([None, None, None, 80]),
)


def node(name: str, labels: dict[str, str]) -> Node:
    return Node(
        metadata=ObjectMeta(name=name, labels=labels),
        status=NodeStatus(allocatable={"pods": "20"}, conditions=[Condition(type="Ready", status="True")]),
    )


def pod(name: str, app: str, spec: PodSpec) -> Pod:
    meta = ObjectMeta(name=name, uid=name, namespace="d", labels={"app": app, "index": name})
    return Pod(metadata=meta, spec=spec)


Template = tuple[str, PodSpec]


def setting(
    zones: list[str | None], there: list[tuple[Template, int]], policy: str
) -> tuple[World, ClusterGraph]:
    """Nodes in zones with pods on them, for the judge and for us."""
    nodes = {
        f"n{i}": node(f"n{i}", {HOST: f"n{i}", **({ZONE: zone} if zone else {})})
        for i, zone in enumerate(zones)
    }
    world = World(nodes)
    cluster = ClusterGraph(policy=policy)
    cluster.load(nodes.values())
    for number, ((app, spec), at) in enumerate(there):
        name = f"n{at % len(nodes)}"
        other = pod(f"there-{number}", app, spec)
        world.pods[other.metadata.uid] = (other, name)
        cluster.set_pod(nominated(other, name))
    return world, cluster


@given(
    zones=st.lists(st.sampled_from(["a", "b", "c", None]), min_size=2, max_size=5),
    there=st.lists(st.tuples(templates, st.integers(0, 4)), max_size=3),
    wanted=st.lists(st.tuples(templates, st.integers(1, 3)), min_size=1, max_size=3),
    policy=st.sampled_from(["low", "first"]),
)
def test_each_pod_of_a_gang_may_sit_where_it_sits(
    zones: list[str | None],
    there: list[tuple[Template, int]],
    wanted: list[tuple[Template, int]],
    policy: str,
) -> None:
    world, cluster = setting(zones, there, policy)
    nodes = world.nodes
    members = [
        pod(f"{number}-{i}", app, spec)
        for number, ((app, spec), count) in enumerate(wanted)
        for i in range(count)
    ]
    gang = compiled(cluster, members)
    assert isinstance(gang, GangRequest)
    found = cluster.allocate(gang, job=1, now=0)
    by_uid = {each.metadata.uid: each for each in members}
    if isinstance(found, GangPlacement):
        assert set(found.nodes) == set(by_uid)
        for seat in found.placements:
            each = by_uid[str(seat.pod)]
            assert world.feasible(each, seat.node), (each.metadata.name, seat.node)
            world.pods[each.metadata.uid] = (each, seat.node)
        return
    if len(members) == 1:
        assert not any(world.feasible(members[0], name) for name in nodes)
    if len(gang.members) == 1:
        # Pods that are alike: as many as sit one after the other on the first node that is open.
        for each in members:
            name = best(world, each, policy)
            if name is None:
                return
            world.pods[each.metadata.uid] = (each, name)
        raise AssertionError("one by one they would have found seats")


def best(world: World, pod: Pod, policy: str) -> str | None:
    """The node that is open to a pod and that it prefers, the first of these in the policy's order."""
    order = list(world.nodes) if policy == "low" else list(world.nodes)[::-1]
    preference = world.preference(pod)
    return max(
        (name for name in order if world.feasible(pod, name)), key=preference.__getitem__, default=None
    )


@given(
    zones=st.lists(st.sampled_from(["a", "b", "c", None]), min_size=2, max_size=5),
    there=st.lists(st.tuples(templates, st.integers(0, 4)), max_size=4),
    wanted=templates,
    count=st.integers(1, 4),
    policy=st.sampled_from(["low", "first"]),
)
def test_pods_that_are_alike_sit_where_they_would_rather_be(
    zones: list[str | None], there: list[tuple[Template, int]], wanted: Template, count: int, policy: str
) -> None:
    world, cluster = setting(zones, there, policy)
    members = [pod(f"w-{i}", *wanted) for i in range(count)]
    gang = compiled(cluster, members)
    assert isinstance(gang, GangRequest)
    found = cluster.allocate(gang, job=1, now=0)
    homes = []
    for each in members:
        name = best(world, each, policy)
        if name is None:
            assert not isinstance(found, GangPlacement)
            return
        homes.append(name)
        world.pods[each.metadata.uid] = (each, name)
    assert isinstance(found, GangPlacement)
    assert sorted(found.nodes.values()) == sorted(homes)
