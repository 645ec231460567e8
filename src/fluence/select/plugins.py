"""Where providers and policies come from: our own by name, those of others by entry point.

    [project.entry-points."fluence.select.providers"]
    prices = "mypackage:make_provider"      # (ProviderSettings) -> Provider

    [project.entry-points."fluence.select.policies"]
    within-budget = "mypackage:make_policy" # (argument or None, tolerance) -> Policy

A policy is written ``within-budget`` or, with an argument, ``within-budget:50``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from fluence.errors import FluenceError, InvalidInput
from fluence.select.policies import BackendPolicy
from fluence.select.providers import Provider, ProviderSettings

PROVIDERS: Final = "fluence.select.providers"
POLICIES: Final = "fluence.select.policies"

OWN_FIRST: Final = ("configmap", "file")
OWN_LAST: Final = ("braket-live",)


def load_providers(settings: ProviderSettings, *, only: Sequence[str] = ()) -> list[Provider]:
    """The providers to ask, in order; *only* names those that may be."""
    others = [name for name in sorted(_entry_points(PROVIDERS)) if name not in (*OWN_FIRST, *OWN_LAST)]
    order = [*OWN_FIRST, *others, *OWN_LAST]
    if unknown := [name for name in only if name not in order]:
        raise InvalidInput(f'unknown provider "{unknown[0]}" (known: {", ".join(order)})')
    made = (_provider(name, settings) for name in order if not only or name in only)
    return [provider for provider in made if provider is not None]


def _provider(name: str, settings: ProviderSettings) -> Provider | None:
    if name == "configmap":
        from fluence.select.providers.configmap import ConfigMapProvider

        return ConfigMapProvider(settings.namespace, settings.kubectl_flags, settings.timeout_s)
    if name == "file":
        if settings.attributes_file is None:
            return None
        from fluence.select.providers.file import FileProvider

        return FileProvider(settings.attributes_file)
    if name == "braket-live":
        from fluence.select.providers.braket import BraketLiveProvider

        return BraketLiveProvider(settings.timeout_s)
    provider: Provider = _make(PROVIDERS, name, settings)
    return provider


def find_policy(token: str, *, tolerance: float) -> BackendPolicy | None:
    """The policy of somebody else that *token* names, or None."""
    name, colon, argument = token.partition(":")
    if name not in _entry_points(POLICIES):
        return None
    policy: BackendPolicy = _make(POLICIES, name, argument if colon else None, tolerance)
    return policy


@cache
def _entry_points(group: str) -> dict[str, Any]:
    # importlib.metadata takes as long to load as everything else together.
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=group)}


def _make(group: str, name: str, *arguments: object) -> Any:
    point = _entry_points(group)[name]
    try:
        return point.load()(*arguments)
    except FluenceError:
        raise
    except Exception as error:
        what = group.rpartition(".")[2]
        raise InvalidInput(
            f"entry point {name} of {what} ({point.value}): {type(error).__name__}: {error}"
        ) from error
