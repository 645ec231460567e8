"""What the filters about other pods are told: the kinds of pods in a gang, and the pods on the nodes.

`requests` makes both; `gang_rules` hands them to `ports`, `interpod_affinity` and `topology_spread`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fluence.cluster.columns import NodeColumns
from fluence.cluster.filters.node_rules import NodeFilters, NodeRules
from fluence.cluster.filters.ports import HostPorts
from fluence.cluster.pod_index import PodIndex
from fluence.cluster.pod_terms import InterPodRules
from fluence.model.pod import Pod


@dataclass(frozen=True, slots=True, eq=False)
class PodShape:
    """One of some pods that are alike, to speak for all of them."""

    pod: Pod
    others: InterPodRules
    node: NodeRules


@dataclass(frozen=True, slots=True, eq=False)
class GangContext:
    """A gang, the nodes, and the pods on them."""

    shapes: Sequence[PodShape]  # one of each kind in the gang
    index: PodIndex
    ports: HostPorts
    columns: NodeColumns
    node_filters: NodeFilters
    leaving: Collection[str] = ()  # uids of pods that will be gone when the gang starts
