import pytest

from fluence.errors import InvalidInput
from fluence.model import idset


@pytest.mark.parametrize(
    ("text", "ids"),
    [("", []), ("[]", []), ("7", [7]), ("0-3,7", [0, 1, 2, 3, 7]), ("[1,3-4]", [1, 3, 4]), ("0,,2", [0, 2])],
)
def test_decode(text: str, ids: list[int]) -> None:
    assert idset.decode(text) == ids


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("5,1-3", "out of order"),
        ("1,1", "out of order"),
        ("3-1", "does not ascend"),
        ("3-3", "does not ascend"),
        ("01", "no id or range"),
        ("-1", "no id or range"),
        ("1 ", "no id or range"),
        ("٣", "no id or range"),
        ("[1", "brackets"),
        ("[[1]]", "brackets"),
        ("4294967295", "too large"),
        ("0-4294967294", "at most"),
    ],
)
def test_decode_names_the_fault(text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        idset.decode(text)


def test_ranges_are_not_spelled_out() -> None:
    assert idset.decode_ranges("0-4294967294") == [(0, 4294967294)]


def test_encode_sorts_and_joins() -> None:
    assert idset.encode([7, 2, 0, 1, 3, 2]) == "0-3,7"
    assert idset.encode([4, 5]) == "4-5"
    assert idset.encode([]) == ""
    with pytest.raises(InvalidInput, match="negative"):
        idset.encode([-1])
