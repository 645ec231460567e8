"""Comparison: asks our own matcher and another engine, and answers only while both agree.

The requests are recorded as commands of a resource-query, so that a difference comes with a directory that
reproduces it. Once there are many commands, those without an effect are dropped.
"""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from errno import ENOENT
from pathlib import Path
from typing import Final

from fluence.cli.engines import BUSY, NEVER, NO_JOB, TAKING, Engine, EngineJob, GraphFile, satisfiable
from fluence.cli.grpc_engine import NO_REASON
from fluence.errors import FluenceError, InvalidJobspec
from fluence.match.find import find
from fluence.match.matcher import Matcher, NothingHeld
from fluence.match.request import Never, Operation, Outcome, Placed

MOST: Final = 2000  # recorded commands before those without an effect are dropped
MOST_BYTES: Final = 32 << 20  # of the documents in them
_FOLDERS: Final = 20  # that one comparison writes
_SHOWN: Final = 20  # lines of a difference


@dataclass
class EnginesDiffer(Exception):
    """The first answer that differs, and how to reproduce it."""

    lines: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Command:
    """A command. `{file}` is replaced by its document, and `{job}` by the id that the program gives our
    job."""

    text: str
    number: int = NO_JOB
    document: bytes | None = None
    counts: bool = False  # it increments the program's job counter
    id: int | None = None  # the id that the program printed

    @property
    def kind(self) -> str:
        return self.text.partition(" ")[0]


@dataclass
class Recording:
    """The commands that lead to the current state of both programs."""

    most: int = MOST
    commands: list[_Command] = field(default_factory=list)
    left_out: int = 0
    lost: bool = False  # a command that still has an effect is missing
    _bytes: int = 0
    _limit: int = 0

    def add(self, command: _Command, live: Container[int]) -> None:
        """``live``: our jobs that hold something."""
        self.commands.append(command)
        self._bytes += len(command.document or b"")
        if len(self.commands) > max(self.most, self._limit) or self._bytes > MOST_BYTES:
            self._prune(live)

    def observed(self, id_: int | None) -> None:
        """The id that the program printed for the newest command shows whether the one before was counted."""
        newest = self.commands[-1]
        newest.id = id_
        if id_ is None:
            return
        for command in reversed(self.commands[:-1]):
            if command.id is not None:
                command.counts = id_ > command.id if command.kind == "match" else command.counts
                return

    def lines(self, folder: Path) -> list[str]:
        """The commands. Their documents are written into the directory."""
        ids: dict[int, int] = {}
        next_id = 1
        found = []
        for index, command in enumerate(self.commands):
            name = f"document-{index}"
            if command.document is not None:
                (folder / name).write_bytes(command.document)
            if command.counts:
                ids[command.number], next_id = next_id, next_id + 1
            found.append(command.text.format(file=name, job=ids.get(command.number, 0)))
        return found

    def _prune(self, live: Container[int]) -> None:
        """Drop commands that have no effect any more according to our matcher, then the oldest."""
        before = len(self.commands)
        newest = self.commands.pop()
        of_job: dict[int, list[int]] = {}
        kept: set[int] = set()
        statuses: dict[str, int] = {}
        for index, command in enumerate(self.commands):
            if command.kind in ("attach", "remove"):
                kept.add(index)
                kept.update(statuses.values())
                statuses = {}
            elif command.kind == "set-status":
                statuses[command.text.split()[1]] = index
            elif command.kind == "cancel":
                of_job.pop(command.number, None)
            elif command.kind in ("match", "update") and command.number != NO_JOB:
                of_job[command.number] = [index]  # a refused number is used again
            elif command.kind == "partial-cancel":
                of_job.setdefault(command.number, []).append(index)
        kept.update(statuses.values())
        for number, indices in of_job.items():
            if number in live:
                kept.update(indices)
        self.commands = [command for index, command in enumerate(self.commands) if index in kept]
        self._limit = 2 * len(self.commands)
        self.commands.append(newest)
        self._bytes = sum(len(command.document or b"") for command in self.commands)
        while self._bytes > MOST_BYTES and len(self.commands) > 1:
            self._bytes -= len(self.commands.pop(0).document or b"")
            self.lost = True
        self.left_out += before - len(self.commands)


