"""`explain`, of both programs: the state of a pod, a group or a workload, why it waits, what would help."""

from __future__ import annotations

from typing import Any

import click

from fluence.commands import names_of_cluster as complete
from fluence.commands.extras import not_installed
from fluence.commands.options import output_option


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
