"""Plan: the commands that show more than a list: plan, graph, why and top, of both programs.

They query the view API like those of `queue`, with the user's own rights.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from fluence.commands import names_of_cluster as complete
from fluence.commands.queue import (
    Rows,
    clear_screen,
    follow,
    groups,
    jobs,
    list_options,
    nodes,
    queue,
    show_list,
    terminal_columns,
)

if TYPE_CHECKING:
    from fluence.commands.view_api import ViewClient
    from fluence.commands.view_tables import Column

# -- the plan ------------------------------------------------------------------------------------------------


@click.command()
@click.option("--by-node", is_flag=True, help="One line per node instead of one per gang.")
@click.option(
    "--for", "until", metavar="DURATION", help="How far ahead, such as 4h. Default: until all is over."
)
@click.option(
    "--width", "columns", type=click.IntRange(40, 1000), help="Columns. Default: the terminal's, or 110."
)
@list_options()
def plan(by_node: bool, until: str | None, columns: int | None, output: str, **common: Any) -> None:
    """The plan as a chart over time: what runs, what starts when and where, and until when.

    \b
    Examples:
      kubectl fluence plan                      one line per gang
      kubectl fluence plan --by-node --for 4h
      kubectl fluence plan -o json | jq '.items[] | {name, from, until, nodes}'
    """
    from datetime import timedelta

    from fluence.commands import chart, view_tables
    from fluence.commands.view_api import ViewClient
    from fluence.units import parse_duration

    horizon = None
    if until is not None:
        length = parse_duration(until)
        if not length:
            raise click.UsageError(f"--for {until}: write a length of time, such as 4h or 90m")
        horizon = timedelta(milliseconds=length)
    if output != "table":
        nothing, fields = "nothing runs, and nothing is planned", view_tables.FIELDS["plan"]
        show_list("plan", _plan_columns, {}, fields, empty=nothing, output=output, **common)
        return
    client = ViewClient.of(common["kubeconfig"], common["context"])
    where = None if common["all_namespaces"] else common["namespace"]
    query = {"labelSelector": common["selector"]} if common["selector"] else {}
    if by_node or common["expand"]:  # tasks of an array are on a node only for a part of its time
        query["expand"] = "true"
    room = columns or terminal_columns() or 110

    def show(rows: Rows) -> None:
        click.echo(
            chart.plan_chart(rows, view_tables.now_utc(), columns=room, until=horizon, by_node=by_node)
        )

    if not common["watch"]:
        show(client.items("plan", where, query, columns=view_tables.FIELDS["plan"])[0])
        return
    for rows in follow(client, "plan", where, query, running=False):
        click.echo(clear_screen(), nl=False)
        show(rows)
        sys.stdout.flush()


def _plan_columns(now: Any, *, wide: bool, namespaces: bool) -> list[Column]:
    from fluence.commands import view_tables

    titles = ("STATE", "NAMESPACE", "NAME", "PODS", "NODES")
    shown = view_tables.jobs_columns(now, wide=wide, namespaces=namespaces)
    return [
        *(column for column in shown if column[0] in titles),
        ("FROM", lambda row: view_tables.clock(row.get("from"), now)),
        ("UNTIL", lambda row: view_tables.clock(row.get("until"), now)),
    ]


# -- the graph -----------------------------------------------------------------------------------------------


@click.command()
@click.argument("what", type=click.Choice(["summary", "tree", "jgf"]), default="summary")
@click.option("--groups", "of_groups", is_flag=True, help="Gangs instead of nodes, as `groups` shows them.")
@click.option("--group", metavar="NAME", help="One gang, as `why` shows it.", shell_complete=complete.jobs)
@click.option(
    "--host", metavar="HOST", hidden=True, help="Ignored: the API server knows where the scheduler is."
)
@click.option("--port", metavar="PORT", hidden=True, help="Ignored, as --host is.")
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    help="Of --groups and --group.",
    shell_complete=complete.namespaces,
)
@click.option("-l", "--selector", metavar="LABELS", default="", help="Only nodes with labels: a=b,c!=d.")
@click.option("-o", "--output", type=click.Choice(["table", "wide", "json", "yaml"]), default="table")
@click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Which cluster.")
@click.option("--context", metavar="NAME", help="The kubeconfig's context.", shell_complete=complete.contexts)
@click.pass_context
def graph(
    ctx: click.Context,
    what: str,
    of_groups: bool,
    group: str | None,
    host: str | None,
    port: str | None,
    namespace: str | None,
    selector: str,
    output: str,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """How many nodes there are of each size, and what is free of all of them.

    `tree` draws how the cluster hangs together, `jgf` writes it for `fluence match` and Fluxion. The options
    of the earlier plugin work: --groups, --group NAME. --host and --port are not needed.

    \b
    Examples:
      kubectl fluence graph
      kubectl fluence graph -l zone=a -o json
      kubectl fluence graph tree
      kubectl fluence graph jgf > cluster.json
      kubectl fluence graph --group train -n physics
    """
    from fluence.commands.view_api import ViewClient

    cluster = {"kubeconfig": kubeconfig, "context": context}
    if host or port:
        click.echo("note: --host and --port are not needed: the API server knows the scheduler", err=True)
    if group is not None:
        form = "text" if output in ("table", "wide") else output
        ctx.invoke(why, name=group, namespace=namespace, output=form, **cluster)
    elif of_groups:
        ctx.invoke(groups, namespace=namespace, output=output, **cluster)
    else:
        query = {"labelSelector": selector} if selector else {}
        show_graph(ViewClient.of(kubeconfig, context), query, what=what, output=output)


def show_graph(client: ViewClient, query: dict[str, str], *, what: str, output: str) -> None:
    """The graph of the cluster by the nodes of the view: a summary, a tree or JGF."""
    from fluence.commands import view, view_tables

    fields = ("name", "state", "amounts") if what == "summary" else ()
    rows, _ = client.items("nodes", None, query, columns=fields)
    if what != "summary":
        settings = {row["name"]: row.get("value") for row in client.items("settings", None)[0]}
        _draw(rows, settings, what=what, output=output)
        return
    found = view_tables.summary(rows)
    click.echo(view.data(found, output) if output in ("json", "yaml") else view_tables.summary_text(found))


def _draw(rows: Rows, settings: dict[str, Any], *, what: str, output: str) -> None:
    from fluence.commands.options import not_installed

    try:
        from fluence.commands.cluster import show
    except ModuleNotFoundError as error:
        raise not_installed(error, "graph") from None
    show(rows, settings, what=what, output=output)


# -- one job -------------------------------------------------------------------------------------------------


@click.command()
@click.argument("name", shell_complete=complete.jobs)
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    help="Where it is. Default: the kubeconfig's namespace.",
    shell_complete=complete.namespaces,
)
@click.option(
    "-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", show_default=True
)
@click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Which cluster.")
@click.option("--context", metavar="NAME", help="The kubeconfig's context.", shell_complete=complete.contexts)
def why(name: str, namespace: str | None, output: str, kubeconfig: str | None, context: str | None) -> None:
    """Why NAME waits, when it starts and where: a group, a Job or other owner, or a pod.

    \b
    Examples:
      kubectl fluence why train -n physics
      kubectl fluence why job/train -o json | jq '.items[].job.reasons[].code'

    \b
    Exit codes: 0 shown; 1 it is not known, or nothing could be read; 2 a wrong command line.
    """
    from fluence.commands import conditions_view, view, view_tables
    from fluence.commands.view_api import Unanswered, ViewClient, path_of
    from fluence.errors import NotFound

    client = ViewClient.of(kubeconfig, context)
    space = namespace or client.access.namespace
    name = name.rpartition("/")[2]
    try:
        items = client.get(path_of("jobs", space, name))["items"]
    except Unanswered as error:
        if error.status in (400, 401):
            raise
        try:
            items = [{"job": row} for row in conditions_view.by_name(client, space, name)]
        except Unanswered:
            raise error from None
        if not items:
            if error.status == 404:
                raise NotFound(f"{name}: nothing of this name waits or runs in namespace {space}") from None
            raise
        if error.status != 404:
            click.echo(f"note: {conditions_view.says(error)}", err=True)
    if output != "text":
        click.echo(view.data({"kind": "List", "items": items}, output))
        return
    click.echo("\n\n".join(view_tables.why(item, view_tables.now_utc()) for item in items))


# -- top -----------------------------------------------------------------------------------------------------


@click.command()
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    help="Of this namespace. Default: all.",
    shell_complete=complete.namespaces,
)
@click.option(
    "--interval",
    type=click.FloatRange(1, 3600),
    default=2.0,
    show_default=True,
    help="Seconds between two pictures while nothing changes.",
)
@click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Which cluster.")
@click.option("--context", metavar="NAME", help="The kubeconfig's context.", shell_complete=complete.contexts)
def top(namespace: str | None, interval: float, kubeconfig: str | None, context: str | None) -> None:
    """The queue and the plan on the whole screen, as they change. Ctrl-C ends it.

    \b
    Examples:
      kubectl fluence top
      kubectl fluence top -n physics
    """
    from fluence.commands.chart import Screen
    from fluence.commands.view_api import ViewClient
    from fluence.errors import FluenceError

    if not sys.stdout.isatty():
        raise FluenceError("top needs a terminal: use `queue --watch`")
    Screen(ViewClient.of(kubeconfig, context).access, namespace, interval).run()


LOOKING: Final = {
    "queue": queue,
    "jobs": jobs,
    "groups": groups,
    "nodes": nodes,
    "plan": plan,
    "graph": graph,
    "why": why,
    "top": top,
}
"""The commands of `kubectl fluence` in the order of their use; `fluence` has another `graph`."""
