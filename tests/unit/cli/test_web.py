"""`fluence web` as a command: a saved view in a process of its own, and wrong command lines."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from fluence import event_loop
from fluence.cli import main
from fluence.web import page
from fluence.web.in_process import SnapshotView
from tests.unit.web.field import ALL, Field, gang


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    field = Field(nodes=4)
    field.submit(gang("first", 3))
    field.submit(gang("second", 4))
    path = tmp_path / "saved.json"
    path.write_bytes(event_loop.run(lambda: page.save(SnapshotView(field.snapshot, ALL))))
    return path


def test_a_saved_view_is_served_until_it_is_interrupted(saved: Path) -> None:
    command = [sys.executable, "-m", "fluence.cli", "web", "--no-open", "--snapshot", str(saved)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.match(r"(http://127\.0\.0\.1:\d+/[\w-]{22}/)   \(Ctrl-C ends it\)$", line)
        assert address is not None, line
        with urllib.request.urlopen(f"{address[1]}{page.API[1:]}/queue") as answer:
            rows = msgspec.json.decode(answer.read())["items"]
        assert [row["name"] for row in rows] == ["second"]
        process.send_signal(signal.SIGINT)
        _, fault = process.communicate(timeout=120)
        assert (process.returncode, fault) == (0, "")
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--save", "a.json", "--snapshot", "{saved}"], 2, "--snapshot and --save exclude each other"),
        (["--snapshot", "nosuch.json"], 2, "nosuch.json"),
        (["--port", "70000"], 2, "70000"),
        (["--save", "a.json", "--kubeconfig", "nosuch"], 1, "nosuch"),
    ],
)
def test_a_wrong_command_line(words: list[str], code: int, said: str, saved: Path) -> None:
    done = CliRunner().invoke(main, ["web", *(word.format(saved=saved) for word in words)])
    assert done.exit_code == code and said in done.output, done.output
