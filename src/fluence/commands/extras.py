"""Extras: which optional part of the installation a command needs."""

from __future__ import annotations

from fluence.errors import FluenceError

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
