"""Graphs and jobspecs for tests, put together from parts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from fluence.graph import ResourceGraph, jgf
from fluence.model.jobspec import Jobspec

Json = dict[str, Any]


@dataclass
class Sample:
    """A graph as a JGF document, and what a request may want to know of it."""

    nodes: list[Json] = field(default_factory=list)
    edges: list[Json] = field(default_factory=list)
    types: set[str] = field(default_factory=set)
    hosts: list[str] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)

    @property
    def document(self) -> Json:
        return {"graph": {"nodes": self.nodes, "edges": self.edges}}

    @property
    def text(self) -> str:
        return json.dumps(self.document)

    def load(self) -> ResourceGraph:
        graph = ResourceGraph()
        graph.extend(jgf.read(self.text))
        return graph

    def paths(self, *types: str) -> list[str]:
        """The paths of all vertices, or of those of some types."""
        return [
            node["metadata"]["paths"]["containment"]
            for node in self.nodes
            if not types or node["metadata"]["type"] in types
        ]

    def add(self, type_: str, above: Json | None, *, id: int, **metadata: Any) -> Json:  # noqa: A002
        name = metadata.get("name") or (metadata.get("basename") or type_) + ("" if id == -1 else str(id))
        top = "" if above is None else above["metadata"]["paths"]["containment"]
        node = {
            "id": str(len(self.nodes)),
            "metadata": {"type": type_, "id": id, "paths": {"containment": f"{top}/{name}"}, **metadata},
        }
        self.nodes.append(node)
        self.types.add(type_)
        if above is not None:
            self.edges.append({"source": above["id"], "target": node["id"]})
        return node


def resource(type_: str, count: Any = 1, *below: Json, exclusive: bool | None = None) -> Json:
    """One resource of a jobspec."""
    found: Json = {"type": type_, "count": count}
    if type_ == "slot":
        found["label"] = "default"
    if exclusive is not None:
        found["exclusive"] = exclusive
    if below:
        found["with"] = list(below)
    return found


def jobspec(*resources: Json, duration: float = 0, constraints: Json | None = None) -> Jobspec:
    system: Json = {"duration": duration}
    if constraints is not None:
        system["constraints"] = constraints
    return Jobspec.from_value(
        {"version": 1, "resources": list(resources), "tasks": [], "attributes": {"system": system}}
    )


def cluster(
    *, racks: int = 0, nodes: int = 2, sockets: int = 0, cores: int = 2, gpus: int = 0, memory: int = 0
) -> Sample:
    """A regular cluster: racks of nodes (or nodes alone), ranked from 0, ids of cores per node or socket."""
    sample = Sample()
    top = sample.add("cluster", None, id=0)
    rank = 0
    for above in [sample.add("rack", top, id=i) for i in range(racks)] or [top]:
        for _ in range(nodes):
            node = sample.add("node", above, id=rank, rank=rank)
            for home in [sample.add("socket", node, id=i, rank=rank) for i in range(sockets)] or [node]:
                for i in range(cores):
                    sample.add("core", home, id=i, rank=rank)
                for i in range(gpus):
                    sample.add("gpu", home, id=i, rank=rank)
                if memory:
                    sample.add("memory", home, id=0, rank=rank, size=memory)
            rank += 1
    return sample
