"""Recorded sessions of resource-query, replayed: Fluxion's own where they are at hand, and ours.

A session is a JSON document: arguments (`OUT` stands for a scratch file), standard input, and what came out.
Fluxion's were recorded from version 0.54 and are no part of this repository; FLUENCE_CONFORMANCE names their
folder, ../shared/conformance by default. Ours, in `own/`, were written by hand for small graphs; each has a
`why` that says by which rules the expected output is right.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fluence.cli.resource_query import resource_query
from tests.conformance.sessions import canonical
from tests.needs import lacks

OWN = Path(__file__).parent / "own"
ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(os.environ.get("FLUENCE_CONFORMANCE") or ROOT.parent / "shared" / "conformance").resolve()

# One per reader, policy family and kind of output, through the real program.
THROUGH_THE_PROGRAM = (
    "t3001-resource-basic-004",
    "t3013-resource-unsat-001",
    "t3025-resource-find-001",
    "t3039-resource-force-load-format-002",
)


def sessions(folder: Path) -> list[Path]:
    return sorted((folder / "cases").glob("*.json"))


def arguments(case: dict[str, Any], out: Path) -> list[str]:
    """The arguments of a session, with all that it writes going beside ``out``."""
    given = [str(out) if argument == "OUT" else argument for argument in case["args"]]
    if "-o" in given:
        given[given.index("-o") + 1] = str(out.with_name("graph"))
    return given


def check(case: dict[str, Any], out: Path, stdout: str, exit_code: int) -> None:
    if case["expected_output"] is None:
        got, wanted = stdout, case["stdout"]
    else:
        got, wanted = out.read_text(errors="replace") if out.exists() else "", case["expected_output"]
    assert canonical(got) == canonical(wanted)
    assert (exit_code == 0) == (case["rc"] == 0)


def replay(path: Path, monkeypatch: pytest.MonkeyPatch, scratch: Path) -> None:
    case = json.loads(path.read_text())
    monkeypatch.chdir(path.parents[1])
    out = scratch / "out"
    done = CliRunner().invoke(resource_query, arguments(case, out), input=case["stdin"])
    check(case, out, done.stdout, done.exit_code)


@pytest.mark.parametrize("path", sessions(OWN), ids=lambda path: path.stem)
def test_our_own_sessions(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    replay(path, monkeypatch, tmp_path)


@pytest.mark.parametrize("path", sessions(RECORDED) or [RECORDED], ids=lambda path: path.stem)
def test_sessions_recorded_from_fluxion(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if path == RECORDED:
        lacks("recorded sessions")
    replay(path, monkeypatch, tmp_path)


def test_the_recorded_sessions_are_complete() -> None:
    if not sessions(RECORDED):
        lacks("recorded sessions")
    assert len(sessions(RECORDED)) >= 538


@pytest.mark.parametrize(
    "path",
    [*sessions(OWN)[::6], *(RECORDED / "cases" / f"{name}.json" for name in THROUGH_THE_PROGRAM)],
    ids=lambda path: path.stem,
)
def test_sessions_through_the_real_program(path: Path, tmp_path: Path) -> None:
    if not path.exists():
        lacks("recorded sessions")
    case = json.loads(path.read_text())
    out = tmp_path / "out"
    done = subprocess.run(
        [str(Path(sys.executable).with_name("fluence")), "resource-query", *arguments(case, out)],
        input=case["stdin"],
        cwd=path.parents[1],
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    check(case, out, done.stdout, done.returncode)


@pytest.mark.parametrize("path", sessions(OWN), ids=lambda path: path.stem)
def test_our_own_sessions_say_why_they_are_right(path: Path) -> None:
    assert len(json.loads(path.read_text())["why"]) > 40
