"""Settings on the command line: one flag for each, and the table of what is in force and why."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import click
import msgspec

from fluence.cli import view
from fluence.config import Loaded, S, load, settings_of

_METAVARS = {"int": "N", "float": "N", "str": "TEXT", "list": "ITEM,…", "map": "NAME=VALUE,…"}


def settings_options(shape: type[msgspec.Struct]) -> Callable[..., Any]:
    """``--config`` and a flag for every setting; the command gets ``config_file`` and ``**flags``."""

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
    """What is in force, and who said so."""
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
