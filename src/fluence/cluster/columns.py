"""What the nodes say of themselves, in columns: labels, taints, cordons, readiness.

A column of labels has a number per node, the code of the value that the node has for one key, -1 for none.
So an expression such as `zone in (a, b)` is a comparison of one column, whatever the number of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from fluence.graph.graph import Ints, Mask
from fluence.model.meta import Requirement, requirement_holds
from fluence.model.node import Node, Taint, untolerated
from fluence.model.pod import NodeSelector, NodeSelectorTerm, Toleration

REFUSING = ("NoSchedule", "NoExecute")


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
        """The nodes whose value satisfies something."""
        table = np.zeros(len(self.codes) + 1, np.bool_)  # the last entry stands for "none"
        for value, code in self.codes.items():
            table[code] = holds(value)
        return table[self.of]

    def _code(self, value: str | None) -> int:
        return -1 if value is None else self.codes.setdefault(value, len(self.codes))


class NodeColumns:
    """The nodes in the order of the seats; ``generation`` moves when anything that a rule may ask changes."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.position: dict[str, int] = {}
        self.generation = 0
        self.schedulable: Mask = np.empty(0, np.bool_)
        self.ready: Mask = np.empty(0, np.bool_)
        self._labels: dict[str, Column] = {}
        self._taints: list[tuple[Taint, ...]] = []  # distinct sets of taints
        self._taint_codes: dict[tuple[tuple[str, str, str], ...], int] = {}
        self._tainted: Ints = np.empty(0, np.int64)

    def __len__(self) -> int:
        return len(self.nodes)

    def arrange(self, nodes: list[Node]) -> None:
        """These are the nodes now, in this order."""
        self.nodes = nodes
        self.position = {node.name: i for i, node in enumerate(nodes)}
        self.schedulable = np.array([not node.spec.unschedulable for node in nodes], np.bool_)
        self.ready = np.array([node.is_ready for node in nodes], np.bool_)
        self._labels = {}
        self._taints, self._taint_codes = [], {}
        self._tainted = np.array([self._taint_code(node) for node in nodes], np.int64)
        self.generation += 1

    def update(self, node: Node) -> None:
        """A node says something else of itself."""
        index = self.position[node.name]
        self.nodes[index] = node
        self.schedulable[index] = not node.spec.unschedulable
        self.ready[index] = node.is_ready
        self._tainted[index] = self._taint_code(node)
        for key, column in self._labels.items():
            column.set(index, node.labels.get(key))
        self.generation += 1

    # -- asking ----------------------------------------------------------------------------------------------

    def label(self, key: str) -> Column:
        found = self._labels.get(key)
        if found is None:
            found = self._labels[key] = Column(key, self.nodes)
        return found

    def selected(self, selector: NodeSelector) -> Mask:
        """The nodes that any term of a selector matches."""
        mask = np.zeros(len(self.nodes), np.bool_)
        for term in selector.node_selector_terms or ():
            mask |= self.term(term)
        return mask

    def term(self, term: NodeSelectorTerm) -> Mask:
        """An empty term matches no node; matchFields knows metadata.name only."""
        if not term.match_expressions and not term.match_fields:
            return np.zeros(len(self.nodes), np.bool_)
        mask = np.ones(len(self.nodes), np.bool_)
        for each in term.match_expressions or ():
            mask &= self._holds(each)
        for each in term.match_fields or ():
            mask &= self._field_holds(each)
        return mask

    def _holds(self, requirement: Requirement) -> Mask:
        column = self.label(requirement.key)
        match requirement.operator:
            case "In":
                return column.of_values(requirement.values or ())
            case "NotIn":
                return ~column.of_values(requirement.values or ())
            case "Exists":
                return column.present
            case "DoesNotExist":
                return ~column.present
            case _:
                key = requirement.key
                return column.where(lambda value: requirement_holds(requirement, {key: value}))

    def _field_holds(self, requirement: Requirement) -> Mask:
        mask = np.zeros(len(self.nodes), np.bool_)
        if requirement.key != "metadata.name" or requirement.operator not in ("In", "NotIn"):
            return mask
        named = [self.position[name] for name in requirement.values or () if name in self.position]
        mask[named] = True
        return mask if requirement.operator == "In" else ~mask

    def tolerated(self, tolerations: Sequence[Toleration]) -> Mask:
        """The nodes without a taint that keeps such a pod away."""
        table = [untolerated(taints, tolerations, REFUSING) is None for taints in self._taints]
        return np.array(table, np.bool_)[self._tainted] if table else np.ones(len(self.nodes), np.bool_)

    def taint(self, index: int, tolerations: Sequence[Toleration]) -> Taint | None:
        """The taint of a node that such a pod does not tolerate."""
        return untolerated(self._taints[self._tainted[index]], tolerations, REFUSING)

    def dissuading(self, tolerations: Sequence[Toleration]) -> Ints:
        """How many PreferNoSchedule taints of each node are not tolerated."""
        table = [
            sum(untolerated((taint,), tolerations, ("PreferNoSchedule",)) is not None for taint in taints)
            for taints in self._taints
        ]
        return np.array(table, np.int64)[self._tainted] if table else np.zeros(len(self.nodes), np.int64)

    # -- inside ----------------------------------------------------------------------------------------------

    def _taint_code(self, node: Node) -> int:
        taints = node.spec.taints or []
        key = tuple((taint.key, taint.value, taint.effect) for taint in taints)
        code = self._taint_codes.get(key)
        if code is None:
            code = self._taint_codes[key] = len(self._taints)
            self._taints.append(tuple(taints))
        return code
