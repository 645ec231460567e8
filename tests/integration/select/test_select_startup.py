"""The program starts in less than 150 ms of processor time, so that it can stand for `kubectl apply`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from select_program import PROGRAM

LIMIT_S = 0.150


def cpu_seconds(*arguments: str) -> float:
    """Processor time of one run: unlike the clock on the wall, others on the machine hardly change it."""
    before = os.times()
    subprocess.run([PROGRAM, *arguments], capture_output=True, check=True)
    after = os.times()
    return (after.children_user - before.children_user) + (after.children_system - before.children_system)


@pytest.mark.parametrize(
    "arguments", [["version"], ["--help"], ["select", "-f", "plain.yaml"]], ids=lambda a: a[0]
)
def test_start_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plain.yaml").write_text("kind: Pod\nmetadata: {name: plain}\n")
    # The best of a few: the first one may write bytecode, and a busy machine disturbs some.
    assert min(cpu_seconds(*arguments) for _ in range(7)) < LIMIT_S


def test_neither_numpy_nor_a_cluster_client_is_loaded() -> None:
    code = (
        "import sys, fluence.kubectl.commands, fluence.kubectl.resolve, fluence.kubectl.report\n"
        "print([m for m in ('numpy', 'aiohttp', 'kubernetes', 'boto3', 'ruamel.yaml') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
