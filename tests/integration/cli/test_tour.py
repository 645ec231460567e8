"""docs/tour.md, run: every command of it on a sandbox, and what is printed, times and made-up names aside.

``FLUENCE_REFRESH_TOUR=1 pytest tests/integration/cli/test_tour.py`` writes what is printed into the page.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import fluence
from fluence.sandbox.testing import needs_sandbox

PAGE = Path(__file__).parents[3] / "docs" / "tour.md"
REFRESH = os.environ.get("FLUENCE_REFRESH_TOUR") == "1"
PATIENCE_S = 30.0  # until what is printed is what stands there: the scheduler tells when it has decided
QUIET_S = 5.0  # what was printed for so long is what is written into the page

_ASIDE = (
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(:\d\d)?( UTC|Z)"), "<time>"),
    (re.compile(r"\b(\d+ (d|h|min|s)\b ?)+"), "<length> "),
    (re.compile(r"\b(never|size|busy|over)-[a-z0-9]{5}\b"), r"\1-<x>"),
    (re.compile(r"\bnode-\d{3}\b"), "node-<x>"),  # the one that was made first is taken last
)


@dataclass
class Command:
    text: str
    output: list[str] = field(default_factory=list)  # as the page has it
    last: int = 0  # the line of the page on which it, or its output, ends

    @property
    def is_shown(self) -> bool:
        """What it prints is on the page."""
        return bool(re.search(r"(^|\| )fluence (explain|whatif)|^kubectl get events", self.text))


def read(page: str) -> tuple[dict[str, str], list[Command]]:
    """The files that the page gives, and its commands."""
    files: dict[str, str] = {}
    commands: list[Command] = []
    kind, block = "", list[str]()
    for number, line in enumerate(page.splitlines()):
        if line.startswith("```"):
            if kind == "yaml":
                files[block[0].removeprefix("# ")] = "\n".join(block) + "\n"
            kind, block = ("" if kind else line[3:]), []
        elif kind == "yaml":
            block.append(line)
        elif kind == "console" and line.startswith("$ "):
            commands.append(Command(line[2:], last=number))
        elif kind == "console":
            commands[-1].output.append(line)
            commands[-1].last = number
    return files, commands


def plain(lines: list[str]) -> list[str]:
    found = []
    for line in lines:
        for pattern, word in _ASIDE:
            line = pattern.sub(word, line)
        found.append(" ".join(line.split()))
    return found


class Shell:
    """One bash, as a user has it: variables and the folder stay."""

    def __init__(self, folder: Path) -> None:
        programs = folder / "bin"
        programs.mkdir()
        program = f'exec {shlex.quote(sys.executable)} -m fluence.cli "$@"'
        for name, body in (
            ("fluence", program),
            ("kubectl", 'exec fluence sandbox kubectl --name tour "$@"'),
        ):
            (programs / name).write_text(f"#!/bin/sh\n{body}\n")
            (programs / name).chmod(0o755)
        env = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "COLUMNS": "110"}
        env["PYTHONPATH"] = str(Path(fluence.__file__).parents[1])  # this one, wherever the shell goes
        env["PATH"] = f"{programs}:{env['PATH']}"
        env.pop("KUBECONFIG", None)
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
            cwd=folder,
        )

    def run(self, command: str) -> tuple[int, list[str]]:
        assert self._bash.stdin is not None and self._bash.stdout is not None
        self._bash.stdin.write(f"{{ {command}\n}} </dev/null; echo; echo END $?\n")
        self._bash.stdin.flush()
        lines: list[str] = []
        for line in self._bash.stdout:
            if line.startswith("END "):
                while lines and not lines[-1]:
                    lines.pop()
                return int(line.split()[1]), lines
            lines.append(line.rstrip("\n"))
        raise AssertionError(f"the shell ended: {lines}")

    def close(self) -> None:
        self.run("fluence sandbox down --all")
        self._bash.communicate("exit\n", timeout=30)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    needs_sandbox()
    made = Shell(tmp_path)
    for name, text in read(PAGE.read_text())[0].items():
        (tmp_path / name).write_text(text)
    yield made
    made.close()


def printed(shell: Shell, command: Command) -> list[str]:
    """What it prints, once that is what the page has, or once it stays the same."""
    expected, wait = plain(command.output), QUIET_S if REFRESH else PATIENCE_S
    _, found = shell.run(command.text)
    since = time.monotonic()
    while (REFRESH or plain(found) != expected) and time.monotonic() - since < wait:
        time.sleep(0.3)
        _, again = shell.run(command.text)
        if REFRESH and plain(again) != plain(found):
            since = time.monotonic()
        found = again
    return found


def test_the_tour_is_what_a_user_sees(shell: Shell) -> None:
    page = PAGE.read_text()
    lines = page.splitlines()
    wrong: list[str] = []
    moved = 0  # lines that were added to the page so far
    for command in read(page)[1]:
        if not command.is_shown:
            code, found = shell.run(command.text)
            assert code == 0, (command.text, found)
            continue
        found = printed(shell, command)
        if plain(found) == plain(command.output):
            continue
        if REFRESH:
            end = command.last + moved + 1
            lines[end - len(command.output) : end] = found
            moved += len(found) - len(command.output)
        else:
            wrong.append("\n".join((f"$ {command.text}", *found)))
    if REFRESH:
        PAGE.write_text("\n".join(lines) + "\n")
    assert not wrong, "printed, and not on the page (FLUENCE_REFRESH_TOUR=1 writes it):\n" + "\n".join(wrong)
