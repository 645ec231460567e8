"""Unknown annotations: labels and annotations with our prefix that have no effect: misspelt, or in the wrong
place.

`annotations` calls it. A misspelt `durration` is not a fault: the gang can be placed, but not as its user
meant. So it is a warning, with the nearest known name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from difflib import get_close_matches
from functools import lru_cache

from fluence import names
from fluence.model.reason import Code, Reason

MOST = 8  # warnings per gang
_SHOWN = 120  # characters of a name that a reason shows
_PREFIX = f"{names.PREFIX}/"


def _ours(found: Iterable[object]) -> Iterator[str]:
    for each in found:
        if isinstance(each, tuple):
            yield from _ours(each)
        elif isinstance(each, str) and each.startswith(_PREFIX):
            yield each


_OPEN = (names.REQUIRE, names.AT_LEAST, names.AT_MOST, names.ATTRIBUTE)
"""Prefixes of names that end in the name of an attribute."""
KNOWN = frozenset(_ours(vars(names).values())).difference(_OPEN)
"""Every fixed name with our prefix."""
LABELS = frozenset(_ours((names.GROUP_NAMES, names.GROUP_SIZES)))
"""The names that are also read as labels."""
_WRITTEN = frozenset(  # by programs, so they are not suggested to users
    (
        names.JOBID,
        names.ALLOCATION,
        names.WARNED,
        names.QUEUED,
        names.START_PROMISED,
        names.WAIT_REPORTED,
        names.SELECT_RESULT,
        names.BACKEND,
        names.PRODUCER_STARTED,
        names.GATE_OPENED,
        names.SUBMITTED_BY,
    )
)
_SUGGESTED = sorted(key.removeprefix(_PREFIX) for key in KNOWN - _WRITTEN)


def unread(annotations: Iterable[Collection[str]], labels: Iterable[Collection[str]]) -> tuple[Reason, ...]:
    """Warnings about the names of the annotations and labels of some objects."""
    found = {("annotation", key) for keys in annotations for key in keys if _is_unread(key, KNOWN)}
    found |= {("label", key) for keys in labels for key in keys if _is_unread(key, LABELS)}
    return tuple(_warning(kind, key) for kind, key in sorted(found)[:MOST]) if found else ()


def _is_unread(key: str, known: frozenset[str]) -> bool:
    return key.startswith(_PREFIX) and key not in known and not key.startswith(_OPEN)


@lru_cache(maxsize=1024)
def _warning(kind: str, key: str) -> Reason:
    if key in KNOWN:
        return Reason.of(Code.LABEL_NOT_READ, key=key)
    near = get_close_matches(key.removeprefix(_PREFIX)[:_SHOWN].lower(), _SUGGESTED, 1)
    nearest = f"{_PREFIX}{near[0]}" if near else None
    return Reason.of(Code.UNKNOWN_ANNOTATION, kind=kind, key=key[:_SHOWN], nearest=nearest)
