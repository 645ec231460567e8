"""Properties of nodes in columns: labels, taints, cordons, readiness, offered devices.

The column of a label has a number for each node: the code of its value, or -1. So an expression such as `zone
in (a, b)` is a comparison of one column, for any number of nodes. The filters read the columns;
`ClusterGraph` updates them when nodes are added, removed and changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from fluence.graph.graph import Ints, Mask
from fluence.model.node import Node, Taint

_MAX_LABELS = 512  # labels with a column


class Column:
    """The values of one label over all nodes, as codes."""

    def __init__(self, key: str, nodes: Sequence[Node]) -> None:
        self.key = key
        self.codes: dict[str, int] = {}
        self.of: Ints = np.array([self._code(node.labels.get(key)) for node in nodes], np.int64)

    def set(self, index: int, value: str | None) -> None:
        self.of[index] = self._code(value)

    def equals(self, value: str) -> Mask:
        return np.asarray(self.of == self.codes.get(value, -2))

    def of_values(self, values: Iterable[str]) -> Mask:
        codes = [self.codes[value] for value in values if value in self.codes]
        return np.isin(self.of, codes)

    @property
    def present(self) -> Mask:
        return np.asarray(self.of >= 0)

    @property
    def is_unique(self) -> bool:
        """Whether no two nodes share a value, as with host names."""
        there = self.of[self.of >= 0]
        return len(np.unique(there)) == len(there)

    def where(self, holds: Callable[[str], bool]) -> Mask:
        """The nodes whose value satisfies a condition."""
        table = np.zeros(len(self.codes) + 1, np.bool_)  # the last entry means "none"
        for value, code in self.codes.items():
            table[code] = holds(value)
        return table[self.of]

    def _code(self, value: str | None) -> int:
        return -1 if value is None else self.codes.setdefault(value, len(self.codes))


class NodeColumns:
    """The nodes in the order of the node table; ``generation`` grows when a property changes that a rule may
    read."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.position: dict[str, int] = {}
        self.generation = 0
        self.schedulable: Mask = np.empty(0, np.bool_)
        self.ready: Mask = np.empty(0, np.bool_)
        self.taint_sets: list[tuple[Taint, ...]] = []  # the distinct ones
        self.taint_set: Ints = np.empty(0, np.int64)  # which one each node has
        self._taint_codes: dict[tuple[Taint, ...], int] = {}
        self._labels: dict[str, Column] = {}  # the most recently used last
        self._offers: dict[str, Ints] = {}

    def __len__(self) -> int:
        return len(self.nodes)

    def arrange(self, nodes: list[Node]) -> None:
        """Set the nodes, in this order."""
        self.nodes = nodes
        self.position = {node.name: i for i, node in enumerate(nodes)}
        self.schedulable = np.array([not node.spec.unschedulable for node in nodes], np.bool_)
        self.ready = np.array([node.is_ready for node in nodes], np.bool_)
        self._labels.clear()
        self._offers.clear()
        self._code_taints()
        self.generation += 1

    def update(self, node: Node) -> None:
        """Update the properties of a node."""
        index = self.position[node.name]
        self.nodes[index] = node
        self.schedulable[index] = not node.spec.unschedulable
        self.ready[index] = node.is_ready
        self.taint_set[index] = self._taint_code(node)
        # Unused values and taints are dropped when there are more of them than nodes.
        most = 2 * len(self.nodes) + 64
        if len(self.taint_sets) > most:
            self._code_taints()
        for key, column in list(self._labels.items()):
            column.set(index, node.labels.get(key))
            if len(column.codes) > most:
                del self._labels[key]
        self._offers.clear()
        self.generation += 1

    # -- asking ----------------------------------------------------------------------------------------------

    def label(self, key: str) -> Column:
        found = self._labels.pop(key, None)
        if found is None:
            found = Column(key, self.nodes)
            if len(self._labels) >= _MAX_LABELS:
                del self._labels[next(iter(self._labels))]
        self._labels[key] = found
        return found

    def offers(self, resource: str) -> Ints:
        """The amount of an extended resource that each node offers; -1 if it does not name the resource."""
        found = self._offers.get(resource)
        if found is None:
            if len(self._offers) >= _MAX_LABELS:
                self._offers.clear()
            offered = [node.offered_devices().get(resource, -1) for node in self.nodes]
            found = self._offers[resource] = np.array(offered, np.int64)
        return found

    def taints(self, index: int) -> tuple[Taint, ...]:
        """The taints of a node."""
        return self.taint_sets[int(self.taint_set[index])]

    # -- inside ----------------------------------------------------------------------------------------------

    def _code_taints(self) -> None:
        """Number the distinct sets of taints again."""
        self.taint_sets, self._taint_codes = [], {}
        self.taint_set = np.array([self._taint_code(node) for node in self.nodes], np.int64)

    def _taint_code(self, node: Node) -> int:
        taints = tuple(node.spec.taints or ())
        code = self._taint_codes.get(taints)
        if code is None:
            code = self._taint_codes[taints] = len(self.taint_sets)
            self.taint_sets.append(taints)
        return code
