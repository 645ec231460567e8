"""Taints and tolerations (TaintToleration): which nodes keep a pod away, and which would rather not have it.

Nodes have few distinct sets of taints, so each set is judged once and the answers are spread over the nodes.
`node_rules` asks for masks and scores, `diagnosis` for the taint of each node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from fluence.cluster.columns import NodeColumns
from fluence.graph.graph import Ints, Mask
from fluence.model.node import Taint, untolerated
from fluence.model.pod import Toleration
from fluence.model.reason import Code, Reason

REFUSING = ("NoSchedule", "NoExecute")
_WEIGHT = 3  # in kube-scheduler's default profile


def tolerated(columns: NodeColumns, tolerations: Sequence[Toleration]) -> Mask:
    """The nodes without a taint that keeps such a pod away."""
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
    """Nodes with fewer PreferNoSchedule taints that are not tolerated are better; None: all are equal."""

    def avoided(taints: Sequence[Taint]) -> int:
        return sum(untolerated((each,), tolerations, ("PreferNoSchedule",)) is not None for each in taints)

    counts = _judged(columns, avoided)
    most = int(counts.max(initial=0))
    return _WEIGHT * (100 - 100 * counts // most) if most else None


def _judged(columns: NodeColumns, judge: Callable[[Sequence[Taint]], int]) -> Ints:
    """What is said of the set of taints of each node."""
    table = np.array([judge(taints) for taints in columns.taint_sets], np.int64)
    return table[columns.taint_set] if len(table) else np.zeros(len(columns), np.int64)
