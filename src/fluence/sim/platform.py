"""The cluster that a workload runs on: a graph from a file or from shorthand, and what to count in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from fluence.errors import InvalidGraph, InvalidInput
from fluence.graph import files
from fluence.graph.graph import CONTAINMENT, Batch, ResourceGraph
from fluence.match.request import NONE, Extensions
from fluence.sim.traces import OPENB_EXTENSIONS, is_openb_nodes, openb_nodes

_SHORTHAND = re.compile(r"\s*([0-9]{1,9})\s*[xX×*]\s*([0-9]{1,9})\s*(?:[xX×*]\s*([0-9]{1,9})\s*)?")
_MAX_VERTICES = 20_000_000  # vertices, about 4 GB
_UNITS = ("core", "cpu", "node")


@dataclass(frozen=True, slots=True)
class Platform:
    """A cluster, ready to be simulated on."""

    graph: ResourceGraph
    source: str
    extensions: Extensions
    unit: str
    """The type that jobs and the cluster are measured in."""
    capacity: int
    """The number of units."""
    nodes: int

    @property
    def node_size(self) -> int:
        """Units of a node, in the middle where nodes differ."""
        return max(1, self.capacity // self.nodes) if self.nodes else 1


def read(cluster: str | Path, *, unit: str | None = None) -> Platform:
    """The cluster that a file or shorthand describes.

    *cluster* is `nodes×cores` or `nodes×cores×gpus`, such as 240x1 or 100x32x4; a graph in a file (JGF, GRUG,
    R, hwloc); or the CSV of the nodes of openb. Without a *unit*, cores are counted, else cpu, else nodes.
    """
    source = str(cluster)
    shorthand = _SHORTHAND.fullmatch(source)
    if shorthand is not None:
        nodes, cores, gpus = (int(number or 0) for number in shorthand.groups())
        return _platform(_graph(regular(nodes, cores, gpus), source), source, NONE, unit)
    try:
        text = Path(cluster).read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no name of a file"
        cure = "give a file, or nodes×cores such as 240x1 or 100x32x4 (with gpus)"
        raise InvalidGraph(f"cannot be read ({reason}): {cure}", where=source) from None
    if is_openb_nodes(text):
        graph = _graph(openb_nodes(text, source=source), source)
        return _platform(graph, source, OPENB_EXTENSIONS, unit)
    return _platform(files.graph_of(text, None, source=source), source, NONE, unit)


def of(graph: ResourceGraph) -> Platform:
    """A graph as a cluster to simulate on."""
    return _platform(graph, "graph", NONE, None)


def regular(nodes: int, cores: int, gpus: int = 0) -> Batch:
    """Equal nodes below one cluster, ranked from 0."""
    if nodes < 1 or cores < 1:
        raise InvalidInput(f"a cluster needs a node and a core at least, not {nodes}×{cores}")
    vertices = 1 + nodes * (1 + cores + gpus)
    if vertices > _MAX_VERTICES:
        raise InvalidInput(
            f"{nodes}×{cores}×{gpus} are {vertices} vertices: at most {_MAX_VERTICES} can be held"
        )
    batch = Batch()
    number = count()
    root = batch.roots[CONTAINMENT] = batch.vertex("cluster", id=0, uniq_id=next(number))
    for rank in range(nodes):
        node = batch.vertex("node", id=rank, uniq_id=next(number), rank=rank)
        batch.edge(root, node)
        for type_, amount in (("core", cores), ("gpu", gpus)):
            for i in range(amount):
                batch.edge(node, batch.vertex(type_, id=i, uniq_id=next(number), rank=rank))
    return batch


def capacity(graph: ResourceGraph, unit: str) -> int:
    """How many of a type a graph has, the parts of pools counted one by one."""
    code = graph.types.find(unit)
    return 0 if code is None else int(graph.size[(graph.type == code) & graph.alive].sum())


def _platform(graph: ResourceGraph, source: str, extensions: Extensions, unit: str | None) -> Platform:
    counted = unit or next((word for word in _UNITS if capacity(graph, word)), None)
    if counted is None or not capacity(graph, counted):
        kinds = sorted({graph.types.words[code] for code in set(graph.type.tolist())})
        wanted = counted or " or ".join(_UNITS)
        raise InvalidGraph(f"has no {wanted} to count: name as unit one of {', '.join(kinds)}", where=source)
    return Platform(graph, source, extensions, counted, capacity(graph, counted), capacity(graph, "node"))


def _graph(batch: Batch, source: str) -> ResourceGraph:
    graph = ResourceGraph()
    graph.extend(batch)
    return graph
