"""Which pods a node is closed to."""

from __future__ import annotations

import pytest

from fluence.model.meta import Condition, ObjectMeta
from fluence.model.node import Node, NodeSpec, NodeStatus, closed_to
from fluence.model.pod import Toleration
from tests.unit.schedule.kit import pod


@pytest.mark.parametrize(
    ("cordoned", "ready", "key", "reason"),
    [
        (True, True, "node.kubernetes.io/unschedulable", "it is cordoned"),
        (False, False, "node.kubernetes.io/not-ready", "it is not ready"),
    ],
)
def test_a_closed_node_is_open_to_pods_that_tolerate_why(
    cordoned: bool, ready: bool, key: str, reason: str
) -> None:
    """As when seats are looked for: what is given a seat there is bound there."""
    node = Node(
        metadata=ObjectMeta(name="n"),
        spec=NodeSpec(unschedulable=cordoned),
        status=NodeStatus(conditions=[Condition(type="Ready", status=str(ready))]),
    )
    assert closed_to(node, pod("p")) == reason
    assert closed_to(node, pod("p", tolerations=[Toleration(key=key, operator="Exists")])) is None
