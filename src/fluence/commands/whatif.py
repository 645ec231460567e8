"""`kubectl fluence whatif`: ask the plan of a running cluster about manifests that are not submitted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import click

from fluence.commands import names_of_cluster as complete
from fluence.commands import view
from fluence.commands.options import not_installed, output_option
from fluence.commands.view_api import Unanswered, ask_view

WAITS: Final = 3
NEVER: Final = 4
_SHOWN: Final = 10
_NOT_SERVED: Final = (404, 405, 501)  # no view, or that of an earlier scheduler


@click.command()
@click.option(
    "-f",
    "--filename",
    "filenames",
    metavar="FILE",
    multiple=True,
    required=True,
    type=click.Path(allow_dash=True),
    help="A manifest; repeatable. `-` is standard input.",
)
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    help="Of objects that name none. Default: the kubeconfig's.",
    shell_complete=complete.namespaces,
)
@click.option(
    "--config",
    metavar="FILE",
    type=click.Path(),
    help="Other settings of the scheduler, to ask a copy of the cluster with.",
)
@click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Which cluster.")
@click.option("--context", metavar="NAME", help="The kubeconfig's context.", shell_complete=complete.contexts)
@output_option((), note="table, wide, json or yaml.")
@click.pass_context
def whatif(ctx: click.Context, /, filenames: tuple[str, ...], output: str, **cluster: Any) -> None:
    """Would these manifests start now? If not, when, who would wait longer, and what would make it sooner?

    The scheduler answers by its live plan. Nothing is submitted and nothing changes. You may ask about a
    namespace whose pods you may list. Work of other namespaces has no name in the answer. If the view API
    does not answer, and with --config, the cluster is listed and copied into memory, where the scheduler's
    cycle decides: that needs the right to list nodes and the pods of all namespaces.

    \b
    Exit codes: 0 it would start now, 3 it would wait, 4 never; 1 an input is wrong; 2 a wrong command line.

    \b
    Examples:
      kubectl fluence whatif -f job.yaml
      kubectl fluence whatif -f job.yaml -n physics -o json | jq .start
    """
    sources = [
        (sys.stdin.buffer.read(), "standard input") if name == "-" else (Path(name).read_bytes(), name)
        for name in filenames
    ]
    ctx.exit(show_answer(ask(sources, **cluster), output))


def ask(
    sources: list[tuple[bytes, str]],
    *,
    kubeconfig: str | None,
    context: str | None,
    namespace: str | None,
    **others: str | None,
) -> Any:
    """The answer about the manifests of all sources together: (text, name). The view answers unless there
    are ``others`` to ask by: settings, a policy, queues."""
    unanswered: Unanswered | None = None
    if not any(others.values()):
        try:
            return ask_view(sources, kubeconfig=kubeconfig, context=context, namespace=namespace)
        except Unanswered as error:
            if error.status in (400, 413, 429):
                raise
            unanswered = None if error.status in _NOT_SERVED else error
    try:
        from fluence.commands.whatif_live import ask_cluster
    except ModuleNotFoundError as error:
        raise unanswered or not_installed(error, "whatif") from None
    return ask_cluster(
        sources,
        kubeconfig=kubeconfig,
        context=context,
        namespace=namespace,
        unanswered=unanswered,
        **others,
    )


def show_answer(answer: Any, output: str) -> int:
    """Print an answer; its exit code."""
    if output in ("json", "yaml"):
        click.echo(view.data(answer.to_value(), output))
    else:
        for line in answer.lines(None if output == "wide" else _SHOWN):
            click.echo(view.clean(line))
    if answer.starts_now:
        return 0
    return NEVER if answer.never else WAITS
