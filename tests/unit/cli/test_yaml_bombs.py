"""Every program that reads YAML answers a bomb of aliases and deep nesting in one line, soon."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from .conftest import Run

BOMB = "x:\n  a: &a0 [x, x]\n" + "".join(
    f"  b{i}: &a{i} [{','.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30)
)
DEEP = "x: " + "[" * 200_000 + "]" * 200_000
POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: x}]}\n"
NODES = "nodes: [{name: n, count: 1, cpu: 1, memory: 1Gi}]\n"

PROGRAMS = {
    "try": ("admission", "try", "FILE"),
    "try with a diff": ("admission", "try", "FILE", "-o", "diff"),
    "try with resources": ("admission", "try", "-", "--resources", "FILE"),
    "resources": ("resources", "check", "FILE"),
    "manifests": ("simulate", "--manifests", "FILE", "--nodes", "NODES"),
    "nodes": ("simulate", "--manifests", "POD", "--nodes", "FILE"),
    "kubeconfig": ("graph", "--live", "--kubeconfig", "FILE"),
    "settings": ("simulate", "--manifests", "POD", "--nodes", "NODES", "--config", "FILE"),
}


@pytest.mark.parametrize("text", [BOMB, DEEP], ids=["aliases", "deep"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_harm_is_answered_in_one_line(run: Run, tmp_path: Path, name: str, text: str) -> None:
    files = {"FILE": POD + text, "NODES": NODES, "POD": POD}
    for file, content in files.items():
        (tmp_path / file).write_text(content)
    began = time.process_time()
    found = run(*(str(tmp_path / each) if each in files else each for each in PROGRAMS[name]), stdin="")
    assert found.is_one_line_error("line ") and found.code == 1
    assert time.process_time() - began < 5
