"""Resources: the command `resources`, for external resources, and `resources check`."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import yaml

from fluence import names
from fluence.cluster.layout import DEFAULT
from fluence.commands import view
from fluence.commands.program import Program
from fluence.errors import InvalidInput
from fluence.model.external_resources import DeviceTree, document_of, parse
from fluence.yaml_loader import load_all

_COMMANDS = {
    "list": (
        "fluence.commands.resources_live:list_resources",
        "Devices: who holds them until when, and who waits.",
    ),
    "check": ("fluence.commands.resources:check", "Say whether a document can be read, or its wrong line."),
    "advertise": ("fluence.commands.resources_live:advertise", "Keep its types on nodes' status."),
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


_STDIN = "-"


@click.command()
@click.argument("file", type=click.Path())
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "yaml"]),
    default="table",
    show_default=True,
    help="How what was found is printed.",
)
def check(file: str, output: str) -> None:
    """Say whether FILE can be read as resources.yaml, what it declares, or which line is wrong.

    FILE may be - for the standard input, and may be a manifest with the ConfigMap; then the line is that
    within its key resources.yaml.

    \b
    Example of a document:
      resources:
        - {type: qpu, name: sv1, attributes: braket, with: [{type: qubit, count: 34}]}
        - {type: licence, name: solver, count: 4}
      attributes:
        braket: {vendor: aws, region: us-east-1}

    \b
    Examples:
      fluence resources check resources.yaml
      kubectl -n kube-system get configmap fluence-resources -o jsonpath='{.data.resources\\.yaml}' \\
        | fluence resources check -

    \b
    Exit codes: 0 it can be read; 1 it cannot, and the line is named; 2 a wrong command line.
    """
    if file == _STDIN:
        tree = _read(sys.stdin.buffer.read().decode(), "stdin")
    else:
        tree = _read(Path(file).read_bytes().decode(), file)
    if output != "table":
        click.echo(view.data({"types": _types(tree)}, output))
        return
    if not tree.backends:
        click.echo("declares nothing: the cluster is classical")
        return
    rows = [
        [str(each["resource"]), str(each["count"]), str(each["offline"]) if each["offline"] else "-"]
        for each in _types(tree)
    ]
    click.echo(view.table(["RESOURCE", "COUNT", "OFFLINE"], rows))


def _read(text: str, source: str) -> DeviceTree:
    try:
        documents = list(load_all(text)) if "ConfigMap" in text else []
    except (yaml.YAMLError, ValueError, RecursionError):
        documents = []  # `parse` says what is wrong, and where
    maps = [each for each in documents if isinstance(each, dict) and each.get("kind") == "ConfigMap"]
    if not maps:
        return parse(text, source=source, own_types=DEFAULT.own_types)
    data = maps[0].get("data")
    entries = data.items() if isinstance(data, dict) else ()
    held = {key: value for key, value in entries if isinstance(value, str)}
    if names.RESOURCES_KEY not in held and len(held) != 1:
        raise InvalidInput(f"the ConfigMap has no text under data, {names.RESOURCES_KEY}", where=source)
    where = f"{source}: {names.RESOURCES_KEY}"
    return parse(document_of(held), source=where, own_types=DEFAULT.own_types)


def _types(tree: DeviceTree) -> list[dict[str, object]]:
    """By type, as pods request it: how many there are, and how many of them are offline."""
    found: list[dict[str, object]] = []
    for type_ in tree.types:
        of_type = [device for device in tree.walk() if device.type == type_]
        found.append(
            {
                "type": type_,
                "resource": names.DEVICE_PREFIX + type_,
                "count": sum(device.count for device in of_type),
                "offline": sum(device.count for device in of_type if not device.online),
            }
        )
    return found
