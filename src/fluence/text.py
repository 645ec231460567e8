"""Names in natural order: `n2` before `n10`. For every room that sorts pods or nodes for people."""

from __future__ import annotations

import re

_DIGITS = re.compile(r"([0-9]+)", re.ASCII)


def natural_key(name: str) -> tuple[tuple[int, str], ...]:
    """The sort key that puts `n2` before `n10`.

    >>> sorted(["n10", "n2", "n"], key=natural_key)
    ['n', 'n2', 'n10']
    """
    # Text and numbers alternate, so a number is only ever compared with a number.
    return tuple((int(part), "") if i % 2 else (0, part) for i, part in enumerate(_DIGITS.split(name)))
