"""The history of jobs and the outbox, in SQL; the only room that uses SQL.

No decision depends on it: it is written asynchronously (`fluence.live.history_writer`), and a database that
is slow, full or gone affects no job. `tables` defines the tables, `history_store` writes and deletes,
`queries` reads, `database` connects. This module imports no SQL, so that the scheduler starts without it.
"""

from __future__ import annotations

from dataclasses import dataclass

from fluence.errors import FluenceError


class HistoryUnavailable(FluenceError):
    """A database operation failed. ``is_refusal``: a retry would fail too."""

    def __init__(self, message: str, *, is_refusal: bool = False) -> None:
        super().__init__(message)
        self.is_refusal = is_refusal


@dataclass(frozen=True, slots=True)
class Retention:
    """The bounds of the history by age and by size; None: no bound."""

    age_ms: int | None = None
    size: int | None = None  # bytes


@dataclass(frozen=True, slots=True)
class Writer:
    """The writer of entries. It never closes the rows of other writers."""

    cluster: str = ""
    scheduler: str = ""
