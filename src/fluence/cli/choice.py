"""Options and inputs that several commands share: output formats, policies, graphs, `-` for stdin."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from fluence.errors import InvalidInput
from fluence.graph.graph import ResourceGraph
from fluence.match import policy as policies

STDIN = "-"
GRAPH_FORMATS = ("jgf", "grug", "hwloc", "rv1exec")


class Spelling(click.Choice):  # type: ignore[type-arg] # generic only since click 8.2
    """A choice in which `jgf-verbose` and `jgf_verbose` are the same."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if isinstance(value, str):
            dashed = {choice.replace("_", "-"): choice for choice in self.choices}
            value = dashed.get(value.replace("_", "-"), value)
        return str(super().convert(value, param, ctx))


class PolicyChoice(click.ParamType):  # type: ignore[type-arg]
    """The name of a match policy, or a string that describes one."""

    name = "policy"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> policies.MatchPolicy:
        if isinstance(value, policies.MatchPolicy):
            return value
        try:
            return policies.find(value)
        except InvalidInput as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(name) for name in policies.names() if name.startswith(incomplete)]


def output_option(formats: Sequence[str], *, note: str) -> Callable[..., Any]:
    """`-o`, with the table for people as the default."""
    return click.option(
        "-o",
        "--output",
        type=Spelling([*dict.fromkeys(("table", "wide", "json", "yaml", *formats))]),
        default="table",
        show_default=True,
        metavar="FORMAT",
        help=note,
    )


def graph_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--format` and `--allow`: how to read the graph."""
    command = click.option(
        "--allow",
        metavar="TYPES",
        help="Of an hwloc topology, only these types: --allow node,core,gpu.",
    )(command)
    return click.option(
        "-f",
        "--format",
        "format_",
        type=click.Choice([*GRAPH_FORMATS, "rv1exec_force"]),
        help="Format of the graph; without it, the one that the file looks like.",
    )(command)


def read(source: str) -> bytes:
    """The bytes of a file, or of standard input for `-`."""
    if source == STDIN:
        return sys.stdin.buffer.read()
    return Path(source).read_bytes()


def source_name(source: str) -> str:
    """What messages call an input."""
    return "standard input" if source == STDIN else source


def load_graph(source: str, format_: str | None, allow: str | None) -> ResourceGraph:
    """The graph of a file or of standard input."""
    types = allow.split(",") if allow else None
    return ResourceGraph.parse(read(source), format_, source=source_name(source), allow=types)
