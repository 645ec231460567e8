"""Host names as Fluxion takes them apart, to name and number nodes: a base and the number at the end."""

from __future__ import annotations

import re

from fluence.errors import InvalidGraph

_NUMBER_AT_END = re.compile(r"[0-9]+\Z")
_LARGEST = 2**63 - 1


def split(hostname: str, *, where: str) -> tuple[str, int]:
    """``node07`` is ``("node", 7)``; without a number the id is -1; a number alone is its own base."""
    found = _NUMBER_AT_END.search(hostname)
    if found is None:
        return hostname, -1
    digits = found[0].lstrip("0")
    if len(digits) > 19 or int(digits or "0") > _LARGEST:
        raise InvalidGraph(
            f"the number at the end of host name {hostname[:40]!r} is too large for an id", where=where
        )
    return hostname[: found.start()] or hostname, int(digits or "0")
