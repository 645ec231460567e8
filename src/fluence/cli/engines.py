"""Engines: other programs as the engine of `fluence match` and `service run`: a real Fluxion's
resource-query, or a match service.

The same requests go to the other program, and its answers are converted to outcomes on our own graph, so that
all of our formats can show them. `comparison` asks both and stops at the first answer that differs.

resource-query:PROGRAM   the program is started on the same graph and typed into grpc://HOST:PORT
`fluxion.FluxionService`: Init with the graph, then Match (`grpc_engine`) grpcs://HOST:PORT        the same
over TLS
"""

from __future__ import annotations

import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import numpy as np

from fluence.cli import engine_guard
from fluence.errors import FluenceError, InvalidInput
from fluence.graph.selection import Selection
from fluence.match.matcher import Matcher
from fluence.match.request import Never, Operation, Outcome, Placed, Request, Wait

NO_JOB: Final = -1  # the number of a request that allocates nothing
TAKING: Final = (Operation.ALLOCATE, Operation.ALLOCATE_OR_RESERVE, Operation.ALLOCATE_OR_JUDGE)
LIMIT_S: Final = 600.0  # for an answer, and for loading a large graph
_START_S: Final = 10.0  # for a tiny graph: a program that can answer has answered by then
_STARVED_S: Final = 0.1  # less than that is not what kept a program from answering
_MOST_STARVED: Final = 9.0  # times the limit: then it is over, however busy the machine is
_TINY: Final = (
    b'{"graph": {"nodes": [{"id": "0", "metadata": {"type": "cluster", "id": 0, "rank": -1, '
    b'"paths": {"containment": "/cluster0"}}}, {"id": "1", "metadata": {"type": "node", "id": 0, "rank": 0, '
    b'"paths": {"containment": "/cluster0/node0"}}}], "edges": [{"source": "0", "target": "1"}]}}'
)
_LINE = re.compile(r" {6}((?:---)+)(.+)\[([0-9]+):([xs])\]")
_AT = re.compile(r"SCHEDULED AT=(\S+)")
_JOBID = re.compile(r"JOBID=([0-9]+)")
_JOB_KEY = re.compile(r"(jobid-(?:alloc|reserved|span|tag)=)(\d+)")
_CHUNK = 1 << 20
BUSY: Final = Wait("busy")
NEVER: Final = Never("unsatisfiable")


class EngineFailed(FluenceError):
    """The other program cannot be started, ended early, or does not answer."""


class EngineRefuses(InvalidInput):
    """The other program refuses a change."""


class EngineCannot(EngineRefuses):
    """The other program does not support the request."""


@dataclass(frozen=True, slots=True)
class GraphFile:
    """A graph as it was given: its text and its format."""

    text: bytes
    format: str
    allow: str | None = None


@dataclass(frozen=True, slots=True)
class EngineJob:
    """One request: the text of its jobspec, and its meaning on our graph."""

    number: int
    text: bytes
    request: Request


class Engine(Protocol):
    """A program that places jobs. A change that it cannot carry out raises `EngineRefuses`."""

    last_id: int | None  # the other program's id for the job of the last match, if it prints one

    def match(self, operation: Operation, job: EngineJob) -> Outcome:
        """The answer. Only an operation that allocates makes it hold anything."""

    def cancel(self, number: int) -> None:
        """Free everything that a job holds."""

    def partial_cancel(self, number: int, text: bytes, reader: str) -> None:
        """Free what a text names."""

    def forget(self, number: int) -> None:
        """Forget a job after a partial cancel freed all of it."""

    def update(self, number: int, text: bytes, reader: str, at: int, duration: int) -> Placed:
        """Restore the allocation that a text describes."""

    def grow(self, text: bytes) -> None:
        """Add the vertices of a JGF."""

    def shrink(self, paths: Sequence[str]) -> None:
        """Remove vertices and everything below them."""

    def set_status(self, path: str, *, up: bool) -> None:
        """Mark a vertex up or down."""

    def find(self, criteria: str) -> set[str] | None:
        """The paths that an expression selects; None if the engine does not support it."""

    def close(self) -> None:
        """Stop what was started."""


def start(spec: str, matcher: Matcher, graph: GraphFile, *, now: int) -> Engine:
    """The engine that an option names, with the graph loaded."""
    kind, _, where = spec.partition(":")
    if kind == "resource-query" and where:
        command = _command(where)
        _probe(command)
        return QueryEngine(command, matcher, graph, now=now)
    if kind in ("grpc", "grpcs") and where.startswith("//") and len(where) > 2:
        from fluence.cli.grpc_engine import GrpcEngine

        return GrpcEngine(where[2:], matcher, graph, now=now, secure=kind == "grpcs")
    raise InvalidInput(
        f"{spec!r} is not a valid engine: write resource-query:/path/to/resource-query or grpc://host:4242"
    )


