"""Seen: what of a kind was seen, and what was not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """What of a kind was seen. ``unseen`` is empty if that was all there is, else it says what was not seen
    and why; then an object that is not among the items may exist all the same."""

    items: tuple[T, ...] = ()
    unseen: str = ""
