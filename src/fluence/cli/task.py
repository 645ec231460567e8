"""`fluence task`: a producer announces its task to the pods that wait for it."""

from __future__ import annotations

import os

import click

from fluence import event_loop, names
from fluence.errors import InvalidInput, NotFound
from fluence.kube.access import find_access
from fluence.kube.client import Client
from fluence.kube.errors import Missing
from fluence.kube.resource import PODS, Json
from fluence.schedule.external_resources.gate_dependency import MAX_TASK, is_task


@click.group()
def task() -> None:
    """What a producer has begun elsewhere, such as at a vendor of quantum computers.

    \b
    Example:
      fluence task announce arn:aws:braket:us-east-1:…:quantum-task/0f2e
    """


@task.command()
@click.argument("id", metavar="ID")
@click.option("--pod", metavar="NAME", help="The producer's pod. Default: POD_NAME, else the host's name.")
@click.option("-n", "--namespace", metavar="NAME", help="Its namespace. Default: that of the account.")
@click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="The cluster; default: as kubectl's.")
@click.option("--context", metavar="NAME", help="The context in the kubeconfig.")
def announce(
    id: str,  # noqa: A002 - the name of the argument
    pod: str | None,
    namespace: str | None,
    kubeconfig: str | None,
    context: str | None,
) -> None:
    """Tell the pods that wait for this producer that its task ID has begun.

    Writes the annotation fluence.flux-framework.org/quantum-job-id on the producer's pod. The scheduler then
    opens the gate of those who wait, and gives them the ID by the same annotation. In a container it uses the
    pod's own account, which needs `patch` of pods in its namespace (docs/devices.md has the Role).

    \b
    Examples:
      fluence task announce "$TASK"                          in the producer's container
      fluence task announce "$TASK" --pod vqe-0 -n physics   from your desk
      kubectl -n physics annotate pod vqe-0 fluence.flux-framework.org/quantum-job-id="$TASK"

    \b
    Exit codes: 0 it is written; 1 it is not, and the reason is told; 2 a wrong command line.
    """
    if not is_task(id):
        raise InvalidInput(f"must be one line of 1 to {MAX_TASK} characters", where="ID")
    access = find_access(kubeconfig=kubeconfig, context=context)
    name = pod or os.environ.get("POD_NAME") or (os.environ.get("HOSTNAME") if _in_a_pod() else None)
    if not name:
        raise click.UsageError("which pod? Give --pod NAME, or set POD_NAME")
    where = namespace or os.environ.get("POD_NAMESPACE") or access.namespace or "default"
    patch: Json = {"metadata": {"annotations": {names.QUANTUM_JOB_ID: id}}}

    async def write() -> None:
        async with Client(access) as client:
            try:
                await client.patch(PODS.raw(), name, patch, namespace=where)
            except Missing:
                raise NotFound(f"pod {where}/{name}: no such pod; name it with --pod and -n") from None

    event_loop.run(write)
    click.echo(f"pod {where}/{name} announces {id}")


def _in_a_pod() -> bool:
    return "KUBERNETES_SERVICE_HOST" in os.environ
