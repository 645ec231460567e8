"""PodTopologySpread by example, as a gang is placed."""

from __future__ import annotations

from typing import Any

import numpy as np

from fluence.cluster.filters.topology_spread import SpreadFilter, SpreadScore
from fluence.model.meta import LabelSelector
from fluence.model.node import Taint
from fluence.model.pod import Pod, TopologySpreadConstraint
from fluence.model.reason import Code, Reason
from tests.unit.cluster.build import ZONE, node, pod
from tests.unit.cluster.filters.columns import context

NODES = (node("n1", zone="a"), node("n2", zone="a"), node("n3", zone="b"), node("n4"))
WEB = LabelSelector(match_labels={"app": "web"})


def web(name: str, on: str | None = None, **limit: Any) -> Pod:
    limits = [TopologySpreadConstraint(topology_key=ZONE, label_selector=WEB, **{"max_skew": 1, **limit})]
    return pod(name, on=on, labels={"app": "web"}, topology_spread_constraints=limits if on is None else None)


def mask(found: SpreadFilter) -> list[bool]:
    codes, masks = zip(*((reason.code, open_) for reason, open_ in found.open_nodes()), strict=True)
    assert codes in ((Code.TOPOLOGY_SPREAD,), (Code.TOPOLOGY_LABEL_MISSING, Code.TOPOLOGY_SPREAD))
    return np.all(masks, axis=0).tolist()


def test_one_more_must_keep_the_skew() -> None:
    made = context(NODES, [web("w", on="n1")], [web("p")])
    found = SpreadFilter(made.shapes[0], made)
    assert found.one_at_a_time and mask(found) == [False, False, True, False]
    (missing, labelled), (spread, open_) = found.open_nodes()
    assert missing == Reason.of(Code.TOPOLOGY_LABEL_MISSING, key=ZONE)
    assert labelled.tolist() == [True, True, True, False]
    assert spread == Reason.of(Code.TOPOLOGY_SPREAD, key=ZONE, skew=2, most=1)
    assert open_.tolist() == [False, False, True, True]
    found.assigned(0, 2, 1)
    assert mask(found) == [True, True, True, False]


def test_too_few_domains_count_as_one_that_is_empty() -> None:
    made = context(NODES, [web("w", on="n1"), web("v", on="n3")], [web("p", min_domains=3)])
    assert mask(SpreadFilter(made.shapes[0], made)) == [False, False, False, False]


def test_nodes_that_the_pod_cannot_have_are_left_out_if_the_policy_says_so() -> None:
    closed = node("n3", zone="b", taints=[Taint(key="x", effect="NoSchedule")])
    nodes, there = (NODES[0], closed), [web("w", on="n1")]
    made = context(nodes, there, [web("p"), web("q", node_taints_policy="Honor")])
    assert mask(SpreadFilter(made.shapes[0], made)) == [False, True]
    # b does not take part, so it cannot be the emptier one; to be there is for TaintToleration to forbid.
    assert mask(SpreadFilter(made.shapes[1], made)) == [True, True]


def test_who_does_not_count_is_placed_at_once() -> None:
    other = pod("p", topology_spread_constraints=web("x").spec.topology_spread_constraints)
    made = context(NODES, [], [other])
    assert not SpreadFilter(made.shapes[0], made).one_at_a_time


def test_schedule_anyway_prefers_the_emptier_domain() -> None:
    made = context(NODES, [web("w", on="n1")], [web("p", when_unsatisfiable="ScheduleAnyway")])
    score = SpreadScore(made.shapes[0], made)
    assert score.counts_self
    first = score.score().tolist()
    assert first[2] > first[0] == first[1] and first[3] == 0
    score.assigned(0, 2, 1)
    assert len(set(score.score().tolist()[:3])) == 1
