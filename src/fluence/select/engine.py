"""The engine: intersect the described backends with the offered ones, run the policies, keep the trail."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from fluence.errors import FluenceError
from fluence.select.backend import QUERY_ERROR, Backend, BackendRequest
from fluence.select.policies import BackendPolicy, NoCandidate

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
    """What was chosen and why: the backends still in at the end, best first, and all that were dropped."""

    policy: str
    ranked: list[Backend]
    dropped: dict[str, DroppedBackend]
    notes: list[str] = []

    @property
    def chosen(self) -> Backend:
        return self.ranked[0]


class NoBackend(FluenceError):
    """Nothing can be chosen; ``trail`` holds what was dropped on the way, and what was still in."""

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
    request: BackendRequest | None = None,
    notes: Sequence[str] = (),
) -> BackendSelection:
    """Choose one of *backends* by *pipeline*; *offers* None: nobody knows what the cluster offers."""
    request = request or BackendRequest()
    pool, dropped = _intersect(backends, offers, only)
    unknown = _unknown_names(backends, only)
    said = [*notes, *([OFFERS_UNKNOWN] if offers is None else []), *unknown]
    trail = BackendSelection(policy, pool, dropped, said)
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
        trail = BackendSelection(policy, pool, dropped, said)
        if not pool:
            raise NoBackend(f'policy "{step.token}" removed all candidates', trail)
    return trail


def _apply(
    step: BackendPolicy, pool: Sequence[Backend], request: BackendRequest
) -> tuple[list[Backend], dict[str, DroppedBackend]]:
    """One step; it may be somebody else's, so it must keep or drop each of the pool and nothing else."""
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

    What a query answered with an error stays out: such texts can name the user's account.
    """
    record: dict[str, object] = {
        "chosen": selection.chosen.name,
        "policy": selection.policy,
        "candidates": [_audited(b) for b in selection.ranked[:AUDITED_CANDIDATES]],
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


def _audited(backend: Backend) -> dict[str, object]:
    fields: dict[str, object] = {"name": backend.name}
    for key in ("device_arn", "region", "provider"):
        if value := getattr(backend, key):
            fields[key] = value
    if backend.attributes:
        fields["attributes"] = {key: plain_number(value) for key, value in backend.attributes.items()}
    strings = {key: value for key, value in backend.strings.items() if key != QUERY_ERROR}
    if strings:
        fields["strings"] = strings
    return fields


def _public_reason(drop: DroppedBackend) -> str:
    error = drop.backend.text(QUERY_ERROR)
    return str(drop).removesuffix(f": {error}") if error else str(drop)


def plain_number(value: float) -> float | int:
    """24, not 24.0."""
    return int(value) if float(value).is_integer() and abs(value) < 2**53 else value
