from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fluence.errors import InvalidInput
from fluence.units import NANO, amount, format_amount, parse_quantity

SUFFIXES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(10**3),
    "M": Fraction(10**6),
    "G": Fraction(10**9),
    "T": Fraction(10**12),
    "P": Fraction(10**15),
    "E": Fraction(10**18),
    "Ki": Fraction(2**10),
    "Mi": Fraction(2**20),
    "Gi": Fraction(2**30),
    "Ti": Fraction(2**40),
    "Pi": Fraction(2**50),
    "Ei": Fraction(2**60),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("100m", 100),
        ("1", 1000),
        ("0.1", 100),
        ("1.5", 1500),
        ("1e3", 1_000_000),
        ("1E-3", 1),
        ("100u", 1),
        (".5", 500),
    ],
)
def test_cpu_is_counted_in_milli_rounded_up(text: str, expected: int) -> None:
    assert amount("cpu", parse_quantity(text)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1Ki", 1024), ("1.5Gi", 1610612736), ("12897484", 12897484), ("129e6", 129000000), ("129M", 129000000),
     ("1m", 1), ("2E", 2 * 10**18), ("0", 0), ("5.", 5), ("+3", 3)],
)  # fmt: skip
def test_the_rest_is_counted_in_whole_units_rounded_up(text: str, expected: int) -> None:
    assert amount("memory", parse_quantity(text)) == expected


@pytest.mark.parametrize("text", ["", "abc", "1 Gi", "1gi", "--1", ".", "1e", "1ee3", "1Gi2", "٣", "9" * 99])
def test_what_is_no_quantity_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInput, match="not a quantity"):
        parse_quantity(text)


@given(st.integers(0, 10**15), st.integers(0, 10**12 - 1), st.sampled_from(sorted(SUFFIXES)))
@example(1, 0, "n")
@example(0, 10**11, "n")
def test_a_quantity_is_exact_to_a_nano_and_rounds_up(number: int, fraction: int, suffix: str) -> None:
    text = f"{number}.{fraction:012d}{suffix}"
    exact = (Fraction(number) + Fraction(fraction, 10**12)) * SUFFIXES[suffix] * NANO
    nanos = parse_quantity(text)
    assert 0 <= nanos - exact < 1


@given(st.integers(0, 2**62), st.sampled_from(["cpu", "memory", "pods", "hugepages-2Mi", "nvidia.com/gpu"]))
def test_an_amount_is_written_so_that_it_reads_back(value: int, resource: str) -> None:
    text = format_amount(resource, value)
    assert amount(resource, parse_quantity(text)) == value
