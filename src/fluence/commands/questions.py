"""Questions: the commands `doctor` and `explain`, of both programs: their options and their help.

The work is in `doctor_report`, which loads a client of the cluster and is imported when the command runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from fluence.commands import names_of_cluster as complete
from fluence.commands.options import DurationType, not_installed, output_option

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


@click.command()
@click.argument("what", metavar="[KIND/]NAME", nargs=-1, required=True, shell_complete=complete.jobs)
@click.option(
    "-n",
    "--namespace",
    metavar="NAME",
    help="Its namespace. Default: the kubeconfig's.",
    shell_complete=complete.namespaces,
)
@click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Which cluster.")
@click.option("--context", metavar="NAME", help="The kubeconfig's context.")
@click.option("--scheduler-name", metavar="NAME", help="[FLUENCE_SCHEDULER_NAME; default: as in --config]")
@click.option(
    "--level",
    "levels",
    multiple=True,
    metavar="TYPE=LABEL",
    help="A level above the nodes, outermost first, as the scheduler has it.",
)
@click.option(
    "--match-policy",
    metavar="NAME",
    help="Which nodes the scheduler takes first. [FLUENCE_MATCH_POLICY; default: as in --config, else as the "
    "leader says]",
)
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    type=click.Path(),
    envvar="FLUENCE_CONFIG",
    help="The scheduler's file of settings, where it holds no Lease or you may not get it. [FLUENCE_CONFIG]",
)
@output_option((), note="table, wide (with every member), json, yaml.")
def explain(what: tuple[str, ...], **options: Any) -> None:
    """Say in words what a pod, a Job or a group waits for, when it starts, and what would make it sooner.

    KIND is pod, job, deployment, statefulset, replicaset, group, fluxjob, or the kind of an operator's
    object; without one, NAME is looked for among all of them. The reason and both start times are those that
    the scheduler wrote. What stands in the way now, and what would help, is what a scheduler with the same
    settings (the leader says them on its Lease) finds in a copy of the cluster, which is listed once; nothing
    is changed. With fewer rights less is said, and one line names what cannot be seen.

    \b
    States: Held (kept by admission), Pending, Reserved (it has a place in the plan), Starting, Running,
    Completed, Failed, Unschedulable (it does not start as it is), Suspended (not by Fluence), Cancelled.

    \b
    Examples:
      fluence explain solver-0 -n physics
      fluence explain job/train                  also if it is held and has no pods yet
      fluence explain group/lammps -o wide       a PodGroup, or a group by label

    \b
    Exit codes: 0 explained; 1 nothing has this name, or the server cannot be asked; 2 a wrong command line.
    """
    try:
        from fluence.commands.explain_live import run
    except ModuleNotFoundError as error:
        raise not_installed(error, "explain") from None
    run(what, **options)
