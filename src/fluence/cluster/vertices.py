"""Nodes as vertices of a live graph: they come, go, move and change size while jobs hold parts of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from fluence.cluster.layout import COMMON, GraphLayout
from fluence.graph.graph import CONTAINMENT, Batch, ResourceGraph
from fluence.match.extensions import Extensions
from fluence.match.matcher import HORIZON, Matcher
from fluence.match.policy import MatchPolicy
from fluence.model.node import Node
from fluence.text import natural_key

# The sizes of a graph stay below 2^62 together; this leaves room for vertices of size 1.
_MOST_TOGETHER = (1 << 62) - (1 << 40)
_HOSTNAME = "kubernetes.io/hostname"  # says what the vertex's name says

Place = tuple[tuple[str, str], ...]  # (type, value) of the levels from the root down


@dataclass(slots=True)
class Vertices:
    """The rows of one node."""

    node: Node
    row: int
    place: Place
    pools: dict[str, int] = field(default_factory=dict)  # type -> row
    devices: dict[str, dict[int, int]] = field(default_factory=dict)  # type -> id -> row

    def rows(self) -> list[int]:
        own = [row for ids in self.devices.values() for row in ids.values()]
        return [self.row, *self.pools.values(), *own]


class NodeVertices:
    """The graph of a cluster's nodes, and the matcher on it."""

    def __init__(self, layout: GraphLayout, policy: str | MatchPolicy, horizon: int = HORIZON) -> None:
        self.layout = layout
        self.graph = ResourceGraph()
        batch = Batch()
        batch.roots[CONTAINMENT] = batch.vertex("cluster", id=0, uniq_id=0, name=layout.name)
        self.graph.extend(batch)
        self.matcher = Matcher(
            self.graph, policy, horizon=horizon, extensions=Extensions(quantities=frozenset(COMMON))
        )
        self.nodes: dict[str, Vertices] = {}
        self._ranks: dict[str, int] = {}  # by name; a node that comes back is the same execution target
        self._levels: dict[Place, int] = {(): 0}  # rows of the levels
        self._level_ids: dict[str, int] = {}
        self.with_devices: set[int] = set()  # rows of nodes and levels under which backends are

    def rank(self, name: str) -> int:
        return self._ranks.setdefault(name, len(self._ranks))

    def add(self, nodes: Iterable[Node]) -> None:
        """New nodes, in natural order of their names."""
        batch = Batch()
        base = self.graph.rows
        fresh: list[Vertices] = []
        levels: dict[Place, int] = {}
        left = self._countable()
        for node in sorted(nodes, key=lambda node: natural_key(node.name)):
            place = self.layout.place(node)
            above = self._level(batch, place, levels, base)
            rank = self.rank(node.name)
            row = batch.vertex(
                "node",
                id=rank,
                uniq_id=base + len(batch.type),
                name=node.name,
                rank=rank,
                properties=properties(node),
            )
            batch.edge(above, row)
            made = Vertices(node, base + row, place)
            pools, devices = self.layout.contents(node)
            for type_, wanted in pools.items():
                size = min(wanted, left)
                left -= size
                made.pools[type_] = base + self._pool(batch, row, type_, size, rank, base)
            for type_, count in devices.items():
                ids = {i: base + self._device(batch, row, type_, i, rank, base) for i in range(count)}
                made.devices[type_] = ids
            fresh.append(made)
        if not fresh:
            return
        self._extend(batch)
        self._levels.update(levels)
        for made in fresh:
            self.nodes[made.node.name] = made
            self._status(made)

    def row(self, name: str) -> int | None:
        """The vertex of a node, or of a level by its value; None: there is none."""
        node = self.nodes.get(name)
        if node is not None:
            return node.row
        return next((row for place, row in self._levels.items() if place and place[-1][1] == name), None)

    def change(self, node: Node) -> bool:
        """A node has another size, other labels or another state; the rows of its devices may have changed.
        False: it belongs elsewhere in the tree, and must be taken out and added again."""
        made = self.nodes[node.name]
        if self.layout.place(node) != made.place:
            return False
        old, made.node = made.node, node
        if old.status.allocatable != node.status.allocatable or old.status.capacity != node.status.capacity:
            self._resize(made)
        if old.metadata.labels != node.metadata.labels:
            self._relabel(made)
        self._status(made)
        return True

    def remove(self, name: str) -> dict[int, object]:
        """A node is gone, with the levels above it that have become empty; says which jobs lost anything."""
        made = self.nodes.pop(name)
        gone = made.rows()
        place = made.place
        while place and not any(each.place[: len(place)] == place for each in self.nodes.values()):
            gone.append(self._levels.pop(place))
            place = place[:-1]
        if not self.with_devices.isdisjoint(gone):
            gone = sorted(self.matcher.with_all_below(gone))
        lost: dict[int, object] = dict(self.matcher.remove_vertices(np.array(gone, np.int32)))
        self.graph.size[list(made.pools.values())] = 0  # the rows stay, and must not add up
        return lost

    # -- inside ----------------------------------------------------------------------------------------------

    def _countable(self) -> int:
        """How much more the sizes of all vertices together may come to. Only nodes that claim to have what no
        machine has can use it up; what is beyond is not counted."""
        return _MOST_TOGETHER - int(self.graph.size.sum())

    def _extend(self, batch: Batch) -> None:
        new = set(batch.type) - self.matcher.extensions.quantities - {"node"}
        pools = new - {type_ for type_, _ in self.layout.levels} - set(self.layout.devices.values())
        self.graph.extend(batch)
        if pools:
            self.matcher.add_quantities(pools)
        self.matcher.refresh()

    def _level(self, batch: Batch, place: Place, levels: dict[Place, int], base: int) -> int:
        """The end of an edge that leads to a level: below 0 for a vertex of the graph."""
        known = self._levels.get(place)
        if known is not None:
            return ~known
        made = levels.get(place)
        if made is not None:
            return made - base
        above = self._level(batch, place[:-1], levels, base)
        type_, value = place[-1]
        number = self._level_ids[type_] = self._level_ids.get(type_, -1) + 1
        row = batch.vertex(type_, id=number, uniq_id=base + len(batch.type), name=value)
        batch.edge(above, row)
        levels[place] = base + row
        return row

    def _pool(self, batch: Batch, above: int, type_: str, size: int, rank: int, base: int) -> int:
        row = batch.vertex(
            type_,
            id=0,
            uniq_id=base + len(batch.type),
            basename=type_.replace("/", "."),
            size=size,
            rank=rank,
        )
        batch.edge(above, row)
        return row

    def _device(self, batch: Batch, above: int, type_: str, number: int, rank: int, base: int) -> int:
        row = batch.vertex(type_, id=number, uniq_id=base + len(batch.type), rank=rank)
        batch.edge(above, row)
        return row

    def _resize(self, made: Vertices) -> None:
        graph = self.graph
        pools, devices = self.layout.contents(made.node)
        rank = self.rank(made.node.name)
        batch, base = Batch(), graph.rows
        resized = False
        left = self._countable()
        for type_, row in made.pools.items():
            before = int(graph.size[row])
            size = min(pools.get(type_, 0), left + before)
            left += before - size
            if before != size:
                graph.size[row] = size
                resized = True
        for type_ in pools.keys() - made.pools.keys():
            size = min(pools[type_], left)
            left -= size
            made.pools[type_] = base + self._pool(batch, ~made.row, type_, size, rank, base)
        gone: list[int] = []
        for type_ in {**made.devices, **devices}:
            ids, count = made.devices.setdefault(type_, {}), devices.get(type_, 0)
            while len(ids) > count:
                gone.append(ids.pop(max(ids)))
            for number in range(count):
                if number not in ids:
                    ids[number] = base + self._device(batch, ~made.row, type_, number, rank, base)
        if resized:
            # Sizes are part of what tables are made of, as the shape is.
            graph.shape_generation += 1
            graph.state_generation += 1
            graph.property_generation += 1
        if batch.type:
            self._extend(batch)
        if gone:
            self.matcher.remove_vertices(np.array(gone, np.int32))
        self.matcher.refresh()

    def _relabel(self, made: Vertices) -> None:
        graph, wanted = self.graph, properties(made.node)
        for key in list(graph.properties.get(made.row, {})):
            if key not in wanted:
                graph.remove_property(made.row, key)
        has = graph.properties.get(made.row, {})
        for key, value in wanted.items():
            if has.get(key) != value:
                graph.set_property(made.row, key, value)

    def _status(self, made: Vertices) -> None:
        up = made.node.is_ready and not made.node.spec.unschedulable
        if self.graph.set_status(made.row, up=up):
            self.graph.nodes_up += 1 if up else -1


def properties(node: Node) -> dict[str, str]:
    """The labels of a node, for constraints."""
    return {key: value for key, value in node.labels.items() if key != _HOSTNAME}
