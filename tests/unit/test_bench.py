"""The benchmark runs, writes the rows it promises, and survives a rival that does not. Never a timing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RUN = Path(__file__).parents[2] / "benchmarks" / "run.py"
KEYS = {"what", "policy", "nodes", "vertices", "mode", "seconds", "min", "repeats", "memory_mb", "compared"}
KEYS |= {"rival_seconds", "rival_memory_mb", "rival_status", "ratio", "target", "target_met", "status"}
MEASURES = {
    "load": {"api", "process"},
    "match-4-nodes": {"api", "answer"},
    "match-4-nodes-half-full": {"api", "answer"},
    "headless-16-slots-core4-gpu1": {"api", "answer"},
    "headless-16-slots-core1": {"api", "answer"},
    "impossible-too-many-nodes": {"api", "answer"},
    "impossible-no-such-node": {"api", "answer"},
    "reserve-60-percent": {"api", "answer"},
    "reserve-60-percent-whole-nodes": {"api", "answer"},
    "cancel-4-nodes": {"api"},
    "cancel-reservation": {"api"},
}


def bench(folder: Path, *options: str) -> tuple[str, list[dict[str, Any]]]:
    command = [sys.executable, str(RUN), "--quick", "--sizes", "20", "--repeat", "2", "--build", str(folder)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads((folder / "bench.json").read_text())


def program(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_every_measurement_gives_its_rows(tmp_path: Path) -> None:
    text, rows = bench(tmp_path, "--policies", "low")
    assert all(row.keys() >= KEYS for row in rows)
    assert all(row["status"] == "ok" and row["seconds"] > 0 for row in rows)
    assert all((row["policy"], row["nodes"], row["vertices"]) == ("low", 20, 821) for row in rows)
    modes: dict[str, set[str]] = {}
    for row in rows:
        modes.setdefault(row["what"], set()).add(row["mode"])
        assert row["what"] in text
    assert modes == MEASURES
    outcome = {row["what"]: (row["answer"] or "").split("@")[0].split(" ")[0] for row in rows}
    assert {outcome[what] for what in outcome if what.startswith(("match", "headless"))} == {"allocated"}
    assert {outcome[what] for what in outcome if what.startswith("impossible")} == {"never"}
    reserved = [row for row in rows if row["what"].startswith("reserve")]
    assert all(row["repeats"] > 20 and row["growth"] == row["last"] / row["first"] for row in reserved)
    assert all(row["memory_mb"] > 1 for row in rows if row["what"] == "load")


def test_a_rival_that_complains_on_standard_error_is_understood(tmp_path: Path) -> None:
    """Fluxion 0.54 says on standard error that a job does not exist, and reads on at the end of its input."""
    fluence = Path(sys.executable).with_name("fluence")
    rival = program(tmp_path / "rival", f'echo "nonexistent job 1" >&2; exec "{fluence}" resource-query "$@"')
    _, rows = bench(tmp_path, "--policies", "low", "--only", "match-4-nodes", "--against", rival)
    assert {row["rival_status"] for row in rows if row["compared"]} == {"ok"}


def test_a_rival_gives_ratios_and_the_same_answers(tmp_path: Path) -> None:
    fluence = Path(sys.executable).with_name("fluence")
    rival = program(tmp_path / "rival", f'exec "{fluence}" resource-query "$@"')
    _, rows = bench(tmp_path, "--policies", "lonode", "--against", rival)
    compared = [row for row in rows if row["compared"]]
    assert {row["what"] for row in compared} == MEASURES.keys()
    assert all(row["rival_status"] == "ok" and row["ratio"] > 0 for row in compared)
    assert all(row["same_answer"] for row in compared if row["answer"])
    assert all(row["rival_memory_mb"] > 1 for row in compared if row["what"] == "load")


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="Linux says what a process took")
def test_a_rival_is_compared_by_processor_time(tmp_path: Path) -> None:
    """A wait for a processor counts for neither: that of a rival which sleeps before each answer does not."""
    script = tmp_path / "slow.py"
    script.write_text(
        "import sys, time\n"
        "path, text = '', sys.stdin\n"
        "for line in text:\n"
        "    time.sleep(0.3)\n"
        "    if line.startswith('match'):\n"
        "        print('INFO: JOBID=1\\nINFO: RESOURCES=ALLOCATED')\n"
        "        print('INFO: SCHEDULED AT=Now\\nINFO: ELAPSE=0.3')\n"
        "    if line.startswith('get-status'):\n"
        "        print('Could not find path', line.split()[1], 'in resource graph.', flush=True)\n"
        "    if line.startswith('quit'):\n"
        "        break\n"
    )
    rival = program(tmp_path / "rival", f'exec "{sys.executable}" -I -S "{script}"')
    _, rows = bench(
        tmp_path, "--policies", "low", "--only", "match-4-nodes", "--only", "load", "--clock", "cpu",
        "--against", rival,
    )  # fmt: skip
    (load,) = (row for row in rows if row["what"] == "load" and row["compared"])
    (match,) = (row for row in rows if row["what"] == "match-4-nodes" and row["compared"])
    assert 0 < match["rival_seconds"] < 0.15, "it slept twice as long"
    assert 0 < load["rival_seconds"] < load["seconds"], "an interpreter without anything"


@pytest.mark.parametrize(
    ("body", "why"),
    [("exit 3", "ended early"), ("exec sleep 60", "over 2 s, waiting for 'find path /mark-1 in'")],
)
def test_a_rival_that_fails_is_an_error_before_anything_is_measured(
    tmp_path: Path, body: str, why: str
) -> None:
    rival = program(tmp_path / "rival", body)
    command = [sys.executable, str(RUN), "--quick", "--sizes", "20", "--build", str(tmp_path)]
    command += ["--rival-limit", "2", "--against", rival]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert f"does not answer like a resource-query: {why}" in done.stderr.replace("it ended", "ended")
    assert not done.stdout and not (tmp_path / "bench.json").exists()
