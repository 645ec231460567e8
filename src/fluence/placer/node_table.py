"""The nodes of a graph as a table: what each has, how many seats, and in which order a policy takes them.

Everything is a column over `NodeTable.nodes`, the rows of the nodes in the order in which they were added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from cachetools import LRUCache

from fluence.graph.graph import Ints, Mask, Rows
from fluence.match.matcher import Matcher
from fluence.match.policy import MatchPolicy
from fluence.placer.profile import FreeView

ALL = slice(None)
_NEVER = 1 << 62  # more than all vertices of a graph together: see `fluence.graph.graph`
_KEPT_SHAPES = 4096
_KEPT_ORDERS = 32  # policies


class Devices:
    """The vertices of a type that each node has several of, such as GPUs."""

    def __init__(self, rows: Rows, position: Ints, nodes: int) -> None:
        by = np.argsort(position, kind="stable")
        self.rows = rows[by]
        self.position = position[by]
        self.start = np.searchsorted(self.position, np.arange(nodes + 1))
        self.nodes = nodes

    def free(self, view: FreeView) -> Ints:
        """How many are free on each node."""
        return np.bincount(self.position[view.free[self.rows] > 0], minlength=self.nodes)

    def pick(self, view: FreeView, nodes: list[int], counts: list[int]) -> list[list[int]]:
        """The first free ones of some nodes."""
        if len(nodes) == 1:
            rows = self.of(nodes[0])
            return [rows[view.free[rows] > 0][: counts[0]].tolist()]
        wanted = np.zeros(self.nodes, np.int64)
        wanted[nodes] = counts
        free = view.free[self.rows] > 0
        before = np.concatenate(([0], np.cumsum(free)))
        number = before[:-1] - before[self.start[self.position]]  # among the free ones of its node
        chosen = np.flatnonzero(free & (number < wanted[self.position]))
        picked = self.rows[chosen].tolist()
        first = np.searchsorted(chosen, self.start).tolist()
        return [picked[first[node] : first[node + 1]] for node in nodes]

    def of(self, node: int) -> Rows:
        return self.rows[self.start[node] : self.start[node + 1]]


@dataclass(frozen=True, slots=True)
class NeedShape:
    """Needs made ready for the columns."""

    pools: tuple[tuple[Rows, int], ...]  # the row of the pool of each node, and the amount
    devices: tuple[tuple[Devices, int], ...]


class NodeTable:
    """The nodes of a matcher's graph; `refresh` catches up with it."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self.nodes: Rows = np.empty(0, np.int32)  # rows of the graph
        self.names: list[str] = []
        self.position: dict[str, int] = {}
        self.pools: dict[str, Rows] = {}  # per type: the row of each node's pool; past the end: none
        self.devices: dict[str, Devices] = {}
        self._node = matcher.graph.types.code("node")
        self._shapes: LRUCache[tuple[tuple[str, int], ...], NeedShape] = LRUCache(_KEPT_SHAPES)
        self._orders: LRUCache[MatchPolicy, Ints] = LRUCache(_KEPT_ORDERS)
        self._up: Mask | None = None
        self._ways: dict[int, tuple[int, ...]] = {}
        self._shape_at = -1
        self._state_at = -1

    def free(self, type_: str, view: FreeView) -> Ints:
        """How much of a type is free on each node; below 0 where others took more than there is."""
        devices = self.devices.get(type_)
        if devices is not None:
            return devices.free(view)
        rows = self.pools.get(type_)
        return np.zeros(len(self.nodes), np.int64) if rows is None else view.free[rows]

    def size(self, type_: str) -> Ints:
        """How much of a type each node has."""
        devices = self.devices.get(type_)
        if devices is not None:
            return np.bincount(devices.position, minlength=len(self.nodes))
        rows = self.pools.get(type_)
        if rows is None:
            return np.zeros(len(self.nodes), np.int64)
        return np.append(self._matcher.graph.size, 0)[rows]

    def shape(self, needs: Mapping[str, int]) -> NeedShape:
        key = tuple(needs.items())
        found = self._shapes.get(key)
        if found is None:
            absent = np.full(len(self.nodes), self._matcher.graph.rows, np.int32)
            wanted = [(t, min(n, _NEVER)) for t, n in key if n > 0]
            found = NeedShape(
                tuple((self.pools.get(t, absent), n) for t, n in wanted if t not in self.devices),
                tuple((self.devices[t], n) for t, n in wanted if t in self.devices),
            )
            self._shapes[key] = found
        return found

    def fits(self, shape: NeedShape, view: FreeView) -> Mask:
        """Which nodes have a seat of a shape."""
        free = view.free
        fits: Mask = free[self.nodes] > 0
        for rows, amount in shape.pools:
            fits &= free[rows] >= amount
        for devices, amount in shape.devices:
            fits &= devices.free(view) >= amount
        return fits

    def capacity(self, shape: NeedShape, view: FreeView, some: Ints | slice = ALL) -> Ints:
        """How many seats of a shape the nodes, or some of them, have."""
        free = view.free
        seats = np.where(free[self.nodes[some]] > 0, 2**31, 0)
        for rows, amount in shape.pools:
            np.minimum(seats, free[rows[some]] // amount, out=seats)
        for devices, amount in shape.devices:
            np.minimum(seats, devices.free(view)[some] // amount, out=seats)
        return np.maximum(seats, 0, out=seats)

    def order(self, policy: MatchPolicy) -> Ints:
        """Nodes, best first; those that the policy does not qualify are left out."""
        found = self._orders.get(policy)
        if found is None:
            graph = self._matcher.graph
            if policy.stop_early:
                # Fluxion's order follows the history of the load; ours must be the same after a restart.
                found = np.arange(len(self.nodes))[::-1].copy()
            else:
                scores = policy.scores(graph)[self.nodes]
                qualified = scores > 0
                if policy.node_centric:
                    scores = scores + policy.node_factor(graph)[self.nodes]
                found = np.argsort(scores if policy.ascending else -scores, kind="stable")
                found = found[qualified[found]]
            self._orders[policy] = found
        return found

    @property
    def up(self) -> Mask:
        """The nodes that are up, and all above them."""
        if self._up is None:
            graph, tree = self._matcher.graph, self._matcher.tree.shape()
            up = graph.up[self.nodes].copy()
            above = tree.parent[self.nodes]
            while (above >= 0).any():
                up &= (above < 0) | graph.up[above]
                above = np.where(above >= 0, tree.parent[above], -1)
            self._up = up
        return self._up

    def way(self, node: int) -> tuple[int, ...]:
        """The row of a node, and those above it."""
        found = self._ways.get(node)
        if found is None:
            row = int(self.nodes[node])
            found = self._ways[node] = (row, *self._matcher.tree.ancestors(row))
        return found

    def rest(self, used: list[int], view: FreeView) -> Iterator[tuple[int, int]]:
        """All that is left of some nodes."""
        rows = [pool[used] for pool in self.pools.values()]
        rows.extend(devices.of(node) for devices in self.devices.values() for node in used)
        every = np.concatenate(rows)
        every = every[every < self._matcher.graph.rows]
        yield from zip(every.tolist(), np.maximum(view.free[every], 0).tolist(), strict=True)

    def node_with(self, pool: Rows) -> Ints:
        """For each row of the graph, and one past the end, the node whose pool it is; -1 for none."""
        found = np.full(self._matcher.graph.rows + 1, -1, np.int64)
        found[pool] = np.arange(len(self.nodes))
        found[-1] = -1
        return found

    def refresh(self) -> None:
        """Catch up with a graph that changed."""
        graph = self._matcher.graph
        if self._state_at != graph.state_generation:
            self._state_at = graph.state_generation
            self._up = None
            self._orders.clear()
        if self._shape_at == graph.shape_generation:
            return
        self._shape_at = graph.shape_generation
        tree = self._matcher.tree.shape()
        self.nodes = graph.vertices_of_type(self._node)
        self.names = [graph.name[row] for row in self.nodes.tolist()]
        self.position = {name: i for i, name in enumerate(self.names)}
        place = np.full(graph.rows, -1, np.int64)
        place[self.nodes] = np.arange(len(self.nodes))
        below = tree.order[tree.parent[tree.order] >= 0]
        above = place[tree.parent[below]]
        below, above = below[above >= 0], above[above >= 0]
        self.pools, self.devices, self._ways = {}, {}, {}
        self._shapes.clear()
        pools = self._matcher.extensions.quantities
        types = graph.type[below]
        for code in np.unique(types).tolist():
            word = graph.types.words[code]
            rows, at = below[types == code], above[types == code]
            if word in pools:
                column = np.full(len(self.nodes), graph.rows, np.int32)
                column[at] = rows
                self.pools[word] = column
            else:
                self.devices[word] = Devices(rows, at, len(self.nodes))
