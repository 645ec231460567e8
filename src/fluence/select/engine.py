"""The engine: intersect the described backends with the offered ones, run the policies, keep the trail."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Final

import msgspec

from fluence.errors import FluenceError, InvalidInput
from fluence.select.policies import Backend, BackendPolicy, BackendRequest, NoCandidate
from fluence.select.providers import Provider, ProviderSettings

NOT_OFFERED: Final = "not offered by the cluster scheduler"
NOT_DESCRIBED: Final = "offered by scheduler but no attributes available (not in file/providers)"
OFFERS_UNKNOWN: Final = (
    "scheduler offerings unknown (ConfigMap unavailable); selecting over all provided backends"
)

# An annotation is for people, and all annotations of an object share 256 KiB.
AUDITED_CANDIDATES: Final = 20
AUDITED_DROPS: Final = 50


class DroppedBackend(msgspec.Struct, frozen=True):
    """Why a backend was dropped, and by which step (None: before the first)."""

    backend: Backend
    reason: str
    step: str | None = None

    def __str__(self) -> str:
        return f"{self.step}: {self.reason}" if self.step else self.reason


class BackendSelection(msgspec.Struct, frozen=True):
    """The choice and its reasons: the remaining backends, best first, and all dropped ones."""

    policy: str
    ranked: list[Backend]
    dropped: dict[str, DroppedBackend]
    notes: list[str] = []

    @property
    def chosen(self) -> Backend:
        return self.ranked[0]


class NoBackend(FluenceError):
    """No backend can be chosen; ``trail`` has the backends that each step dropped and kept."""

    def __init__(self, message: str, trail: BackendSelection) -> None:
        reasons = ", ".join(f"{name} ({drop})" for name, drop in sorted(trail.dropped.items()))
        super().__init__(f"{message}; dropped: {reasons}" if reasons else message)
        self.trail = trail


def choose(
    policy: str,
    pipeline: Sequence[BackendPolicy],
    backends: Mapping[str, Backend],
    *,
    offers: Iterable[str] | None,
    only: Sequence[str] = (),
    types: Mapping[str, Collection[str]] | None = None,
    request: BackendRequest | None = None,
    notes: Sequence[str] = (),
) -> BackendSelection:
    """Choose one of *backends* by *pipeline*; *offers* None: the offers of the cluster are unknown. *types*
    has the types of the offers, if they are known."""
    request = request or BackendRequest()
    pool, dropped = _intersect(backends, offers, only)
    wrong = [backend for backend in pool if _is_of_other_type(backend, types or {}, request)]
    dropped |= {b.name: DroppedBackend(b, _other_type((types or {})[b.name], request)) for b in wrong}
    pool = [backend for backend in pool if backend not in wrong]
    unknown = _unknown_names(backends, only)
    remarks = [*notes, *([OFFERS_UNKNOWN] if offers is None else []), *unknown]
    trail = BackendSelection(policy, pool, dropped, remarks)
    if not pool:
        nobody = "no candidate backends after intersecting providers with scheduler offerings"
        raise NoBackend("; ".join([nobody, *unknown]), trail)
    for step in pipeline:
        try:
            kept, gone = _apply(step, pool, request)
        except NoCandidate as error:
            raise NoBackend(str(error), trail) from error
        dropped.update(gone)
        pool = kept
        trail = BackendSelection(policy, pool, dropped, remarks)
        if not pool:
            raise NoBackend(f'policy "{step.token}" removed all candidates', trail)
    return trail


def _is_of_other_type(
    backend: Backend, types: Mapping[str, Collection[str]], request: BackendRequest
) -> bool:
    """Whether the cluster declares that a backend has none of the requested types."""
    known = types.get(backend.name)
    # A workload that needs a quantum computer and a licence runs on the quantum computer.
    wanted = request.types & {"qpu"} or request.types
    return known is not None and bool(wanted) and wanted.isdisjoint(known)


def _other_type(known: Collection[str], request: BackendRequest) -> str:
    return f"has {', '.join(sorted(known))}, and the workload requests {', '.join(sorted(request.types))}"


def _apply(
    step: BackendPolicy, pool: Sequence[Backend], request: BackendRequest
) -> tuple[list[Backend], dict[str, DroppedBackend]]:
    """One step; it may be a plug-in, so it must keep or drop each backend of the pool and nothing else."""
    try:
        verdict = step.apply(pool, request)
        names = [b.name for b in verdict.kept]
        reasons = dict(verdict.dropped)
    except FluenceError:
        raise
    except Exception as error:
        raise NoCandidate(f'policy "{step.token}": {type(error).__name__}: {error}') from error
    by_name = {b.name: b for b in pool}
    if strange := [name for name in names if name not in by_name or names.count(name) > 1]:
        raise NoCandidate(
            f'policy "{step.token}" keeps {strange[0]}, which is not one of its candidates once'
        )
    gone = {
        name: DroppedBackend(backend, reasons.get(name, "dropped"), step.token)
        for name, backend in by_name.items()
        if name not in names
    }
    return [by_name[name] for name in names], gone


def _intersect(
    backends: Mapping[str, Backend], offers: Iterable[str] | None, only: Sequence[str]
) -> tuple[list[Backend], dict[str, DroppedBackend]]:
    wanted = set(only)
    described = {name: b for name, b in backends.items() if not wanted or name in wanted}
    # By name before the first step, and every sort is stable: ties go to the first in the alphabet.
    pool = [described[name] for name in sorted(described)]
    if offers is None:
        return pool, {}
    offered = set(offers)
    dropped = {b.name: DroppedBackend(b, NOT_OFFERED) for b in pool if b.name not in offered}
    for name in sorted(offered - set(described)):
        if not wanted or name in wanted:
            dropped[name] = DroppedBackend(Backend(name), NOT_DESCRIBED)
    return [b for b in pool if b.name in offered], dropped


def _unknown_names(backends: Mapping[str, Backend], only: Sequence[str]) -> list[str]:
    unknown = sorted(set(only) - set(backends))
    return [f"select-candidates names {', '.join(unknown)}, which no provider describes"] if unknown else []


def audit(selection: BackendSelection, *, resolved_at: str) -> str:
    """The ``select-result`` annotation: compact ASCII JSON, so that it fits any quoting.

    Names and steps only. Attributes and the numbers in reasons stay with the user: they are prices, queues
    and entitlements of an account, and errors of queries can name it.
    """
    record: dict[str, object] = {
        "chosen": selection.chosen.name,
        "policy": selection.policy,
        "candidates": [{"name": b.name} for b in selection.ranked[:AUDITED_CANDIDATES]],
    }
    drops = sorted(selection.dropped.items())
    if drops:
        record["dropped"] = {name: _public_reason(drop) for name, drop in drops[:AUDITED_DROPS]}
    notes = list(selection.notes)
    left_out = max(0, len(selection.ranked) - AUDITED_CANDIDATES) + max(0, len(drops) - AUDITED_DROPS)
    if left_out:
        notes.append(f"{left_out} more backends are left out here")
    if notes:
        record["notes"] = notes
    record["resolved_at"] = resolved_at
    return json.dumps(record, separators=(",", ":"))


def _public_reason(drop: DroppedBackend) -> str:
    return drop.step or drop.reason


def plain_number(value: float) -> float | int:
    """24, not 24.0."""
    return int(value) if float(value).is_integer() and abs(value) < 2**53 else value


PROVIDERS: Final = "fluence.select.providers"
POLICIES: Final = "fluence.select.policies"

OWN_FIRST: Final = ("configmap", "file")
OWN_LAST: Final = ("braket-live",)


def load_providers(settings: ProviderSettings, *, only: Sequence[str] = ()) -> list[Provider]:
    """The providers to use, in order; *only* restricts them by name."""
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
    """The plug-in policy that *token* names, or None."""
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
