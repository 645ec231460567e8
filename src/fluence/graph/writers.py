"""Write the resources of a job in the formats of Fluxion, for `resource-query`, `fluence match` and programs.

==============  =================================================================================
simple          a line per vertex, children first: `---core0[1:x]` (x exclusive, s shared)
pretty_simple   the same, root first, with the words written out
jgf             the vertices and edges as a graph
jgf_shorthand   without the vertices below an exclusive vertex, which follow from it
rlite           per execution target, the ids of its cores and gpus (the R_lite of RFC 20)
rv1_nosched     R version 1 without a graph
rv1             R version 1 with the graph under `scheduling`
rv1_shorthand   R version 1 with the shorthand graph
==============  =================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from fluence.errors import InvalidGraph, InvalidInput
from fluence.graph.columns import CONTAINMENT
from fluence.graph.graph import ResourceGraph
from fluence.graph.selection import Selection
from fluence.model import hostlist, idset

Json: TypeAlias = dict[str, Any]
SHORTHAND = "fluxion:jgf_shorthand"
_MARGIN = "      "
_IN_R = ("core", "gpu")  # the types that R lists below an execution target


@dataclass(frozen=True, slots=True)
class Grant:
    """A selection with its times, and further data for writers."""

    graph: ResourceGraph
    selection: Selection
    start: int = 0
    end: int = 0
    subsystem: str = CONTAINMENT
    queue: str | None = None
    extra: Mapping[int, Mapping[str, str]] = field(default_factory=dict)  # more metadata, per vertex
    is_found: bool = False  # by `find`: all of it is written, in the shorthand formats too
    is_shortened: bool = False  # name the shorthand in any case: an earlier document needed it


def formats() -> list[str]:
    """The names of all formats."""
    return list(_writers)


def write(grant: Grant, format_: str) -> str:
    """The text of a grant; empty where it holds nothing that the format shows."""
    writer = _writers.get(format_)
    if writer is None:
        raise InvalidInput(f"{format_!r} is not a valid format: choose one of {', '.join(_writers)}")
    return writer(grant) if len(grant.selection) else ""


# -- lines ---------------------------------------------------------------------------------------------------


def _simple(grant: Grant) -> str:
    return "".join(_lines(grant, "x", "s"))


def _pretty_simple(grant: Grant) -> str:
    return "".join(reversed(_lines(grant, "exclusive", "shared")))


def _lines(grant: Grant, exclusive: str, shared: str) -> list[str]:
    chosen = grant.selection
    name = grant.graph.name
    return [
        f"{_MARGIN}{'---' * (d + 1)}{name[v]}[{n}:{exclusive if x else shared}]\n"
        for v, d, n, x in zip(
            chosen.vertices.tolist(),
            chosen.depths.tolist(),
            chosen.needs.tolist(),
            chosen.exclusive.tolist(),
            strict=True,
        )
    ]


# -- graphs --------------------------------------------------------------------------------------------------


def jgf_value(grant: Grant, *, shorthand: bool = False, verbose: bool = False) -> Json:
    """The graph of a grant; ``verbose`` is the dialect from before Fluxion 0.39."""
    graph, chosen = grant.graph, grant.selection
    alone = {v for v, x in zip(chosen.vertices.tolist(), chosen.exclusive.tolist(), strict=True) if x}
    nodes: list[Json] = []
    edges: list[Json] = []
    dropped = False
    for v, needs, x, above in zip(
        chosen.vertices.tolist(),
        chosen.needs.tolist(),
        chosen.exclusive.tolist(),
        chosen.parents.tolist(),
        strict=True,
    ):
        if shorthand and above in alone and not grant.is_found:
            dropped = True
            continue
        metadata = vertex_metadata(graph, v, size=needs, exclusive=x, verbose=verbose)
        if v in chosen.labels:
            metadata["ephemeral"] = {"label": chosen.labels[v]}
        if v in grant.extra:
            metadata["agfilter"] = dict(grant.extra[v])
        nodes.append({"id": str(graph.uniq_id[v]), "metadata": metadata})
        if above >= 0:
            edges.append(_edge(graph, above, v, grant.subsystem, verbose=verbose))
    document: Json = {"graph": {"nodes": nodes, "edges": edges}}
    if dropped or (shorthand and grant.is_shortened):
        document["writer"] = SHORTHAND
    return document


def vertex_metadata(
    graph: ResourceGraph, v: int, *, size: int, exclusive: bool, verbose: bool = False
) -> Json:
    """The metadata of one vertex; a field that has its default is left out unless ``verbose``."""
    type_, basename = graph.type_name(v), graph.basenames.words[int(graph.basename[v])]
    ordinal = int(graph.id[v])
    metadata: Json = {"type": type_}
    if verbose or basename != type_:
        metadata["basename"] = basename
    if verbose or graph.name[v] != (basename if ordinal == -1 else f"{basename}{ordinal}"):
        metadata["name"] = graph.name[v]
    metadata["id"] = ordinal
    if verbose:
        metadata["uniq_id"] = int(graph.uniq_id[v])
    metadata["rank"] = int(graph.rank[v])
    if graph.properties.get(v):
        metadata["properties"] = dict(sorted(graph.properties[v].items()))
    unit = graph.units.words[int(graph.unit[v])]
    if verbose or unit:
        metadata["unit"] = unit
    if verbose or exclusive:
        metadata["exclusive"] = exclusive
    if verbose or size != 1:
        metadata["size"] = size
    metadata["paths"] = graph.paths(v)
    return metadata


def _edge(graph: ResourceGraph, source: int, target: int, subsystem: str, *, verbose: bool) -> Json:
    edge: Json = {"source": str(graph.uniq_id[source]), "target": str(graph.uniq_id[target])}
    if verbose:
        edge["metadata"] = {"subsystem": subsystem, "name": {subsystem: "contains"}}
    elif subsystem != CONTAINMENT:
        edge["metadata"] = {"subsystem": subsystem}
    return edge


# -- R -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Targets:
    """The data of execution targets in R: their cores and gpus, names and properties."""

    children: dict[int, dict[str, str]] = field(default_factory=dict)  # rank -> type -> ids
    names: dict[int, str] = field(default_factory=dict)
    properties: dict[str, list[int]] = field(default_factory=dict)


def _targets(grant: Grant) -> _Targets:
    """Collect the cores and gpus of each node: in post-order, they come before the node."""
    graph, targets = grant.graph, _Targets()
    rows = grant.selection.vertices
    node = graph.types.code("node")
    held: dict[int, list[int]] = {graph.types.code(word): [] for word in _IN_R}
    known: dict[tuple[tuple[int, ...], ...], dict[str, str]] = {}
    columns = (rows, graph.type[rows], graph.id[rows])
    for vertex, type_, id_ in zip(*[column.tolist() for column in columns], strict=True):
        if type_ in held:
            held[type_].append(id_)
        if type_ != node or not any(held.values()):
            continue
        rank = int(graph.rank[vertex])
        if rank < 0:
            raise InvalidGraph(
                f"node {graph.name[vertex]!r} has no rank, which R needs: give the graph ranks"
            )
        key = tuple(map(tuple, held.values()))
        children = known.get(key)
        if children is None:
            children = known[key] = {
                word: idset.encode(ids) for word, ids in zip(_IN_R, key, strict=True) if ids
            }
        for ids in held.values():
            ids.clear()
        targets.children[rank] = children
        targets.names[rank] = graph.name[vertex]
        for key_, value_ in graph.properties.get(vertex, {}).items():
            said = f"{key_}={value_}" if value_ else key_
            targets.properties.setdefault(said, []).append(rank)
    return targets


def _rlite_value(targets: _Targets) -> list[Json]:
    groups: dict[str, tuple[dict[str, str], list[int]]] = {}
    texts: dict[int, str] = {}  # equal children are one object, and are written once
    for rank, children in targets.children.items():
        text = texts.get(id(children))
        if text is None:
            text = texts[id(children)] = msgspec.json.encode(children).decode()
        groups.setdefault(text, (children, []))[1].append(rank)
    return [
        {"rank": idset.encode(ranks), "children": children} for _, (children, ranks) in sorted(groups.items())
    ]


def _r_value(grant: Grant, scheduling: Json | None = None) -> Json:
    targets = _targets(grant)
    ranks = sorted(targets.names)
    execution: Json = {
        "R_lite": _rlite_value(targets),
        "nodelist": [hostlist.encode([targets.names[rank] for rank in ranks])],
    }
    if targets.properties:
        execution["properties"] = {
            key: idset.encode(holders) for key, holders in sorted(targets.properties.items())
        }
    execution["starttime"] = grant.start
    execution["expiration"] = grant.end
    document: Json = {"version": 1, "execution": execution}
    if scheduling is not None:
        if grant.queue is not None:
            document["attributes"] = {"system": {"scheduler": {"queue": grant.queue}}}
        document["scheduling"] = scheduling
    return document if targets.children else {}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode() + "\n" if value else ""


_values: dict[str, Callable[[Grant], Any]] = {
    "jgf": jgf_value,
    "jgf_shorthand": lambda grant: jgf_value(grant, shorthand=True),
    "rlite": lambda grant: _rlite_value(_targets(grant)),
    "rv1_nosched": _r_value,
    "rv1": lambda grant: _r_value(grant, jgf_value(grant)),
    "rv1_shorthand": lambda grant: _r_value(grant, jgf_value(grant, shorthand=True)),
}
_writers: dict[str, Callable[[Grant], str]] = {
    "simple": _simple,
    "pretty_simple": _pretty_simple,
    **{name: (lambda grant, make=make: _json(make(grant))) for name, make in _values.items()},  # type: ignore[misc]
}
