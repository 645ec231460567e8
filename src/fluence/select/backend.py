"""A backend and its attributes: numbers and texts, their providers, and the cost of a request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

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
