"""Graph of the view: the resource graph of a running cluster from the nodes of the view API, as a tree or as
JGF.

Every user may read the nodes from the view API, but only some may list nodes of the API server.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click
import msgspec

from fluence.cluster.graph import ClusterGraph
from fluence.cluster.vertices import as_fluxion
from fluence.commands import tree, view
from fluence.commands.cluster import write_amount
from fluence.graph import export
from fluence.model.node import Node
from fluence.schedule.settings import SchedulerSettings


def show(nodes: Iterable[Mapping[str, Any]], settings: Mapping[str, Any], *, what: str, output: str) -> None:
    """Print the graph of the rows of nodes. ``settings`` are those of the scheduler."""
    chosen = {key: tuple(settings[key]) for key in ("topology", "devices") if settings.get(key)}
    cluster = ClusterGraph(msgspec.structs.replace(SchedulerSettings(), **chosen).layout())
    cluster.load([_node(row) for row in nodes], ())
    graph = cluster.graph
    if what == "jgf":
        click.echo(export.render(as_fluxion(graph), "jgf"), nl=False)
        return
    if output != "wide":
        graph.properties.clear()  # labels differ between nodes, and would unfold the tree
    folded = tree.fold(graph, depth=None, subsystem="containment")
    if output in ("json", "yaml"):
        click.echo(view.data(tree.to_value(graph, folded), output))
        return
    for line in tree.lines(graph, folded, write=lambda type_, size: write_amount(cluster, type_, size)):
        click.echo(line)


def _node(row: Mapping[str, Any]) -> Node:
    state, _, disabled = str(row["state"]).partition(",")
    return msgspec.convert(
        {
            "metadata": {"name": row["name"], "labels": row.get("labels") or {}},
            "spec": {"unschedulable": bool(disabled)},
            "status": {
                "allocatable": {each["resource"]: each["size"] for each in row.get("amounts") or ()},
                "conditions": [{"type": "Ready", "status": "True" if state == "Ready" else "False"}],
            },
        },
        Node,
    )
