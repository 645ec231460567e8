"""NodeAffinity by example: labels, names, preferences."""

from __future__ import annotations

import pytest

from fluence.cluster.filters import node_affinity
from fluence.cluster.filters.node_rules import NodeFilters, NodeRules
from fluence.model.meta import Requirement
from fluence.model.node import Taint
from fluence.model.pod import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    PreferredSchedulingTerm,
)
from fluence.model.reason import Code
from tests.unit.cluster.build import node, pod
from tests.unit.cluster.filters.columns import columns_of

NODES = (node("n1", labels={"disk": "ssd", "cores": "8"}), node("n2", labels={"disk": "hdd"}), node("n3"))


def term(key: str, operator: str, *values: str) -> NodeSelectorTerm:
    return NodeSelectorTerm(match_expressions=[Requirement(key=key, operator=operator, values=list(values))])


@pytest.mark.parametrize(
    ("key", "operator", "values", "expected"),
    [
        ("disk", "In", ["ssd", "hdd"], "110"),
        ("disk", "NotIn", ["ssd"], "011"),
        ("disk", "Exists", [], "110"),
        ("disk", "DoesNotExist", [], "001"),
        ("cores", "Gt", ["4"], "100"),
        ("cores", "Lt", ["4"], "000"),
        ("disk", "In", ["tape"], "000"),
        ("disk", "Like", ["s"], "000"),
    ],
)
def test_an_expression_selects_nodes(key: str, operator: str, values: list[str], expected: str) -> None:
    selector = NodeSelector(node_selector_terms=[term(key, operator, *values)])
    assert node_affinity.selected(columns_of(*NODES), selector).tolist() == [each == "1" for each in expected]


def test_terms_are_alternatives_and_an_empty_one_matches_nothing() -> None:
    columns = columns_of(*NODES)
    either = NodeSelector(node_selector_terms=[term("disk", "In", "ssd"), term("disk", "DoesNotExist")])
    assert node_affinity.selected(columns, either).tolist() == [True, False, True]
    empty = NodeSelector(node_selector_terms=[NodeSelectorTerm()])
    assert not node_affinity.selected(columns, empty).any()
    assert node_affinity.selected(columns, None).all()


@pytest.mark.parametrize(
    ("key", "operator", "expected"),
    [
        ("metadata.name", "In", [False, True, False]),
        ("metadata.name", "NotIn", [True, False, True]),
        ("spec.name", "In", [False] * 3),
    ],
)
def test_a_field_is_the_name(key: str, operator: str, expected: list[bool]) -> None:
    field = Requirement(key=key, operator=operator, values=["n2", "n9"])
    selector = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=[field])])
    assert node_affinity.selected(columns_of(*NODES), selector).tolist() == expected


def test_the_heaviest_match_has_the_highest_score() -> None:
    preferred = [
        PreferredSchedulingTerm(weight=30, preference=term("disk", "Exists")),
        PreferredSchedulingTerm(weight=10, preference=term("disk", "In", "ssd")),
    ]
    score = node_affinity.score(columns_of(*NODES), preferred)
    assert score is not None and score.tolist() == [200, 150, 0]
    assert node_affinity.score(columns_of(*NODES), ()) is None


def test_the_rules_of_a_pod_are_one_mask_one_score_and_reasons_in_order() -> None:
    busy = Taint(key="busy", effect="NoSchedule")
    columns = columns_of(*NODES, node("n4", labels={"disk": "ssd"}, taints=[busy]))
    filters = NodeFilters(columns)
    required = NodeAffinity(required=NodeSelector(node_selector_terms=[term("cores", "Exists")]))
    rules = NodeRules.of(pod("p", node_selector={"disk": "ssd"}, affinity=Affinity(node_affinity=required)))
    assert filters.allowed(rules).tolist() == [True, False, False, False]
    assert filters.selected(rules).tolist() == [True, False, False, False]
    assert filters.tolerated(rules).tolist() == [True, True, True, False]
    assert filters.score(rules) is None
    assert [reason.code for reason, _ in filters.open_nodes(rules)] == [
        Code.NODE_UNSCHEDULABLE,
        Code.NODE_NOT_READY,
        Code.TAINT_NOT_TOLERATED,
        Code.NODE_SELECTOR_MISMATCH,
        Code.NODE_AFFINITY_MISMATCH,
    ]


def test_what_is_known_of_rules_follows_the_nodes() -> None:
    columns = columns_of(*NODES)
    filters, rules = NodeFilters(columns), NodeRules.of(pod("p", node_selector={"disk": "ssd"}))
    assert filters.allowed(rules) is filters.allowed(NodeRules.of(pod("q", node_selector={"disk": "ssd"})))
    columns.update(node("n3", labels={"disk": "ssd"}))
    assert filters.allowed(rules).tolist() == [True, False, True]
