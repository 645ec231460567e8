"""The profile of what is to come gives the answers of a walk through all jobs."""

from __future__ import annotations

from itertools import chain
from typing import TypeAlias

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from fluence.placer.profile import FreeView, JobChange, Profile, SlotsOverTime, WindowSweep

ROWS, SIZE, END = 4, 6, 12

jobs = st.lists(
    st.tuples(
        st.integers(1, END - 2),
        st.integers(1, END),
        st.dictionaries(st.integers(0, ROWS - 1), st.integers(1, 4), min_size=1),
        st.booleans(),
    ),
    max_size=6,
)

Jobs: TypeAlias = list[tuple[int, int, dict[int, int], bool]]
"""Of each job its start, its length, what it takes of which row, and whether it runs."""


def changes(found: Jobs) -> list[list[JobChange]]:
    """Of each job: its start, unless it runs already, and its end."""
    made = []
    for number, (start, length, takes, runs) in enumerate(found):
        rows = np.array(list(takes), np.int32)
        taken = np.array(list(takes.values()), np.int64)
        end = JobChange(number, min(start + length, END), -1, rows, taken)
        made.append([end] if runs else [JobChange(number, start, 1, rows, taken), end])
    return made


def view(found: Jobs) -> FreeView:
    free, users = np.full(ROWS + 1, SIZE, np.int64), np.zeros(ROWS + 1, np.int64)
    for _, _, takes, runs in found:
        for row, amount in takes.items():
            free[row] -= amount * runs
            users[row] += runs
    free[-1] = 0
    return FreeView(free, users)


def free_at(found: Jobs, row: int, time: int) -> int:
    left = SIZE
    for start, length, takes, runs in found:
        if (runs or start <= time) and time < min(start + length, END):
            left -= takes.get(row, 0)
    return left


@given(jobs, st.lists(st.integers(1, END - 1), min_size=1, max_size=4).map(sorted), st.integers(1, END))
def test_a_sweep_says_of_each_window_what_the_profile_says(
    found: Jobs, times: list[int], length: int
) -> None:
    profile, now = Profile(list(chain.from_iterable(changes(found)))), view(found)
    sweep = WindowSweep(profile, now)
    for time in times:
        least = profile.throughout(profile.at(now, time), time, time + length)
        swept = sweep.throughout(time, time + length)
        assert swept.free[:ROWS].tolist() == least.free[:ROWS].tolist()
        assert swept.users[:ROWS].tolist() == least.users[:ROWS].tolist()
    assert now.free.tolist() == view(found).free.tolist(), "what is free now is left as it was"


@given(jobs, st.permutations(range(6)), st.integers(1, END - 1), st.integers(1, END))
def test_it_knows_what_is_free_then_and_throughout(
    found: Jobs, order: list[int], time: int, length: int
) -> None:
    made = changes(found)
    profile = Profile([])
    for number in order:  # in any order, and some leave again
        if number < len(made):
            for change in made[number]:
                profile.add(change)
    ghost = [
        JobChange(99, change.time, change.sign, change.rows, change.taken)
        for change in list(chain.from_iterable(made))
    ]
    for change in ghost:
        profile.add(change)
    profile.remove(99, sum(change.sign > 0 for change in ghost))
    whole = Profile(list(chain.from_iterable(made)))
    for name in ("rows", "times", "users"):
        assert getattr(profile, name).tolist() == getattr(whole, name).tolist()
    now, end = view(found), time + length
    then = profile.at(now, time)
    assert then.free[:ROWS].tolist() == [free_at(found, row, time) for row in range(ROWS)]
    least = profile.throughout(then, time, end)
    for row in range(ROWS):
        assert least.free[row] == min(free_at(found, row, at) for at in range(time, end))


@given(jobs, st.integers(1, 3), st.integers(1, 6), st.integers(1, 4))
def test_its_bound_on_seats_is_the_number_at_every_instant(
    found: Jobs, amount: int, wanted: int, most: int
) -> None:
    profile, now = Profile(list(chain.from_iterable(changes(found)))), view(found)
    where = np.array([0, 1, -1, 2, -1])
    seats = SlotsOverTime(profile, now, where, amount, most)
    starts = np.arange(1, END)
    for length in (1, 3, END):
        told = seats.suffice(wanted, starts, starts + length)
        for start, enough in zip(starts.tolist(), told.tolist(), strict=True):
            sums = [
                sum(min(most, max(0, free_at(found, row, at) // amount)) for row in (0, 1, 3))
                for at in range(start, start + length)
            ]
            assert enough == (min(sums) >= wanted)


@given(jobs)
def test_it_names_the_jobs_that_begin_where_too_much_is_taken(found: Jobs) -> None:
    profile = Profile(list(chain.from_iterable(changes(found))))
    told = profile.overbooked(view(found))
    for number, (start, length, takes, runs) in enumerate(found):
        if not runs:
            short = any(
                free_at(found, row, at) < 0 for row in takes for at in range(start, min(start + length, END))
            )
            assert (number in told) == short
