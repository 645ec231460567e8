"""Nodes as they come, change and go: noted event by event, applied when something is asked.

A thousand events in a row cost one change of the graph. `ClusterGraph` is the only caller: it is told which
nodes hold other vertices than before, and records anew what is on them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from fluence.cluster.columns import NodeColumns
from fluence.cluster.vertices import NodeVertices
from fluence.model.node import Node
from fluence.placer.gang_fit import GangFit


class NodeEvents:
    """What was said of nodes and is not applied yet."""

    def __init__(
        self,
        vertices: NodeVertices,
        columns: NodeColumns,
        seats: GangFit,
        *,
        before_move: Callable[[str], None],
    ) -> None:
        self._vertices = vertices
        self._columns = columns
        self._seats = seats
        self._before_move = before_move  # the vertices of a node are about to be replaced
        self._new: dict[str, Node] = {}
        self._changed: dict[str, Node] = {}
        self._reordered = False  # the columns are not in the order of the seats

    @property
    def is_stale(self) -> bool:
        return bool(self._new or self._changed)

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes by name, as last told."""
        held = {name: made.node for name, made in self._vertices.nodes.items()}
        return {**held, **self._changed, **self._new}

    def node(self, name: str) -> Node | None:
        """One node, as last told."""
        found = self._new.get(name) or self._changed.get(name)
        if found is None and name in self._vertices.nodes:
            found = self._vertices.nodes[name].node
        return found

    def set_node(self, node: Node) -> None:
        """A node as it is now."""
        if node.name in self._new or node.name not in self._vertices.nodes:
            self._new[node.name] = node
        else:
            self._changed[node.name] = node

    def withdraw(self, name: str) -> bool:
        """A node is gone; says whether it had not been applied yet."""
        return self._new.pop(name, None) is not None

    def remove(self, name: str) -> dict[int, object]:
        """Take a node out of the graph; says which jobs lost anything."""
        lost = self._vertices.remove(name)
        self._reorder()
        return lost

    def apply(self) -> tuple[list[str], Collection[str]]:
        """Apply what was noted to the vertices; says which nodes have other vertices or sizes than before,
        and which are new."""
        changed, self._changed = self._changed, {}
        other = [node.name for node in changed.values() if self._change(node)]
        new, self._new = self._new, {}
        if new:
            self._vertices.add(new.values())
            self._reorder()
        return other, new.keys()

    def arrange(self) -> None:
        """Bring the columns into the order of the seats."""
        if self._reordered:
            self._reordered = False
            self._columns.arrange([self._vertices.nodes[name].node for name in self._seats.names])

    def _change(self, node: Node) -> bool:
        """Whether what is on the node must be recorded anew."""
        old = self._vertices.nodes[node.name].node
        if old == node:
            return False
        if self._vertices.change(node):
            if _rules_of(old) != _rules_of(node) and not self._reordered:
                self._columns.update(node)
            was, now = old.status, node.status
            return was.allocatable != now.allocatable or was.capacity != now.capacity
        # It has moved in the tree: other vertices, the same seats.
        self._before_move(node.name)
        self._vertices.remove(node.name)
        self._vertices.add((node,))
        self._reorder()
        return True

    def _reorder(self) -> None:
        """Nodes have come or gone: the seats know it now, the columns when they are asked for."""
        self._seats.look(self._seats.availability.now)
        self._reordered = True


def _rules_of(node: Node) -> tuple[object, ...]:
    """What a node says that a filter may ask."""
    return node.metadata.labels, node.spec.taints, node.spec.unschedulable, node.is_ready