def _command(text: str) -> list[str]:
    words = [text] if Path(text).exists() else shlex.split(text)
    program = shutil.which(words[0]) if words else None
    if program is None:
        raise EngineFailed(f"--engine: there is no program {text!r}")
    return [str(Path(program).absolute()), *words[1:]]


# -- resource-query ------------------------------------------------------------------------------------------


class _QueryProcess:
    """A running resource-query: one command in, its output out."""

    def __init__(self, command: Sequence[str], arguments: Sequence[str], graph: bytes) -> None:
        self._program = command[0]
        self.folder = Path(tempfile.mkdtemp(prefix="fluence-engine-"))
        self._errors = self.folder / "errors"
        self._marks = 0
        self._buffer = b""
        (self.folder / "graph").write_bytes(graph)
        watched, self._alive = os.pipe()  # its end, when this process is gone, ends the program
        guard = [sys.executable, "-I", "-S", engine_guard.__file__, str(watched), str(self.folder)]
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [*guard, *command, *arguments, "-d"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=self.folder,
                bufsize=0,
                start_new_session=True,
                pass_fds=(watched,),
            )
        os.close(watched)
        assert self._process.stdout is not None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._process.stdout, selectors.EVENT_READ)

    def ask(self, command: str, *, starts: bool = False) -> tuple[str, str]:
        """The output of a command on both streams, up to the answer to a query that every version answers at
        once. A program that ``starts`` must answer within seconds, in which it does not wait for a
        processor."""
        self._marks += 1
        mark = f"Could not find path /mark-{self._marks} in resource graph.".encode()
        said = self._errors.stat().st_size
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(f"{command}get-status /mark-{self._marks}\n".encode())
        except BrokenPipeError:
            raise self._failed("it ended early") from None
        limit_s = _START_S if starts else LIMIT_S
        began = time.monotonic()
        deadline = began + limit_s
        while mark not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not self._selector.select(left):
                starved_s = min(_starved_s(self._process.pid), _MOST_STARVED * limit_s) if starts else 0.0
                if began + limit_s + starved_s < deadline + _STARVED_S:
                    raise self._failed(f"no {mark.decode()!r} on its standard output after {limit_s:g} s")
                deadline = began + limit_s + starved_s
                continue
            data = os.read(self._process.stdout.fileno(), _CHUNK)
            if not data:
                raise self._failed("it ended early")
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(mark)
        with self._errors.open("rb") as errors:
            errors.seek(said)
            return text.decode(errors="replace"), errors.read(_CHUNK).decode(errors="replace")

    def close(self) -> None:
        self._selector.close()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        with suppress(ProcessLookupError):  # a wrapper may have children
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._alive)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _failed(self, why: str) -> EngineFailed:
        said = self._errors.read_text(errors="replace").strip().splitlines()[-1:]
        return EngineFailed(f"--engine: {self._program}: {why}{f': {said[0][:200]}' if said else ''}")


def _starved_s(session: int) -> float:
    """How long the processes of a session have waited for a processor: no limit counts that. 0 where the
    system does not say."""
    waited_ns = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):  # it ended, or the kernel does not count
            if os.getsid(int(process.name)) == session:
                waited_ns += int((process / "schedstat").read_text().split()[1])
    return waited_ns / 1e9


def _probe(command: Sequence[str]) -> None:
    """Fail within seconds if a program is not a resource-query: a large graph may take minutes to load, and a
    program that waits for something else is silent too."""
    process = _QueryProcess(command, ["-L", "graph", "-f", "jgf"], _TINY)
    try:
        process.ask("", starts=True)
    finally:
        process.close()


