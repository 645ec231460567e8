"""Names in natural order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fluence.units import natural_key


def test_numbers_in_a_name_count_as_numbers() -> None:
    names = ["n10", "n2", "n", "n2a", "10", "9", "rack2-n1", "rack10-n1", "n02"]
    wanted = ["9", "10", "n", "n02", "n2", "n2a", "n10", "rack2-n1", "rack10-n1"]
    assert sorted(names, key=natural_key) == wanted


@given(st.lists(st.text(max_size=12)))
def test_the_order_does_not_depend_on_what_came_first(names: list[str]) -> None:
    backwards = names[::-1]
    assert sorted(names, key=natural_key) == sorted(backwards, key=natural_key)
