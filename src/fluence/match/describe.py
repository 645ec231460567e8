"""Descriptions of a placement: per node for people, and in the formats of Fluxion for programs.

`fluence match` and `fluence resource-query` print them, and programs get them as `fluence.shares` and
`fluence.render`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fluence.graph.graph import ResourceGraph
from fluence.graph.selection import Selection
from fluence.graph.writers import Grant, write
from fluence.match.placement import Placed

if TYPE_CHECKING:
    from fluence.match.matcher import Matcher


@dataclass(frozen=True, slots=True)
class Share:
    """The part of one node that a job has. A resource outside of nodes is a separate share, without a
    rank."""

    name: str
    rank: int | None
    is_node: bool
    is_whole: bool  # no other job can use the node
    amounts: dict[str, int]  # by type, of exclusive resources


def shares(graph: ResourceGraph, found: Placed | Selection) -> list[Share]:
    """The shares of a job: one per node in the order of the graph, then the resources outside of nodes.

    Amounts count the lowest vertices: the cores of a socket, not the socket.
    """
    selection = found.selection if isinstance(found, Placed) else found
    node = graph.types.code("node")
    rows = selection.vertices.tolist()
    parent = dict(zip(rows, selection.parents.tolist(), strict=True))
    holds = {above for above in parent.values() if above >= 0}
    own = dict(zip(rows, selection.exclusive.tolist(), strict=True))
    amounts: dict[int, dict[str, int]] = {}  # per node or outside vertex
    home: dict[int, int] = {}
    for v, needs in reversed(list(zip(rows, selection.needs.tolist(), strict=True))):  # parents first
        above = parent[v]
        is_node = int(graph.type[v]) == node
        home[v] = v if is_node else home.get(above, -1)
        if is_node:
            amounts[v] = {}
        if v in holds or is_node or not own[v]:
            continue
        place = home[v] if home[v] >= 0 else v
        type_ = graph.type_name(v)
        of = amounts.setdefault(place, {})
        of[type_] = of.get(type_, 0) + needs
    found_shares = [_share(graph, v, own[v], amounts[v]) for v in sorted(amounts)]
    return sorted(found_shares, key=lambda share: not share.is_node)


def _share(graph: ResourceGraph, v: int, whole: bool, amounts: dict[str, int]) -> Share:
    rank = int(graph.rank[v])
    is_node = graph.type_name(v) == "node"
    return Share(graph.name[v], rank if rank >= 0 else None, is_node, whole, dict(sorted(amounts.items())))


def render(matcher: Matcher, placed: Placed, format: str = "rv1") -> str:  # noqa: A002 - its usual name
    """The text of a placement: rv1, rv1_nosched, rlite, jgf, simple and the other formats of Fluxion."""
    return write(grant(matcher, placed), format)


def grant(matcher: Matcher, placed: Placed) -> Grant:
    """A placement with everything that a writer needs."""
    return Grant(matcher.graph, placed.selection, placed.at, placed.end, matcher.subsystems[0], placed.queue)