class QueryEngine:
    """A running resource-query that has loaded the graph."""

    def __init__(self, command: list[str], matcher: Matcher, graph: GraphFile, *, now: int) -> None:
        self._matcher, self._now = matcher, now
        self._ids: dict[int, int] = {}  # the program's ids of our jobs
        self._highest = 0
        self.last_id: int | None = None
        arguments = ["-L", "graph", "-f", graph.format, "-P", matcher.policy.name, "-F", "simple"]
        arguments += ["-W", graph.allow] if graph.allow else []
        self._process = _QueryProcess(command, arguments, graph.text)
        try:
            self._process.ask("")
        except BaseException:
            self.close()
            raise

    def match(self, operation: Operation, job: EngineJob) -> Outcome:
        # A refused number is used again for another job.
        text, _ = self._process.ask(f"match {operation.value} {self._file(job.text)}\n")
        if operation is Operation.JUDGE:
            return satisfiable(self._matcher, self._now) if "INFO: Satisfiable request" in text else NEVER
        self.last_id = self._id(text)
        at = _AT.search(text)
        if at is None:
            return NEVER if "INFO: Unsatisfiable request" in text else BUSY
        takes = operation in TAKING
        if takes and self.last_id is not None:
            self._ids[job.number] = self.last_id
        start = self._now + (0 if at[1] == "Now" else int(at[1]))
        end = start + self._matcher.duration(job.request, self._now)
        try:
            return placed(
                self._matcher, job.number if takes else NO_JOB, start, end, self._now, _taken(text),
                queue=job.request.queue,
            )  # fmt: skip
        except EngineFailed:
            if takes:
                self.cancel(job.number)
            raise

    def cancel(self, number: int) -> None:
        self._process.ask(f"cancel {self._ids.pop(number)}\n")

    def partial_cancel(self, number: int, text: bytes, reader: str) -> None:
        self._change(f"partial-cancel {self._ids[number]} {reader} {self._file(text)}")

    def forget(self, number: int) -> None:
        self._ids.pop(number, None)

    def update(self, number: int, text: bytes, reader: str, at: int, duration: int) -> Placed:
        id_ = self._highest + 1
        said, errors = self._process.ask(
            f"update allocate {reader} {self._file(text)} {id_} {at - self._now} {duration}\n"
        )
        self.last_id = self._id(said)
        if _AT.search(said) is None:
            raise EngineRefuses(f"the other program does not take it: {_words(errors)}", where="text")
        self._ids[number] = id_
        try:
            return placed(self._matcher, number, at, at + duration, self._now, _taken(said))
        except EngineFailed:
            self.cancel(number)
            raise

    def grow(self, text: bytes) -> None:
        self._change(f"attach {self._file(text)}")

    def shrink(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._change(f"remove {_word(path)} true")

    def set_status(self, path: str, *, up: bool) -> None:
        self._change(f"set-status {_word(path)} {'up' if up else 'down'}")

    def find(self, criteria: str) -> set[str] | None:
        named = _JOB_KEY.sub(lambda key: f"{key[1]}{self._ids.get(int(key[2]), 0)}", criteria)
        text, errors = self._process.ask(f"find {' '.join(named.split())}\n")
        if "EXPRESSION=" not in text:
            raise EngineRefuses(f"the other program does not take it: {_words(errors)}", where="criteria")
        return set(_taken(text))

    def close(self) -> None:
        self._process.close()

    def _change(self, command: str) -> None:
        """Run a command that only prints errors."""
        _, errors = self._process.ask(f"{command}\n")
        if "ERROR" in errors:
            raise EngineRefuses(f"the other program does not do it: {_words(errors)}")

    def _file(self, text: bytes) -> str:
        (self._process.folder / "document").write_bytes(text)
        return "document"

    def _id(self, text: str) -> int | None:
        found = _JOBID.search(text)
        if found is None:
            return None
        self._highest = max(self._highest, int(found[1]))
        return int(found[1])


def _taken(text: str) -> dict[str, tuple[int, bool]]:
    """By path, how much of a vertex is allocated and whether exclusively, from the format `simple`."""
    taken: dict[str, tuple[int, bool]] = {}
    way: list[str] = []
    lines = [found.groups() for found in map(_LINE.fullmatch, text.splitlines()) if found is not None]
    for depth, name, needs, mode in reversed(lines):  # parents first
        way[len(depth) // 3 - 1 :] = [name]
        taken["/" + "/".join(way)] = (int(needs), mode == "x")
    return taken


def _word(path: str) -> str:
    """A path that can be typed: the program reads lines of words."""
    if len(path.split()) != 1:
        raise EngineCannot(f"{path!r}: the other program takes no path with blanks", where="path")
    return path


def _words(errors: str) -> str:
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return "; ".join(lines)[:300] or "it gives no reason"


# -- answers -------------------------------------------------------------------------------------------------


def placed(
    matcher: Matcher,
    number: int,
    at: int,
    end: int,
    now: int,
    taken: Mapping[str, tuple[int, bool]],
    *,
    queue: str | None = None,
) -> Placed:
    """A placement on our graph, from the paths of the vertices that another program printed."""
    rows: list[int] = []
    for path in taken:
        found = vertices_of(matcher, path)
        if not found:
            job = "a request" if number == NO_JOB else f"job {number}"
            raise EngineFailed(f"--engine: it gave {job} the vertex {path}, which the graph has not")
        rows.append(found[-1])
    needs = np.array([amount for amount, _ in taken.values()], np.int64)
    alone = np.array([exclusive for _, exclusive in taken.values()], np.bool_)
    selection = Selection.of(matcher.tree.shape(), np.array(rows, np.int32), needs, alone)
    return Placed(number, at, min(end, matcher.horizon), at != now, selection, queue)


def vertices_of(matcher: Matcher, path: str) -> Sequence[int]:
    """The vertices of a path that a program printed, which has the names of the parents. An attached document
    may give another path."""
    known = matcher.graph.vertices_at(path)
    if known:
        return known
    tree, graph = matcher.tree.shape(), matcher.graph
    found = [tree.root]
    root, *names = path.removeprefix("/").split("/")
    if graph.name[tree.root] != root:
        return []
    for name in names:
        found = [child for each in found for child in tree.children(each) if graph.name[child] == name]
    return found


def satisfiable(matcher: Matcher, now: int) -> Placed:
    """The outcome for a request that an empty graph could hold. Other programs do not say where."""
    return placed(matcher, NO_JOB, now, now, now, {})
