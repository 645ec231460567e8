"""Sets of non-negative integers written as text, `0-3,7` (RFC 22).

The rules are those of flux-core: ids ascend, no leading zeros, brackets optional.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fluence.errors import InvalidInput

MAX_ID = 2**32 - 2
MAX_IDS = 2**22  # that `decode` spells out; `decode_ranges` has no such limit

_ELEMENT = re.compile(r"(0|[1-9][0-9]{0,9})(?:-(0|[1-9][0-9]{0,9}))?")


def decode_ranges(text: str) -> list[tuple[int, int]]:
    """The ascending ``(first, last)`` ranges of *text*; empty text is the empty set."""
    inner = text[1:-1] if len(text) >= 2 and text[0] == "[" and text[-1] == "]" else text
    if "[" in inner or "]" in inner:
        raise InvalidInput(f"idset {_show(text)} has unbalanced or nested brackets; write it like 0-3,7")
    ranges: list[tuple[int, int]] = []
    for element in inner.split(","):
        if not element:
            continue  # flux-core skips empty elements
        match = _ELEMENT.fullmatch(element)
        if match is None:
            raise InvalidInput(f"idset {_show(text)}: {_show(element)} is no id or range; write 0-3,7")
        first = int(match[1])
        last = first if match[2] is None else int(match[2])
        if match[2] is not None and last <= first:
            raise InvalidInput(f"idset {_show(text)}: range {_show(element)} does not ascend; turn it around")
        if last > MAX_ID:
            raise InvalidInput(f"idset {_show(text)}: id {last} is too large; the largest is {MAX_ID}")
        if ranges and first <= ranges[-1][1]:
            raise InvalidInput(f"idset {_show(text)}: {_show(element)} is out of order; sort the ids")
        ranges.append((first, last))
    return ranges


def decode(text: str, *, limit: int = MAX_IDS) -> list[int]:
    """The ids of *text*, ascending; more than *limit* are refused."""
    ranges = decode_ranges(text)
    size = sum(last - first + 1 for first, last in ranges)
    if size > limit:
        raise InvalidInput(f"idset {_show(text)} holds {size} ids; at most {limit} are allowed")
    return [i for first, last in ranges for i in range(first, last + 1)]


def encode(ids: Iterable[int]) -> str:
    """The shortest text for *ids*, in any order and with repeats."""
    ordered = sorted(set(ids))
    if ordered and ordered[0] < 0:
        raise InvalidInput(f"an idset holds no negative id, and {ordered[0]} is one")
    parts: list[str] = []
    start = 0
    for i, value in enumerate(ordered):
        if i + 1 == len(ordered) or ordered[i + 1] != value + 1:
            first = ordered[start]
            parts.append(str(first) if first == value else f"{first}-{value}")
            start = i + 1
    return ",".join(parts)


def _show(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:37] + "...")
