"""Times and states in words."""

from __future__ import annotations

import pytest

from fluence.messages.states import STATES, word
from fluence.messages.times import when
from fluence.queue.job import Phase

AT = 1_788_256_450_000  # 2026-09-01 09:54:10


@pytest.mark.parametrize(
    ("away", "told"),
    [
        (40_000, "2026-09-01 09:54:10 UTC (in 40 s)"),
        (0, "2026-09-01 09:54:10 UTC (now)"),
        (-90_000, "2026-09-01 09:54:10 UTC (1 min 30 s ago)"),
    ],
)
def test_a_moment_is_told_with_how_far_away_it_is(away: int, told: str) -> None:
    assert when(AT, AT - away) == told


def test_a_simulation_has_no_dates() -> None:
    assert when(600_000, 0) == "in 10 min"


def test_a_bound_is_never_told_too_early() -> None:
    assert when(AT + 1, AT).startswith("2026-09-01 09:54:11")


def test_every_phase_has_its_word() -> None:
    assert set(STATES) == set(Phase)
    assert [word(each) for each in ("never", "binding", "done", "incomplete")] == [
        "Unschedulable",
        "Starting",
        "Succeeded",
        "Pending",
    ]
