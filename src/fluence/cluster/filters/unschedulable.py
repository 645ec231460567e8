"""Nodes that take no new pods: cordoned ones (NodeUnschedulable), and ones that are not ready.

Controllers show both as taints a moment later, so a pod that tolerates the taint may come, as with
kube-scheduler. `node_rules` asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fluence.cluster.columns import NodeColumns
from fluence.cluster.filters.taints import REFUSING
from fluence.graph.graph import Mask
from fluence.model.node import CORDONED, NOT_READY, untolerated
from fluence.model.pod import Toleration
from fluence.model.reason import Code, Reason

_CORDONED = Reason.of(Code.NODE_UNSCHEDULABLE)
_NOT_READY = Reason.of(Code.NODE_NOT_READY)


def open_nodes(columns: NodeColumns, tolerations: Sequence[Toleration]) -> Iterator[tuple[Reason, Mask]]:
    """The nodes that are schedulable, and those that are ready, where the pod minds."""
    if untolerated((CORDONED,), tolerations, REFUSING) is not None:
        yield _CORDONED, columns.schedulable
    if untolerated((NOT_READY,), tolerations, REFUSING) is not None:
        yield _NOT_READY, columns.ready
