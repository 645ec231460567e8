"""`fluence graph`: shows a resource graph or a running cluster, draws it, searches it, or converts it."""

from __future__ import annotations

from typing import Any

import click
import numpy as np

from fluence.cli.choice import cluster_options, graph_options, load_graph, source_name
from fluence.commands import tree as trees
from fluence.commands import view
from fluence.commands.options import output_option
from fluence.graph import files, writers
from fluence.graph.graph import ResourceGraph
from fluence.match.find import find
from fluence.match.matcher import Matcher
from fluence.model import idset

_NAMES_SHOWN = 60
_HUMAN = ("table", "wide", "json", "yaml")


@click.command()
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(allow_dash=True))
@click.option("--live", is_flag=True, help="The graph of the running cluster, and what runs on it.")
@cluster_options
@click.option(
    "--level",
    "levels",
    multiple=True,
    metavar="TYPE=LABEL",
    help="With --live: a level above the nodes, outermost first. Default: as the leader has it, else "
    "zone=topology.kubernetes.io/zone.",
)
@graph_options
@click.option("--tree", is_flag=True, help="Draw the tree; siblings that are alike are one line.")
@click.option(
    "--depth", type=click.IntRange(min=0), metavar="N", help="With --tree: only N levels below the root."
)
@click.option("--find", "criteria", metavar="EXPR", help="Only the vertices that EXPR selects.")
@output_option(
    ("summary", "tree", *files.formats()),
    note=f"summary (or table), wide, json, yaml; tree; or the graph converted: {', '.join(files.formats())}.",
)
def graph(
    file: str | None,
    live: bool,
    kubeconfig: str | None,
    context: str | None,
    levels: tuple[str, ...],
    format_: str | None,
    allow: str | None,
    tree: bool,
    depth: int | None,
    criteria: str | None,
    output: str,
) -> None:
    """Say what is in a resource graph, draw it, search it, or convert it to another format.

    FILE is JGF, a GRUG recipe, an hwloc topology or R; `-` is standard input. With --live the nodes and pods
    of a Kubernetes cluster are read once, every pod that runs counted, whoever scheduled it. Converted, that
    graph has the units of Fluxion's jobspecs: a vertex per core, and memory in megabytes.

    \b
    Examples:
      fluence graph cluster.json                     what there is, by type
      fluence graph cluster.json --tree --depth 2    how it hangs together
      fluence graph recipe.graphml -o jgf > c.json   a recipe grown and written as JGF
      fluence graph topology.xml -o dot | dot -Tsvg > c.svg
      fluence graph cluster.json --find 'status=down or property=gpu'
      fluence graph --live -o tree                   the cluster of your kubeconfig, and its pods

    \b
    EXPR joins predicates with and, or, and parentheses, from left to right:
      status=up|down   names=HOSTLIST   property=NAME   sched-now=free|allocated
    Everything below a vertex that is down is down, and the way to a hit is shown with it.
    """
    if output == "summary":
        output = "table"
    if output == "tree":
        tree, output = True, "table"
    if live == (file is not None):
        raise click.UsageError("give FILE or --live: one of them")
    if not live and (kubeconfig or context or levels):
        raise click.UsageError("--kubeconfig, --context and --level need --live")
    if depth is not None and not tree:
        raise click.UsageError("--depth needs --tree")
    if tree and criteria is not None:
        raise click.UsageError("--tree and --find exclude each other")
    if tree and output not in _HUMAN:
        raise click.UsageError(f"--tree is shown as {', '.join(_HUMAN)}, not as {output}")
    if live:
        _live(kubeconfig, context, levels, tree=tree, depth=depth, criteria=criteria, output=output)
        return
    assert file is not None
    found = load_graph(file, format_, allow)
    if tree:
        _tree(found, depth, output)
    elif criteria is not None:
        _find(Matcher(found, subsystems=(_main(found),)), criteria, output)
    elif output in _HUMAN:
        _summary(found, source_name(file), output)
    else:
        click.echo(files.render(found, output, subsystem=_main(found)), nl=False)


def _live(
    kubeconfig: str | None,
    context: str | None,
    levels: tuple[str, ...],
    *,
    tree: bool,
    depth: int | None,
    criteria: str | None,
    output: str,
) -> None:
    from fluence.cluster.vertices import as_fluxion
    from fluence.commands import cluster as live  # it loads the client of the cluster

    try:
        with live.copying():
            cluster, source = live.read_cluster(kubeconfig, context, levels)
    except live.Unlisted:
        what = "tree" if tree else output if output in ("tree", "jgf") else "summary"
        if criteria is not None or levels or depth is not None or output not in (*_HUMAN, "summary", what):
            raise
        from fluence.commands.plan import show_graph
        from fluence.commands.view_api import ViewClient

        client = ViewClient.of(kubeconfig, context)
        click.echo("note: you may not list nodes and all pods; shown is the scheduler's view", err=True)
        show_graph(client, {}, what=what, output=output if output in _HUMAN else "table")
        return
    found = cluster.graph
    data = output in ("json", "yaml")
    if criteria is not None:
        _find(cluster.matcher, criteria, output)
    elif tree and not data:
        if output != "wide":
            found.properties.clear()  # labels differ between nodes, and would unfold the tree
        _tree(found, depth, output, write=lambda type_, size: live.write_amount(cluster, type_, size))
        live.show_running(cluster)
    elif tree:
        _tree(found, depth, output)
    elif data:
        value = summary(found, source)
        value["usage"], value["jobs"] = live.usage(cluster), live.running(cluster)
        click.echo(view.data(value, output))
    elif output in _HUMAN:
        _summary(found, source, output)
        live.show_usage(cluster)
        live.show_running(cluster)
    else:
        click.echo(files.render(as_fluxion(found), output), nl=False)


