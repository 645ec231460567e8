"""The picture of the policies in docs/queue.md is what the queue does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fluence.queue import Queue
from tests.unit.queue.build import MINUTE, finish_at_limits, job, pool, run

PAGE = (Path(__file__).parents[3] / "docs" / "queue.md").read_text()
JOBS = {"A": (2, 4), "B": (3, 3), "C": (4, 2), "D": (2, 6), "E": (1, 8), "F": (1, 3)}


def drawn() -> dict[str, dict[str, int]]:
    """Per policy, when each job starts in the picture."""
    found: dict[str, dict[str, int]] = {}
    for block in re.findall(r"^([a-z-]+) {2,}((?:.*\n){4})", PAGE.split("in this order:")[1], re.M):
        lanes = [re.findall(r"[A-F·]", re.split(r" {4,}", line.strip())[0]) for line in block[1].splitlines()]
        found[block[0]] = {
            key: min(lane.index(key) for lane in lanes if key in lane)
            for key in JOBS
            if any(key in lane for lane in lanes)
        }
    return found


def happens(queue: Queue) -> dict[str, int]:
    for key, (size, minutes) in JOBS.items():
        queue.submit(job(key, size, minutes))
    now, starts = 0, {}  # type: ignore[var-annotated]
    for _ in range(50):
        starts |= dict.fromkeys(run(queue, now), now // MINUTE)
        due = queue.next_due()
        if due is None:
            break
        now = due
        finish_at_limits(queue, now)
    return starts


@pytest.mark.parametrize("policy", ["fcfs", "first-fit", "easy", "conservative"])
def test_jobs_start_where_they_are_drawn(policy: str) -> None:
    assert drawn()[policy] == happens(pool(policy, cores=4))


def test_hybrid_comes_out_like_conservative_here() -> None:
    assert drawn()["conservative"] == happens(pool("hybrid(2)", cores=4))
