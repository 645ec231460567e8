"""Options and inputs that several commands share: output formats, policies, graphs, settings, stdin."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec
from click.shell_completion import CompletionItem

from fluence import plugin_loader
from fluence.commands import view
from fluence.config import Loaded, S, load, settings_of
from fluence.errors import InvalidInput
from fluence.graph.graph import ResourceGraph
from fluence.match import policy as policies
from fluence.queue import policy as queue_policies
from fluence.queue.job import FOREVER
from fluence.units import parse_duration

STDIN = "-"
GRAPH_FORMATS = ("jgf", "grug", "hwloc", "rv1exec")


class PolicyChoice(click.ParamType):  # type: ignore[type-arg]
    """The name of a match policy, or a string that describes one."""

    name = "policy"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> policies.MatchPolicy:
        if isinstance(value, policies.MatchPolicy):
            return value
        try:
            plugin_loader.allow(value)
            return policies.find(value)
        except InvalidInput as error:
            self.fail(str(error), param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(name) for name in policies.names() if name.startswith(incomplete)]


class PluginName(click.ParamType):  # type: ignore[type-arg]
    """A plug-in by its name or as `module:name`. The command that uses it checks its type."""

    name = "plug-in"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        plugin_loader.allow(value)
        return str(value)


class Length(click.ParamType):  # type: ignore[type-arg]
    """A duration in seconds or with units: 90, 15m, 2h30m, 1d. Internally in milliseconds."""

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
    """One or several queue policies, separated by commas."""

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
                plugin_loader.allow(name)
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
    """One or several factors, separated by commas."""

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
    """An option that also accepts its former names; help and completion only show the new one."""

    def __init__(self, *args: Any, former: Sequence[str] = (), **attributes: Any) -> None:
        super().__init__(*args, **attributes)
        self.former = tuple(former)

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        super().add_to_parser(parser, ctx)
        parser.add_option(obj=self, opts=list(self.former), dest=self.name, action="store", nargs=self.nargs)


def match_policy_option(
    *spellings: str, former: Sequence[str] = (), default: str | None = "first"
) -> Callable[..., Any]:
    """`--match-policy`: how to choose among the resources that fit."""
    return click.option(
        *spellings,
        "--match-policy",
        cls=RenamedOption,
        former=former,
        type=PolicyChoice(),
        default=default,
        metavar="POLICY",
        help=f"Which of the vertices that fit are taken: {', '.join(sorted(policies.BUILT_IN))}; "
        "a string such as 'policy=low node_centric=true'; or a plug-in, by its name or as module:name.  "
        "[default: first]",
    )


def queue_policy_option(*, default: str | None, note: str) -> Callable[..., Any]:
    """`--queue-policy`, formerly `--policy`: which jobs start when."""
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
    """The name of an input in messages."""
    return "standard input" if source == STDIN else source


def load_graph(source: str, format_: str | None, allow: str | None) -> ResourceGraph:
    """The graph of a file or of standard input."""
    return parse_graph(read(source), format_, allow, source=source)


def parse_graph(text: bytes, format_: str | None, allow: str | None, *, source: str) -> ResourceGraph:
    """Parse a graph that was read from a file or from standard input."""
    types = allow.split(",") if allow else None
    return ResourceGraph.parse(text, format_, source=source_name(source), allow=types)


_METAVARS = {"int": "N", "float": "N", "str": "TEXT", "list": "ITEM,…", "map": "NAME=VALUE,…"}


def settings_options(shape: type[msgspec.Struct]) -> Callable[..., Any]:
    """``--config`` and a flag for every setting. The command gets ``config_file`` and ``**flags``."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for setting in reversed(settings_of(shape)):
            shown = setting.show(setting.default)
            text = f"{setting.text} [{setting.variable}"
            text += f"; default: {shown}{f' {setting.unit}' if setting.unit else ''}]" if shown else "]"
            if setting.kind == "bool":
                command = click.option(
                    f"{setting.flag}/--no-{setting.key}", setting.field, default=None, help=text
                )(command)
            elif setting.kind in ("list", "map"):
                command = click.option(
                    setting.flag, setting.field, multiple=True, metavar=_METAVARS[setting.kind], help=text
                )(command)
            else:
                metavar = "|".join(setting.choices) or _METAVARS[setting.kind]
                command = click.option(setting.flag, setting.field, default=None, metavar=metavar, help=text)(
                    command
                )
        return click.option(
            "--config",
            "config_file",
            metavar="FILE",
            type=click.Path(),
            envvar="FLUENCE_CONFIG",
            help="A YAML file of settings; variables and flags go before it. [FLUENCE_CONFIG]",
        )(command)

    return decorate


def load_settings(shape: type[S], config_file: str | None, flags: dict[str, object]) -> Loaded[S]:
    """Defaults, then the file, then the environment, then flags."""
    return load(shape, file=config_file, environ=os.environ, flags=flags)


def show_settings(loaded: Loaded[S], output: str) -> None:
    """Print the settings in force, and where each comes from."""
    known = settings_of(type(loaded.settings))
    if output in ("json", "yaml"):
        value = {
            each.key: {
                "value": each.show(found)
                if (found := getattr(loaded.settings, each.field)) and each.secret
                else found,
                "from": loaded.origins.get(each.field, "default"),
            }
            for each in known
        }
        click.echo(view.data(msgspec.to_builtins(value), output))
        return
    rows = [
        [
            each.key,
            view.clean(each.show(getattr(loaded.settings, each.field))) or "-",
            each.unit or "-",
            view.clean(loaded.origins.get(each.field, "default")),
        ]
        for each in known
    ]
    click.echo(view.table(["SETTING", "VALUE", "UNIT", "FROM"], rows))
