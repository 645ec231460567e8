"""The natural order of names, and times as people read them."""

import pytest

from fluence.model.natural import natural
from fluence.units import format_duration, round_duration


def test_numbers_in_names_count_by_their_value() -> None:
    names = ["n10", "n2", "rack10-n1", "rack9-n20", "rack9-n3", "n", "10", "9"]
    expected = ["9", "10", "n", "n2", "n10", "rack9-n3", "rack9-n20", "rack10-n1"]
    assert sorted(names, key=natural) == expected


@pytest.mark.parametrize(
    ("seconds", "exact", "rough"),
    [
        (0, "0s", "0 s"),
        (59, "59s", "59 s"),
        (90, "1m30s", "1.5 min"),
        (5400, "1h30m", "1.5 h"),
        (129_600, "1d12h", "1.5 d"),
        (90_061, "1d1h1m", "1.0 d"),
    ],
)
def test_a_length_of_time(seconds: int, exact: str, rough: str) -> None:
    assert (format_duration(seconds), round_duration(seconds)) == (exact, rough)
