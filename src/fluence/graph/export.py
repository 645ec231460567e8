"""Write a whole graph: for reading it again (jgf), as if one job held all of it (R, lines), or for drawing.

===============  ============================================================================
jgf              every vertex and edge of every subsystem; defaults left out
jgf_verbose      the same with every field, for readers from before Fluxion 0.39
simple, …, rv1   what one job that holds everything would be shown (`fluence.graph.writers`)
graphml          for graph tools; not a GRUG recipe, which says how to grow a graph
dot              for Graphviz: ``fluence graph FILE -o dot | dot -Tsvg``
===============  ============================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape  # as that of xml.sax, which would import an HTTP client

import msgspec
import numpy as np

from fluence.errors import InvalidInput
from fluence.graph import writers
from fluence.graph.graph import ResourceGraph
from fluence.graph.selection import Selection
from fluence.graph.tree import CONTAINMENT

Edge = tuple[int, int, str]  # source, target, subsystem


def formats() -> list[str]:
    """The names of all formats for a whole graph."""
    return [*_GRAPHS, *(name for name in writers.formats() if name not in _GRAPHS)]


def render(graph: ResourceGraph, format_: str, *, subsystem: str = CONTAINMENT) -> str:
    """The text of a whole graph; ``subsystem`` is the one that formats for a single tree show."""
    if format_ in _GRAPHS:
        return _GRAPHS[format_](graph)
    if format_ not in writers.formats():
        raise InvalidInput(
            f"{format_!r} is not a valid format for a graph: choose one of {', '.join(formats())}"
        )
    return writers.write(everything(graph, subsystem=subsystem), format_)


def everything(graph: ResourceGraph, *, subsystem: str = CONTAINMENT) -> writers.Grant:
    """All of a subsystem, held by one job."""
    tree = graph.tree(subsystem)
    rows = tree.order
    selection = Selection.of(tree, rows, graph.size[rows], np.ones(len(rows), np.bool_))
    return writers.Grant(graph, selection, subsystem=subsystem)


def edges(graph: ResourceGraph) -> Iterator[Edge]:
    """Every edge in the order in which it was added, so that a reader finds siblings in the same order."""
    found: list[tuple[int, int, int, str]] = []
    for subsystem, tree in graph.trees.items():
        below = np.flatnonzero(tree.parent >= 0)
        found.extend(
            (number, source, target, subsystem)
            for number, source, target in zip(
                tree.sequence[below].tolist(), tree.parent[below].tolist(), below.tolist(), strict=True
            )
        )
        for source, others in tree.links.items():
            found.extend((number, source, target, subsystem) for number, target in others)
    for _, source, target, subsystem in sorted(found):
        yield source, target, subsystem


def _alive(graph: ResourceGraph) -> list[int]:
    return [int(row) for row in np.flatnonzero(graph.alive)]


def _jgf(graph: ResourceGraph, *, verbose: bool = False) -> str:
    nodes: list[writers.Json] = []
    for v in _alive(graph):
        metadata = writers.vertex_metadata(
            graph, v, size=int(graph.size[v]), exclusive=False, verbose=verbose
        )
        if verbose or not graph.up[v]:
            metadata["status"] = 0 if graph.up[v] else 1
        nodes.append({"id": str(graph.uniq_id[v]), "metadata": metadata})
    if len({node["id"] for node in nodes}) != len(nodes):
        # If the graph comes from several files, the row identifies a vertex, and the uniq_id becomes a field.
        for v, node in zip(_alive(graph), nodes, strict=True):
            node["id"] = f"v{v}"
            node["metadata"]["uniq_id"] = int(graph.uniq_id[v])
    named = dict(zip(_alive(graph), (node["id"] for node in nodes), strict=True))
    links: list[writers.Json] = []
    for source, target, subsystem in edges(graph):
        edge: writers.Json = {"source": named[source], "target": named[target]}
        if verbose:
            edge["metadata"] = {"subsystem": subsystem, "name": {subsystem: "contains"}}
        elif subsystem != CONTAINMENT:
            edge["metadata"] = {"subsystem": subsystem}
        links.append(edge)
    # A line per vertex and edge: such a file can be read, compared and edited by people.
    lines = [_lines("nodes", nodes), _lines("edges", links)]
    return '{"graph": {\n' + ",\n".join(lines) + "\n}}\n"


def _lines(key: str, items: list[writers.Json]) -> str:
    inside = ",\n".join(msgspec.json.encode(item).decode() for item in items)
    return f'"{key}": [\n{inside}\n]'


def _graphml(graph: ResourceGraph) -> str:
    keys = {"type": "string", "basename": "string", "name": "string", "id": "long", "rank": "long"}
    keys |= {"size": "long", "unit": "string", "status": "string", "paths": "string", "properties": "string"}
    text = ['<?xml version="1.0" encoding="UTF-8"?>']
    text.append('<graphml xmlns="http://graphml.graphdrawing.org/xmlns">')
    text.extend(f'  <key id="{k}" for="node" attr.name="{k}" attr.type="{t}"/>' for k, t in keys.items())
    text.append('  <key id="subsystem" for="edge" attr.name="subsystem" attr.type="string"/>')
    text.append('  <graph id="G" edgedefault="directed">')
    for v in _alive(graph):
        values = {
            "type": graph.type_name(v),
            "basename": graph.basenames.words[int(graph.basename[v])],
            "name": graph.name[v],
            "id": graph.id[v],
            "rank": graph.rank[v],
            "size": graph.size[v],
            "unit": graph.units.words[int(graph.unit[v])],
            "status": "up" if graph.up[v] else "down",
            "paths": msgspec.json.encode(graph.paths(v)).decode(),
            "properties": msgspec.json.encode(graph.properties.get(v, {})).decode(),
        }
        data = "".join(
            f'<data key="{k}">{escape(str(value), quote=False)}</data>' for k, value in values.items()
        )
        text.append(f'    <node id="v{v}">{data}</node>')
    for source, target, subsystem in edges(graph):
        data = f'<data key="subsystem">{escape(subsystem, quote=False)}</data>'
        text.append(f'    <edge source="v{source}" target="v{target}">{data}</edge>')
    text += ["  </graph>", "</graphml>", ""]
    return "\n".join(text)


def _dot(graph: ResourceGraph) -> str:
    text = ["digraph G {"]
    for v in _alive(graph):
        size = int(graph.size[v])
        label = graph.name[v] if size == 1 else f"{graph.name[v]} ×{size}"
        style = "" if graph.up[v] else ", style=dashed"
        text.append(f"  v{v} [label={_quoted(label)}{style}];")
    for source, target, subsystem in edges(graph):
        label = "" if subsystem == CONTAINMENT else f" [label={_quoted(subsystem)}]"
        text.append(f"  v{source} -> v{target}{label};")
    text += ["}", ""]
    return "\n".join(text)


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


_GRAPHS: dict[str, Callable[[ResourceGraph], str]] = {
    "jgf": _jgf,
    "jgf_verbose": lambda graph: _jgf(graph, verbose=True),
    "graphml": _graphml,
    "dot": _dot,
}
