"""The comparison with another resource-query: it finds a planted difference and makes the session small."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conformance.generate import generate, random_graph
from tests.conformance.sessions import QuerySession, difference, program, run_here, smallest

_OURS = (str(Path(sys.executable).with_name("fluence")), "resource-query")
# Gives the third job that it places another name for its node.
_LIAR = """
import subprocess, sys
from pathlib import Path
out = Path(sys.argv[sys.argv.index("-t") + 1])
done = subprocess.run([*{command!r}, *sys.argv[1:]], input=sys.stdin.read(), text=True)
lines = out.read_text().splitlines(keepends=True)
at = [i for i, line in enumerate(lines) if line.startswith("INFO: RESOURCES=ALLOCATED")]
if len(at) >= 3:
    lines[at[2]] = "INFO: RESOURCES=STOLEN\\n"
out.write_text("".join(lines))
sys.exit(done.returncode)
"""


@pytest.fixture
def liar(tmp_path: Path) -> list[str]:
    script = tmp_path / "liar.py"
    script.write_text(_LIAR.format(command=_OURS))
    return [sys.executable, str(script)]


@pytest.mark.parametrize("seed", range(3))
def test_the_same_program_gives_the_same_answers(seed: int, tmp_path: Path) -> None:
    assert difference(generate(seed, tmp_path), program(_OURS)) is None


def test_a_seed_gives_one_session(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    first, second = generate(7, one), generate(7, two)
    assert (first.arguments, first.lines) == (second.arguments, second.lines)
    assert {path.name: path.read_text() for path in one.iterdir()} == {
        path.name: path.read_text() for path in two.iterdir()
    }


def test_sessions_use_every_input_and_option(tmp_path: Path) -> None:
    seen = Counter[str]()
    for seed in range(150):
        folder = tmp_path / str(seed)
        folder.mkdir()
        session = generate(seed, folder)
        options = session.arguments
        seen.update((*options, *(" ".join(line.split()[:3:2]) for line in session.lines)))
        seen.update(" ".join(line.split()[:3]) for line in session.lines if line.startswith("update"))
        if seed % 15 == 0:  # it loads, unless it asks for a subsystem that is not there
            assert run_here(session).ended_well == ("ALL" not in options)
    wanted = {"grug", "rv1exec", "hwloc", "-W", "-S", "ALL", "-r", "rv1", "rv1_shorthand", "remove false"}
    assert {*wanted, "update allocate jgf"} <= set(seen)


def test_a_subsystem_that_is_not_there_ends_the_program(tmp_path: Path) -> None:
    session = QuerySession(("-L", "graph.json", "-f", "jgf", "-S", "ALL", "-t", "OUT"), (), tmp_path)
    (tmp_path / "graph.json").write_text(
        '{"graph": {"nodes": [{"id": "0", "metadata": {"type": "cluster", "id": 0, "rank": -1, '
        '"paths": {"containment": "/cluster0"}}}], "edges": []}}'
    )
    done = subprocess.run(
        [*_OURS, "-L", str(tmp_path / "graph.json"), "-f", "jgf", "-S", "ALL"],
        input="quit\n", text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and "ibnet" in done.stderr
    assert not run_here(session).ended_well


def test_a_planted_difference_is_found_and_made_small(tmp_path: Path, liar: list[str]) -> None:
    folder = tmp_path / "session"
    folder.mkdir()
    (folder / "graph.json").write_text(json.dumps(random_graph(random.Random(3)).document))
    (folder / "one.json").write_text(
        '{"version": 1, "resources": [{"type": "slot", "count": 1, "label": "a", "with": '
        '[{"type": "core", "count": 1}]}], "tasks": [], "attributes": {"system": {"duration": 10}}}'
    )
    place, look = "match allocate one.json", "find status=up"
    session = QuerySession(
        ("-L", "graph.json", "-f", "jgf", "-P", "low", "-t", "OUT"),
        (look, place, look, place, "cancel 1", look, place, place, look),
        folder,
    )
    assert difference(session, run_here) is None
    found = difference(session, program(liar))
    assert found is not None
    assert found.index == 6
    assert "INFO: RESOURCES=STOLEN" in found.theirs
    assert smallest(session, program(liar)).lines == (place, place, place)
