"""The columns that graphs, ledgers and searches are made of: arrays with one entry per vertex or span."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Rows: TypeAlias = npt.NDArray[np.int32]
Mask: TypeAlias = npt.NDArray[np.bool_]

NO_ROWS: Rows = np.empty(0, np.int32)


def scalars(column: npt.NDArray[Any]) -> Sequence[int]:
    """A column to read one number at a time: a memoryview costs a third of what numpy asks for that."""
    return cast("Sequence[int]", memoryview(column))  # type: ignore[arg-type]
