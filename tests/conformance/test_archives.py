"""Recorded sessions that are part of this repository: 453 of Fluxion 0.54, each recorded twice.

The graphs, jobspecs and R documents were generated for this project, so that they may be part of it, other
than Fluxion's own sessions (test_sessions.py). Each archive is one JSON object: per session its arguments,
its standard input, the exit code and output of Fluxion, and the documents that it reads.

changes   147 in which nodes are attached while jobs run and reservations wait, and jobs give back parts of
          their own R, under eight policies and five pruning filters
extended  306 with properties, constraints, find expressions, statuses, updates, removals, alternatives, two
          subsystems, every writer and every operation
"""

import json
import lzma
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fluence.cli.resource_query import resource_query
from tests.conformance.test_sessions import arguments, check

SESSIONS = {"changes": 147, "extended": 306}

_HALF_CANCELLED = "a partial cancel that fails is half applied in Fluxion"
_HALF_RECORDED = "Fluxion records and writes a part of what does not fit its own counts"
_LEAKS = "a job without cores and gpus, or a find, leaks its vertices into Fluxion's next R"
_ONE_VERTEX = "Fluxion cannot write a graph of one vertex"
DIFFERENT = {
    "ch2-0022": _HALF_RECORDED,
    "ch2-0038": "a removal of ranks on which two jobs are stops halfway in Fluxion",
    "ch2-0074": _ONE_VERTEX,
    "chg-0006": _HALF_CANCELLED,
    "chg-0020": _HALF_CANCELLED,
    "chg-0038": _HALF_CANCELLED,
    "chg-0044": _HALF_CANCELLED,
    "chg-0050": _HALF_CANCELLED,
    "chg-0054": _HALF_CANCELLED,
    "chg-0078": _HALF_CANCELLED,
    "chg-0086": _HALF_CANCELLED,
    "e1-0012": "a label of an earlier search is stale in Fluxion",
    "e1-0014": _LEAKS,
    "e1-0050": _LEAKS,
    "e1-0064": _LEAKS,
    "e1-0068": _LEAKS,
    "e1-0074": _HALF_RECORDED,
    "e1-0078": _LEAKS,
    "e2-0022": "Fluxion's line editor drops letters beyond ASCII",
    "e2-0028": _LEAKS,
    "xpower-0048": "a power supply that hangs below its own node: Fluxion finds nothing, or does not end",
}


@cache
def sessions(archive: str) -> dict[str, dict[str, Any]]:
    path = Path(__file__).with_name(f"{archive}.json.xz")
    found: dict[str, dict[str, Any]] = json.loads(lzma.decompress(path.read_bytes()))
    return found


def replay(session: dict[str, Any], monkeypatch: pytest.MonkeyPatch, scratch: Path) -> None:
    (scratch / "inputs").mkdir()
    for path, document in session["inputs"].items():
        (scratch / path).write_text(document if isinstance(document, str) else json.dumps(document))
    monkeypatch.chdir(scratch)
    out = scratch / "out"
    done = CliRunner().invoke(resource_query, arguments(session, out), input=session["stdin"])
    assert done.exception is None or isinstance(done.exception, SystemExit)
    check(session, out, done.stdout, done.exit_code)


@pytest.mark.parametrize(
    ("archive", "name"),
    [(archive, name) for archive in SESSIONS for name in sorted(sessions(archive)) if name not in DIFFERENT],
    ids=lambda text: text,
)
def test_sessions_in_the_repository(
    archive: str, name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    replay(sessions(archive)[name], monkeypatch, tmp_path)


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_sessions_that_are_listed_as_different_still_are(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError):
        replay(sessions("extended")[name], monkeypatch, tmp_path)


@pytest.mark.parametrize("name", ["hinodex-0083", "low-0020"])
def test_a_job_gives_back_a_part_and_then_the_rest_where_filters_count_nodes_alone(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session = sessions("changes")[name]
    assert session["args"][session["args"].index("-p") + 1] == "ALL:node"
    assert re.search(r"partial-cancel (\d+) .*\ncancel \1\b", session["stdin"], re.DOTALL)
    replay(session, monkeypatch, tmp_path)


@pytest.mark.parametrize("archive", SESSIONS)
def test_all_of_them_are_here(archive: str) -> None:
    assert len(sessions(archive)) == SESSIONS[archive]
