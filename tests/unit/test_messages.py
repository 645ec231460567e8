"""Every code has a text, and every reason has the parameters that its text names."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from string import Formatter

import pytest

import fluence
from fluence import messages
from fluence.messages import TEMPLATES
from fluence.model.reason import Code, Reason

SOURCES = Path(fluence.__file__).parent
_SUBSCRIPT = re.compile(r"(?:reason|params|values\(reason\))\[[\"'](\w+)[\"']\]")


def parameters(code: Code) -> set[str]:
    """The parameters that the text of a code names."""
    template = TEMPLATES[code]
    if isinstance(template, str):
        return {name for _, name, _, _ in Formatter().parse(template) if name}
    source = inspect.getsource(template)
    found = set(_SUBSCRIPT.findall(source))
    for name, function in vars(inspect.getmodule(template)).items():  # a text that is made from another one
        if inspect.isfunction(function) and f"{name}(reason)" in source:
            found |= set(_SUBSCRIPT.findall(inspect.getsource(function)))
    return found


def given() -> list[tuple[str, Code, set[str]]]:
    """Every `Reason.of(Code.X, …)` in the sources: where, the code, the parameters."""
    found = []
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            if node.func.attr != "of" or ast.unparse(node.func.value) != "Reason" or not node.args:
                continue
            code = node.args[0]
            names = {each.arg for each in node.keywords if each.arg is not None}
            if isinstance(code, ast.Attribute) and len(names) == len(node.keywords):
                place = f"{path.relative_to(SOURCES)}:{node.lineno}"
                found.append((place, Code[code.attr], names))
    return found


def test_the_check_sees_parameters_in_templates_functions_and_what_these_call() -> None:
    assert parameters(Code.OWNER_SUSPENDED) == {"kind", "owner"}
    assert parameters(Code.OWNER_RUNS_TOO_FEW) == {
        "group",
        "pods",
        "minimum",
        "kind",
        "owner",
        "others",
        "runs",
    }
    every = {"pod", "wanted", "seats", "nodes", "sums", "causes", "empty"}
    assert parameters(Code.TOO_FEW_SEATS) == every
    assert parameters(Code.RESOURCE_TOO_SMALL) == {"resource", "wanted", "largest"}


@pytest.mark.parametrize("code", Code)
def test_every_code_has_a_text(code: Code) -> None:
    assert code in TEMPLATES


@pytest.mark.parametrize(("place", "code", "names"), given())
def test_every_reason_is_given_what_its_text_names(place: str, code: Code, names: set[str]) -> None:
    assert parameters(code) <= names, f"{place}: {code.name}"


def test_reasons_within_a_reason_and_lists_are_written_out() -> None:
    inner = Reason.of(Code.OWNER_SUSPENDED, kind="Job", owner="a/b")
    assert messages.text(Reason.of(Code.NODE_CLOSED, node="n", why=inner)) == "node n: Job a/b is suspended"
    assert messages.text(Reason.of(Code.NODE_CLOSED, node="n", why=("x", inner))).endswith(
        "x, Job a/b is suspended"
    )
    assert messages.texts([inner, inner]) == "Job a/b is suspended. Job a/b is suspended"
