"""Phrases that we no longer write, in docs, docstrings, comments and messages: what is left only shrinks.

CONTRIBUTING.md asks for short sentences with a subject and a verb, as in the manuals of Kubernetes and Slurm.
New pages and rooms have none of these phrases. When you remove some, lower the number here.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ROOT / "src" / "fluence"

PHRASES = re.compile(
    r"\b(?:whoever|whomever|whatever|nobody|somebody|anew|stand-?ins?|of which|so many|for so long"
    r"|(?:is|are|was|were|be|been) told|(?-i:is none|are none)|is no (?:help|gang|change|good)"
    r"|lets? go|letting go|other doors|come round|came round|from a desk|one's own|goes on"
    r"|what becomes of|what became of)\b",
    re.IGNORECASE,
)

LEFT_IN_ROOMS: dict[str, int] = {
    "act": 1,
    "admission": 2,
    "cli": 5,
    "commands": 4,
    "doctor": 17,
    "kubectl": 3,
    "live": 6,
    "placer": 1,
    "sandbox": 1,
    "service": 3,
    "sim": 1,
}
LEFT_IN_PAGES: dict[str, int] = {
    "CHANGELOG.md": 2,
    "docs/admission.md": 1,
    "docs/adr/README.md": 1,
    "docs/architecture.md": 1,
    "docs/benchmarks.md": 1,
    "docs/doctor.md": 1,
    "docs/matcher.md": 15,
    "docs/scheduler-cycle.md": 3,
    "docs/service.md": 5,
    "docs/settings.md": 1,
    "docs/workloads.md": 1,
}


def prose(source: str) -> Iterator[str]:
    """Docstrings, other texts and comments of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def hits(texts: Iterator[str] | list[str]) -> list[str]:
    """The phrases in some texts, which may be wrapped."""
    return [match for text in texts for match in PHRASES.findall(" ".join(text.split()))]


def test_the_check_finds_phrases_in_wrapped_prose_and_not_in_names() -> None:
    source = 'def let_go() -> None:\n    """It is let\n    go."""  # whoever asks\n    told = 1\n'
    assert hits(prose(source)) == ["let go", "whoever"]


def rooms() -> list[str]:
    return sorted({path.relative_to(ROOMS).parts[0].removesuffix(".py") for path in ROOMS.rglob("*.py")})


@pytest.mark.parametrize("room", rooms())
def test_a_room_is_written_in_plain_english(room: str) -> None:
    files = sorted((ROOMS / room).rglob("*.py")) or [ROOMS / f"{room}.py"]
    found = {str(path.relative_to(ROOMS)): hits(prose(path.read_text())) for path in files}
    check(
        sum(map(len, found.values())),
        LEFT_IN_ROOMS.get(room, 0),
        {at: some for at, some in found.items() if some},
    )


PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md"]
PAGES += sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md"))


@pytest.mark.parametrize("page", PAGES)
def test_a_page_is_written_in_plain_english(page: str) -> None:
    found = hits([(ROOT / page).read_text()])
    check(len(found), LEFT_IN_PAGES.get(page, 0), found)


def check(number: int, allowed: int, found: object) -> None:
    assert number <= allowed, f"say it in plain English; {allowed} were left: {found}"


def test_no_allowance_is_for_something_that_is_gone() -> None:
    assert set(LEFT_IN_ROOMS) <= set(rooms()) and set(LEFT_IN_PAGES) <= set(PAGES)
