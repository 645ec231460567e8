"""The matching of volumes against all ways to give them to claims: it finds one whenever there is one."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from fluence.cluster.claims import Choice
from fluence.cluster.graph import ClusterGraph
from fluence.model.meta import Requirement
from fluence.model.pod import NodeSelector, NodeSelectorTerm
from tests.unit.cluster.build import HOST, node

NODES = ("n1", "n2", "n3")
volumes = st.lists(st.sets(st.sampled_from(NODES), min_size=1), min_size=1, max_size=5)
askers = st.lists(
    st.tuples(st.sets(st.integers(0, 4), min_size=1), st.sampled_from(range(3))), min_size=1, max_size=5
)


def possible(reach: list[set[str]], asked: list[tuple[set[int], int]]) -> bool:
    options = [[v for v in wants if v < len(reach) and NODES[at] in reach[v]] for wants, at in asked]
    return any(len(set(way)) == len(way) for way in itertools.product(*options))


@given(volumes, askers)
def test_whoever_can_have_a_volume_gets_one(reach: list[set[str]], asked: list[tuple[set[int], int]]) -> None:
    cluster = ClusterGraph()
    cluster.load([node(name) for name in NODES])
    names = cluster.columns.position
    matching = cluster._requests.claims.matching()
    choices = []
    for number, nodes in enumerate(reach):
        expression = Requirement(key=HOST, operator="In", values=sorted(nodes))
        terms = [NodeSelectorTerm(match_expressions=[expression])]
        choices.append(Choice(f"v{number}", NodeSelector(node_selector_terms=terms)))
    seated: list[tuple[set[int], int]] = []
    for number, (wants, at) in enumerate(asked):
        wanted = [choices[v] for v in sorted(wants) if v < len(choices)]
        row = names[NODES[at]]
        could = possible(reach, [*seated, (wants, at)])
        assert bool(matching.open_nodes(wanted)[row]) == could
        if could:
            assert matching.assign(number, wanted, row)
            seated.append((wants, at))
    given_ = matching.volumes
    assert len(given_) == len(seated) == len(set(given_.values()))
