"""Single fields of a record that people write: times, whole numbers, names; a wrong one is a bad record."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

from fluence.model.document import integer, real, scalar, show
from fluence.sim.intake import MAX_SECONDS, BadRecord

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"([0-9.eE+-]+?)\s*(ms|[smhd])")
_MAX_NUMBER = 2**40


def mapping(value: object, field: str, keys: Sequence[str]) -> dict[str, object]:
    """A mapping that has no other keys than these."""
    if not isinstance(value, dict):
        _fail("invalid field", f"must be a mapping, not {show(value)}", field)
    for key in value:
        if key not in keys:
            _fail(
                "unknown field", f"is not a field here: use {', '.join(keys)}", f"{field} {show(key)}".strip()
            )
    return value


def seconds(given: Mapping[str, object], field: str, *, least: float = 0) -> float | None:
    """A time: a number of seconds, or Flux's way to write one, such as 30m, 2h or 1.5d (RFC 23)."""
    value = given.get(field)
    if value is None:
        return None
    text = scalar(value)
    match = None if text is None else _DURATION.fullmatch(text.strip())
    number = real(text if match is None else match[1]) if text is not None else None
    if number is None or not math.isfinite(number):
        _fail("not a number", f"must be seconds, or a time such as 30m or 2h, not {show(value)}", field)
    number *= 1 if match is None else _UNITS[match[2]]
    if number < 0:
        _fail("negative time", f"must be 0 or more seconds, not {show(value)}", field)
    if not least <= number <= MAX_SECONDS:
        _fail("impossible time", f"must be {least:g} to {MAX_SECONDS} seconds, not {show(value)}", field)
    return number


def whole(given: Mapping[str, object], field: str, *, least: int = 0, most: int = _MAX_NUMBER) -> int | None:
    """A whole number."""
    return None if given.get(field) is None else as_whole(given[field], field, least=least, most=most)


def as_whole(value: object, field: str, *, least: int = 0, most: int = _MAX_NUMBER) -> int:
    text = scalar(value)
    number = None if text is None else integer(text)
    if number is None:
        _fail("not a number", f"must be a whole number, not {show(value)}", field)
    if not least <= number <= most:
        _fail("impossible size", f"must be {least} to {most}, not {show(value)}", field)
    return number


def number(given: Mapping[str, object], field: str, *, least: float, most: float) -> float | None:
    """A number that may have a fraction."""
    value = given.get(field)
    if value is None:
        return None
    text = scalar(value)
    amount = None if text is None else real(text)
    if amount is None:
        _fail("not a number", f"must be a number, not {show(value)}", field)
    if not least <= amount <= most:
        _fail("invalid field", f"must be {least:g} to {most:g}, not {show(value)}", field)
    return amount


def name(given: Mapping[str, object], field: str) -> str:
    """Text, or nothing."""
    return "" if given.get(field) is None else as_name(given[field], field)


def as_name(value: object, field: str) -> str:
    text = scalar(value)
    if text is None or len(text) > 256 or not text.isprintable():
        _fail("invalid field", f"must be a short text on one line, not {show(value)}", field)
    return str(text)


def truth(given: Mapping[str, object], field: str, *, default: bool) -> bool:
    """true or false."""
    value = given.get(field)
    if value is None:
        return default
    text = scalar(value)
    if text not in ("true", "false"):
        _fail("invalid field", f"must be true or false, not {show(value)}", field)
    return text == "true"


def _fail(cause: str, message: str, field: str) -> NoReturn:
    raise BadRecord(cause, message, field=field)
