"""The natural order of names: node2 before node10."""

from __future__ import annotations

import re

_PARTS = re.compile(r"(\d+)")


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key to sort names by: numbers in them by their value, the rest as text."""
    parts = _PARTS.split(name)
    return tuple((0, int(part), "") if i % 2 else (1, 0, part) for i, part in enumerate(parts))
