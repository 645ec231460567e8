"""Branch coverage of the pure rooms: runs their tests under slipcover and compares the figures with the docs.

    python -m tests.coverage            measure, print a table, fail if a room lost more than three points
    python -m tests.coverage --write    the same, and write the table into docs/coverage.md

Slipcover changes the bytecode instead of tracing every line, so this costs hardly more than the tests alone.
Two processes share the tests. What they saw is in build/coverage.json, with the lines that no test reaches.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ("model", "graph", "match", "placer", "queue", "cluster", "schedule")
BUILD, PAGE = ROOT / "build", ROOT / "docs" / "coverage.md"
TESTS = {
    "unit": [*(f"tests/unit/{room}" for room in ROOMS), "tests/conformance"],
    "property": ["tests/property", "tests/unit/sim/test_simulator.py"],
}
_TOLERANCE = 3.0  # points: a module that moves, or a few examples more or less, is no alarm
_ROW = re.compile(r"^\| `(\w+)` \| [\d,]+ \| [\d.]+ % \| ([\d.]+) % \|$", re.M)


def measure() -> Path | None:
    """Run the tests; the figures of all, or None if a test failed."""
    BUILD.mkdir(exist_ok=True)
    env = {**os.environ, "PYTHONHASHSEED": "0", "FLUENCE_HYPOTHESIS": "quick"}
    # Branches of the tests themselves are not asked for.
    quiet = ["-W", "ignore:Unable to activate pytest"]
    slipcover = [sys.executable, *quiet, "-m", "slipcover", "--branch", "--json"]
    sources = ",".join(f"src/fluence/{room}" for room in ROOMS)
    pytest = ["-m", "pytest", "-n", "0", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    parts = {name: BUILD / f"coverage.{name}.json" for name in TESTS}
    running = [
        subprocess.Popen(
            [*slipcover, "--source", sources, "--out", str(parts[name]), *pytest, *paths],
            env=env,
            cwd=ROOT,
        )
        for name, paths in TESTS.items()
    ]
    codes = [process.wait() for process in running]
    if any(codes):
        return None
    whole = BUILD / "coverage.json"
    merge = ["--merge", *map(str, parts.values()), "--json", "--out", str(whole)]
    subprocess.run([*slipcover[:-2], *merge], check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    return whole


def table(figures: Path) -> str:
    """Of each room, its lines, and the share of lines and of branches that tests reach."""
    sums = {room: Counter[str]() for room in ROOMS}
    for path, file in json.loads(figures.read_text())["files"].items():
        room = Path(path).as_posix().partition("fluence/")[2].partition("/")[0]
        sums[room].update({key: value for key, value in file["summary"].items() if "percent" not in key})
    rows = ["| Room | Lines | Reached | Branches reached |", "|---|---|---|---|"]
    for room, counts in sums.items():
        lines = counts["covered_lines"] + counts["missing_lines"]
        branches = counts["covered_branches"] + counts["missing_branches"]
        shares = counts["covered_lines"] / lines, counts["covered_branches"] / branches
        rows.append(f"| `{room}` | {lines:,} | {100 * shares[0]:.1f} % | {100 * shares[1]:.1f} % |")
    return "\n".join(rows) + "\n"


def losses(before: str, now: str) -> list[str]:
    """The rooms of which tests reach fewer branches than the page says."""
    was = {room: float(share) for room, share in _ROW.findall(before)}
    return [
        f"{room}: tests reach {share} % of the branches, docs/coverage.md says {was[room]} %"
        for room, share in _ROW.findall(now)
        if room in was and float(share) < was[room] - _TOLERANCE
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.coverage", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the table into docs/coverage.md")
    write = parser.parse_args().write
    figures = measure()
    if figures is None:
        return 1
    page, now = PAGE.read_text(), table(figures)
    print(f"\n{now}")
    if write:
        first = page.index("| Room |")
        PAGE.write_text(page[:first] + now + page[page.rindex(" |\n") + 3 :])
        return 0
    for loss in (lost := losses(page, now)):
        print(f"{loss}: test what is new, or run `make coverage COVERAGE=--write`", file=sys.stderr)
    return 1 if lost else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
