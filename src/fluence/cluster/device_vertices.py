"""External resources as vertices of a live graph, which follow the document that declares them.

A device whose parent (a node or a rack) does not exist is not offered. A device keeps its vertex while its
place in the tree and its type stay the same, so other changes do not affect the jobs that use it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fluence.cluster.layout import GraphLayout
from fluence.cluster.vertices import NodeVertices
from fluence.errors import InvalidInput
from fluence.graph.graph import Batch
from fluence.model.external_resources import CLUSTER, Device, DeviceKey, DeviceTree
from fluence.placer.backends import DeviceEntry

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
