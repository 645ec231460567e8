"""Graphs: the named graphs of a service, the ids of their jobs, and the journal that keeps both.

All methods are called by the worker's thread. A method that changes something appends its record before it
returns. `commit` writes the appended records, and only after that may a call be answered.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from fluence.errors import Conflict, FluenceError, InvalidInput, NotFound
from fluence.graph.filters import DEFAULT as DEFAULT_FILTERS
from fluence.match import policy as policies
from fluence.match.request import Operation
from fluence.service import journal as changes
from fluence.service.engine import NO_JOB, Engine, Match, ReadOnly, Refusal
from fluence.service.journal import Journal, JournalError
from fluence.service.matcher_engine import MatcherEngine

logger = logging.getLogger(__name__)

DEFAULT = "default"  # the graph of calls without a name, and of the predecessors' services
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
MAX_NAME = 253
_TAKING = (Operation.ALLOCATE, Operation.ALLOCATE_OR_RESERVE, Operation.ALLOCATE_OR_JUDGE)
_MAX_CHANGES = 1000  # of a graph, that are replayed at every start
_MAX_DEAD = 5000  # removed vertices of a graph that still use memory, if there are as many others
_FURTHEST = 1_000_000  # an id of a caller that is further ahead does not move the counter


@dataclass(slots=True)
class NamedGraph:
    """A graph, and the id of its next job."""

    name: str
    engine: Engine
    source: str
    next_job: int = 1
    fixed: bool = False  # configured at the start of the service: no call replaces or unloads it


class LimitReached(FluenceError):
    """The service has its maximum of graphs, or a graph its maximum of jobs."""


class Graphs:
    """Every graph by its name."""

    def __init__(
        self,
        *,
        policy: str = "first",
        max_graphs: int = 16,
        max_vertices: int = 2_000_000,
        max_jobs: int = 100_000,
        journal: Journal | None = None,
    ) -> None:
        self._policy = policy
        self._max_graphs = max_graphs
        self._max_vertices = max_vertices
        self._max_jobs = max_jobs
        self._journal = journal
        self._graphs: dict[str, NamedGraph] = {}
        self._touched: set[str] = set()

    def __iter__(self) -> Iterator[NamedGraph]:
        return iter(list(self._graphs.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._graphs

    def get(self, name: str = "") -> NamedGraph:
        """A graph by name; empty is the default one."""
        found = self._graphs.get(name or DEFAULT)
        if found is None:
            known = ", ".join(sorted(self._graphs))
            raise NotFound(
                f"no graph {(name or DEFAULT)[:MAX_NAME]!r} is loaded: "
                + (f"there are {known}" if known else "call Init or LoadGraph first")
            )
        return found

    # -- loading ---------------------------------------------------------------------------------------------

    def add(self, name: str, engine: Engine, *, source: str) -> None:
        """Serve an engine that was made elsewhere. It is not kept in the journal."""
        self._graphs[name] = NamedGraph(name, engine, source, fixed=True)

    def load(
        self,
        name: str,
        text: str | bytes,
        *,
        format_: str = "",
        policy: str = "",
        allow: Sequence[str] = (),
        pools: Sequence[str] = (),
        filters: str = "",
        replace: bool = False,
        source: str = "graph",
        fixed: bool = False,
    ) -> NamedGraph:
        """Read a graph and serve it under a name. With ``replace``, it replaces the graph with that name."""
        name = name or DEFAULT
        if _NAME.fullmatch(name) is None:
            raise InvalidInput(
                f"{name[:MAX_NAME]!r} is not a valid name of a graph: use letters, digits, '.', '_' and '-', "
                "63 at most",
                where="graph",
            )
        old = self._graphs.get(name)
        if old is not None and old.fixed and not fixed:
            raise ReadOnly(f"graph {name!r} was given when the service was started: no call replaces it")
        if old is not None and not replace:
            raise Conflict(f"graph {name!r} is loaded: unload it first, or ask to replace it")
        if old is None and len(self._graphs) >= self._max_graphs:
            raise LimitReached(f"{len(self._graphs)} graphs are loaded, which is the limit (--max-graphs)")
        policies.find(policy or self._policy)
        if not text:
            raise InvalidInput("is empty: give a graph as JGF, GRUG, hwloc or R", where=source)
        others = sum(_rows(graph.engine) for graph in self._graphs.values() if graph is not old)
        load = changes.LoadGraph(
            graph=name,
            text=changes.packed(text),
            format=format_,
            policy=policy or self._policy,
            source=source,
            digest=changes.digest(text),
            filters=filters or DEFAULT_FILTERS,
            allow=tuple(allow),
            pools=tuple(pools),
        )
        found = NamedGraph(name, self._engine(load, self._max_vertices - others), source, fixed=fixed)
        if old is not None:
            found.next_job = old.next_job  # no id is used twice, even on another graph with the name
        self._graphs[name] = found
        self._share_room()
        self._record(load)
        self._record(changes.NextJob(name, found.next_job))
        return found

    def load_file(self, text: bytes, *, format_: str, allow: Sequence[str], source: str) -> None:
        """Serve the graph of a file as the default one, in its last state if the journal has that graph."""
        old = self._graphs.get(DEFAULT)
        if old is None:
            self.load(DEFAULT, text, format_=format_, allow=allow, source=source, fixed=True)
            return
        assert isinstance(old.engine, MatcherEngine)
        if old.engine.source.digest != changes.digest(text):
            raise Conflict(
                f"{source}: the graph that is kept from before (of {old.source}) is another: leave --graph "
                "away to go on with it, or name another folder with --state"
            )
        old.fixed = True

    def unload(self, name: str) -> int:
        """Remove a graph with all its jobs. Returns how many there were."""
        found = self.get(name)
        if found.fixed:
            raise ReadOnly(f"graph {found.name!r} was given when the service was started: no call unloads it")
        jobs = sum(1 for _ in found.engine.jobs())
        del self._graphs[found.name]
        self._share_room()
        self._record(changes.UnloadGraph(found.name))
        return jobs

    # -- jobs ------------------------------------------------------------------------------------------------

    def match(
        self,
        name: str,
        operation: Operation,
        jobspec: str,
        *,
        now: int,
        job: int | None = None,
        label: str = "",
        size: int = 1,
        format_: str = "",
        explain: bool = False,
    ) -> Match | Refusal:
        """One match on a graph. ``job`` is an id of the caller; without it, the graph assigns one. ``label``
        is the name of the job for people."""
        graph = self.get(name)
        number = NO_JOB
        if operation in _TAKING and not graph.engine.read_only:
            self._check_jobs(graph)
            number = self._next_job(graph) if job is None else job
        result = graph.engine.match(
            operation,
            jobspec,
            job=number,
            now=now,
            name=label[:MAX_NAME],
            size=size,
            format_=format_,
            explain=explain,
        )
        if isinstance(result, Match) and number != NO_JOB:
            _used(graph, number)
        return result

    def update(
        self,
        name: str,
        job: int,
        text: str,
        reader: str,
        *,
        at: int,
        duration: int,
        now: int,
        label: str,
        format_: str,
    ) -> Match:
        """Restore the allocation of a job from a stored text."""
        graph = self.get(name)
        self._check_jobs(graph)
        result = graph.engine.update(
            job, text, reader, at=at, duration=duration, now=now, name=label[:MAX_NAME], format_=format_
        )
        _used(graph, job)
        return result

    def _check_jobs(self, graph: NamedGraph) -> None:
        if isinstance(graph.engine, MatcherEngine) and graph.engine.job_count >= self._max_jobs:
            raise LimitReached(
                f"graph {graph.name!r} has {self._max_jobs:,} jobs, which is the limit (--max-jobs): "
                "cancel those that have ended"
            )

    def _next_job(self, graph: NamedGraph) -> int:
        while graph.engine.has_job(graph.next_job):
            graph.next_job += 1
        return graph.next_job

    # -- the journal -----------------------------------------------------------------------------------------

    def restore(self) -> int:
        """Replay the journal. Returns the number of records."""
        if self._journal is None:
            return 0
        count = 0
        for record in self._journal.records():
            try:
                self._apply(changes.decode(record))
            except (FluenceError, msgspec.DecodeError, KeyError, ValueError) as error:
                raise JournalError(
                    f"record {count + 1} of the journal cannot be carried out: {error}. It was written by "
                    "another version of Fluence, or was changed: use that version, or move the folder away"
                ) from None
            count += 1
        self._rebase(_MAX_CHANGES)
        self._share_room()
        if self._journal.cut_off:
            logger.warning(
                "the journal ended in the middle of a record, for which nobody was answered: "
                "%d bytes are cut off",
                self._journal.cut_off,
            )
        return count

    def _rebase(self, most: int) -> None:
        """Start again from the current graphs if very many changes led to them: removed vertices use memory,
        and replaying all changes at each start would take longer and longer."""
        rebased = False
        for graph in self._graphs.values():
            engine = graph.engine
            if (
                isinstance(engine, MatcherEngine)
                and engine.can_rebase
                and (_is_worn(engine) or engine.change_count > most)
            ):
                found = engine.rebased()
                if found is not None:
                    graph.engine, rebased = found, True
        if rebased and self._journal is not None:
            self._journal.compact(changes.encode(change) for change in self._snapshot())

    def _share_room(self) -> None:
        """Let each graph grow by what is left for all."""
        total = sum(_rows(graph.engine) for graph in self._graphs.values())
        for graph in self._graphs.values():
            if isinstance(graph.engine, MatcherEngine):
                graph.engine.max_vertices = self._max_vertices - total + graph.engine.rows

    def commit(self) -> None:
        """Write all changes since the last call to disk."""
        if self._touched:
            self._share_room()
        if self._journal is not None:
            self._journal.commit()
        if any(_is_worn(self._graphs[name].engine) for name in self._touched if name in self._graphs):
            self._rebase(sys.maxsize)
            self._share_room()
        if self._journal is not None and self._journal.is_due:
            before = self._journal.size
            self._journal.compact(changes.encode(change) for change in self._snapshot())
            logger.info("journal compacted from %d to %d bytes", before, self._journal.size)

    def close(self) -> None:
        for graph in self:
            graph.engine.close()
        if self._journal is not None:
            self._journal.close()

    def touched(self) -> set[str]:
        """The graphs that changed since the last call."""
        found, self._touched = self._touched, set()
        return found

    # -- internals -------------------------------------------------------------------------------------------

    def _engine(self, load: changes.LoadGraph, max_vertices: int) -> MatcherEngine:
        return MatcherEngine(
            load, max_vertices=max_vertices, record=self._record, keeps=self._journal is not None
        )

    def _record(self, change: changes.Change) -> None:
        self._touched.add(change.graph)
        if self._journal is not None:
            self._journal.append(changes.encode(change))

    def _apply(self, change: changes.Change) -> None:
        match change:
            case changes.LoadGraph():
                engine = self._engine(change, self._max_vertices)
                self._graphs[change.graph] = NamedGraph(change.graph, engine, change.source)
            case changes.UnloadGraph():
                del self._graphs[change.graph]
            case changes.NextJob():
                graph = self._graphs[change.graph]
                graph.next_job = max(graph.next_job, change.job)
            case _:
                graph = self._graphs[change.graph]
                assert isinstance(graph.engine, MatcherEngine)
                graph.engine.restore(change)
                if isinstance(change, changes.Hold):
                    _used(graph, change.job)

    def _snapshot(self) -> Iterator[changes.Change]:
        for graph in self._graphs.values():
            if isinstance(graph.engine, MatcherEngine):
                yield from graph.engine.snapshot()
                yield changes.NextJob(graph.name, graph.next_job)


def _used(graph: NamedGraph, job: int) -> None:
    """Note that a job has this id, so that the graph does not assign it again."""
    if graph.next_job <= job <= graph.next_job + _FURTHEST:
        graph.next_job = job + 1


def _rows(engine: Engine) -> int:
    """Vertices in memory, including removed ones."""
    return engine.rows if isinstance(engine, MatcherEngine) else engine.vertices


def _is_worn(engine: Engine) -> bool:
    """Whether a graph should be loaded again in its current state."""
    if not isinstance(engine, MatcherEngine):
        return False
    return engine.rows - engine.vertices > max(_MAX_DEAD, engine.vertices)
