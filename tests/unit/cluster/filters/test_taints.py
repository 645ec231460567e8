"""TaintToleration by example."""

from __future__ import annotations

from fluence.cluster.filters import taints
from fluence.cluster.filters.taints import open_nodes
from fluence.model.node import Taint
from fluence.model.pod import Toleration
from fluence.model.reason import Code, Reason
from tests.unit.cluster.build import node
from tests.unit.cluster.filters.columns import columns_of

GPU = Taint(key="gpu", effect="NoSchedule")
OLD = Taint(key="old", value="yes", effect="NoExecute")
SLOW = Taint(key="slow", effect="PreferNoSchedule")


def test_a_taint_keeps_away_who_does_not_tolerate_it() -> None:
    columns = columns_of(node("n1"), node("n2", taints=[GPU]), node("n3", taints=[OLD, SLOW]))
    assert taints.tolerated(columns, ()).tolist() == [True, False, False]
    gpu = Toleration(key="gpu", operator="Exists")
    assert taints.tolerated(columns, (gpu,)).tolist() == [True, True, False]
    assert taints.tolerated(columns, (Toleration(operator="Exists"),)).all()


def test_each_taint_is_a_reason_of_its_own() -> None:
    columns = columns_of(node("n1"), node("n2", taints=[GPU]), node("n3", taints=[OLD]))
    found = {reason: mask.tolist() for reason, mask in taints.closed_nodes(columns, ())}
    assert found == {
        Reason.of(Code.TAINT_NOT_TOLERATED, key="gpu", value="", effect="NoSchedule"): [True, False, True],
        Reason.of(Code.TAINT_NOT_TOLERATED, key="old", value="yes", effect="NoExecute"): [True, True, False],
    }


def test_fewer_taints_that_prefer_nobody_are_better() -> None:
    more = Taint(key="hot", effect="PreferNoSchedule")
    columns = columns_of(node("n1"), node("n2", taints=[SLOW]), node("n3", taints=[SLOW, more]))
    score = taints.score(columns, ())
    assert score is not None and score.tolist() == [300, 150, 0]
    assert taints.score(columns, (Toleration(operator="Exists"),)) is None
    assert taints.score(columns_of(), ()) is None and taints.tolerated(columns_of(), ()).tolist() == []


def test_cordons_and_silent_nodes_count_as_their_taints() -> None:
    columns = columns_of(node("n1"), node("n2", unschedulable=True), node("n3", ready=False))
    found = [(reason.code, mask.tolist()) for reason, mask in open_nodes(columns, ())]
    assert found == [
        (Code.NODE_UNSCHEDULABLE, [True, False, True]),
        (Code.NODE_NOT_READY, [True, True, False]),
    ]
    for code, key in (("NodeNotReady", "unschedulable"), ("NodeUnschedulable", "not-ready")):
        tolerant = (Toleration(key=f"node.kubernetes.io/{key}", operator="Exists"),)
        assert [reason.code for reason, _ in open_nodes(columns, tolerant)] == [code]
