"""The public API is what `__all__` says, and loads only what is used."""

import subprocess
import sys

import pytest

import fluence


def test_everything_in_all_can_be_imported() -> None:
    for name in fluence.__all__:
        assert getattr(fluence, name) is not None


def test_all_is_sorted_small_and_the_same_as_the_table() -> None:
    assert len(fluence.__all__) <= 26
    assert len(set(fluence.__all__)) == len(fluence.__all__)
    assert {*fluence._HOME, "__version__"} == set(fluence.__all__)
    assert set(fluence.__all__) <= set(dir(fluence))


def test_star_import_gives_all() -> None:
    space: dict[str, object] = {}
    exec("from fluence import *", space)
    assert set(fluence.__all__) <= set(space)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = fluence.Nonsense


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import fluence", ("numpy", "msgspec", "yaml", "click", "importlib.metadata")),
        ("from fluence import FluenceError, Jobspec", ("numpy", "click")),
        ("import fluence.cli", ("numpy", "yaml", "msgspec")),
    ],
)
def test_importing_does_not_load(code: str, absent: tuple[str, ...]) -> None:
    check = f"import sys; {code}; print(*(m for m in {absent!r} if m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
