"""Which pods a node is closed to."""

from __future__ import annotations

import pytest

from fluence.cluster.graph import ClusterGraph
from fluence.model.meta import Condition, ObjectMeta
from fluence.model.node import Node, NodeSpec, NodeStatus
from fluence.model.pod import Toleration
from fluence.model.reason import Code
from tests.unit.schedule.kit import pod


@pytest.mark.parametrize(
    ("cordoned", "ready", "key", "code"),
    [
        (True, True, "node.kubernetes.io/unschedulable", Code.NODE_UNSCHEDULABLE),
        (False, False, "node.kubernetes.io/not-ready", Code.NODE_NOT_READY),
    ],
)
def test_a_closed_node_is_open_to_pods_that_tolerate_why(
    cordoned: bool, ready: bool, key: str, code: Code
) -> None:
    """As when seats are looked for: what is given a seat there is bound there."""
    cluster = ClusterGraph()
    cluster.set_node(
        Node(
            metadata=ObjectMeta(name="n"),
            spec=NodeSpec(unschedulable=cordoned),
            status=NodeStatus(conditions=[Condition(type="Ready", status=str(ready))]),
        )
    )
    closed = cluster.closed(pod("p"), "n")
    assert closed is not None and closed.code is code
    assert cluster.closed(pod("p", tolerations=[Toleration(key=key, operator="Exists")]), "n") is None
