"""Doctor: the command `doctor` of `fluence` and `kubectl fluence`: its options and its help.

The work is in `doctor_report`, which loads a client of the cluster and is imported when the command runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from fluence.commands.extras import not_installed
from fluence.commands.options import DurationType

DOCTOR_HELP: Final = """Look at a cluster and say what is right, what is wrong, and what cures it.

One line per check, with a code that stays: server-version, gang-api, feature-gates, coscheduling, rights,
deployment, replica-versions, lease, one-scheduler, admission, webhook, hand-off, offered-resources,
unset-variables, doors, flux-jobs, pods-without-scheduler, waiting-groups, orphaned-gates, annotations.

Nothing is changed: it lists, asks the server what accounts may do, and tries two pods as dry runs. What you
may not read is "unseen", and nothing is concluded from it.

\b
Examples:
  {program}
  {program} -o json | jq -r '.findings[] | select(.verdict == "wrong") | .cure'
  {program} --as system:serviceaccount:fluence-system:fluence-scheduler
  {program} -n physics --waiting-longer-than 10m

\b
Exit codes:
  0  everything was looked at and nothing is wrong (warnings do not count, see --strict)
  1  something is wrong
  2  nothing wrong was seen, but not everything could be looked at; or no cluster, or a wrong command line
"""


def doctor_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options, which the command gets as keywords."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS: Final = (
    click.option(
        "--scheduler-name", metavar="NAME", default="fluence", show_default=True, help="Which scheduler."
    ),
    click.option("-n", "--namespace", metavar="NAME", help="Pods and groups of this one only. Default: all."),
    click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Which cluster."),
    click.option("--context", metavar="NAME", help="The kubeconfig's context."),
    click.option(
        "--as",
        "account",
        metavar="ACCOUNT",
        help="Whose rights are asked for: system:serviceaccount:NAMESPACE:NAME. Default: the account of the "
        "scheduler's Deployment, else one's own.",
    ),
    click.option(
        "--waiting-longer-than",
        "waits_s",
        metavar="DURATION",
        type=DurationType(),
        default="1h",
        show_default=True,
        help="Name groups that wait for longer.",
    ),
    click.option("--strict", is_flag=True, help="Warnings count as wrong."),
    click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "wide", "json", "yaml"]),
        default="table",
        show_default=True,
        metavar="FORMAT",
        help="table, wide (with every right and every group), json, yaml.",
    ),
)


def examine(**options: Any) -> int:
    """Examine a cluster, print the findings, and return the exit code."""
    try:
        from fluence.commands.doctor_report import examine as work
    except ModuleNotFoundError as error:
        raise not_installed(error, "doctor") from None
    return work(**options)


def doctor_command(program: str) -> click.Command:
    """The command for a program. Its exit code is that of the findings."""

    @click.command("doctor", help=DOCTOR_HELP.format(program=program))
    @doctor_options
    @click.pass_context
    def doctor(ctx: click.Context, /, **options: Any) -> None:
        ctx.exit(examine(**options))

    return doctor


doctor = doctor_command("fluence doctor")
