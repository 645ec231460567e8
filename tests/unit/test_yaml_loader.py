"""YAML that somebody wrote to do harm is refused at once, with its line."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
import yaml

from fluence.yaml_loader import DEEPEST, MAX_NODES_BY_ALIASES, compose, load, load_all, problem

NINE = ",".join
BOMB = "a: &a0 [x, x]\n" + "".join(f"b{i}: &a{i} [{NINE([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))
MERGES = "a: &a0 {x: 1}\n" + "".join(
    f"b{i}: &a{i} {{<<: [{NINE([f'*a{i - 1}'] * 9)}]}}\n" for i in range(1, 30)
)
ALIASES = "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, DEEPEST + 1))


def all_of(text: str) -> object:
    return list(load_all(text))


@pytest.mark.parametrize("read", [load, compose, all_of])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, f"stands for over {MAX_NODES_BY_ALIASES} values"),
        (MERGES, f"stands for over {MAX_NODES_BY_ALIASES} values"),
        ("[" * 1_000_000, f"nested over {DEEPEST} levels"),
        ("- " * 1_000_000 + "a", f"nested over {DEEPEST} levels"),
        ("{a: " * 1_000_000, f"nested over {DEEPEST} levels"),
        (ALIASES, f"nested over {DEEPEST} levels"),
        ("a: &a [*a]", "refers to itself"),
        ("&a {b: [1, {c: *a, d: *a}]}", "refers to itself"),
    ],
    ids=["bomb", "merges", "lists", "dashes", "mappings", "aliases of aliases", "itself", "itself deeper"],
)
def test_harm_is_refused_at_once(read: Callable[[str], object], text: str, said: str) -> None:
    began = time.process_time()
    with pytest.raises(yaml.YAMLError, match=said) as error:
        read(text)
    assert time.process_time() - began < 2
    assert problem(error.value).startswith("line ")


def test_aliases_that_are_few_are_read_as_ever() -> None:
    text = "a: &a {b: 1, c: [x, y]}\nd: *a\ne: {<<: *a, f: 2}\ng: [*a, *a]\n"
    assert load(text) == yaml.safe_load(text)
    assert load(text.encode()) == yaml.safe_load(text)


def test_a_long_document_is_no_harm() -> None:
    text = "".join(f"- {{name: n{i}, sizes: [1, 2, 3], text: 'a*b'}}\n" for i in range(5000))
    assert load(text)[4999] == {"name": "n4999", "sizes": [1, 2, 3], "text": "a*b"}
    assert load("[" * DEEPEST + "]" * DEEPEST)
