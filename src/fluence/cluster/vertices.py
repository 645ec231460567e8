"""Nodes and devices as vertices of a live graph: they are added, removed, moved and resized while jobs use
them.

`NodeEvents` collects events of nodes and applies them with the next query, so a thousand events in a row cost
one change of the graph. `ClusterGraph` is the only caller: it learns which nodes have new vertices, and
records the pods on them again.

A device whose parent (a node or a rack) does not exist is not offered. A device keeps its vertex while its
place in the tree and its type stay the same, so other changes do not affect the jobs that use it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from fluence.cluster.columns import NodeColumns
from fluence.cluster.layout import COMMON, MOST_DEVICES, GraphLayout
from fluence.errors import InvalidInput
from fluence.graph.graph import CONTAINMENT, Batch, ResourceGraph
from fluence.match.matcher import HORIZON, Matcher
from fluence.match.request import Extensions
from fluence.model.external_resources import CLUSTER, Device, DeviceKey, DeviceTree
from fluence.model.node import Node
from fluence.placer.backends import DeviceEntry
from fluence.placer.gang_fit import GangFit
from fluence.units import natural_key

# The sum of the sizes of a graph must stay below 2^62; this leaves room for vertices of size 1.
_MOST_TOGETHER = (1 << 62) - (1 << 40)
_HOSTNAME = "kubernetes.io/hostname"  # the same as the name of the vertex

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

    def __init__(self, layout: GraphLayout, horizon: int = HORIZON) -> None:
        self.layout = layout
        self.graph = ResourceGraph()
        batch = Batch()
        batch.roots[CONTAINMENT] = batch.vertex("cluster", id=0, uniq_id=0, name=layout.name)
        self.graph.extend(batch)
        # Each request has its own policy, so the matcher needs no scores of a site's policy.
        self.matcher = Matcher(
            self.graph, "first", horizon=horizon, extensions=Extensions(quantities=frozenset(COMMON))
        )
        self.nodes: dict[str, Vertices] = {}
        self._ranks: dict[str, int] = {}  # by name: a node that comes back keeps its rank
        self._levels: dict[Place, int] = {(): 0}  # rows of the levels
        self._level_ids: dict[str, int] = {}
        self.with_devices: set[int] = set()  # rows of nodes and levels with backends below them

    def rank(self, name: str) -> int:
        return self._ranks.setdefault(name, len(self._ranks))

    def add(self, nodes: Iterable[Node]) -> None:
        """Add new nodes, in the natural order of their names."""
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
        """The vertex of a node, or of a level by its value; None: it does not exist."""
        node = self.nodes.get(name)
        if node is not None:
            return node.row
        return next((row for place, row in self._levels.items() if place and place[-1][1] == name), None)

    def change(self, node: Node) -> bool:
        """Apply a change of size, labels or state of a node; the rows of its devices may change. Returns
        False if the node must move in the tree: remove it and add it again."""
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
        """Remove a node, and the levels above it that become empty; returns what jobs lost."""
        made = self.nodes.pop(name)
        gone = made.rows()
        place = made.place
        while place and not any(each.place[: len(place)] == place for each in self.nodes.values()):
            gone.append(self._levels.pop(place))
            place = place[:-1]
        if not self.with_devices.isdisjoint(gone):
            gone = sorted(self.matcher.with_all_below(gone))
        lost: dict[int, object] = dict(self.matcher.remove_vertices(np.array(gone, np.int32)))
        self.graph.size[list(made.pools.values())] = 0  # the rows stay, and must not count in sums
        return lost

    # -- inside ----------------------------------------------------------------------------------------------

    def _countable(self) -> int:
        """How much the sum of all sizes may still grow. Only nodes with absurd amounts can exhaust it; the
        excess is not counted."""
        return _MOST_TOGETHER - int(self.graph.size.sum())

    def _extend(self, batch: Batch) -> None:
        new = set(batch.type) - self.matcher.extensions.quantities - {"node"}
        pools = new - {type_ for type_, _ in self.layout.levels} - set(self.layout.devices.values())
        self.graph.extend(batch)
        if pools:
            self.matcher.add_quantities(pools)
        self.matcher.refresh()

    def _level(self, batch: Batch, place: Place, levels: dict[Place, int], base: int) -> int:
        """The end of an edge to a level: negative for a vertex that is already in the graph."""
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
            # Tables depend on sizes as well as on the shape.
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


def as_fluxion(graph: ResourceGraph) -> ResourceGraph:
    """A copy with the units of Fluxion's jobspecs: a vertex per core, and memory in megabytes."""
    tree, batch = graph.tree(CONTAINMENT), Batch()
    rows: dict[int, int] = {}  # of the graph -> of the batch
    for row in tree.order.tolist():
        type_, size = graph.types.words[graph.type[row]], int(graph.size[row])
        above = rows.get(int(tree.parent[row]))
        cores = type_ == "cpu"
        for number in range(min(size // 1000, MOST_DEVICES) if cores else 1):
            rows[row] = made = batch.vertex(
                "core" if cores else type_,
                id=number if cores else int(graph.id[row]),
                uniq_id=len(batch.type),
                basename=None if cores else graph.basenames.words[graph.basename[row]],
                name=None if cores else graph.name[row],
                rank=int(graph.rank[row]),
                size=1 if cores else size // 10**6 if type_ == "memory" else size,
                unit="MB" if type_ == "memory" else graph.units.words[graph.unit[row]],
                up=bool(graph.up[row]),
                properties=dict(graph.properties.get(row, {})),
            )
            if above is None:
                batch.roots[CONTAINMENT] = made
            else:
                batch.edge(above, made)
    copy = ResourceGraph()
    copy.extend(batch)
    return copy


class NodeEvents:
    """Events of nodes that are not applied yet."""

    def __init__(
        self,
        vertices: NodeVertices,
        columns: NodeColumns,
        fit: GangFit,
        *,
        before_move: Callable[[str], None],
    ) -> None:
        self._vertices = vertices
        self._columns = columns
        self._fit = fit
        self._before_move = before_move  # the vertices of a node are about to be replaced
        self._new: dict[str, Node] = {}
        self._changed: dict[str, Node] = {}
        self._reordered = False  # the columns are not in the order of the node table

    @property
    def is_stale(self) -> bool:
        return bool(self._new or self._changed)

    @property
    def nodes(self) -> dict[str, Node]:
        """The nodes by name, with pending changes."""
        held = {name: made.node for name, made in self._vertices.nodes.items()}
        return {**held, **self._changed, **self._new}

    def node(self, name: str) -> Node | None:
        """One node, with pending changes."""
        found = self._new.get(name) or self._changed.get(name)
        if found is None and name in self._vertices.nodes:
            found = self._vertices.nodes[name].node
        return found

    def set_node(self, node: Node) -> None:
        """Add or change a node."""
        if node.name in self._new or node.name not in self._vertices.nodes:
            self._new[node.name] = node
        else:
            self._changed[node.name] = node

    def withdraw(self, name: str) -> bool:
        """A node is gone; returns whether it was new and not applied yet."""
        return self._new.pop(name, None) is not None

    def remove(self, name: str) -> dict[int, object]:
        """Remove a node from the graph; returns what jobs lost."""
        lost = self._vertices.remove(name)
        self._reorder()
        return lost

    def apply(self) -> tuple[list[str], Collection[str]]:
        """Apply the collected events to the vertices; returns the nodes with new vertices or sizes, and the
        new nodes."""
        changed, self._changed = self._changed, {}
        other = [node.name for node in changed.values() if self._change(node)]
        new, self._new = self._new, {}
        if new:
            self._vertices.add(new.values())
            self._reorder()
        return other, new.keys()

    def arrange(self) -> None:
        """Sort the columns in the order of the node table."""
        if self._reordered:
            self._reordered = False
            self._columns.arrange([self._vertices.nodes[name].node for name in self._fit.names])

    def _change(self, node: Node) -> bool:
        """Apply a change; returns whether the pods on the node must be recorded again."""
        old = self._vertices.nodes[node.name].node
        if old == node:
            return False
        if self._vertices.change(node):
            if _rules_of(old) != _rules_of(node) and not self._reordered:
                self._columns.update(node)
            was, now = old.status, node.status
            return was.allocatable != now.allocatable or was.capacity != now.capacity
        # It has moved in the tree: new vertices, the same placements.
        self._before_move(node.name)
        self._vertices.remove(node.name)
        self._vertices.add((node,))
        self._reorder()
        return True

    def _reorder(self) -> None:
        """Nodes were added or removed: update the node table now, and the columns when they are needed."""
        self._fit.look(self._fit.availability.now)
        self._reordered = True


def _rules_of(node: Node) -> tuple[object, ...]:
    """The properties of a node that filters may read."""
    return (
        node.metadata.labels,
        node.spec.taints,
        node.spec.unschedulable,
        node.is_ready,
        node.offered_devices(),
    )


_ROOT = 0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A device that must be in the graph."""

    key: DeviceKey
    device: Device
    online: bool
    under: int | None


class DeviceVertices:
    """The vertices of all external resources of a cluster; `arrange` updates them."""

    def __init__(self, layout: GraphLayout, nodes: NodeVertices) -> None:
        self.tree = DeviceTree()
        self._layout = layout
        self._nodes = nodes
        self._made: dict[DeviceKey, DeviceEntry] = {}
        self._arranged_at = (-1, -1)
        self._next_id: dict[str, int] = {}

    def set(self, tree: DeviceTree) -> None:
        """Set the tree of devices."""
        own = next((each for each in tree.types if each in self._layout.own_types), None)
        if own is not None:
            raise InvalidInput(f"type {own!r} is what nodes have; choose another name for the device")
        self.tree = tree
        self._arranged_at = (-1, -1)

    @property
    def is_stale(self) -> bool:
        """Whether the tree has changed, or nodes that may be parents of devices."""
        graph = self._nodes.graph
        if self._arranged_at[0] < 0:
            return bool(self.tree.backends or self._made)
        return self._arranged_at[1] != graph.shape_generation and self._has_parents

    @property
    def absent(self) -> list[str]:
        """The backends that are not offered because their parent does not exist."""
        return [each.name for each in self.tree.backends if self._parent(each) is None]

    def arrange(self) -> list[DeviceEntry]:
        """Update the vertices; returns the current devices, parents before children."""
        wanted = list(self._wanted())
        self._remove(wanted)
        self._add([each for each in wanted if each.key not in self._made])
        for each in wanted:
            self._change(each)
        ordered = [self._made[each.key] for each in wanted]
        self._made = {entry.key: entry for entry in ordered}
        self._nodes.with_devices = {entry.under for entry in ordered if entry.under is not None}
        self._nodes.matcher.refresh()
        self._arranged_at = (0, self._nodes.graph.shape_generation)
        return ordered

    @property
    def _has_parents(self) -> bool:
        return any(each.parent != CLUSTER for each in self.tree.backends)

    def _parent(self, backend: Device) -> int | None:
        """The row of the parent of a backend; None: it does not exist."""
        return _ROOT if backend.parent == CLUSTER else self._nodes.row(backend.parent)

    def _wanted(self) -> Iterator[_Wanted]:
        for backend in self.tree.backends:
            row = self._parent(backend)
            if row is not None:
                under = None if backend.parent == CLUSTER else row
                yield from self._below(backend, (backend.name,), backend.online, under)

    def _below(self, device: Device, key: DeviceKey, online: bool, under: int | None) -> Iterator[_Wanted]:
        yield _Wanted(key, device, online and device.online, under)
        for child in device.children:
            yield from self._below(child, (*key, child.name), online and device.online, under)

    def _remove(self, wanted: list[_Wanted]) -> None:
        """Remove devices that are not wanted any more, or whose vertex is gone. Devices with another type or
        place are removed too, and added again."""
        graph = self._nodes.graph
        stays = {each.key: (each.device.type, each.under) for each in wanted}
        gone: list[int] = []
        for key, entry in list(self._made.items()):
            above = key[:-1]
            same = stays.get(key) == (entry.type, entry.under) and (not above or above in self._made)
            if not same or not graph.alive[entry.row]:
                del self._made[key]
                if graph.alive[entry.row]:
                    gone.append(entry.row)
        if gone:
            self._nodes.matcher.remove_vertices(np.array(gone, np.int32))
            graph.size[gone] = 0  # the rows stay, and must not count in sums

    def _add(self, wanted: list[_Wanted]) -> None:
        graph, batch = self._nodes.graph, Batch()
        base = graph.rows
        rows: dict[DeviceKey, int] = {}
        for each in wanted:
            device = each.device
            number = self._next_id[device.type] = self._next_id.get(device.type, -1) + 1
            row = batch.vertex(
                device.type,
                id=number,
                uniq_id=base + len(batch.type),
                name=device.name,
                size=device.count,
                properties=_properties(device) or None,
            )
            above = each.key[:-1]
            if not above:
                batch.edge(~(_ROOT if each.under is None else each.under), row)
            elif above in rows:
                batch.edge(rows[above], row)
            else:
                batch.edge(~self._made[above].row, row)
            rows[each.key] = row
        if not rows:
            return
        graph.extend(batch)
        for each in wanted:
            self._made[each.key] = DeviceEntry(
                each.key, base + rows[each.key], each.device.type, each.device.count, {}, True, each.under
            )

    def _change(self, wanted: _Wanted) -> None:
        """Update the size, the attributes and the status of a device."""
        graph, entry, device = self._nodes.graph, self._made[wanted.key], wanted.device
        if graph.size[entry.row] != device.count:
            graph.size[entry.row] = device.count
            graph.shape_generation += 1
            graph.state_generation += 1
        if dict(entry.attributes) != dict(device.attributes):
            has, wants = graph.properties.get(entry.row, {}), _properties(device)
            for key in [key for key in has if key not in wants]:
                graph.remove_property(entry.row, key)
            for key in [key for key in wants if key not in has]:
                graph.set_property(entry.row, key, "")
        graph.set_status(entry.row, up=wanted.online)
        self._made[wanted.key] = DeviceEntry(
            entry.key, entry.row, entry.type, device.count, device.attributes, wanted.online, entry.under
        )


def _properties(device: Device) -> dict[str, str]:
    """Attributes as properties. Their values are part of the names, because a constraint (RFC 31) selects
    names."""
    return {f"{key}={value}": "" for key, value in device.attributes.items()}
