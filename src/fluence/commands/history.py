"""History: the command `history` of `fluence` and `kubectl fluence`: its options and its help.

The work is in `history_report`, which is imported when the command runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from fluence.commands.options import DurationType, not_installed
from fluence.model.job_state import JobState

STATES: Final = tuple(state.value for state in JobState)


def _work(name: str, options: dict[str, Any]) -> None:
    from fluence.commands import history_report

    try:
        getattr(history_report, name)(**options)  # loads SQL if a database is read
    except ModuleNotFoundError as error:
        raise not_installed(error, "history") from None


def _database(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "--database",
        metavar="URL",
        envvar=["FLUENCE_DATABASE_URL", "DATABASE_URL"],
        help="Where the scheduler keeps it: postgresql://…, sqlite:////…, or a path. [FLUENCE_DATABASE_URL, "
        "DATABASE_URL]",
    )(command)


def _output(*formats: str) -> Callable[..., Any]:
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        metavar="FORMAT",
        help=f"{', '.join(formats)}.",
    )


@click.group(invoke_without_command=True)
@_database
@click.option("-u", "--user", "users", multiple=True, metavar="NAME", help="Of these users.")
@click.option("--me", is_flag=True, help="Only yours: those whose user is your name.")
@click.option("-n", "--namespace", "namespaces", multiple=True, metavar="NAME", help="In these namespaces.")
@click.option("-q", "--queue", "queues", multiple=True, metavar="NAME", help="Of these queues.")
@click.option(
    "-s",
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES),
    metavar="STATE",
    help=f"In these states: {', '.join(STATES)}.",
)
@click.option("--name", "names", multiple=True, metavar="NAME", help="Of these names; * is anything.")
@click.option("-j", "--job", "jobs", multiple=True, type=int, metavar="ID", help="With these ids.")
@click.option(
    "-S", "--since", metavar="TIME", help="What had not ended by then: 2h, 7d, 2026-11-16, 2026-11-16T08:30."
)
@click.option("-U", "--until", metavar="TIME", help="What was submitted by then; written alike.")
@click.option(
    "--cluster",
    metavar="UID",
    help="Of one cluster, by the uid of its namespace kube-system.  [default: the kubeconfig's]",
)
@click.option("-A", "--all-clusters", is_flag=True, help="Of all clusters that share the database.")
@click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Which cluster.")
@click.option("--context", metavar="NAME", help="The kubeconfig's context.")
@click.option("--scheduler-name", "scheduler", metavar="NAME", help="Of one scheduler.")
@click.option(
    "--limit", type=click.IntRange(0), default=100, show_default=True, metavar="N", help="The last N; 0: all."
)
@click.option("--format", "fields", metavar="FIELD,…", help="Which columns; `--format help` lists them.")
@click.option(
    "--sum",
    "sums",
    multiple=True,
    type=click.Choice(["user", "queue", "namespace", "state"]),
    metavar="BY",
    help="Sums by user, queue, namespace or state instead of jobs; several may be given.",
)
@_output("table", "wide", "json", "yaml", "csv")
@click.pass_context
def history(ctx: click.Context, /, **options: Any) -> None:
    """What jobs there were: who, when, where, how long, how they ended and why they waited; like `sacct`.

    The scheduler answers with your own rights: you see the jobs of namespaces whose pods you may list. With
    --database the database is read itself; so is ~/.local/state/fluence/history.db if no scheduler answers.
    Clusters may share a database: those jobs are listed that ran in the cluster which the kubeconfig names.
    Times are UTC.

    \b
    Examples:
      kubectl fluence history --me --since 7d
      fluence history --state failed --state timeout -o wide
      fluence history --sum user --sum queue --since 2026-11-01
      fluence history --format name,user,wait,elapsed,nodes -o csv > jobs.csv
      fluence history --database postgresql://reader@db/fluence -o json | jq '.jobs[].nodes'
    """
    if ctx.invoked_subcommand is None:
        _work("show", options)


@history.command()
@_database
@click.option(
    "--after", type=click.IntRange(0), default=0, metavar="N", help="Only events with a larger number."
)
@click.option(
    "--limit",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    metavar="N",
    help="At most this number of events.",
)
def events(**options: Any) -> None:
    """What happened to jobs, one JSON object a line: submitted, promised, started, ended.

    Each has a number that only grows. Whoever acts upon events remembers the last number and asks for those
    behind it.

    \b
    Example:
      fluence history events --after 1200 | jq -r 'select(.event == "ended") | .name'
    """
    _work("show_events", options)


@history.command()
@_database
@click.option(
    "--older-than", "age_s", type=DurationType(), metavar="DURATION", help="Jobs that ended before."
)
@click.option(
    "--larger-than", "size", type=click.IntRange(1), metavar="MIB", help="The oldest, down to this."
)
def prune(**options: Any) -> None:
    """Forget jobs that ended long ago, or the oldest of too many.

    The leader does so every hour by the settings history-age and history-size; this is for doing it now. Jobs
    that have not ended stay.

    \b
    Example:
      fluence history prune --older-than 30d
    """
    if options["age_s"] is None and options["size"] is None:
        raise click.UsageError("say --older-than or --larger-than", click.get_current_context())
    _work("prune_now", options)


@history.command()
@_database
@click.option(
    "--to", default="head", show_default=True, metavar="REVISION", help="Back, too; base: no tables."
)
def migrate(**options: Any) -> None:
    """Bring the tables to a revision. The leader does so by itself when it starts.

    \b
    Example:
      fluence history migrate --to 0001      before going back to an older release
    """
    _work("migrate_to", options)
