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
from fluence.queue import policy as queue_policies
from fluence.queue.job import FOREVER
from fluence.units import parse_duration

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


class Length(click.ParamType):  # type: ignore[type-arg]
    """A length of time in seconds, or with units: 90, 15m, 2h30m, 1d; in milliseconds inside."""

    name = "time"

    def __init__(self, least: int = 0) -> None:
        self.least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        length = parse_duration(value)
        if length is None:
            self.fail(
                f"{value!r} is not a valid length of time: give seconds, or 90s, 15m, 2h30m, 1d", param, ctx
            )
        if length > FOREVER:
            self.fail("this length of time is over a hundred years: give less", param, ctx)
        if self.least and length < self.least:
            self.fail(f"{value!r} is too short: give 1ms at least", param, ctx)
        return length


class QueuePolicies(click.ParamType):  # type: ignore[type-arg]
    """One queue policy, or several with commas between them."""

    name = "policies"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(filter(None, (name.strip() for name in value.split(","))))
        if not names:
            self.fail(f"no policy is named: choose from {', '.join(queue_policies.names())}", param, ctx)
        try:
            for name in names:
                queue_policies.find(name)
        except InvalidInput as error:
            self.fail(str(error), param, ctx)
        return names

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        done, _, last = incomplete.rpartition(",")
        head = f"{done}," if done else ""
        return [CompletionItem(head + name) for name in queue_policies.names() if name.startswith(last)]


class Scales(click.ParamType):  # type: ignore[type-arg]
    """One factor, or several with commas between them."""

    name = "factors"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(float(part) for part in value.split(","))
        except ValueError:
            self.fail(
                f"{value!r} is not a valid factor: give a number such as 0.5, or several: 1,0.7,0.5",
                param,
                ctx,
            )


class RenamedOption(click.Option):
    """An option that also answers to the names it had before; help and completion know the new one alone."""

    def __init__(self, *args: Any, former: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.former = tuple(former)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        parser.add_option(obj=self, opts=list(self.former), dest=self.name, action="store", nargs=self.nargs)


def match_policy_option(
    *spellings: str, former: Sequence[str] = (), default: str | None = "first"
) -> Callable[..., Any]:
    """`--match-policy`: which of the resources that fit are taken."""
    return click.option(
        *spellings,
        "--match-policy",
        cls=RenamedOption,
        former=former,
        type=PolicyChoice(),
        default=default,
        metavar="POLICY",
        help=f"Which of the vertices that fit are taken: {', '.join(policies.names())}; "
        "or a string such as 'policy=low node_centric=true'.  [default: first]",
    )


def queue_policy_option(*, default: str | None, note: str) -> Callable[..., Any]:
    """`--queue-policy`, once called `--policy`: who starts when."""
    return click.option(
        "--queue-policy",
        cls=RenamedOption,
        former=("--policy",),
        metavar="POLICY",
        type=QueuePolicies(),
        default=default,
        show_default=default is not None,
        help=note,
    )


def cluster_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--kubeconfig` and `--context`: which running cluster."""
    command = click.option("--context", metavar="NAME", help="With --live: the kubeconfig's context.")(
        command
    )
    return click.option(
        "--kubeconfig", metavar="FILE", type=click.Path(), help="With --live: which cluster."
    )(command)


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
