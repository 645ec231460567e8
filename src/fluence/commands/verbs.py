"""Verbs: the commands that change jobs of the queue, of `fluence` and `kubectl fluence`: options and help.

Each is a patch or a delete of the user's own object, with the user's own rights. The scheduler follows what
the object says, so the server's RBAC decides who may do it. The work is in `verbs_on_cluster`, which loads a
client of the cluster and is imported when a command runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from fluence.commands import names_of_cluster as complete
from fluence.commands.options import DurationType, not_installed

_EXIT_CODES: Final = """\b
Exit codes: 0 done for all names; 1 not for some, each with its reason; 2 a wrong command line.
"""


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS: Final = (
    click.option(
        "-n",
        "--namespace",
        metavar="NAME",
        help="Default: that of the kubeconfig's context.",
        shell_complete=complete.namespaces,
    ),
    click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Which cluster."),
    click.option(
        "--context", metavar="NAME", help="The kubeconfig's context.", shell_complete=complete.contexts
    ),
    click.option(
        "--dry-run",
        is_flag=True,
        help="Have the server check it, your rights included, and change nothing.",
    ),
    click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "name", "json", "yaml"]),
        default="table",
        show_default=True,
        metavar="FORMAT",
        help="table (a line for each object), name, json, yaml.",
    ),
)
_NAMES: Final = click.argument(
    "names", metavar="NAME...", nargs=-1, required=True, shell_complete=complete.jobs
)


def _work(verb: str, **options: Any) -> None:
    try:
        from fluence.commands.verbs_on_cluster import work
    except ModuleNotFoundError as error:
        raise not_installed(error, verb) from None
    work(verb, **options)


@click.command(epilog=_EXIT_CODES)
@_NAMES
@_options
def hold(**options: Any) -> None:
    """Keep jobs that wait from starting, until they are released.

    NAME is a Job, a group, a pod or the object of an operator: job/NAME, group/NAME, pod/NAME, jobset/NAME,
    or only the name, which is then looked for in this order. A job that is held leaves the queue. It comes
    back at its end when it is released. What runs already continues.

    It sets the annotation fluence.flux-framework.org/hold on the Job or the object, or on the pods.

    \b
    Examples:
      kubectl fluence hold train
      kubectl fluence hold group/sweep --dry-run
      kubectl fluence release train
    """
    _work("hold", **options)


@click.command(epilog=_EXIT_CODES)
@_NAMES
@_options
def release(**options: Any) -> None:
    """Let jobs start that were held.

    It removes the annotation fluence.flux-framework.org/hold of the Job and of its pods. The job is queued as
    of now.

    \b
    Examples:
      kubectl fluence release train
      kubectl fluence release -n physics job/train pod/debug
    """
    _work("release", **options)


@click.command(epilog=_EXIT_CODES)
@_NAMES
@click.option(
    "--timeout",
    "timeout_s",
    metavar="DURATION",
    type=DurationType(),
    default="2m",
    show_default=True,
    help="How long to wait until the pods of a Job have ended.",
)
@_options
def requeue(**options: Any) -> None:
    """Stop jobs, and queue them again.

    A Job is suspended, which ends its pods, and resumed when they have ended. They do not count as failures.
    One whose FluxJob was deleted is queued again, too. A pod with an owner is deleted, and its owner creates
    another. A pod without one, and the object of an operator, cannot be queued again: create it again.

    \b
    Examples:
      kubectl fluence requeue train
      kubectl fluence requeue group/sweep --timeout 10m
    """
    _work("requeue", **options)


@click.command(epilog=_EXIT_CODES)
@_NAMES
@_options
def cancel(**options: Any) -> None:
    """Delete jobs, waiting or running, with their pods.

    A group is cancelled with all Jobs and pods that belong to it. The object of an operator, such as a
    JobSet, is deleted, and the server deletes all that it made.

    \b
    Examples:
      kubectl fluence cancel train
      kubectl fluence cancel group/sweep -o name
      kubectl fluence cancel raycluster/ray
    """
    _work("cancel", **options)


@click.command(epilog=_EXIT_CODES, context_settings={"ignore_unknown_options": True})
@click.argument("name", metavar="NAME", shell_complete=complete.jobs)
@click.argument("value", metavar="N", type=click.IntRange(-1000, 1000))
@_options
def priority(name: str, **options: Any) -> None:
    """Change the order of your own jobs that wait.

    With N from 1 to 1000 the job goes before other jobs of its namespace with the same PriorityClass and
    queue: it gets the place of the first of them, and the others move back by one. Jobs of other namespaces
    keep their places. With N from -1000 to -1 it goes behind all jobs of its PriorityClass. 0 is the default.
    To pass jobs of others, use another PriorityClass.

    It sets the annotation fluence.flux-framework.org/priority of the Job or the object, or of the pods.

    \b
    Examples:
      kubectl fluence priority urgent 10
      kubectl fluence priority sweep -5
      kubectl fluence priority urgent 0
    """
    _work("priority", names=(name,), **options)


VERBS: Final = (hold, release, requeue, cancel, priority)
