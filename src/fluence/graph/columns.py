"""The columns that graphs, ledgers and searches are made of: arrays with one entry per vertex or span.

`Interner` keeps words as small integers, so that columns hold numbers and comparisons are cheap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Rows: TypeAlias = npt.NDArray[np.int32]
Mask: TypeAlias = npt.NDArray[np.bool_]

NO_ROWS: Rows = np.empty(0, np.int32)


def scalars(column: npt.NDArray[Any]) -> Sequence[int]:
    """A column for reading single numbers: a memoryview takes a third of the time of numpy for that."""
    return cast("Sequence[int]", memoryview(column))  # type: ignore[arg-type]


# Fluxion interns these before it reads a graph; their order decides the order of types in a pruning filter.
BUILT_IN_TYPES = (
    "cluster",
    "core",
    "socket",
    "gpu",
    "node",
    "rack",
    "slot",
    "xor_slot",
    "ssd",
    "storage_node",
)


class Interner:
    """A two-way table between words and codes 0, 1, 2 … in the order of first appearance."""

    __slots__ = ("_codes", "words")

    def __init__(self, words: Iterable[str] = ()) -> None:
        self.words: list[str] = []
        self._codes: dict[str, int] = {}
        for word in words:
            self.code(word)

    def code(self, word: str) -> int:
        """The code of ``word``, given out now if it is new."""
        code = self._codes.get(word)
        if code is None:
            code = self._codes[word] = len(self.words)
            self.words.append(word)
        return code

    def find(self, word: str) -> int | None:
        """The code of ``word``, or None if it was never seen."""
        return self._codes.get(word)

    def codes(self, words: Iterable[str]) -> list[int]:
        """The codes of many words."""
        words = list(words)
        for word in dict.fromkeys(words):
            self.code(word)
        return list(map(self._codes.__getitem__, words))

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._codes
