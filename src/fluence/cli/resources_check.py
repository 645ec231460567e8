"""`fluence resources check`: whether a document of resources can be read; needs no cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import yaml

from fluence import names
from fluence.cli import view
from fluence.errors import InvalidInput
from fluence.model.device import DeviceTree
from fluence.model.resource_document import parse
from fluence.yaml_loader import load

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

    FILE may be - for the standard input, and may be a manifest of the ConfigMap; then the line is that within
    its key resources.yaml.

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
        document = load(text) if "ConfigMap" in text else None
    except (yaml.YAMLError, ValueError, RecursionError):
        document = None  # `parse` says what is wrong, and where
    if not isinstance(document, dict) or document.get("kind") != "ConfigMap":
        return parse(text, source=source)
    data = document.get("data")
    held = data.get(names.RESOURCES_KEY) if isinstance(data, dict) else None
    if not isinstance(held, str):
        raise InvalidInput(f"the ConfigMap has no text under data, {names.RESOURCES_KEY}", where=source)
    return parse(held, source=f"{source}: {names.RESOURCES_KEY}")


def _types(tree: DeviceTree) -> list[dict[str, object]]:
    """Per type, as pods ask for it: how many there are, and how many of them are offline."""
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
