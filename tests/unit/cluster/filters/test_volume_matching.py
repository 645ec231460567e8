"""The matching of volumes to claims by example; `tests/property/test_volume_assignment.py` looks further."""

from __future__ import annotations

from fluence.cluster.claims import Choice
from fluence.cluster.filters.volumes import VolumeMatching, VolumeReach
from fluence.model.meta import Requirement
from fluence.model.pod import NodeSelector, NodeSelectorTerm
from tests.unit.cluster.build import HOST, node
from tests.unit.cluster.filters.columns import columns_of


def local(volume: str, *hosts: str) -> Choice:
    need = Requirement(key=HOST, operator="In", values=list(hosts))
    term = NodeSelectorTerm(match_expressions=[need])
    return Choice(volume, NodeSelector(node_selector_terms=[term]) if hosts else None)


ONE, TWO, ANY = local("v1", "n1"), local("v2", "n2"), local("v3")


def matching() -> VolumeMatching:
    return VolumeMatching(VolumeReach(columns_of(node("n1"), node("n2"))))


def test_a_claim_has_a_volume_within_reach_of_its_node() -> None:
    found = matching()
    assert found.assign("a", (ONE, TWO), 1) and found.volumes == {"a": "v2"}
    assert not found.assign("b", (ONE, TWO), 1)
    assert found.open_nodes((ONE, TWO)).tolist() == [True, False]


def test_a_claim_gives_way_to_one_that_has_no_other_choice() -> None:
    found = matching()
    assert found.assign("a", (ONE, ANY), 0) and found.volumes == {"a": "v1"}
    assert found.open_nodes((ONE,)).tolist() == [True, False]
    assert found.assign("b", (ONE,), 0) and found.volumes == {"a": "v3", "b": "v1"}
    assert not found.open_nodes((ONE, ANY)).any()
    found.remove("a")
    assert found.open_nodes((ONE, ANY)).tolist() == [True, True]


def test_a_claim_on_two_nodes_has_a_volume_that_both_reach() -> None:
    found = matching()
    assert found.assign("a", (ONE, ANY), 0) and found.assign("a", (ONE, ANY), 1)
    assert found.volumes == {"a": "v3"}


def test_what_volumes_reach_follows_the_nodes() -> None:
    columns = columns_of(node("n1"), node("n2"))
    reach = VolumeReach(columns)
    choices = (ONE, ANY)
    assert reach.table(choices)[1].tolist() == [2, 1]
    columns.update(node("n2", labels={HOST: "n1"}))
    assert reach.table(choices)[1].tolist() == [2, 2]
