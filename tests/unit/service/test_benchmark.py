"""The benchmark of the service runs, beside a resource-query, and writes its rows. Never a timing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_it_measures_the_service_and_a_resource_query_the_same_way(tmp_path: Path) -> None:
    program = f"{Path(sys.executable).with_name('fluence')} resource-query"
    command = [sys.executable, str(ROOT / "benchmarks" / "service.py"), "--nodes", "20", "--seconds", "0.2"]
    command += ["--clients", "1,3", "--policies", "low", "--against", program, "--build", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "bench-service.json").read_text())
    assert [(row["program"], row["clients"]) for row in rows] == [
        ("fluence service", 1),
        ("fluence service", 3),
        ("fluence service --state", 1),
        ("fluence service --state", 3),
        ("fluence (pipe)", 1),
    ]
    assert all(row["calls_per_second"] > 0 and row["match_ms"]["p50"] > 0 for row in rows)
    assert done.stdout.count(" ms") >= 3 * len(rows)


def test_a_rival_that_does_not_answer_ends_it_before_anything_is_measured(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "service.py"), "--build", str(tmp_path)]
    done = subprocess.run(
        [*command, "--against", "false"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "false does not answer like a resource-query: it ended early" in done.stderr
    assert not done.stdout and not list(tmp_path.glob("*.json"))


def test_the_example_of_the_page_runs(tmp_path: Path) -> None:
    """docs/service.md, against a service on another port."""
    from tests.unit.service.running import serving

    page = (ROOT / "docs" / "service.md").read_text()
    (code,) = [block.partition("```")[0] for block in page.split("```python\n")[1:]]
    expected = code.partition("print(")[2].partition("# ")[2].partition("\n")[0]
    with serving("--graph", "examples/cluster.json") as (service, _):
        code = code.replace("localhost:4242", service.address)
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
        )
    assert done.stdout.strip() == expected, done.stderr
