"""Label selectors as kubectl writes them: ``a=b,c!=d,e in (f, g),h,!i``."""

from __future__ import annotations

import re

from fluence.model.meta import Requirement

_MAX = 64
_KEY = r"[A-Za-z0-9]([-A-Za-z0-9_./]*[A-Za-z0-9])?"
_VALUE = r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_SET = re.compile(rf"(?P<key>{_KEY})\s+(?P<operator>in|notin)\s*\(\s*(?P<values>[^()]*)\)")
_EQUAL = re.compile(rf"(?P<key>{_KEY})\s*(?P<operator>==|=|!=)\s*(?P<value>{_VALUE})")
_EXISTS = re.compile(rf"(?P<absent>!?)\s*(?P<key>{_KEY})")
_COMMA = re.compile(r",(?![^()]*\))")


def parse_selector(text: str) -> tuple[Requirement, ...]:
    """The requirements of a selector; ValueError says which part is wrong."""
    parts = [part.strip() for part in _COMMA.split(text) if part.strip()]
    if len(parts) > _MAX:
        raise ValueError(f"more than {_MAX} requirements")
    return tuple(_requirement(part) for part in parts)


def _requirement(part: str) -> Requirement:
    if match := _SET.fullmatch(part):
        values = [value.strip() for value in match["values"].split(",")]
        return Requirement(match["key"], "In" if match["operator"] == "in" else "NotIn", values)
    if match := _EQUAL.fullmatch(part):
        return Requirement(match["key"], "NotIn" if match["operator"] == "!=" else "In", [match["value"]])
    if match := _EXISTS.fullmatch(part):
        return Requirement(match["key"], "DoesNotExist" if match["absent"] else "Exists")
    raise ValueError(
        f"{part[:60]!r} is not a requirement: write key=value, key!=value, key in (a, b), key or !key"
    )
