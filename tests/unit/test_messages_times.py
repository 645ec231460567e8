"""Times and states in words."""

from __future__ import annotations

import pytest

from fluence.messages.rendering import start_sentence, when
from fluence.model.job_state import JobState

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


@pytest.mark.parametrize(
    ("latest", "expected", "firm", "endless", "sentence"),
    [
        (60, 58, False, False, "Starts by 10:55 UTC (expected 10:53), if running jobs keep their limits."),
        (60, 58, True, False, "Starts by 10:55 UTC (expected 10:53)."),
        (60, None, True, False, "Starts by 10:55 UTC."),
        (60, None, False, True, "Starts by 10:55 UTC, if running jobs keep their limits."),
        (1500, 600, True, False, "Starts by 2026-09-02 10:55 UTC (expected 19:55)."),
        (None, 58, False, True, "Expected to start at 10:53 UTC."),
        (None, None, False, True, "The start is unknown."),
        (None, None, True, False, ""),
    ],
)
def test_the_sentence_about_the_start(
    latest: int | None, expected: int | None, firm: bool, endless: bool, sentence: str
) -> None:
    now = AT + 50_000
    times = [None if minutes is None else now + minutes * 60_000 for minutes in (latest, expected)]
    assert start_sentence(times[0], times[1], firm=firm, endless=endless, now=now) == sentence


PHASES = [
    "Held",
    "Refused",
    "Pending",
    "Reserved",
    "Unschedulable",
    "Starting",
    "Running",
    "Completed",
    "Failed",
    "Cancelled",
]


def test_every_state_has_a_phase_that_fluxjobs_know_and_is_read_back() -> None:
    assert {state.phase for state in JobState} == set(PHASES)
    assert all(JobState(phase).phase == phase for phase in PHASES)


def test_the_values_of_earlier_versions_are_read() -> None:
    assert [JobState(each) for each in ("never", "binding", "done", "incomplete")] == [
        JobState.UNSCHEDULABLE,
        JobState.STARTING,
        JobState.COMPLETED,
        JobState.GATHERING,
    ]
    assert JobState.UNSCHEDULABLE.stored_as == ("unschedulable", "never")


@pytest.mark.parametrize("text", ["", "nonsense", "PENDING", "pending "])
def test_other_words_are_no_states(text: str) -> None:
    with pytest.raises(ValueError, match="is not a valid JobState"):
        JobState(text)
