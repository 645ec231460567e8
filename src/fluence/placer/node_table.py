"""The nodes of a graph as a table: their resources, how many pods fit, and the order of a policy.

Everything is a column over `NodeTable.nodes`, the rows of the nodes in the order in which they were added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from fluence.graph.graph import Ints, Mask, Rows
from fluence.match.matcher import Matcher
from fluence.match.policy import MatchPolicy
from fluence.placer.profile import FreeView

ALL = slice(None)
Floats: TypeAlias = NDArray[np.float64]
SCORE_STEPS = 1000  # per point of a score, for scores that are finer than those of rules
_NEVER = 1 << 62  # more than all vertices of a graph together: see `fluence.graph.graph`
_MAX_SHAPES = 4096
_MAX_ORDERS = 32  # policies
_MAX_FAULTS = 100  # kept until they are taken


class Devices:
    """The vertices of a type that each node has several of, such as GPUs."""

    def __init__(self, rows: Rows, position: Ints, nodes: int) -> None:
        by = np.argsort(position, kind="stable")
        self.rows = rows[by]
        self.position = position[by]
        self.start = np.searchsorted(self.position, np.arange(nodes + 1))
        self.nodes = nodes

    def free(self, view: FreeView) -> Ints:
        """The number of free devices on each node."""
        return np.bincount(self.position[view.free[self.rows] > 0], minlength=self.nodes)

    def pick(self, view: FreeView, nodes: list[int], counts: list[int]) -> list[list[int]]:
        """The first free devices of some nodes."""
        if len(nodes) == 1:
            rows = self.of(nodes[0])
            return [rows[view.free[rows] > 0][: counts[0]].tolist()]
        wanted = np.zeros(self.nodes, np.int64)
        wanted[nodes] = counts
        free = view.free[self.rows] > 0
        before = np.concatenate(([0], np.cumsum(free)))
        number = before[:-1] - before[self.start[self.position]]  # among the free devices of its node
        chosen = np.flatnonzero(free & (number < wanted[self.position]))
        picked = self.rows[chosen].tolist()
        first = np.searchsorted(chosen, self.start).tolist()
        return [picked[first[node] : first[node + 1]] for node in nodes]

    def of(self, node: int) -> Rows:
        return self.rows[self.start[node] : self.start[node + 1]]


@dataclass(frozen=True, slots=True)
class NeedShape:
    """Needs compiled for the columns."""

    pools: tuple[tuple[Rows, int], ...]  # the row of the pool of each node, and the amount
    devices: tuple[tuple[Devices, int], ...]


class NodeTable:
    """The nodes of a matcher's graph; `refresh` updates the table."""

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher
        self.nodes: Rows = np.empty(0, np.int32)  # rows of the graph
        self.names: list[str] = []
        self.position: dict[str, int] = {}
        self.pools: dict[str, Rows] = {}  # per type: the row of each node's pool; past the end: none
        self.devices: dict[str, Devices] = {}
        self._node = matcher.graph.types.code("node")
        self._shapes: LRUCache[tuple[tuple[str, int], ...], NeedShape] = LRUCache(_MAX_SHAPES)
        self._orders: LRUCache[MatchPolicy, Ints] = LRUCache(_MAX_ORDERS)
        self._policy_faults: list[tuple[str, Exception]] = []
        self._up: Mask | None = None
        self._ways: dict[int, tuple[int, ...]] = {}
        self._shape_at = -1
        self._state_at = -1

    def free(self, type_: str, view: FreeView) -> Ints:
        """The free amount of a type on each node; negative if a node is overcommitted."""
        devices = self.devices.get(type_)
        if devices is not None:
            return devices.free(view)
        rows = self.pools.get(type_)
        return np.zeros(len(self.nodes), np.int64) if rows is None else view.free[rows]

    def size(self, type_: str) -> Ints:
        """The size of a type on each node."""
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
        """The nodes on which a pod of a shape fits."""
        free = view.free
        fits: Mask = free[self.nodes] > 0
        for rows, amount in shape.pools:
            fits &= free[rows] >= amount
        for devices, amount in shape.devices:
            fits &= devices.free(view) >= amount
        return fits

    def capacity(self, shape: NeedShape, view: FreeView) -> Ints:
        """The number of pods of a shape that fit on each node."""
        free = view.free
        seats = np.where(free[self.nodes] > 0, 2**31, 0)
        for rows, amount in shape.pools:
            np.minimum(seats, free[rows] // amount, out=seats)
        for devices, amount in shape.devices:
            np.minimum(seats, devices.free(view) // amount, out=seats)
        return np.maximum(seats, 0, out=seats)

    def lacking(self, needs: Mapping[str, int], view: FreeView, node: int) -> frozenset[str]:
        """The types that a node has too little of; `node` if a job uses the whole node."""
        held = ("node",) if view.free[self.nodes[node]] <= 0 else ()
        return frozenset((*held, *(t for t, n in needs.items() if n > 0 and self.free(t, view)[node] < n)))

    def least_allocated(self, needs: Mapping[str, int], view: FreeView) -> Ints:
        """A score for nodes with more cpu, memory and pods left, in balance: LeastAllocated and
        BalancedAllocation of kube-scheduler with their weights, in thousandths. kube-scheduler counts a pod
        without requests as 100m and 200 MB; here it counts as one pod."""
        cpu, memory, pods = (self._left(type_, needs, view) for type_ in ("cpu", "memory", "pods"))
        share = (cpu + memory + pods) / 3 + 1 - np.abs(cpu - memory) / 2
        return np.asarray((share * (100 * SCORE_STEPS)).astype(np.int64))

    def _left(self, type_: str, needs: Mapping[str, int], view: FreeView) -> Floats:
        """The fraction of a type that would be left on each node after one more pod."""
        left, size = self.free(type_, view) - needs.get(type_, 0), self.size(type_)
        return np.divide(np.maximum(left, 0), size, out=np.zeros(len(size)), where=size > 0)

    def order(self, policy: MatchPolicy) -> Ints:
        """Nodes, best first, without those that the policy rejects."""
        found = self._orders.get(policy)
        if found is None:
            graph = self._matcher.graph
            column = self.scores(policy)
            if column is None:
                # Fluxion's order depends on earlier placements; this order must be the same after a restart.
                found = np.arange(len(self.nodes))[::-1].copy()
            else:
                scores = column[self.nodes]
                qualified = scores > 0
                if policy.node_centric:
                    scores = scores + policy.node_factor(graph)[self.nodes]
                found = np.argsort(scores if policy.ascending else -scores, kind="stable")
                found = found[qualified[found]]
            self._orders[policy] = found
        return found

    def scores(self, policy: MatchPolicy) -> Ints | None:
        """The scores of a policy for all rows; None: vertices are taken in the order of `first`. That is also
        done if the scores of a site's policy fail, so that pods do not wait until the site repairs its
        code."""
        if policy.stop_early:
            return None
        try:
            return policy.column(self._matcher.graph)
        except Exception as error:
            if len(self._policy_faults) < _MAX_FAULTS:
                self._policy_faults.append((policy.name, error))
            return None

    def take_policy_faults(self) -> list[tuple[str, Exception]]:
        """The policies whose scores failed since the last call, with the errors."""
        faults, self._policy_faults = self._policy_faults, []
        return faults

    @property
    def up(self) -> Mask:
        """The nodes that are up, together with all vertices above them."""
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
        """The rows of a node and of the vertices above it."""
        found = self._ways.get(node)
        if found is None:
            row = int(self.nodes[node])
            found = self._ways[node] = (row, *self._matcher.tree.ancestors(row))
        return found

    def rest(self, used: list[int], view: FreeView) -> Iterator[tuple[int, int]]:
        """The vertices and free amounts of everything left on some nodes."""
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
        """Update the table after a change of the graph."""
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
