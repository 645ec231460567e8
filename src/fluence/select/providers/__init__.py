"""Providers: the sources of backends and their attributes.

They are called in order, and each gets the results of the earlier ones:

    configmap      the offers of the scheduler, with the attributes of its configuration
    file           a file of the user with attributes: prices, capabilities, anything
    (others)       entry points of the group ``fluence.select.providers``, by name
    braket-live    queue depth and status of AWS Braket devices, asked only when a policy reads them

A provider that cannot answer adds a note, and the choice continues without it; a provider with invalid input
raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from fluence.errors import FluenceError
from fluence.names import RESOURCES_NAMESPACE
from fluence.select.policies import Backend, BackendRequest, merge


class ProviderSettings(msgspec.Struct, frozen=True):
    """The settings of the user for all providers."""

    attributes_file: str | None = None
    namespace: str = RESOURCES_NAMESPACE
    kubectl_flags: Sequence[str] = ()
    """Which cluster: ``--context``, ``--kubeconfig`` and their like."""
    timeout_s: float = 10.0


class BackendQuery(msgspec.Struct, frozen=True):
    """One query: the attributes that these policies need for this request."""

    request: BackendRequest
    needs: frozenset[str] = frozenset()
    known: Mapping[str, Backend] = {}
    """The results of earlier providers, without backends that the scheduler does not offer."""


class BackendAnswer(msgspec.Struct, frozen=True):
    """Backends and their attributes; *notes* list what could not be determined."""

    backends: Sequence[Backend] = ()
    notes: Sequence[str] = ()
    """For the user, and for the audit in the cluster: no account, no credential."""
    warnings: Sequence[str] = ()
    """For the user's eyes only."""
    offers: frozenset[str] | None = None
    """The names of all backends that the scheduler offers; None if this provider does not know."""
    types: Mapping[str, frozenset[str]] = {}
    """The types of these offers: their own, and those of their parts."""


class Provider(Protocol):
    """Retrieves backends; it may touch files, the cluster and the user's credentials."""

    @property
    def name(self) -> str: ...

    @property
    def supplies(self) -> frozenset[str] | None:
        """It is called only if a policy needs one of these; None: always."""

    def fetch(self, ask: BackendQuery) -> BackendAnswer: ...


class GatheredBackends(msgspec.Struct, frozen=True):
    """The merged results of all providers."""

    backends: dict[str, Backend]
    offers: frozenset[str] | None
    notes: list[str]
    warnings: list[str]
    types: dict[str, frozenset[str]] = {}


class ProviderFailed(FluenceError):
    """A provider failed."""


def gather(
    providers: Sequence[Provider], request: BackendRequest, *, needs: frozenset[str], only: Sequence[str] = ()
) -> GatheredBackends:
    """Call the providers that are needed, in order, and merge their results."""
    described: list[tuple[str, list[Backend]]] = []
    offers: frozenset[str] | None = None
    notes: list[str] = []
    warnings: list[str] = []
    types: dict[str, frozenset[str]] = {}
    for provider in providers:
        if provider.supplies is not None and not (provider.supplies & needs):
            continue
        known = {
            name: backend
            for name, backend in merge(described).items()
            if (not only or name in only) and (offers is None or name in offers)
        }
        try:
            answer = provider.fetch(BackendQuery(request, needs, known))
        except FluenceError:
            raise
        except Exception as error:
            # Code of a plug-in: name it, so that the user knows where the fault is.
            raise ProviderFailed(f"provider {provider.name}: {type(error).__name__}: {error}") from error
        described.append((provider.name, list(answer.backends)))
        notes += answer.notes
        warnings += answer.warnings
        types |= answer.types
        if answer.offers is not None:
            offers = answer.offers
    return GatheredBackends(merge(described), offers, notes, warnings, types)
