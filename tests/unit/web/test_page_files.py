"""The files of the page: none is missing or ignored, and they look like the simulator's report.

tests/integration/deploy/test_wheel.py serves them from a wheel.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fluence.sim.gantt import DARK, LIGHT, Theme

ROOT = Path(__file__).parents[3]
STATIC = ROOT / "src/fluence/web/static"


def colours(scheme: str) -> dict[str, str]:
    """The variables of the style sheet for light or dark, by name."""
    light, dark = re.findall(r":root \{(.*?)\}", (STATIC / "style.css").read_text(), re.S)
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6});", {"light": light, "dark": dark}[scheme]))


@pytest.mark.parametrize(("scheme", "theme"), [("light", LIGHT), ("dark", DARK)])
def test_the_colours_are_those_of_the_report(scheme: str, theme: Theme) -> None:
    found = colours(scheme)
    assert (found["paper"], found["ink"], found["line"]) == (theme.paper, theme.ink, theme.faint)
    assert (found["running"], found["focus"]) == (theme.series[0], theme.accent[0])


def test_every_file_that_a_page_loads_is_there_and_in_a_wheel() -> None:
    """Hatchling takes all files of the package but those that git ignores."""
    named = set(re.findall(r'(?:href|src)="([a-z]+\.\w+)"', (STATIC / "index.html").read_text()))
    for script in STATIC.glob("*.js"):
        named |= set(re.findall(r'from "\./([a-z]+\.js)"', script.read_text()))
    there = {file.name for file in STATIC.iterdir()}
    assert named | {"index.html"} == there
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        return
    paths = [str(STATIC / name) for name in sorted(there)]
    ignored = subprocess.run(
        ["git", "check-ignore", "--no-index", *paths], cwd=ROOT, capture_output=True, text=True
    )
    assert (ignored.returncode, ignored.stdout) == (1, "")