@dataclass
class Comparison:
    """An engine made of two: ours and another."""

    spec: str
    matcher: Matcher  # behaves exactly like Fluxion (``bug_compatible``)
    graph: GraphFile
    theirs: Engine
    now: int
    names: dict[int, str]
    recording: Recording = field(default_factory=Recording)
    last_id: int | None = None
    _folders: int = 0

    def match(self, operation: Operation, job: EngineJob) -> Outcome:
        takes = operation in TAKING
        number = job.number if takes else NO_JOB
        self._note(f"match {operation.value} {{file}}", number, job.text, counts=takes)
        there = self.theirs.match(operation, job)
        self.recording.observed(self.theirs.last_id if operation is not Operation.JUDGE else None)
        try:
            here = self.matcher.match(operation, job.request, job=job.number if takes else None, now=self.now)
        except InvalidJobspec as error:
            self._remember(job)
            # The job would hold nothing: Fluxion finds nothing, and its verdict is that of a stale errno.
            never = isinstance(error, NothingHeld) and error.obstacle == ENOENT
            refused = NEVER if never else BUSY
            here = satisfiable(self.matcher, self.now) if operation is Operation.JUDGE else refused
        if there == NO_REASON and not isinstance(here, Placed):
            return there
        one, two = self.words(there), self.words(here)
        if operation is Operation.JUDGE:  # other programs do not say where
            one, two = one[:1], two[:1]
        if one != two:
            report = self.report(f"{self._name(job.number)} ({operation.value})", one, two)
            if takes:  # neither keeps an allocation that is not answered
                if isinstance(there, Placed):
                    self.cancel(job.number)
                if job.number in self.matcher.ledger.jobs:
                    self.matcher.cancel(job.number)
            raise report
        return there if operation is Operation.JUDGE else here

    def cancel(self, number: int) -> None:
        self._note("cancel {job}", number)
        self.theirs.cancel(number)

    def partial_cancel(self, number: int, text: bytes, reader: str) -> None:
        self._note(f"partial-cancel {{job}} {reader} {{file}}", number, text)
        self.theirs.partial_cancel(number, text, reader)

    def forget(self, number: int) -> None:
        self.theirs.forget(number)

    def update(self, number: int, text: bytes, reader: str, at: int, duration: int) -> Placed:
        line = f"update allocate {reader} {{file}} {{job}} {at - self.now} {duration}"
        self._note(line, number, text, counts=True)
        found = self.theirs.update(number, text, reader, at, duration)
        self.recording.observed(self.theirs.last_id)
        return found

    def grow(self, text: bytes) -> None:
        self._note("attach {file}", document=text)
        self.theirs.grow(text)

    def shrink(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._note(f"remove {_plain(path)} true")
        self.theirs.shrink(paths)

    def set_status(self, path: str, *, up: bool) -> None:
        self._note(f"set-status {_plain(path)} {'up' if up else 'down'}")
        self.theirs.set_status(path, up=up)

    def find(self, criteria: str) -> set[str] | None:
        """What the other program finds, if ours finds the same."""
        there = self.theirs.find(criteria)
        if there is not None:
            self._note(f"find {_plain(' '.join(criteria.split()))}")
            chosen = find(self.matcher, criteria, now=self.now).selection.vertices
            here = {self._shown(row) for row in chosen.tolist()}
            if here != there:
                raise self.report(f"find {criteria}", sorted(there), sorted(here))
        return there

    def close(self) -> None:
        self.theirs.close()

    def words(self, outcome: Outcome | FluenceError) -> list[str]:
        """An outcome as lines that can be compared."""
        if isinstance(outcome, FluenceError):
            return ["refuses"]
        if not isinstance(outcome, Placed):
            return ["can never start" if isinstance(outcome, Never) else "waits"]
        chosen, graph = outcome.selection, self.matcher.graph
        columns = (chosen.vertices, chosen.needs, chosen.exclusive)
        return [
            f"from {outcome.at} to {outcome.end}",
            *sorted(
                f"{graph.path(vertex)}[{needs}:{'x' if alone else 's'}]"
                for vertex, needs, alone in zip(*[column.tolist() for column in columns], strict=True)
            ),
        ]

    def report(self, what: str, one: Sequence[str], two: Sequence[str]) -> EnginesDiffer:
        """The answers of the other program (one) and of ours (two), with the commands that reproduce them."""
        ours, theirs = set(two), set(one)
        lines = [
            f"{what} is answered differently:",
            *(f"  {self.spec}: {line}" for line in [line for line in one if line not in ours][:_SHOWN]),
            *(f"  fluence: {line}" for line in [line for line in two if line not in theirs][:_SHOWN]),
        ]
        if self._folders >= _FOLDERS:
            return EnginesDiffer([*lines, f"{_FOLDERS} folders with commands are written already"])
        self._folders += 1
        folder = Path(tempfile.mkdtemp(prefix="fluence-differs-"))
        (folder / "graph").write_bytes(self.graph.text)
        (folder / "commands").write_text("\n".join((*self.recording.lines(folder), "quit\n")))
        options = ["-L", "graph", "-f", self.graph.format, "-P", self.matcher.policy.name, "-d"]
        options += ["-W", self.graph.allow] if self.graph.allow else []
        program = self.spec.partition(":")[2] if self.spec.startswith("resource-query:") else "resource-query"
        lines += [
            "To see it again:",
            f"  cd {folder}",
            f"  {program} {shlex.join(options)} < commands",
            f"  fluence resource-query {shlex.join(options)} < commands",
        ]
        if self.recording.lost:
            lines.append(f"The oldest of {self.recording.left_out} commands that are left out still count.")
        elif self.recording.left_out:
            lines.append(
                f"{self.recording.left_out} earlier commands are left out: nothing of them is held any more."
            )
        return EnginesDiffer(lines)

    def _note(
        self, text: str, number: int = NO_JOB, document: bytes | None = None, *, counts: bool = False
    ) -> None:
        self.recording.add(_Command(text, number, document, counts), self.matcher.ledger.jobs)

    def _remember(self, job: EngineJob) -> None:
        """Fluxion keeps the exclusive types of a job that lasts too long, and does not forget them."""
        try:
            self.matcher.duration(job.request, self.now)
        except InvalidJobspec:
            self.matcher.search.stuck |= job.request.exclusive_types

    def _shown(self, row: int) -> str:
        """The path of a vertex by the names of its parents, as a program prints it. An attached document may
        give another path."""
        tree, names = self.matcher.tree.shape(), self.matcher.graph.name
        return "/" + "/".join(names[each] for each in (*reversed(list(tree.ancestors(row))), row))

    def _name(self, number: int) -> str:
        return self.names.get(number) or ("a question" if number == NO_JOB else f"job {number}")


def _plain(text: str) -> str:
    """A text with escaped braces."""
    return text.replace("{", "{{").replace("}", "}}")
