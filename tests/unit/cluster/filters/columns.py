"""Columns of nodes, and a gang among pods, for the tests of filters."""

from __future__ import annotations

from collections.abc import Sequence

from fluence.cluster.columns import NodeColumns
from fluence.cluster.filters.node_rules import NodeFilters, NodeRules
from fluence.cluster.filters.ports import HostPorts
from fluence.cluster.layout import DEFAULT
from fluence.cluster.pod_index import GangContext, InterPodRules, PodIndex, PodShape
from fluence.cluster.pods import PodTable
from fluence.model.node import Node
from fluence.model.pod import Pod


def columns_of(*nodes: Node) -> NodeColumns:
    columns = NodeColumns()
    columns.arrange(list(nodes))
    return columns


def shape(pod: Pod) -> PodShape:
    return PodShape(pod, InterPodRules.of(pod), NodeRules.of(pod))


def context(nodes: Sequence[Node], there: Sequence[Pod], gang: Sequence[Pod]) -> GangContext:
    """A gang, one pod of each kind; ``there`` are on the nodes that they name."""
    pods, columns = PodTable(DEFAULT.types), columns_of(*nodes)
    made = GangContext(
        [shape(each) for each in gang],
        PodIndex(pods, columns),
        HostPorts(pods, columns),
        columns,
        NodeFilters(columns),
    )
    for each in there:
        pods.put(each, each.spec.node_name or "", bound=True)
    return made