def _main(graph: ResourceGraph) -> str:
    """The subsystem to show: containment if there is one."""
    return "containment" if "containment" in graph.trees else next(iter(graph.trees), "containment")


# -- queries -------------------------------------------------------------------------------------------------


def summary(graph: ResourceGraph, source: str) -> dict[str, Any]:
    """The contents of a graph, as data."""
    rows = np.flatnonzero(graph.alive)
    ranks = np.unique(graph.rank[rows][graph.rank[rows] >= 0]).tolist()
    holders: dict[str, int] = {}
    for properties in graph.properties.values():
        for key in properties:
            holders[key] = holders.get(key, 0) + 1
    types = []
    for code in dict.fromkeys(graph.type[rows].tolist()):
        of = graph.vertices_of_type(code)
        unit = ", ".join(sorted({graph.units.words[u] for u in graph.unit[of].tolist()} - {""}))
        types.append(
            {
                "type": graph.types.words[code],
                "count": len(of),
                "size": sum(graph.size[of].tolist()),  # int64 could overflow
                "unit": unit,
                "down": int((~graph.up[of]).sum()),
                "names": view.hosts(list(dict.fromkeys(graph.name[v] for v in of.tolist()))),
            }
        )
    return {
        "source": source,
        "vertices": len(graph),
        "ranks": idset.encode(ranks),
        "subsystems": [
            {
                "subsystem": name,
                "root": graph.name[tree.root],
                "vertices": len(tree.shape().order),
                "depth": int(tree.depth.max()),
            }
            for name, tree in graph.trees.items()
        ],
        "types": types,
        "properties": dict(sorted(holders.items())),
    }


def _summary(graph: ResourceGraph, source: str, output: str) -> None:
    value = summary(graph, source)
    if output in ("json", "yaml"):
        click.echo(view.data(value, output))
        return
    wide = output == "wide"
    parts = [f"{value['vertices']} vertices"]
    for of in value["subsystems"]:
        name = "" if of["subsystem"] == "containment" else f"{of['subsystem']}: "
        parts.append(f"{name}{of['depth']} levels below {of['root']}")
    parts.append(f"ranks {value['ranks']}" if value["ranks"] else "no ranks")
    click.echo(f"{click.style(source, bold=True)}: {', '.join(parts)}")
    titles = ["TYPE", "COUNT", "SIZE", "DOWN", "NAMES"]
    rows = []
    for of in value["types"]:
        names = of["names"]
        if not wide and len(names) > _NAMES_SHOWN:
            names = names[: _NAMES_SHOWN - 1] + "…"
        size = f"{of['size']} {of['unit']}".rstrip()
        down = click.style(str(of["down"]), fg="red") if of["down"] else "-"
        rows.append([of["type"], str(of["count"]), size, down, names])
    click.echo(view.table(titles, rows))
    if value["properties"]:
        told = ", ".join(f"{key} ({count})" for key, count in value["properties"].items())
        click.echo(f"properties: {told}")


# -- drawing -------------------------------------------------------------------------------------------------


def _tree(graph: ResourceGraph, depth: int | None, output: str, *, write: trees.Write = view.plain) -> None:
    folded = trees.fold(graph, depth=depth, subsystem=_main(graph))
    if output in ("json", "yaml"):
        value = trees.to_value(graph, folded)
        click.echo(view.data(value, output))
        return
    for line in trees.lines(graph, folded, write=write):
        click.echo(line)


# -- searching -----------------------------------------------------------------------------------------------


def _find(matcher: Matcher, criteria: str, output: str) -> None:
    graph, subsystem = matcher.graph, matcher.subsystems[0]
    grant = find(matcher, criteria)
    if output not in _HUMAN:
        if output in writers.formats():
            click.echo(writers.write(grant, output), nl=False)
            return
        raise click.UsageError(f"--find is shown as {', '.join((*_HUMAN, *writers.formats()))}, not {output}")
    shape = graph.tree(subsystem)
    found = sorted(grant.selection.vertices.tolist(), key=lambda v: int(shape.pre[v]))
    values = [_vertex(graph, v, subsystem) for v in found]
    if output in ("json", "yaml"):
        click.echo(view.data(values, output))
        return
    rows = [
        [
            view.clean(value["path"]),
            value["type"],
            str(value["size"]),
            "-" if value["rank"] is None else str(value["rank"]),
            value["status"] if value["status"] == "up" else click.style("down", fg="red"),
            ",".join(value["properties"]) or "-",
        ]
        for value in values
    ]
    if rows:
        click.echo(view.table(["PATH", "TYPE", "SIZE", "RANK", "STATUS", "PROPERTIES"], rows))
    else:
        click.echo(f"nothing has {criteria}", err=True)


def _vertex(graph: ResourceGraph, v: int, subsystem: str) -> dict[str, Any]:
    rank = int(graph.rank[v])
    return {
        "path": graph.path(v, subsystem),
        "type": graph.type_name(v),
        "name": graph.name[v],
        "size": int(graph.size[v]),
        "rank": rank if rank >= 0 else None,
        "status": "up" if graph.up[v] else "down",
        "properties": graph.properties.get(v, {}),
    }
