"""Rooms know each other by plain imports, which import-linter sees; modules named in strings are listed here.

`import_module` and tables of `module:attribute` get around the contracts in pyproject.toml. Each place that
needs one is named here with its reason.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fluence"
PAGES = [*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
_MODULE = re.compile(r"fluence(\.[a-z_]+)+:[a-z_]+")
_LOADERS = frozenset(("import_module", "__import__", "entry_points", "find_spec", "find_loader"))

LOADERS = {
    "__init__.py": "the public API loads what is asked for",
    "cli/scheduler.py": "asks whether an optional package is installed",
    "commands/program.py": "loads the command that is called, from its table",
    "plugin_loader.py": "loads plug-ins, by their entry points or as module:name",
    "select/engine.py": "loads plug-ins, by their entry points",
}
"""Modules that load others by name."""

TABLES = {
    "__init__.py": "the public API: what is exported, and where it is",
    "cli/commands.py": "the commands of fluence: --help imports none of them",
    "commands/resources.py": "the commands of fluence resources",
}
"""Modules with a table of commands, each as `module:attribute`."""


@cache
def _modules() -> tuple[tuple[str, ast.Module], ...]:
    paths = (path for path in sorted(SOURCE.rglob("*.py")) if not path.name.endswith("_pb2.py"))
    return tuple((str(path.relative_to(SOURCE)), ast.parse(path.read_text())) for path in paths)


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _documentation(tree: ast.Module) -> set[int]:
    """Strings that stand alone: documentation."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def test_modules_are_loaded_by_name_in_known_places_only() -> None:
    loading = {name for name, tree in _modules() if any(_called(node) in _LOADERS for node in ast.walk(tree))}
    assert loading == set(LOADERS)


def test_names_of_modules_stand_in_known_tables_only() -> None:
    naming: dict[str, list[str]] = {}
    for name, tree in _modules():
        prose = _documentation(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in prose:
                continue
            if _MODULE.fullmatch(node.value):
                naming.setdefault(name, []).append(node.value)
    assert set(naming) == set(TABLES), naming


@pytest.mark.parametrize("table", ["cli/commands.py", "commands/resources.py"])
def test_every_command_of_a_table_exists(table: str) -> None:
    for node in ast.walk(ast.parse((SOURCE / table).read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and ":" in node.value:
            module, _, attribute = node.value.partition(":")
            if _MODULE.fullmatch(node.value):
                spec = find_spec(module)
                assert spec is not None and spec.origin is not None, node.value
                assert re.search(rf"^(def {attribute}\b|{attribute} = )", Path(spec.origin).read_text(), re.M)


_NAMED = re.compile(r"`([a-z_0-9/]+\.py)`|`([a-z_]+)`")
_EXAMPLES = {"coolest.py", "graph/yours.py"}  # what a reader of the page writes


@pytest.mark.parametrize("page", sorted(PAGES), ids=lambda page: page.stem)
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    """By its path, or by its name behind a path or a room on the same line."""
    tests = [ROOT / "tests", *(ROOT / "tests").glob("*/"), *(ROOT / "tests").glob("*/*/")]
    missing = []
    for number, line in enumerate(page.read_text().splitlines(), 1):
        folders: list[Path] = [SOURCE, ROOT, SOURCE.parent, *tests]
        for file, room in _NAMED.findall(line):
            if room:
                folders += [SOURCE / room]
            elif found := next((folder / file for folder in folders if (folder / file).exists()), None):
                folders += [found.parent]
            elif file not in _EXAMPLES:
                missing.append(f"{page.name}:{number} names {file}")
    assert not missing
