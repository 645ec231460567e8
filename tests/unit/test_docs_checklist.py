"""docs/checklist.md names a test, or a reason, for each item, and every test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "checklist.md").read_text()
ITEMS = [*range(1, 34), *range(41, 47)]
_NAMED = re.compile(r"`([\w/]+\.py)::(test_\w+)`")
_ROW = re.compile(r"^\| (\d+) \| (.+?) \| (.+?) \|$", re.MULTILINE)


def test_every_item_has_a_row_with_a_test_or_a_reason() -> None:
    rows = {int(number): shown for number, _, shown in _ROW.findall(PAGE)}
    assert sorted(rows) == ITEMS
    without = [number for number, shown in rows.items() if not _NAMED.search(shown)]
    assert without == [41], "only a measurement stands for a test"


def test_every_test_that_is_named_exists() -> None:
    named = _NAMED.findall(PAGE)
    assert len(named) > len(ITEMS)
    tests: dict[str, set[str]] = {}
    for path, name in named:
        if path not in tests:
            tree = ast.parse((ROOT / "tests" / path).read_text())
            functions = (ast.FunctionDef, ast.AsyncFunctionDef)
            tests[path] = {node.name for node in ast.walk(tree) if isinstance(node, functions)}
        assert name in tests[path], f"{path}::{name} is not there"


def test_tests_on_a_real_server_end_with_the_audit() -> None:
    """Where a test has a control plane of its own, it says how it looks at what happened."""
    own = {"own_sandbox", "gateless", "inside"}
    for path, name in _NAMED.findall(PAGE):
        if not path.startswith("integration/schedule/test_checklist"):
            continue
        tree = ast.parse((ROOT / "tests" / path).read_text())
        (test,) = [
            node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef) and node.name == name
        ]
        asked = {each.arg for each in test.args.args}
        assert "audited" in asked or asked & own, f"{name} is not audited"
