"""How a Kubernetes node becomes vertices: the levels above it, pools and devices below it.

cluster
└── zone a                        topology.kubernetes.io/zone
    └── node-1
        ├── cpu0      32000       milli
        ├── memory0   137438953472
        ├── ephemeral-storage0, pods0, example.com.nic0 …
        └── gpu0, gpu1            nvidia.com/gpu: 2
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fluence.errors import InvalidInput
from fluence.model.external_resources import requested_devices
from fluence.model.node import Node
from fluence.names import DEVICE_PREFIX
from fluence.units import MAX_AMOUNT

ZONE = "topology.kubernetes.io/zone"
RACK = "topology.kubernetes.io/rack"
BLOCK = "topology.kubernetes.io/block"
GPU = "nvidia.com/gpu"
MOST_DEVICES = 4096  # of one type on one node: each is a vertex, and a node can claim any number
COMMON = ("cpu", "memory", "ephemeral-storage", "pods")
# Pods do not request attachable volumes, which are limits of another kind. External resources may be
# advertised on all nodes, for kube-scheduler.
_NO_NODES = ("attachable-volumes-", DEVICE_PREFIX)
_CORE = 1000  # milli
_TAKEN = frozenset((*COMMON, "cluster", "node", "slot"))


@dataclass(frozen=True, slots=True)
class GraphLayout:
    """The labels that become levels, outermost first, and the resources whose units become vertices."""

    levels: tuple[tuple[str, str], ...] = (("zone", ZONE),)  # (vertex type, node label)
    devices: Mapping[str, str] = field(default_factory=lambda: {GPU: "gpu"})  # resource name -> vertex type
    name: str = "cluster"

    def __post_init__(self) -> None:
        types = [type_ for type_, _ in self.levels] + list(self.devices.values())
        for type_ in types:
            if type_ in _TAKEN or types.count(type_) > 1:
                raise InvalidInput(
                    f"the vertex type {type_!r} stands for two things: choose another name", where="layout"
                )

    def types(self, amounts: Mapping[str, int]) -> dict[str, int]:
        """Convert amounts of Kubernetes resources to vertex types, without external resources. A pod that
        requests an external resource and no cpu gets a core."""
        devices, prefix = self.devices, DEVICE_PREFIX
        found = {
            devices.get(name, name): amount
            for name, amount in amounts.items()
            if amount > 0 and not name.startswith(prefix)
        }
        if "cpu" not in found and requested_devices(amounts):
            found["cpu"] = _CORE
        return found

    @property
    def own_types(self) -> frozenset[str]:
        """The vertex types of the cluster itself."""
        return _TAKEN.union((type_ for type_, _ in self.levels), self.devices.values())

    def resource(self, type_: str) -> str:
        """The name of a vertex type in Kubernetes."""
        return next((name for name, word in self.devices.items() if word == type_), type_)

    def contents(self, node: Node) -> tuple[dict[str, int], dict[str, int]]:
        """The pools and the devices of a node: sizes and counts by vertex type, within bounds."""
        pools: dict[str, int] = {}
        devices: dict[str, int] = {}
        for name, amount in node.allocatable().items():
            if amount <= 0 or name.startswith(_NO_NODES):
                continue
            if name in self.devices:
                devices[self.devices[name]] = min(amount, MOST_DEVICES)
            else:
                pools[name] = min(amount, MAX_AMOUNT)
        return pools, devices

    def place(self, node: Node) -> tuple[tuple[str, str], ...]:
        """The levels above a node, outermost first, without levels whose label the node lacks."""
        labels = node.labels
        return tuple((type_, labels[label]) for type_, label in self.levels if labels.get(label))


DEFAULT = GraphLayout()
