"""Options that several commands share: the output format, and lengths of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from fluence.units import parse_duration


class Spelling(click.Choice):  # type: ignore[type-arg] # generic only since click 8.2
    """A choice in which `jgf-verbose` and `jgf_verbose` are the same."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if isinstance(value, str):
            dashed = {choice.replace("_", "-"): choice for choice in self.choices}
            value = dashed.get(value.replace("_", "-"), value)
        return str(super().convert(value, param, ctx))


class DurationType(click.ParamType):  # type: ignore[type-arg] # generic only since click 8.2
    """Seconds, or 2h30m."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = parse_duration(value) if isinstance(value, str) else None
        if found is None:
            self.fail(f"{value!r} is not a duration: write seconds, or 2h30m", param, ctx)
        return found / 1000


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
