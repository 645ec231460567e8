"""Queue: the commands that list what the scheduler knows: queue, jobs, groups and nodes, of both programs.

They query the view API of the scheduler through the API server, with the user's own rights. If it does not
answer, they show what pods' conditions say, with a note on stderr.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import CompletionItem

from fluence.commands import names_of_cluster as complete

if TYPE_CHECKING:
    from fluence.commands.view_api import ViewClient
    from fluence.commands.view_tables import Column

Rows = list[dict[str, Any]]
Columns = Callable[..., "list[Column]"]

_FORMATS: Final = ("table", "wide", "json", "yaml", "name")
_CUSTOM: Final = "custom-columns="
_AGAIN_SECONDS: Final = 2.0  # between two reads if nothing can be watched


class _Output(click.ParamType):  # type: ignore[type-arg] # generic only since click 8.2
    name = "format"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in _FORMATS and not str(value).startswith(_CUSTOM):
            self.fail(f"{value!r}: write one of {', '.join(_FORMATS)} or {_CUSTOM}TITLE:.field,…", param, ctx)
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(name) for name in (*_FORMATS, _CUSTOM) if name.startswith(incomplete)]


def list_options(*, namespaced: bool = True) -> Callable[..., Any]:
    """The options of all these commands."""
    given = [
        click.option(
            "-o",
            "--output",
            type=_Output(),
            default="table",
            show_default=True,
            metavar="FORMAT",
            help="table, wide, json, yaml, name, custom-columns=TITLE:.field,…",
        ),
        click.option("--sort-by", metavar="FIELD", help="By a field of the JSON: pods, .planned.from."),
        click.option("-l", "--selector", metavar="LABELS", default="", help="Only with labels: a=b,c!=d."),
        click.option("--no-headers", is_flag=True, help="Without the line of titles."),
        click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Which cluster."),
        click.option(
            "--context",
            metavar="NAME",
            help="The kubeconfig's context.",
            shell_complete=complete.contexts,
        ),
    ]
    if namespaced:
        given += [
            click.option(
                "-n",
                "--namespace",
                metavar="NAME",
                help="Of this namespace. Default: all.",
                shell_complete=complete.namespaces,
            ),
            click.option(
                "-A", "--all-namespaces", is_flag=True, help="Of all namespaces, which is the default."
            ),
        ]
        given.append(
            click.option("--expand", is_flag=True, help="Each task of an array in a line of its own.")
        )
    given.append(click.option("-w", "--watch", is_flag=True, help="Show it again whenever it changes."))

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(given):
            command = option(command)
        return command

    return decorate


# -- lists ---------------------------------------------------------------------------------------------------


@click.command()
@click.option("--start", is_flag=True, help="When each is to start, how sure that is, and where.")
@click.option("--me", is_flag=True, help="Only yours: those whose annotation `user` is your name.")
@click.option("-u", "--user", metavar="NAME", help="Only those of this user.", shell_complete=complete.users)
@click.option(
    "-q",
    "--queue",
    "queue_name",
    metavar="NAME",
    help="Only those of this queue.",
    shell_complete=complete.queues,
)
@click.option("-t", "--state", metavar="STATES", help="Only in these states, such as pending,reserved.")
@list_options()
def queue(
    start: bool, me: bool, user: str | None, queue_name: str | None, state: str | None, **common: Any
) -> None:
    """What waits, in the order of the queue: since when, for what, and when it starts.

    START BY is a promise: no later than that. EXPECTED is when it will probably start. Both are UTC. Work of
    namespaces whose pods you may not list has a place in the queue and no name.

    \b
    Examples:
      kubectl fluence queue                     everything that waits
      kubectl fluence queue --start             when and where each is planned to start
      kubectl fluence queue --me --watch        mine, as it moves
      kubectl fluence queue -n physics -o json | jq '.items[0].reasons'
      kubectl fluence queue -o custom-columns=NAME:.name,FROM:.planned.from --sort-by .planned.from

    \b
    Exit codes: 0 shown; 1 neither the view API nor the pods could be read; 2 a wrong command line.
    """
    from fluence.commands import view_tables

    query = _given(user="@me" if me else user, queue=queue_name, state=state)
    columns = view_tables.start_columns if start else view_tables.queue_columns
    default = "planned.from" if start else ""
    fields = view_tables.FIELDS["start" if start else "queue"]
    show_list("queue", columns, query, fields, empty="nothing waits", sorted_by=default, **common)


@click.command()
@click.option("--me", is_flag=True, help="Only yours: those whose annotation `user` is your name.")
@click.option("-u", "--user", metavar="NAME", help="Only those of this user.", shell_complete=complete.users)
@click.option("-t", "--state", metavar="STATES", help="Only in these states, such as running.")
@list_options()
def jobs(me: bool, user: str | None, state: str | None, **common: Any) -> None:
    """All gangs that the scheduler knows: those that run, the latest first, then those that wait.

    \b
    Examples:
      kubectl fluence jobs -t running           what runs, where, and until when
      kubectl fluence jobs --me -o wide
    """
    from fluence.commands import view_tables

    query = _given(user="@me" if me else user, state=state)
    fields = view_tables.FIELDS["jobs"]
    show_list("jobs", view_tables.jobs_columns, query, fields, empty="no jobs", running=True, **common)


@click.command()
@list_options()
def groups(**common: Any) -> None:
    """Gangs as their users know them: how many pods there are, wait and have nodes.

    \b
    Examples:
      kubectl fluence groups -n physics
      kubectl fluence groups -o json | jq '.items[] | select(.state == "gathering")'
    """
    from fluence.commands import view_tables

    fields = view_tables.FIELDS["groups"]
    show_list("groups", view_tables.groups_columns, {}, fields, empty="no groups", running=True, **common)


@click.command()
@list_options(namespaced=False)
def nodes(output: str, **common: Any) -> None:
    """Nodes: what is free of all, who has the rest, and when the next planned gang starts there.

    \b
    Examples:
      kubectl fluence nodes
      kubectl fluence nodes -l zone=a -o wide
    """
    from fluence.commands import view_tables

    def columns(now: Any, *, wide: bool, namespaces: bool, rows: Rows) -> list[Column]:
        return view_tables.nodes_columns(now, rows, wide=wide)

    show_list("nodes", columns, {}, view_tables.FIELDS["nodes"], empty="no nodes", output=output, **common)


def _given(**values: str | None) -> dict[str, str]:
    return {key: value for key, value in values.items() if value is not None}


def show_list(
    resource: str,
    columns: Columns,
    query: dict[str, str],
    fields: Sequence[str],
    *,
    empty: str,
    sorted_by: str = "",
    output: str,
    sort_by: str | None,
    selector: str,
    no_headers: bool,
    kubeconfig: str | None,
    context: str | None,
    watch: bool = False,
    namespace: str | None = None,
    all_namespaces: bool = False,
    expand: bool = False,
    running: bool = False,
) -> None:
    """Print a list. ``fields`` are those that its table shows."""
    from fluence.commands.view_api import ViewClient

    client = ViewClient.of(kubeconfig, context)
    where = None if all_namespaces else namespace
    query = {**query, **_given(labelSelector=selector or None, expand="true" if expand else None)}

    def show(rows: Rows) -> None:
        from fluence.commands import view_tables

        if sorted_by and not sort_by and any(view_tables.field_of(row, sorted_by) for row in rows):
            rows = view_tables.sort_rows(rows, sorted_by)
        _show(
            resource,
            columns,
            rows,
            output=output,
            sort_by=sort_by,
            headers=not no_headers,
            empty=empty,
            namespaces=where is None,
        )

    if not watch:
        if sort_by or output not in ("table", "name"):
            fields = ()  # all of them
        show(_read(client, resource, where, query, fields, running=running))
        return
    for number, rows in enumerate(follow(client, resource, where, query, running=running)):
        if number and output in ("table", "wide"):
            click.echo(clear_screen() or "")
        show(rows)
        sys.stdout.flush()


def _read(
    client: ViewClient,
    resource: str,
    where: str | None,
    query: dict[str, str],
    fields: Sequence[str] = (),
    *,
    running: bool,
    says: bool = True,
) -> Rows:
    """The rows of the API or, without it, those of conditions. ``fields``: the needed ones, if not all are.
    ``says``: whether to note on stderr which of them."""
    from fluence.commands.view_api import Unanswered

    try:
        rows, page = client.items(resource, where, query, columns=fields)
    except Unanswered as error:
        is_known = resource in ("queue", "jobs", "groups") and query.get("user") != "@me"
        if not is_known or error.status in (400, 401):
            raise
        from fluence.commands import conditions_view  # imported late: most servers answer

        own, only = client.access.namespace, ""
        try:
            rows = conditions_view.rows(client, where, query, running=running)
        except Unanswered as other:
            if where is not None or other.status != 403:
                raise Unanswered(f"{error}; and pods: {other}", error.status) from None
            try:  # who may not list the pods of all namespaces may list those of their own
                rows = conditions_view.rows(client, own, query, running=running)
            except Unanswered as third:
                raise Unanswered(
                    f"{error}; and pods: {third}; name a namespace whose pods you may list with -n",
                    error.status,
                ) from None
            only = f", of namespace {own} only"
        if says:
            click.echo(f"note: {conditions_view.says(error)}{only}", err=True)
        return conditions_view.groups(rows) if resource == "groups" else rows
    left_out = page["metadata"].get("uncheckedNamespaces")
    if left_out and says:
        click.echo(f"note: {left_out} namespaces are too many to ask about: name one with -n", err=True)
    return rows


def follow(
    client: ViewClient, resource: str, where: str | None, query: dict[str, str], *, running: bool
) -> Iterator[Rows]:
    """Yield the rows whenever they have changed. A stream that ends is restarted; without streams, the rows
    are polled."""
    from fluence.commands.view_api import Unanswered

    last: Rows | None = None
    says = True
    while True:
        try:
            for rows in client.stream(resource, where, query):
                if rows != last:
                    yield rows
                last, says = rows, True
        except Unanswered as error:
            if error.status in (400, 401):
                raise
            rows = _read(client, resource, where, query, running=running, says=says)
            if rows != last:
                yield rows
            last, says = rows, False
        client.close()
        time.sleep(_AGAIN_SECONDS)


def _show(
    resource: str,
    columns: Columns,
    rows: Rows,
    *,
    output: str,
    sort_by: str | None,
    headers: bool,
    empty: str,
    namespaces: bool,
) -> None:
    from fluence.commands import view, view_tables

    if sort_by:
        rows = view_tables.sort_rows(rows, sort_by) if rows else rows
    if output in ("json", "yaml"):
        click.echo(view.data({"kind": "List", "items": rows}, output))
        return
    if output == "name":
        for row in rows:
            if not row.get("hidden"):
                space = f"{row['namespace']}/" if row.get("namespace") else ""
                click.echo(f"{space}{row['name']}")
        return
    if not rows:
        click.echo(empty, err=True)
        return
    shown: Sequence[Column]
    lines: Sequence[view_tables.Row] = rows
    if output.startswith(_CUSTOM):
        shown = view_tables.custom_columns(output.removeprefix(_CUSTOM))
    else:
        if resource == "queue":
            lines = view_tables.folded(rows)
        more = {"rows": rows} if resource == "nodes" else {}
        shown = columns(view_tables.now_utc(), wide=output == "wide", namespaces=namespaces, **more)
        shown = view_tables.with_arrays(shown, lines)
    room = terminal_columns() if output == "table" else None
    text = view_tables.render(shown, lines, room=room)
    click.echo(text if headers else text.partition("\n")[2])


def terminal_columns() -> int | None:
    """The width of the terminal; None if the output is not a terminal, so that nothing is cut."""
    if not sys.stdout.isatty():
        return None
    from shutil import get_terminal_size

    return get_terminal_size().columns


def clear_screen() -> str:
    return "\x1b[2J\x1b[H" if sys.stdout.isatty() else ""
