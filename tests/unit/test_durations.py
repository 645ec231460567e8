"""Durations, in the ways people write them."""

from __future__ import annotations

import pytest

from fluence.units import format_duration, parse_duration, round_duration


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("3600", 3_600_000),
        ("0", 0),
        ("1.5", 1500),
        ("90s", 90_000),
        ("2h30m", 9_000_000),
        ("1.5h", 5_400_000),
        ("1d", 86_400_000),
        ("250ms", 250),
        (" 10m ", 600_000),
        ("0.0001", 1),
    ],
)
def test_a_duration_is_read(text: str, ms: int) -> None:
    assert parse_duration(text) == ms


@pytest.mark.parametrize(
    "text", ["", "soon", "-1", "1h ago", "h", "1x", "1e3", "inf", "٣", "1h-2m", "9" * 20]
)
def test_anything_else_is_not(text: str) -> None:
    assert parse_duration(text) is None


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
