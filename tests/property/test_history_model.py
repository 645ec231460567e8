"""Any story of jobs, writes, failures and crashes leaves the rows that a plain model says (SQLite)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given

from fluence.model.job_state import JobState
from tests.property.history_model import actions, check


@given(actions)
@example([("submit", 1), ("start", 1), ("end", 1, JobState.COMPLETED), ("submit", 1), ("write", 1)])
@example([("submit", 1), ("start", 1), ("write", 1), ("end", 1, JobState.FAILED), ("restart",)])
@example([("submit", 1), ("write", 1), ("withdraw", 1), ("write", 1), ("submit", 1), ("restart",)])
@example([("submit", 1), ("promise", 1), ("write", 1), ("restart",), ("start", 1), ("fail",), ("write", 1)])
# A crash swallows an end, and the next run is there already: the first is over, and its end was not seen.
@example(
    [
        ("submit", 2),
        ("start", 2),
        ("restart",),
        ("end", 2, JobState.COMPLETED),
        ("submit", 2),
        ("restart",),
    ]
)
# It swallows a whole run: the row that waits is that of the next one.
@example(
    [
        ("submit", 2),
        ("write", 1),
        ("start", 2),
        ("end", 2, JobState.COMPLETED),
        ("submit", 2),
        ("restart",),
    ]
)
def test_the_rows_are_those_of_the_model(story: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory(prefix="fluence-history-") as folder:
        check(str(Path(folder, "history.db")), story)
