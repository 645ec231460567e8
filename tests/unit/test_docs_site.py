"""The manual as a site: it builds without a warning, and no page loads anything from another host."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from docs.site import chapters

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "docs.site", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return out / "html"


def test_every_page_is_there_and_can_be_searched(site: Path) -> None:
    pages = {page.stem for page in DOCS.glob("*.md")} - {"README"}
    assert {page.stem for page in site.glob("*.html")} >= {*pages, "index", "search"}
    assert (site / "searchindex.js").exists()


def test_no_page_loads_anything_from_another_host(site: Path) -> None:
    loads = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*(?:src|href)=[\"']?(?:https?:)?//[^>]*>")
    found = {page.name: loads.findall(page.read_text()) for page in site.rglob("*.html")}
    assert not {name: each for name, each in found.items() if each}
    styles = re.compile(r"(?:@import|url\()\s*[\"']?(?:https?:)?//")
    assert not [sheet.name for sheet in site.rglob("*.css") if styles.search(sheet.read_text())]


def test_chapters_follow_the_tables_of_the_readme() -> None:
    rows = "| [a](a.md) | [tour](tour.md) [x](../x.md) |"
    text = f"# Documentation\n\n[tour](tour.md)\n\n## Users: you submit work\n\n{rows}\n"
    assert [[line for line in each.splitlines() if line][2:-1] for each in chapters(text)] == [
        [":caption: Documentation", "tour"],
        [":caption: Users", "a"],
    ]
