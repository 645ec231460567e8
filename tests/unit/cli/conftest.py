"""Run `fluence` as a user does: in this process, or as a real one."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from fluence.cli import main

DEMO = Path(__file__).parents[3] / "examples"
CLUSTER = str(DEMO / "cluster.json")


def job(name: str) -> str:
    """The path of an example jobspec."""
    return str(DEMO / "jobs" / f"{name}.yaml")


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    code: int
    out: str
    err: str

    def is_one_line_error(self, *words: str) -> bool:
        """Nothing on stdout, one line on stderr that has these words, no traceback."""
        line = self.err.strip()
        assert self.code in (1, 2), self
        assert self.out == ""
        assert line.startswith("fluence: "), self
        assert "\n" not in line and "Traceback" not in line, self
        for word in words:
            assert word in line, (word, line)
        return True


Run = Callable[..., Result]


@pytest.fixture
def run() -> Run:
    """`fluence` in this process."""

    def call(*args: str, stdin: str | bytes | None = None, color: bool = False) -> Result:
        done = CliRunner().invoke(main, args, input=stdin, color=color)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return Result(done.exit_code, done.stdout, done.stderr)

    return call


@pytest.fixture
def process() -> Run:
    """`fluence` as a process of its own."""

    def call(*args: str, stdin: str | None = None, read_as: str = "utf-8", **env: str) -> Result:
        done = subprocess.run(
            [str(Path(sys.executable).with_name("fluence")), *args],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            encoding=read_as,
            timeout=120,
            env={**os.environ, **env},
        )
        return Result(done.returncode, done.stdout, done.stderr)

    return call
