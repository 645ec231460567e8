"""Sessions of resource-query: how one is run, here or in another program, and how two runs compare.

A session is its arguments (`OUT` stands for the file of the answers), its command lines, and the folder in
which the documents lie that they name. Answers are compared per command: line by line, JSON by value, with
the nodes and edges of a graph in any order.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from fluence.cli.resource_query import resource_query
from fluence.errors import FluenceError

_MARK = "Could not find path /after-this in resource graph."
_SECONDS = 5


@dataclass(frozen=True)
class QuerySession:
    """What is given to a resource-query."""

    arguments: tuple[str, ...]
    lines: tuple[str, ...]
    folder: Path


@dataclass(frozen=True)
class Answers:
    """What came out: per command, and whether the program ended well, or with an error, or not by itself."""

    per_command: tuple[tuple[str, ...], ...]
    ended_well: bool
    error: str = ""
    fell: bool = False


@dataclass(frozen=True)
class Difference:
    """The first command that two programs answer differently; -1 if only their ends differ."""

    index: int
    theirs: tuple[str, ...]
    ours: tuple[str, ...]


Run = Callable[[QuerySession], Answers]


def canonical(text: str | None) -> list[str]:
    """The lines of an output; JSON by value, JGF's nodes and edges in any order."""
    lines: list[str] = []
    for line in (text or "").splitlines():
        bare = line.strip()
        if bare.startswith(("{", "[")):
            with contextlib.suppress(ValueError):
                line = json.dumps(_order_free(json.loads(bare)), sort_keys=True)
        lines.append(line.rstrip())
    return lines


def _order_free(value: Any) -> Any:
    if isinstance(value, list):
        return [_order_free(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        key: sorted(_order_free(item), key=lambda one: json.dumps(one, sort_keys=True))
        if key in ("nodes", "edges") and isinstance(item, list)
        else _order_free(item)
        for key, item in value.items()
    }


def run_here(session: QuerySession) -> Answers:
    """Run a session of `fluence resource-query` in this process."""

    def run(arguments: list[str], text: str) -> tuple[int | None, str]:
        before = Path.cwd()
        os.chdir(session.folder)
        try:
            done = CliRunner().invoke(resource_query, arguments, input=text)
        finally:
            os.chdir(before)
        if isinstance(done.exception, FluenceError):  # of which the program makes one line and exit code 1
            return 1, f"{done.stderr}{done.exception}"
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, done.stderr

    return _run(session, run)


def program(command: Sequence[str]) -> Run:
    """How to run a session in another program, such as a real Fluxion's resource-query."""

    def run_there(session: QuerySession) -> Answers:
        def run(arguments: list[str], text: str) -> tuple[int | None, str]:
            try:
                done = subprocess.run(
                    [*command, *arguments],
                    input=text,
                    cwd=session.folder,
                    text=True,
                    errors="replace",
                    capture_output=True,
                    timeout=_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return None, f"no end after {_SECONDS} s"
            return done.returncode, done.stderr

        return _run(session, run)

    return run_there


def _run(session: QuerySession, run: Callable[[list[str], str], tuple[int | None, str]]) -> Answers:
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch, "out")
        arguments = [str(out) if argument == "OUT" else argument for argument in session.arguments]
        marked = "".join(f"{line}\nget-status /after-this\n" for line in session.lines)
        code, error = run(arguments, f"{marked}quit\n")
        text = out.read_text(errors="replace") if out.exists() else ""
    answers: list[tuple[str, ...]] = []
    answer: list[str] = []
    for line in canonical(text):
        if line == _MARK:
            answers.append(tuple(answer))
            answer = []
        else:
            answer.append(line)
    return Answers(tuple(answers), code == 0, error, fell=code is None or code < 0)


def difference(session: QuerySession, theirs: Run, ours: Run = run_here) -> Difference | None:
    """The first command that is answered differently; what follows a crash of theirs is not compared."""
    one, two = theirs(session), ours(session)
    for index, (there, here) in enumerate(zip(one.per_command, two.per_command, strict=False)):
        if there != here:
            return Difference(index, there, here)
    if one.fell:
        return None
    if one.ended_well != two.ended_well or len(one.per_command) != len(two.per_command):
        return Difference(-1, tuple(one.error.splitlines()[-3:]), tuple(two.error.splitlines()[-3:]))
    return None


def smallest(session: QuerySession, theirs: Run, ours: Run = run_here) -> QuerySession:
    """A session that still differs in its last command, and none of whose other commands can be left out."""
    found = difference(session, theirs, ours)
    if found is None:
        return session
    if found.index >= 0:
        session = replace(session, lines=session.lines[: found.index + 1])
    at = len(session.lines) - 1 - (found.index >= 0)
    while at >= 0:
        shorter = replace(session, lines=session.lines[:at] + session.lines[at + 1 :])
        if difference(shorter, theirs, ours) is not None:
            session = shorter
        at -= 1
    return session
