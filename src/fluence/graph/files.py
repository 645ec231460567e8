"""Graph files: reads and writes whole graphs, in a given format or in the format that the content suggests.

The programs use it for `-L` and for graph arguments, and `ResourceGraph.load` for user programs.

===============  ============================================================================
jgf              every vertex and edge of every subsystem; defaults left out
jgf_verbose      the same with every field, for readers from before Fluxion 0.39
simple, …, rv1   what one job that holds everything would be shown (`fluence.graph.writers`)
graphml          for graph tools; not a GRUG recipe, which says how to grow a graph
dot              for Graphviz: ``fluence graph FILE -o dot | dot -Tsvg``
===============  ============================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from html import escape  # as that of xml.sax, which would import an HTTP client
from pathlib import Path

import msgspec
import numpy as np

from fluence.errors import InvalidGraph, InvalidInput
from fluence.graph import jgf, writers
from fluence.graph.columns import CONTAINMENT
from fluence.graph.graph import Batch, ResourceGraph
from fluence.graph.selection import Selection

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


FORMATS = ("grug", "jgf", "hwloc", "rv1exec", "rv1exec_force", "jgf_shorthand")

_BY_SUFFIX = {".graphml": "grug", ".xml": "hwloc", ".json": "jgf", ".jgf": "jgf"}
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class _FileKeys(msgspec.Struct):
    """The keys that distinguish the JSON formats; their values are skipped, not decoded."""

    graph: msgspec.Raw = msgspec.Raw()
    execution: msgspec.Raw = msgspec.Raw()


def read(path: str | Path, format_: str, *, allow: Collection[str] | None = None) -> Batch:
    """The batch that a file describes."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise InvalidGraph(f"cannot be read: {error.strerror}", where=str(path)) from None
    return parse(text, format_, source=str(path), allow=allow)


def parse(text: bytes, format_: str, *, source: str = "graph", allow: Collection[str] | None = None) -> Batch:
    """The batch that a text in a format describes."""
    if format_ not in FORMATS:
        raise InvalidInput(f"{format_!r} is not a valid graph format: choose one of {', '.join(FORMATS)}")
    if format_ in ("jgf", "jgf_shorthand"):
        return jgf.read(text, source=source)
    from fluence.graph import grug, hwloc, rv1

    if format_ == "grug":
        return grug.read(text, source=source, links=True)
    if format_ == "hwloc":
        return hwloc.read(text, allow=allow, source=source)
    return rv1.read(text, force=format_ == "rv1exec_force", source=source)


def graph_of(
    text: bytes, format_: str | None, *, source: str, allow: Collection[str] | None = None
) -> ResourceGraph:
    """The graph that a text describes; without a format, the format is guessed."""
    text = _readable(text, source)
    if format_ is None:
        format_ = guess(text, source=source)
    batch = parse(text, format_, source=source, allow=allow)
    graph = ResourceGraph()
    try:
        graph.extend(batch)
    except InvalidGraph as error:
        if error.where:
            raise
        raise InvalidGraph(str(error), where=source) from None
    if not len(graph):
        raise InvalidGraph("describes no vertices: a graph needs at least a root", where=source)
    return graph


def _readable(text: bytes, source: str) -> bytes:
    """The text without a byte order mark. Some Windows editors write UTF-16, but JSON must be UTF-8."""
    text = text.removeprefix(_BYTE_ORDER_MARK)
    if text.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InvalidGraph("is UTF-16 text: save it as UTF-8", where=source)
    if text[:4096].lstrip().startswith(b"{") and not text.isascii():
        try:
            text.decode()
        except UnicodeDecodeError as error:
            raise InvalidGraph(
                f"is not UTF-8 at byte {error.start}: save it as UTF-8", where=source
            ) from None
    return text


def guess(text: bytes, *, source: str = "graph") -> str:
    """The format of a text, from its content, else from the name of the file."""
    start = text[:4096].lstrip()
    if start.startswith(b"<"):
        if b"<graphml" in start:
            return "grug"
        if b"<topology" in start or b"hwloc" in start:
            return "hwloc"
    elif start.startswith(b"{"):
        try:
            keys = msgspec.json.decode(text, type=_FileKeys)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # Invalid JSON: either reader reports the place of the error.
            return "rv1exec" if b'"R_lite"' in start else "jgf"
        return "rv1exec" if bytes(keys.execution) and not bytes(keys.graph) else "jgf"
    suffix = Path(source).suffix.lower()
    if suffix in _BY_SUFFIX:
        return _BY_SUFFIX[suffix]
    raise InvalidGraph(
        "does not look like a graph: name its format, one of grug, jgf, hwloc, rv1exec", where=source
    )


def dump(graph: ResourceGraph, path: str | Path, format_: str) -> None:
    """Write the whole graph into a file."""
    Path(path).write_text(render(graph, format_))
