"""The table of branch coverage: what it sums up, and when it fails."""

from __future__ import annotations

import json
from pathlib import Path

from tests.coverage import PAGE, ROOMS, losses, table


def figures(tmp_path: Path, missing: int) -> str:
    summary = {
        "covered_lines": 900,
        "missing_lines": 100,
        "covered_branches": 100 - missing,
        "missing_branches": missing,
        "percent_covered": 90.0,
    }
    files = {f"src/fluence/{room}/{name}.py": {"summary": summary} for room in ROOMS for name in "ab"}
    (path := tmp_path / "coverage.json").write_text(json.dumps({"files": files}))
    return table(path)


def test_a_row_sums_up_the_modules_of_a_room(tmp_path: Path) -> None:
    assert "| `model` | 2,000 | 90.0 % | 95.0 % |\n" in figures(tmp_path, 5)


def test_a_room_may_lose_three_points_and_no_more(tmp_path: Path) -> None:
    page = figures(tmp_path, 5)
    assert losses(page, figures(tmp_path, 8)) == []
    lost = losses(page, figures(tmp_path, 9))
    assert len(lost) == len(ROOMS)
    assert lost[0] == "model: tests reach 91.0 % of the branches, docs/coverage.md says 95.0 %"


def test_the_page_has_every_room() -> None:
    assert all(f"| `{room}` |" in PAGE.read_text() for room in ROOMS)
