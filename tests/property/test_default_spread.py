"""The default spread is a preference: it changes where the pods of a service are, and never how many fit."""

from __future__ import annotations

from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from fluence.cluster.graph import ClusterGraph, PodSetRequest, Refused
from fluence.model.meta import OwnerReference
from fluence.model.pod import Pod
from fluence.placer.placer import GangPlacement
from tests.unit.cluster.build import node, pod

WEB = OwnerReference(kind="ReplicaSet", name="web", uid="web", controller=True)


def served(name: str, cpu: str) -> Pod:
    made = pod(name, cpu=cpu)
    return replace(made, metadata=replace(made.metadata, owner_references=[WEB]))


def place(cluster: ClusterGraph, pods: list[Pod], spread: bool | None) -> dict[str, str]:
    """Each pod by itself, as the pods of a service are asked for."""
    found: dict[str, str] = {}
    for number, each in enumerate(pods):
        gang = cluster.gang(PodSetRequest((each,), number=number, spread=spread))
        assert not isinstance(gang, Refused)
        placement = cluster.allocate(gang, job=number, now=0)
        if isinstance(placement, GangPlacement):
            found |= {each.metadata.name: placement.placements[0].node}
    return found


cpus = st.sampled_from(["500m", "1", "2"])


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", None]), st.integers(1, 6)), min_size=1, max_size=8),
    st.integers(1, 20),
    cpus,
)
@example([(None, 6), ("a", 2), ("a", 2), ("a", 2), ("b", 5)], 6, "2")
def test_as_many_fit_with_it_as_without(nodes: list[tuple[str | None, int]], count: int, cpu: str) -> None:
    clusters = [ClusterGraph(), ClusterGraph()]
    for cluster in clusters:
        for number, (zone, cores) in enumerate(nodes):
            cluster.set_node(node(f"n{number}", zone=zone, cpu=str(cores), pods="110"))
    pods = [served(f"web-{number}", cpu) for number in range(count)]
    spread, packed = place(clusters[0], pods, None), place(clusters[1], pods, False)

    assert len(spread) == len(packed)
    if len({zone for zone, _ in nodes}) == 1:  # equal counts in zones may mean fewer nodes of a large zone
        assert len(set(spread.values())) >= len(set(packed.values()))


@given(st.integers(1, 8), st.integers(1, 24), st.sampled_from(["0", "100m"]))
def test_equal_nodes_have_equally_many(nodes: int, count: int, cpu: str) -> None:
    cluster = ClusterGraph()
    for number in range(nodes):
        cluster.set_node(node(f"n{number}", cpu="64", pods="110"))
    found = Counter(place(cluster, [served(f"web-{i}", cpu) for i in range(count)], None).values())

    counts = [found[f"n{number}"] for number in range(nodes)]
    assert sum(counts) == count and max(counts) - min(counts) <= 1
