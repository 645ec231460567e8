"""Vertices and edges that are added to a graph together: what the readers of files make of a document."""

from __future__ import annotations

from dataclasses import dataclass, field

from fluence.graph.tree import CONTAINMENT


@dataclass(slots=True)
class Batch:
    """Vertices and edges to be added together; rows and edge ends are numbered within the batch.

    An edge end below zero, ``~row``, names a vertex that the graph already has.
    """

    type: list[str] = field(default_factory=list)
    basename: list[str] = field(default_factory=list)
    name: list[str] = field(default_factory=list)
    id: list[int] = field(default_factory=list)
    uniq_id: list[int] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    unit: list[str] = field(default_factory=list)
    up: list[bool] = field(default_factory=list)
    properties: dict[int, dict[str, str]] = field(default_factory=dict)
    paths: dict[str, dict[int, str] | list[str]] = field(default_factory=dict)
    edges: dict[str, tuple[list[int], list[int]]] = field(default_factory=dict)
    roots: dict[str, int] = field(default_factory=dict)

    def vertex(
        self,
        type_: str,
        *,
        id: int,  # noqa: A002 - the field's own name
        uniq_id: int,
        basename: str | None = None,
        name: str | None = None,
        rank: int = -1,
        size: int = 1,
        unit: str = "",
        up: bool = True,
        properties: dict[str, str] | None = None,
        paths: dict[str, str] | None = None,
    ) -> int:
        """Add one vertex and return its row in the batch."""
        row = len(self.type)
        base = type_ if basename is None else basename
        self.type.append(type_)
        self.basename.append(base)
        self.name.append(name if name is not None else base if id == -1 else f"{base}{id}")
        self.id.append(id)
        self.uniq_id.append(uniq_id)
        self.rank.append(rank)
        self.size.append(size)
        self.unit.append(unit)
        self.up.append(up)
        if properties:
            self.properties[row] = properties
        for subsystem, path in (paths or {}).items():
            known = self.paths.setdefault(subsystem, {})
            assert isinstance(known, dict)
            known[row] = path
        return row

    def edge(self, source: int, target: int, subsystem: str = CONTAINMENT) -> None:
        """Add one edge; edges of a vertex keep the order in which they are added."""
        sources, targets = self.edges.setdefault(subsystem, ([], []))
        sources.append(source)
        targets.append(target)
