"""Names in natural order: `n2` before `n10`. For every room that sorts pods or nodes for people."""

from __future__ import annotations

import re
from functools import lru_cache

_DIGITS = re.compile(r"([0-9]+)", re.ASCII)


@lru_cache(maxsize=65_536)  # the same names are sorted again and again
def natural_key(name: str) -> tuple[tuple[int, str], ...]:
    """The sort key that puts `n2` before `n10`.

    >>> sorted(["n10", "n2", "n"], key=natural_key)
    ['n', 'n2', 'n10']
    """
    # Text and numbers alternate, so a number is only ever compared with a number. The name itself comes last:
    # `n2` and `n02` differ.
    parts = enumerate(_DIGITS.split(name))
    return (*((int(part), "") if i % 2 else (0, part) for i, part in parts), (-1, name))
