"""Policies: pure steps that drop and rank backends by their attributes, composed left to right.

min-<attr>  max-<attr>      keep the best, and those within the tolerance of it
    require:min_X=N  max_X=N    keep those whose X is at least, at most N
    require:X=text              keep those whose X is text
    online-only                 drop those whose status is known and not ONLINE
    prefer:<name>               only this backend if it is available, else no change

Others come from entry points of the group ``fluence.select.policies`` (see fluence.select.engine).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from fluence.errors import FluenceError, InvalidInput

COST: Final = "cost_usd"
QUEUE: Final = "queue_size"
STATUS: Final = "status"
QUERY_ERROR: Final = "query_error"

ALIASES: Final[Mapping[str, str]] = {"cost": COST, "queue": QUEUE}
"""What users write for the attributes that have a unit or a noun in their name."""

DEFAULT_SHOTS: Final = 1000

# Simulators bill by the minute, and the run time is unknown beforehand. A job is assumed to take three
# seconds, the minimum that is billed, so that simulators rank below real devices.
BILLED_MINUTES: Final = 0.05


class Backend(msgspec.Struct, frozen=True):
    """Anything one can choose among: a GPU type, a storage tier, a region, a quantum device."""

    name: str
    device_arn: str | None = None
    region: str | None = None
    provider: str | None = None
    attributes: dict[str, float] = {}
    strings: dict[str, str] = {}
    sources: dict[str, str] = {}
    """Which provider said it, for each key of ``attributes`` and ``strings``."""

    def number(self, key: str) -> float | None:
        """The numeric attribute *key*, or None."""
        return self.attributes.get(key)

    def text(self, key: str) -> str | None:
        """The text *key*: one of ``strings``, or region, provider, name, device_arn."""
        if key in self.strings:
            return self.strings[key]
        fields = {
            "name": self.name,
            "region": self.region,
            "provider": self.provider,
            "device_arn": self.device_arn,
        }
        return fields.get(key)

    @property
    def is_described(self) -> bool:
        return bool(self.attributes or self.strings)


class BackendRequest(msgspec.Struct, frozen=True):
    """The work for which a backend is chosen."""

    shots: int = DEFAULT_SHOTS
    types: frozenset[str] = frozenset()
    """The types of external resources that its containers request."""


def canonical(attribute: str) -> str:
    """The attribute that *attribute* means: ``cost`` is ``cost_usd``, ``queue`` is ``queue_size``."""
    return ALIASES.get(attribute, attribute)


def priced(attributes: Mapping[str, float], *, shots: int) -> dict[str, float]:
    """*attributes* with ``cost_usd`` computed from the cost components, if there are any. Components override
    a given ``cost_usd``, because they include the number of shots.
    """
    result = dict(attributes)
    if "cost_per_task" in result or "cost_per_shot" in result:
        per_task = result.setdefault("cost_per_task", 0.0)
        per_shot = result.setdefault("cost_per_shot", 0.0)
        result[COST] = per_task + shots * per_shot
    elif "cost_per_minute" in result and COST not in result:
        result[COST] = result["cost_per_minute"] * BILLED_MINUTES
    return result


def merge(answers: Iterable[tuple[str, Iterable[Backend]]]) -> dict[str, Backend]:
    """One backend per name, merged from all providers in order; later providers add and override attributes.
    The ARN, region and provider identify a backend, so the first value is kept.
    """
    merged: dict[str, Backend] = {}
    for provider, backends in answers:
        for new in backends:
            sources = dict.fromkeys([*new.attributes, *new.strings], provider)
            old = merged.get(new.name) or Backend(name=new.name)
            merged[new.name] = Backend(
                name=new.name,
                device_arn=old.device_arn or new.device_arn,
                region=old.region or new.region,
                provider=old.provider or new.provider,
                attributes={**old.attributes, **new.attributes},
                strings={**old.strings, **new.strings},
                sources={**old.sources, **sources},
            )
    return merged


KNOWN: Final = (
    "min-<attr>",
    "max-<attr>",
    "require:min_X=N",
    "require:max_X=N",
    "require:X=text",
    "online-only",
    "prefer:<name>",
)

_RANKER = re.compile(r"(min|max)-([^~\s:=]+)(?:~(.*))?")


class NoCandidate(FluenceError):
    """A policy cannot choose among the backends that are left."""


class Verdict(msgspec.Struct, frozen=True):
    """The result of one policy: the backends that stay, best first, and why the others are dropped."""

    kept: list[Backend]
    dropped: dict[str, str] = {}


class BackendPolicy(Protocol):
    """One step of the pipeline. It must be pure: only the pool and the request decide."""

    @property
    def token(self) -> str:
        """The step as the user wrote it."""

    @property
    def needs(self) -> frozenset[str]:
        """The attributes that it reads, so that only the providers that have them are called."""

    def apply(self, pool: Sequence[Backend], request: BackendRequest) -> Verdict:
        """Drop and rank backends; raise NoCandidate if no decision is possible."""


class Rank(msgspec.Struct, frozen=True):
    """Order by a number and narrow to the best, so that the next step breaks the ties."""

    token: str
    attribute: str
    ascending: bool
    tolerance: float = 0.0

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({self.attribute})

    def apply(self, pool: Sequence[Backend], request: BackendRequest) -> Verdict:
        values = {b.name: value for b in pool if (value := b.number(self.attribute)) is not None}
        if not values:
            missing = ",".join(b.name for b in pool)
            raise NoCandidate(
                f'policy "{self.token}": no candidate has attribute "{self.attribute}" (missing: {missing})'
            )
        sign = 1 if self.ascending else -1
        have = sorted((b for b in pool if b.name in values), key=lambda b: sign * _rounded(values[b.name]))
        best = values[have[0].name]
        kept, dropped = [], {b.name: _lacks(b, self.attribute) for b in pool if b.name not in values}
        for backend in have:
            value = values[backend.name]
            if _rounded(abs(value - best)) <= self.tolerance or _rounded(value) == _rounded(best):
                kept.append(backend)
            else:
                side = "above" if self.ascending else "below"
                band = f" by more than {self.tolerance:g}" if self.tolerance else ""
                dropped[backend.name] = f"{self.attribute} {value:g} is {side} the best, {best:g}{band}"
        return Verdict(kept, dropped)


class AttributeBound(msgspec.Struct, frozen=True):
    """Keep the backends whose number is at least, or at most, a limit."""

    token: str
    attribute: str
    is_minimum: bool
    limit: float

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({self.attribute})

    def _why_not(self, backend: Backend) -> str | None:
        value = backend.number(self.attribute)
        if value is None:
            return _lacks(backend, self.attribute)
        if self.is_minimum and value < self.limit:
            return f"{self.attribute} {value:g} is less than {self.limit:g}"
        if not self.is_minimum and value > self.limit:
            return f"{self.attribute} {value:g} is more than {self.limit:g}"
        return None

    def apply(self, pool: Sequence[Backend], request: BackendRequest) -> Verdict:
        return _filter(pool, self._why_not)


class AttributeEqual(msgspec.Struct, frozen=True):
    """Keep the backends whose attribute is a given text, or a given number."""

    token: str
    attribute: str
    wanted: str

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({self.attribute})

    def _why_not(self, backend: Backend) -> str | None:
        text, number = backend.text(self.attribute), backend.number(self.attribute)
        if text is None and number is None:
            return _lacks(backend, self.attribute)
        if text == self.wanted or (number is not None and number == _number(self.wanted)):
            return None
        return f"{self.attribute} is {text if text is not None else f'{number:g}'}, not {self.wanted}"

    def apply(self, pool: Sequence[Backend], request: BackendRequest) -> Verdict:
        return _filter(pool, self._why_not)


class OnlineOnly(msgspec.Struct, frozen=True):
    """Drop backends that are known to be offline; a backend without a status counts as online."""

    token: str = "online-only"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({STATUS})

    @staticmethod
    def _why_not(backend: Backend) -> str | None:
        status = backend.text(STATUS)
        if status is None or status.upper() == "ONLINE":
            return None
        error = backend.text(QUERY_ERROR)
        return f"status is {status}: {error}" if error else f"status is {status}"

    def apply(self, pool: Sequence[Backend], request: BackendRequest) -> Verdict:
        return _filter(pool, self._why_not)


class Prefer(msgspec.Struct, frozen=True):
    """Choose a backend by name if it is available, else leave the choice to the next step."""

    token: str
    name: str

    @property
    def needs(self) -> frozenset[str]:
        return frozenset()

    def apply(self, pool: Sequence[Backend], request: BackendRequest) -> Verdict:
        if all(b.name != self.name for b in pool):
            return Verdict(list(pool))
        return _filter(pool, lambda b: None if b.name == self.name else f"{self.name} is preferred")


def parse_pipeline(
    text: str,
    *,
    tolerance: float = 0.0,
    constraints: str = "",
    extra: Callable[[str], BackendPolicy | None] = lambda token: None,
) -> list[BackendPolicy]:
    """The steps of a ``select-policy``, those of ``select-constraints`` first.

    *tolerance* widens the best set of the cost and queue steps; ``min-x~N`` widens any one step by its own N.
    *extra* finds the policies of others.
    """
    tokens = split_commas(text)
    if not tokens:
        raise InvalidInput("empty selection policy")
    limits = [_require(f"require:{constraint}") for constraint in split_commas(constraints)]
    return [*limits, *(_parse_step(token, tolerance, extra) for token in tokens)]


def split_commas(text: str) -> list[str]:
    """The words between the commas, trimmed, the empty ones left out."""
    return [word for part in text.split(",") if (word := part.strip())]


def _parse_step(token: str, tolerance: float, extra: Callable[[str], BackendPolicy | None]) -> BackendPolicy:
    if token == "online-only":
        return OnlineOnly()
    if token.startswith("prefer:"):
        name = token.removeprefix("prefer:").strip()
        if not name:
            raise InvalidInput(f'malformed prefer "{token}" (want prefer:<name>)')
        return Prefer(token, name)
    if token.startswith("require:"):
        return _require(token)
    # Before the rankers, because a plug-in may be called min-something.
    if other := extra(token):
        return other
    if match := _RANKER.fullmatch(token):
        direction, attribute, own_tolerance = match.groups()
        attribute = canonical(attribute)
        width = tolerance if attribute in (COST, QUEUE) else 0.0
        if own_tolerance is not None:
            number = _number(own_tolerance)
            if number is None or number < 0:
                raise InvalidInput(
                    f'policy "{token}": bad tolerance "{own_tolerance}" (want a number, 0 or more)'
                )
            width = number
        return Rank(token, attribute, direction == "min", width)
    raise InvalidInput(f'unknown policy "{token}" (known: {", ".join(KNOWN)})')


def _require(token: str) -> BackendPolicy:
    key, equals, value = (part.strip() for part in token.removeprefix("require:").partition("="))
    if not equals or not key or not value:
        raise InvalidInput(
            f'malformed require "{token}" (want require:min_X=N, require:max_X=N or require:X=text)'
        )
    bound, _, attribute = key.partition("_")
    if bound not in ("min", "max") or not attribute:
        return AttributeEqual(token, canonical(key), value)
    limit = _number(value)
    if limit is None:
        raise InvalidInput(f'require "{token}": bad number "{value}"')
    return AttributeBound(token, canonical(attribute), bound == "min", limit)


def _filter(pool: Sequence[Backend], why_not: Callable[[Backend], str | None]) -> Verdict:
    reasons = {b.name: why_not(b) for b in pool}
    return Verdict(
        [b for b in pool if reasons[b.name] is None],
        {name: reason for name, reason in reasons.items() if reason is not None},
    )


def _lacks(backend: Backend, attribute: str) -> str:
    error = backend.text(QUERY_ERROR)
    return f'no attribute "{attribute}": {error}' if error else f'no attribute "{attribute}"'


def _rounded(value: float) -> float:
    """Twelve digits: 0.30 + 1000 × 0.0009 and 1.2 are the same cost, although their last bits differ."""
    return float(f"{value:.12g}")


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
