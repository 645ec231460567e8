"""Providers: who knows which backends there are, and what they are like.

They are asked in order, and each is told what the ones before it have said:

    configmap      what the scheduler offers, with the attributes its configuration holds
    file           the user's own file of attributes: prices, capabilities, anything
    (others)       entry points of the group ``fluence.select.providers``, by name
    braket-live    queue depth and status of AWS Braket devices, asked only when a policy reads them

A provider that cannot answer says so in a note and the choice goes on; one whose input is wrong raises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from fluence.errors import FluenceError
from fluence.names import RESOURCES_NAMESPACE
from fluence.select.backend import Backend, BackendRequest, merge


class ProviderSettings(msgspec.Struct, frozen=True):
    """What the user has set for all providers."""

    attributes_file: str | None = None
    namespace: str = RESOURCES_NAMESPACE
    kubectl_flags: Sequence[str] = ()
    """Which cluster: ``--context``, ``--kubeconfig`` and their like."""
    timeout_s: float = 10.0


class BackendQuery(msgspec.Struct, frozen=True):
    """One question: what is known that these policies need for this request."""

    request: BackendRequest
    needs: frozenset[str] = frozenset()
    known: Mapping[str, Backend] = {}
    """What the providers before have said, without what the scheduler does not offer."""


class BackendAnswer(msgspec.Struct, frozen=True):
    """Backends and their attributes; *notes* say what could not be found out."""

    backends: Sequence[Backend] = ()
    notes: Sequence[str] = ()
    """For the user, and for the audit in the cluster: no account, no credential."""
    warnings: Sequence[str] = ()
    """For the user's eyes only."""
    offers: frozenset[str] | None = None
    """The names of all backends that the scheduler offers; None if this provider does not know."""


class Provider(Protocol):
    """Retrieves backends; it may touch files, the cluster and the user's credentials."""

    @property
    def name(self) -> str: ...

    @property
    def supplies(self) -> frozenset[str] | None:
        """It is asked only if a policy needs one of these; None: always."""

    def fetch(self, ask: BackendQuery) -> BackendAnswer: ...


class GatheredBackends(msgspec.Struct, frozen=True):
    """What all providers together say."""

    backends: dict[str, Backend]
    offers: frozenset[str] | None
    notes: list[str]
    warnings: list[str]


class ProviderFailed(FluenceError):
    """A provider broke."""


def gather(
    providers: Sequence[Provider], request: BackendRequest, *, needs: frozenset[str], only: Sequence[str] = ()
) -> GatheredBackends:
    """Ask the providers that matter, in order, and merge their answers."""
    said: list[tuple[str, list[Backend]]] = []
    offers: frozenset[str] | None = None
    notes: list[str] = []
    warnings: list[str] = []
    for provider in providers:
        if provider.supplies is not None and not (provider.supplies & needs):
            continue
        known = {
            name: backend
            for name, backend in merge(said).items()
            if (not only or name in only) and (offers is None or name in offers)
        }
        try:
            answer = provider.fetch(BackendQuery(request, needs, known))
        except FluenceError:
            raise
        except Exception as error:
            # Somebody else's code: name it, so that the user knows whom to ask.
            raise ProviderFailed(f"provider {provider.name}: {type(error).__name__}: {error}") from error
        said.append((provider.name, list(answer.backends)))
        notes += answer.notes
        warnings += answer.warnings
        if answer.offers is not None:
            offers = answer.offers
    return GatheredBackends(merge(said), offers, notes, warnings)
