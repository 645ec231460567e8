"""`fluence sandbox`: what needs no control plane."""

from pathlib import Path

import pytest

from .conftest import Run


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def test_more_nodes_than_a_machine_can_simulate_are_refused_at_once(run: Run, tmp_path: Path) -> None:
    done = run("sandbox", "up", "--nodes", "999999999")
    assert done.is_one_line_error("--nodes: 999999999 nodes: a sandbox simulates 10000 at most")
    file = tmp_path / "nodes.yaml"
    file.write_text("nodes: [{name: a, count: 6000}, {name: b, count: 6000}]")
    assert run("sandbox", "up", "--node-file", str(file)).is_one_line_error("12000 nodes")


def test_a_node_file_cannot_fill_the_memory(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "nodes.yaml"
    file.write_text("nodes: [{name: a, count: 999999999}]")
    done = run("simulate", "--manifests", "x", "--nodes", str(file))
    assert done.is_one_line_error("nodes[0]: count must be 1000000 at most")


def test_status_of_one_sandbox(run: Run, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / "fluence" / "sandbox" / name).mkdir(parents=True)
    assert [line.partition(":")[0] for line in run("sandbox", "status").out.splitlines()] == ["one", "two"]
    done = run("sandbox", "status", "--name", "two")
    assert done.out.startswith("two: stale") and len(done.out.splitlines()) == 1
    assert run("sandbox", "status", "--name", "three").is_one_line_error(
        "no sandbox named 'three'", "one, two"
    )
