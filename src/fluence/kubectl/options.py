"""The options of the choice, for every command of `kubectl fluence` that makes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

_OPTIONS = (
    click.option(
        "-f",
        "--filename",
        "filenames",
        multiple=True,
        type=click.Path(allow_dash=True),
        help="A manifest: file, directory, pattern, address, or - for stdin. Repeatable.",
    ),
    click.option(
        "-k",
        "--kustomize",
        "kustomization",
        type=click.Path(file_okay=False),
        help="A kustomization directory.",
    ),
    click.option("-R", "--recursive", is_flag=True, help="Also read the directories below those of -f."),
    click.option(
        "--attributes",
        type=click.Path(),
        envvar="FLUENCE_ATTRIBUTES",
        help="Your file of backends and their attributes. [env: FLUENCE_ATTRIBUTES]",
    ),
    click.option(
        "--fluence-ns",
        default="kube-system",
        show_default=True,
        metavar="NS",
        help="Namespace of the fluence-resources ConfigMap.",
    ),
    click.option(
        "--cost-tol",
        type=click.FloatRange(min=0),
        default=0.0,
        show_default=True,
        metavar="N",
        help="How far from the best cost, or queue, is as good as the best.",
    ),
    click.option("--force-select", is_flag=True, help="Choose again if the object already has a backend."),
    click.option(
        "--providers",
        default="",
        metavar="A,B",
        help="Ask only these: configmap, file, braket-live, or one of your own.",
    ),
    click.option(
        "--live-timeout",
        type=click.FloatRange(min=0, min_open=True),
        default=10.0,
        show_default=True,
        metavar="S",
        help="Seconds that the cluster and live sources have to answer.",
    ),
    click.option(
        "--explain", is_flag=True, help="Print each candidate and the step that dropped it, on stderr."
    ),
)


def selecting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of the choice."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
