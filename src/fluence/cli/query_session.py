"""A session of `fluence resource-query`: one line in, Fluxion's answer out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from errno import EBUSY, ENOENT
from pathlib import Path
from typing import TextIO

import click

from fluence.errors import FluenceError, InvalidGraph
from fluence.graph.writers import SHORTHAND, Grant, write
from fluence.match import describe
from fluence.match.find import find
from fluence.match.matcher import Matcher, NothingHeld
from fluence.match.request import Never, Operation, Placed, Request
from fluence.model.jobspec import Jobspec

_RULE = "INFO: ============================="
_OTHER_IDS = 2**62


@dataclass(slots=True)
class _Known:
    """A job as the session lists it."""

    state: str
    at: int
    source: str
    seconds: float


@dataclass
class Session:
    """One session: a matcher, a job counter, and where the answers go."""

    matcher: Matcher
    format: str
    out: TextIO
    timing: bool = False
    next_job: int = 1
    jobs: dict[int, _Known] = field(default_factory=dict)
    live: dict[int, bool] = field(default_factory=dict)  # job -> is a reservation
    also: dict[int, list[int]] = field(default_factory=dict)  # the ledger's ids of the other parts of a job
    shortened: bool = False
    queue: str | None = None  # of the last job that named one

    def run(self, line: str) -> bool:
        """Carry out one line; False ends the session."""
        words = line.split()
        if not words or words[0].startswith("#"):
            return True
        name = SHORT.get(words[0], words[0])
        if name == "quit":
            return False
        command = COMMANDS.get(name)
        if command is not None:
            try:
                command[0](self, words)
            except FluenceError as error:
                _complain(f"ERROR: {error}")
            except OSError as error:
                _complain(f"ERROR: can't open {error.filename}: {error.strerror}")
        return True

    # -- commands --------------------------------------------------------------------------------------------

    def match(self, words: list[str]) -> None:
        if len(words) != 3:
            _malformed()
            return
        operation = _operation(words[1])
        if operation is not None:
            self._match(operation, words[2])

    def multi_match(self, words: list[str]) -> None:
        if len(words) <= 3:
            _malformed()
            return
        operation = _operation(words[1])
        if operation is None:
            return
        for source in words[2:]:
            if not self._match(operation, source):
                break

    def cancel(self, words: list[str]) -> None:
        if len(words) not in (2, 3):
            _malformed()
            return
        job = _number(words[1])
        if job not in self.live:
            _complain(f"cancel: ERROR: nonexistent job {job}")
            return
        before, after = self.matcher.cancel_visits(job)
        rooted = self.matcher.holds(job, self.matcher.tree.root)
        for each in (job, *self.also.pop(job, ())):
            self.matcher.cancel(each)
        if not rooted:
            # Fluxion frees the job but reports a failure: the id stays in use.
            _complain(f"cancel: ERROR: job {job} held nothing at the root any more")
            return
        del self.live[job]
        self.jobs[job].state = "CANCELED"
        if words[2:] == ["stats"]:
            self._print(_RULE)
            self._print(f'INFO: CANCEL PREORDER COUNT="{before}"')
            self._print(f'INFO: CANCEL POSTORDER COUNT="{after}"')
            self._print(_RULE)

    def partial_cancel(self, words: list[str]) -> None:
        if len(words) not in (4, 5):
            _malformed()
            return
        job, reader, source = _number(words[1]), words[2], words[3]
        if reader not in ("jgf", "rv1exec"):
            _complain(f"ERROR: unsupported reader {reader}")
            return
        text = Path(source).read_bytes()
        if job not in self.live:
            _complain(f"ERROR: nonexistent job {job}")
            return
        if self.live[job]:
            _complain("ERROR: reservations not currently supported by partial cancel")
            return
        try:
            freed = self.matcher.partial_cancel(job, text, reader=reader)
            if freed.whole_job:
                del self.live[job]
                self.jobs[job].state = "CANCELED"
        except FluenceError as error:
            _complain(f"ERROR: {error}")
            _complain(f"ERROR: error encountered while removing job {job}")
        if words[4:] == ["stats"]:
            # Fluxion 0.54 finds the vertices by rank without a walk, and reports that it visited nothing.
            self._print(_RULE)
            self._print('INFO: PARTIAL CANCEL PREORDER COUNT="0"')
            self._print('INFO: PARTIAL CANCEL POSTORDER COUNT="0"')
            self._print(_RULE)

    def update(self, words: list[str]) -> None:
        if len(words) != 7:
            _malformed()
            return
        _, kind, reader, source, name, start, length = words
        if kind not in ("allocate", "reserve"):
            _complain(f"ERROR: unknown subcmd {kind}")
            return
        if reader not in ("jgf", "jgf_shorthand", "rv1exec"):
            _complain(f"ERROR: unsupported reader {reader}")
            return
        text = Path(source).read_bytes()
        job, at, duration = _number(name), _number(start), _number(length)
        if job in self.live:
            _complain("ERROR: existing Jobid ")
            return
        if at < 0 or duration <= 0:
            _complain(f"ERROR: invalid time ({at}, {duration})")
            return
        began = time.perf_counter()
        placed: Placed | None = None
        try:
            placed = self.matcher.update(job, text, reader=reader, at=at, duration=duration, now=0)
            self.out.write(self._text(placed))
        except FluenceError as error:
            _complain("ERROR: traverser run () returned error ")
            _complain(f"ERROR: {error}")
        self._report(job, source, placed, True, time.perf_counter() - began)
        self.next_job = job + 1

    def attach(self, words: list[str]) -> None:
        if len(words) != 2:
            _malformed()
            return
        try:
            self.matcher.grow(Path(words[1]).read_bytes(), source=words[1])
        except InvalidGraph as error:
            _complain("ERROR: can't attach JGF subgraph ")
            _complain(f"ERROR: {error}")

    def remove(self, words: list[str]) -> None:
        if len(words) != 3:
            _malformed()
            return
        if words[2] == "true":
            self.matcher.remove_path(words[1])
        elif words[2] == "false":
            self.matcher.remove_ranks(words[1])
        else:
            _complain("ERROR: invalid path boolean input ")

    def find(self, words: list[str]) -> None:
        if len(words) < 2:
            _malformed()
            return
        criteria = " ".join(words[1:])
        text = self._written(find(self.matcher, criteria, clock=int(time.time()), also=self.also))
        if self.format == "rlite" and not text:
            _complain("find: ERROR: nothing that R_lite can say was found")
            return
        self.out.write(text)
        self._print(_RULE)
        self._print(f'INFO: EXPRESSION="{criteria}"')
        self._print(_RULE)

    def set_property(self, words: list[str]) -> None:
        if len(words) != 3:
            _malformed()
            return
        key, equals, value = words[2].partition("=")
        if not (key and equals and value):
            self._print("Incorrect input format. ")
            self._print("Please use `set-property <resource> PROPERTY=VALUE`.")
            return
        found = self.matcher.graph.vertices_at(words[1])
        if not found:
            self._print(f"Couldn't find path {words[1]} in resource graph.")
        for vertex in found:
            self.matcher.graph.set_property(vertex, key, value)

    def get_property(self, words: list[str]) -> None:
        if len(words) != 2:
            _malformed()
            return
        graph = self.matcher.graph
        for vertex in self._vertices(words[1]):
            properties = graph.properties.get(vertex)
            if not properties:
                uniq = int(graph.uniq_id[vertex])
                self._print(f"No properties were found for {words[1]} (vtx's uniq_id={uniq}).")
                continue
            for key, value in sorted(properties.items()):
                self._print(f"{key}={value}")

    def set_status(self, words: list[str]) -> None:
        if len(words) != 3:
            _malformed()
            return
        if not self._vertices(words[1]):
            return
        if words[2] not in ("up", "down"):
            _complain("ERROR: unrecognized status")
        else:
            self.matcher.set_status(words[1], up=words[2] == "up")

    def get_status(self, words: list[str]) -> None:
        if len(words) != 2:
            _malformed()
            return
        up = self.matcher.graph.up
        for vertex in self._vertices(words[1]):
            self._print(f"{words[1]} is {'up' if up[vertex] else 'down'}")

    def list_jobs(self, words: list[str]) -> None:
        for job in sorted(self.jobs):
            self._show(job)

    def info(self, words: list[str]) -> None:
        if len(words) != 2:
            _malformed()
        elif _number(words[1]) not in self.jobs:
            click.echo(f"ERROR: jobid doesn't exist: {words[1]}")
        else:
            self._show(_number(words[1]))

    def stat(self, words: list[str]) -> None:
        if len(words) != 1:
            _malformed()
            return
        times = [known.seconds for known in self.jobs.values()]
        click.echo(f"INFO: Num. of Jobs Matched: {len(times)}")
        click.echo(f"INFO: Min. Match Time: {min(times, default=0.0):g}")
        click.echo(f"INFO: Max. Match Time: {max(times, default=0.0):g}")
        click.echo(f"INFO: Avg. Match Time: {sum(times) / len(times) if times else 0.0:g}")

    def cat(self, words: list[str]) -> None:
        if len(words) != 2:
            _malformed()
            return
        click.echo(Path(words[1]).read_text(errors="replace"), nl=False)
        click.echo(f"INFO: Jobspec in {words[1]}")

    def show_help(self, words: list[str]) -> None:
        wanted = words[1] if len(words) == 2 else None
        shorts = {name: short for short, name in SHORT.items()}
        found = False
        for name, (_, note) in COMMANDS.items():
            if wanted in (None, name, shorts[name]):
                click.echo(f"INFO: {name} ({shorts[name]}) -- {note}")
                found = True
        if not found:
            click.echo(f"ERROR: unknown command: {wanted}")

    # -- internals -------------------------------------------------------------------------------------------

    def _vertices(self, path: str) -> list[int]:
        """The vertices at a path. A path without vertices is reported."""
        found = list(self.matcher.graph.vertices_at(path))
        if not found:
            self._print(f"Could not find path {path} in resource graph.")
        return found

    def _match(self, operation: Operation, source: str) -> bool:
        try:
            text = Path(source).read_bytes()
        except OSError:
            _complain(f"ERROR: can't open {source}")
            return True
        trying = operation in (Operation.TRY, Operation.TRY_FUTURE)
        began = time.perf_counter()
        outcome = None
        satisfiable = True
        counts = not trying and operation is not Operation.JUDGE
        try:
            jobspec = Jobspec.parse(text, source=source)
            request = self.matcher.compile(jobspec)
            self._check_duration(request)
        except FluenceError as error:
            _complain(f"match_allocate: ERROR: Jobspec error for {self.next_job}: {error}")
            counts = False
        else:
            try:
                outcome = self.matcher.match(operation, request, job=-1 if trying else self._ledger_id())
            except NothingHeld as error:
                # Fluxion reports a stale errno here, and counts the job only if it says "busy".
                _complain(f"match_allocate: ERROR: {error}")
                counts = counts and error.obstacle == EBUSY
                satisfiable = error.obstacle != ENOENT
            except FluenceError as error:
                # For a plain `allocate`, every error in a search is "busy", which counts.
                _complain(f"match_allocate: ERROR: {error}")
                counts = operation is Operation.ALLOCATE
        seconds = time.perf_counter() - began
        placed = outcome if isinstance(outcome, Placed) else None
        satisfiable = satisfiable and not isinstance(outcome, Never)
        written = ""
        if placed is not None and operation is not Operation.JUDGE:
            written = self._text(placed)
            seconds = time.perf_counter() - began
        if self.format == "rlite" and not written:
            # Fluxion treats it as an error if there is nothing to write in this format.
            placed, satisfiable, counts = None, satisfiable or outcome is not None, False
        if operation is Operation.JUDGE:
            self._print(_RULE)
            self._print(f"INFO: {'Satisfiable' if satisfiable else 'Unsatisfiable'} request")
            self._print(_RULE)
            self._time(seconds)
            return placed is not None
        self.out.write(written)
        self._report(self.next_job, source, placed, satisfiable, seconds, trying=trying)
        self.next_job += counts
        return placed is not None

    def _ledger_id(self) -> int:
        """The ledger's id of the next job. Fluxion uses an id twice if `update` set it back."""
        job = self.next_job
        if job in self.matcher.ledger.jobs:
            others = self.also.setdefault(job, [])
            job = _OTHER_IDS + 1000 * job + len(others)
            others.append(job)
        return job

    def _check_duration(self, request: Request) -> None:
        try:
            self.matcher.duration(request, 0)
        except FluenceError:
            # Fluxion has already kept the exclusive types of such a job, and does not forget them.
            self.matcher.search.stuck |= request.exclusive_types
            raise

    def _text(self, placed: Placed) -> str:
        return self._written(describe.grant(self.matcher, placed))

    def _written(self, grant: Grant) -> str:
        """The text of a grant. Once Fluxion's writer has shortened something or named a queue, it keeps doing
        so."""
        self.queue = self.queue if grant.queue is None else grant.queue
        text = write(replace(grant, is_shortened=self.shortened, queue=self.queue), self.format)
        self.shortened = self.shortened or SHORTHAND in text
        return text

    def _report(
        self,
        job: int,
        source: str,
        placed: Placed | None,
        satisfiable: bool,
        seconds: float,
        *,
        trying: bool = False,
    ) -> None:
        self._print(_RULE)
        if placed is None:
            self._print("INFO: No matching resources found")
            if not satisfiable:
                self._print("INFO: Unsatisfiable request")
            self._print(f"INFO: JOBID={job}")
        else:
            reserved = placed.at != 0
            mode = "MATCHED" if trying else "RESERVED" if reserved else "ALLOCATED"
            self._print(f"INFO: JOBID={job}")
            self._print(f"INFO: RESOURCES={mode}")
            self._print(f"INFO: SCHEDULED AT={placed.at if reserved else 'Now'}")
            if not trying:
                self.jobs[job] = _Known(mode, placed.at, source, seconds)
                self.live[job] = reserved
        self._time(seconds)
        self._print(_RULE)

    def _show(self, job: int) -> None:
        known = self.jobs[job]
        click.echo(f"INFO: {job}, {known.state}, {known.at}, {known.source}, {known.seconds:g}")

    def _time(self, seconds: float) -> None:
        if self.timing:
            click.echo(f"INFO: ELAPSE={seconds:.6f}")
            click.echo(f"INFO: PREORDER VISIT COUNT={self.matcher.visited}")
            click.echo(f"INFO: POSTORDER VISIT COUNT={self.matcher.visited}")

    def _print(self, text: str) -> None:
        self.out.write(text + "\n")


