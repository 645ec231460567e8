"""Backoff: pauses double up to a bound, for any number of failures."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from fluence.backoff import Backoff


def test_the_pause_doubles_until_it_is_the_longest() -> None:
    backoff = Backoff(1_000, 10_000)
    assert [backoff.after(failures) for failures in range(6)] == [0, 1_000, 2_000, 4_000, 8_000, 10_000]
    assert backoff.after(10**6) == 10_000


def test_the_pause_after_a_pause_is_twice_as_long() -> None:
    backoff = Backoff(0.5, 3.0)
    assert (backoff.longer(0.5), backoff.longer(2.0), backoff.longer(3.0)) == (1.0, 3.0, 3.0)


@given(st.floats(0, 100), st.floats(0, 1000), st.integers(0, 2000), st.integers())
def test_a_jittered_pause_is_a_part_of_the_pause(
    first: float, longest: float, failures: int, seed: int
) -> None:
    backoff = Backoff(first, longest)
    assert 0 <= backoff.jittered(failures, random.Random(seed)) <= backoff.after(failures) <= longest
