"""Options that several commands share, and the optional parts of the installation that commands need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import click

from fluence.errors import FluenceError
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


# Modules that are not part of the base installation: module -> extra. `sandbox` includes all of `scheduler`.
_EXTRAS = {
    "aiohttp": "scheduler",
    "aiosqlite": "scheduler",
    "alembic": "scheduler",
    "asyncpg": "postgres",
    "boto3": "braket",
    "cryptography": "scheduler",
    "google": "deviceplugin",
    "grpc": "deviceplugin",
    "grpc_health": "service",
    "grpc_reflection": "service",
    "matplotlib": "sim",
    "opentelemetry": "otel",
    "PIL": "sim",
    "prometheus_client": "scheduler",
    "sqlalchemy": "scheduler",
    "structlog": "scheduler",
}
# Commands that need several of them: the extra that has all.
_EXTRA_OF = {"demo": "sandbox", "sandbox": "sandbox", "deviceplugin": "deviceplugin"}
# Commands with an extra of their own for a module that several extras bring.
_OWN_EXTRA = {("service", "google"): "service", ("service", "grpc"): "service"}


def not_installed(error: ModuleNotFoundError, command: str | None) -> Exception:
    """The error that names the extra to install, or the original error if no extra has the module."""
    module = (error.name or "").partition(".")[0]
    extra = _OWN_EXTRA.get((command or "", module)) or _EXTRAS.get(module)
    if extra is None:
        return error
    if extra == "scheduler":
        extra = _EXTRA_OF.get(command or "", extra)
    return FluenceError(
        f"{command} needs {module}, which is not installed: pip install 'fluence-scheduler[{extra}]'"
    )
