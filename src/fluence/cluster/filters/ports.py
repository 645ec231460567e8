"""Host ports (NodePorts): the ports in use on each node, and the nodes with free ports for a gang.

`HostPorts` is updated with the pods on nodes; `gang_rules` makes a `PortFilter` for each kind of pod in a
gang.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from fluence.cluster.columns import NodeColumns
from fluence.cluster.pods import PodEntry, PodTable
from fluence.graph.graph import Mask
from fluence.model.pod import ports_clash
from fluence.model.reason import Code, Reason

Ports = frozenset[tuple[str, str, int]]


class HostPorts:
    """The host ports of the pods on each node."""

    def __init__(self, pods: PodTable, columns: NodeColumns) -> None:
        self._columns = columns
        self._ports: dict[str, dict[str, Ports]] = {}  # node -> uid -> host ports
        pods.watchers.append(self._changed)

    def free(self, ports: Ports, leaving: Collection[str]) -> Mask:
        """The nodes on which all these host ports are free, without pods that will be gone."""
        mask = np.ones(len(self._columns), np.bool_)
        for node, held in self._ports.items():
            at = self._columns.position.get(node)
            if at is not None and any(
                ports_clash(ports, theirs) for uid, theirs in held.items() if uid not in leaving
            ):
                mask[at] = False
        return mask

    def _changed(self, entry: PodEntry, sign: int) -> None:
        if sign > 0:
            ports = entry.pod.host_ports()
            if ports:
                self._ports.setdefault(entry.node, {})[entry.uid] = ports
            return
        held = self._ports.get(entry.node)
        if held is not None and held.pop(entry.uid, None) is not None and not held:
            del self._ports[entry.node]


class PortFilter:
    """The nodes with free ports for one kind of pod, while its gang is placed."""

    one_at_a_time = False  # two pods of a kind never share a node, by `Members.most`

    def __init__(
        self, ports: Ports, gang: Sequence[Ports], host_ports: HostPorts, leaving: Collection[str]
    ) -> None:
        wanted = tuple(sorted({port for _, _, port in ports}))
        self._taken = Reason.of(Code.HOST_PORTS_IN_USE, ports=wanted)
        self._free = host_ports.free(ports, leaving)
        self._clashes = [ports_clash(ports, each) for each in gang]

    def open_nodes(self) -> Iterator[tuple[Reason, Mask]]:
        yield self._taken, self._free

    def masks(self) -> Iterator[Mask]:
        yield self._free

    def assigned(self, members: int, node: int, count: int) -> None:
        if self._clashes[members]:
            self._free[node] = False
