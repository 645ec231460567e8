"""Nodes that repel pods: taints (TaintToleration), cordons (NodeUnschedulable), nodes that are not ready.

Nodes have few distinct sets of taints, so each set is evaluated once. `node_rules` uses the masks and scores,
`diagnosis` the taint of each node.

Controllers add a taint to a node shortly after it is cordoned or becomes unready. So a pod that tolerates the
taint may use the node, as in kube-scheduler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fluence.cluster.columns import NodeColumns
from fluence.graph.graph import Ints, Mask
from fluence.model.node import CORDONED, NOT_READY, Taint, untolerated
from fluence.model.pod import Toleration
from fluence.model.reason import Code, Reason

REFUSING = ("NoSchedule", "NoExecute")
_WEIGHT = 3  # in kube-scheduler's default profile


def tolerated(columns: NodeColumns, tolerations: Sequence[Toleration]) -> Mask:
    """The nodes without a taint that repels such a pod."""
    found = _judged(columns, lambda taints: untolerated(taints, tolerations, REFUSING) is None)
    return found.astype(np.bool_)


def closed_nodes(columns: NodeColumns, tolerations: Sequence[Toleration]) -> Iterator[tuple[Reason, Mask]]:
    """For each taint that is not tolerated, the nodes that it leaves open."""
    closed: dict[Taint, list[int]] = {}
    for index in np.flatnonzero(~tolerated(columns, tolerations)).tolist():
        taint = untolerated(columns.taints(index), tolerations, REFUSING)
        assert taint is not None
        closed.setdefault(taint, []).append(index)
    for taint, nodes in closed.items():
        mask = np.ones(len(columns), np.bool_)
        mask[nodes] = False
        yield (
            Reason.of(Code.TAINT_NOT_TOLERATED, key=taint.key, value=taint.value, effect=taint.effect),
            mask,
        )


def score(columns: NodeColumns, tolerations: Sequence[Toleration]) -> Ints | None:
    """A higher score for nodes with fewer untolerated PreferNoSchedule taints; None: all are equal."""

    def avoided(taints: Sequence[Taint]) -> int:
        return sum(untolerated((each,), tolerations, ("PreferNoSchedule",)) is not None for each in taints)

    counts = _judged(columns, avoided)
    most = int(counts.max(initial=0))
    return _WEIGHT * (100 - 100 * counts // most) if most else None


def _judged(columns: NodeColumns, judge: Callable[[Sequence[Taint]], int]) -> Ints:
    """The value of ``judge`` for the taints of each node."""
    table = np.array([judge(taints) for taints in columns.taint_sets], np.int64)
    return table[columns.taint_set] if len(table) else np.zeros(len(columns), np.int64)


_CORDONED = Reason.of(Code.NODE_UNSCHEDULABLE)
_NOT_READY = Reason.of(Code.NODE_NOT_READY)


def open_nodes(columns: NodeColumns, tolerations: Sequence[Toleration]) -> Iterator[tuple[Reason, Mask]]:
    """The schedulable nodes and the ready nodes, unless the pod tolerates the others."""
    if untolerated((CORDONED,), tolerations, REFUSING) is not None:
        yield _CORDONED, columns.schedulable
    if untolerated((NOT_READY,), tolerations, REFUSING) is not None:
        yield _NOT_READY, columns.ready