_Command = Callable[[Session, list[str]], None]
COMMANDS: dict[str, tuple[_Command, str]] = {
    "match": (
        Session.match,
        (
            "Allocate or reserve matching resources (subcmd: allocate | allocate_with_satisfiability | "
            "allocate_orelse_reserve | satisfiability | without_allocating | without_allocating_future): "
            "match allocate jobspec"
        ),
    ),
    "multi-match": (Session.multi_match, "The same for several jobspecs: multi-match allocate job1 job2 ..."),
    "update": (
        Session.update,
        (
            "Re-create an allocation (subcmd: allocate | reserve; reader: jgf | jgf_shorthand | rv1exec): "
            "update allocate jgf file jobid starttime duration"
        ),
    ),
    "attach": (Session.attach, "Add a JGF subgraph to the graph: attach jgf_file"),
    "remove": (
        Session.remove,
        "Remove a subgraph by path (true) or by an idset of ranks (false): remove /path/to/node true",
    ),
    "find": (
        Session.find,
        (
            "Find resources (status={up|down} sched-now={allocated|free} sched-future={reserved|free} "
            "agfilter={true|false} names=hostlist jobid-alloc=jobid jobid-span=jobid jobid-tag=jobid "
            "jobid-reserved=jobid property=name): find status=down and sched-now=allocated"
        ),
    ),
    "cancel": (Session.cancel, "Cancel an allocation or reservation: cancel jobid [stats]"),
    "partial-cancel": (
        Session.partial_cancel,
        "Release a part of an allocation (jgf | rv1exec): partial-cancel jobid jgf file [stats]",
    ),
    "set-property": (Session.set_property, "Add a property: set-property /path KEY=VALUE"),
    "get-property": (Session.get_property, "Print all properties: get-property /path"),
    "set-status": (Session.set_status, "Mark a vertex up or down: set-status /path {up|down}"),
    "get-status": (Session.get_status, "Print the status of a vertex: get-status /path"),
    "list": (Session.list_jobs, "List all jobs: list"),
    "info": (Session.info, "Print what is known of a job: info jobid"),
    "stat": (Session.stat, "Print statistics: stat"),
    "cat": (Session.cat, "Print a jobspec file: cat jobspec"),
    "help": (Session.show_help, "Print this: help [command]"),
    "quit": (lambda session, words: None, "End the session: quit"),
}
SHORT = {
    "m": "match",
    "M": "multi-match",
    "u": "update",
    "j": "attach",
    "r": "remove",
    "f": "find",
    "c": "cancel",
    "pc": "partial-cancel",
    "p": "set-property",
    "g": "get-property",
    "t": "set-status",
    "e": "get-status",
    "l": "list",
    "i": "info",
    "s": "stat",
    "a": "cat",
    "h": "help",
    "q": "quit",
}


def _operation(word: str) -> Operation | None:
    try:
        return Operation(word)
    except ValueError:
        _complain(f"ERROR: unknown subcmd {word}")
        return None


def _number(word: str) -> int:
    try:
        return int(word)
    except ValueError:
        return 0


def _complain(text: str) -> None:
    click.echo(text, err=True)


def _malformed() -> None:
    _complain("ERROR: malformed command")
