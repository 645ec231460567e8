"""Recorded sessions in which jobs shrink and graphs grow: 147 of Fluxion 0.54, part of this repository.

Each was recorded twice from Fluxion's own resource-query, with the same result: nodes are attached while jobs
run and reservations wait, jobs give back parts of their own R, and matches, cancels and finds stand in
between, under eight policies and five pruning filters. The graphs, jobspecs and R documents were generated
for this project, so that they may be part of it, other than Fluxion's own sessions (test_sessions.py).

`changes.json.xz` is one JSON object: per session its arguments, its standard input, the exit code and output
of Fluxion, and the documents that it reads.
"""

import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fluence.cli.resource_query import resource_query
from tests.conformance.test_sessions import arguments, check

ARCHIVE = Path(__file__).with_name("changes.json.xz")


@cache
def sessions() -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(lzma.decompress(ARCHIVE.read_bytes()))
    return found


@pytest.mark.parametrize("name", sorted(sessions()))
def test_sessions_in_which_jobs_shrink_and_graphs_grow(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session = sessions()[name]
    (tmp_path / "inputs").mkdir()
    for path, document in session["inputs"].items():
        (tmp_path / path).write_text(json.dumps(document))
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "out"
    done = CliRunner().invoke(resource_query, arguments(session, out), input=session["stdin"])
    check(session, out, done.stdout, done.exit_code)


def test_all_of_them_are_here() -> None:
    assert len(sessions()) == 147
