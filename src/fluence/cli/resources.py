"""`fluence resources`: resources that belong to no node; each command loads when it is called."""

from __future__ import annotations

import click

from fluence.cli.program import Program

_COMMANDS = {
    "list": (
        "fluence.cli.resources_list:list_resources",
        "Devices: who holds them until when, and who waits.",
    ),
    "check": ("fluence.cli.resources_check:check", "Say whether a document can be read, or its wrong line."),
    "advertise": ("fluence.cli.resources_advertise:advertise", "Keep its types on nodes' status."),
}


@click.group(cls=Program, lazy=_COMMANDS)
def resources() -> None:
    """Resources that belong to no node: quantum computers, licences, bandwidth.

    They are declared in the ConfigMap kube-system/fluence-resources, under the key resources.yaml. A pod asks
    for one by its type, as `fluxion.flux-framework.org/qpu: 1`.

    \b
    Examples:
      fluence resources list                            who holds what, until when, and who waits
      fluence resources check resources.yaml            before you apply it
      fluence resources advertise                       where kube-scheduler binds, without a DaemonSet
    """
