"""Any story of jobs, writes, failures and crashes leaves the rows that a plain model says (SQLite)."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given

from fluence.model.job_entry import JobState
from tests.property.history_model import actions, check


@given(actions)
@example([("submit", 1), ("start", 1), ("end", 1, JobState.COMPLETED), ("submit", 1), ("write", 1)])
@example([("submit", 1), ("start", 1), ("write", 1), ("end", 1, JobState.FAILED), ("restart",)])
@example([("submit", 1), ("write", 1), ("withdraw", 1), ("write", 1), ("submit", 1), ("restart",)])
@example([("submit", 1), ("promise", 1), ("write", 1), ("restart",), ("start", 1), ("fail",), ("write", 1)])
def test_the_rows_are_those_of_the_model(story: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory(prefix="fluence-history-") as folder:
        check(str(Path(folder, "history.db")), story)
