"""MatcherEngine: a graph of the service, matched by Fluence's matcher.

Every change is passed on as a record (`changes`) before the method returns. `restore` replays one, and
`snapshot` returns the records that make an equal engine. With a policy that stops early (`first`), the order
in which nodes are tried also depends on past jobs; a snapshot leaves those out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import numpy as np
from cachetools import LRUCache

from fluence.errors import FluenceError, InvalidGraph, InvalidInput, NotFound
from fluence.graph import files, grug, rv1
from fluence.graph.graph import ResourceGraph
from fluence.graph.selection import Selection
from fluence.graph.writers import Grant, formats, jgf_value, write
from fluence.match import policy as policies
from fluence.match.describe import Explanation, grant, shares
from fluence.match.explain import explain
from fluence.match.find import find
from fluence.match.matcher import Matcher
from fluence.match.request import Extensions, Never, Operation, Outcome, Placed, Request, Wait
from fluence.model.jobspec import Jobspec
from fluence.service import journal
from fluence.service.engine import (
    Found,
    JobEntry,
    Match,
    PartReleased,
    Refusal,
    ShareOf,
    Shrunk,
    Statistics,
    TypeCount,
)

VERBOSE_JGF = "jgf_verbose"  # with every field, for readers older than Fluxion 0.39
FORMATS = (*formats(), VERBOSE_JGF)
_JOBSPEC_CACHE_BYTES = 8 << 20
_RENDERED_BYTES = 8 << 20
_MAX_JOB = 2**62
_BUSY = "what the job needs is taken or down"
_IMPOSSIBLE = "this graph does not have what the job needs, even when nobody uses it"

Record = Callable[[journal.Change], None]


def read_graph(load: journal.LoadGraph, *, max_vertices: int) -> ResourceGraph:
    """The graph of a text. A graph with too many vertices is refused, if possible before it is expanded."""
    text = load.plain_text
    where = load.source
    format_ = load.format or files.guess(text, source=where)
    if format_ in ("grug", "rv1exec", "rv1exec_force"):
        graph = ResourceGraph()
        if format_ == "grug":
            graph.extend(grug.read(text, source=where, links=True, limit=max_vertices))
        else:
            graph.extend(rv1.read(text, force=format_ == "rv1exec_force", source=where, limit=max_vertices))
    else:
        graph = files.graph_of(text, format_, source=where, allow=load.allow or None)
    if len(graph) > max_vertices:
        raise InvalidGraph(
            f"{len(graph):,} vertices: the service takes {max_vertices:,} at most (--max-vertices)",
            where=where,
        )
    return graph


class MatcherEngine:
    """One graph, one matcher, and what the service knows of the jobs beyond their allocations."""

    read_only = False
    can_rebase = True  # False: writing and reading it would give another graph

    def __init__(
        self,
        load: journal.LoadGraph,
        *,
        max_vertices: int,
        record: Record,
        keeps: bool = True,
        bug_compatible: bool = False,
    ) -> None:
        """``keeps``: whether changes are kept for a snapshot, which only a journal needs."""
        began = time.perf_counter()
        self.source = load
        self.max_vertices = max_vertices
        graph = read_graph(load, max_vertices=max_vertices)
        self._matcher = Matcher(
            graph,
            policies.find(load.policy),
            filters=load.filters,
            extensions=Extensions(quantities=frozenset(load.pools)),
            bug_compatible=bug_compatible,
        )
        self._record = record
        self._keeps = keeps
        self._graph_changes: list[journal.GraphChange] = []
        self._named: dict[int, tuple[str, int]] = {}  # job -> name and number of pods
        self._jobspecs: LRUCache[str, Jobspec] = LRUCache(_JOBSPEC_CACHE_BYTES, getsizeof=_weight)
        self._rendered: tuple[str, str] | None = None  # a format and the graph in it, until the graph changes
        self._load_seconds = time.perf_counter() - began
        self._times = [0, 0, 0.0, 0.0, 0.0]  # matches, failures, sum, min, max

    @property
    def policy(self) -> str:
        return self.source.policy

    @property
    def vertices(self) -> int:
        return len(self._matcher.graph)

    @property
    def rows(self) -> int:
        """Vertices in memory: a graph keeps removed ones until it is loaded again."""
        return self._matcher.graph.rows

    @property
    def job_count(self) -> int:
        return len(self._matcher.ledger.jobs)

    # -- matching --------------------------------------------------------------------------------------------

    def match(
        self,
        operation: Operation,
        jobspec: str,
        *,
        job: int,
        now: int,
        name: str = "",
        size: int = 1,
        format_: str = "",
        explain: bool = False,
    ) -> Match | Refusal:
        self._check_format(format_)
        self._check_time(now, "now")
        request = self._matcher.compile(self._parse(jobspec))
        takes = operation in (
            Operation.ALLOCATE,
            Operation.ALLOCATE_OR_RESERVE,
            Operation.ALLOCATE_OR_JUDGE,
        )
        if takes:
            _check_job(job)
        began = time.perf_counter()
        outcome = self._ask(operation, request, jobspec, job=job if takes else None, now=now)
        if isinstance(outcome, Wait):
            # Fluxion calls a request busy that asks for more nodes than exist.
            judged = self._ask(Operation.JUDGE, request, jobspec, job=None, now=now)
            outcome = judged if isinstance(judged, Never) else outcome
        if not isinstance(outcome, Placed):
            self._count(time.perf_counter() - began, failed=True)
            return self._refusal(outcome, jobspec, now=now, explain=explain)
        try:
            found = self._answer(outcome, format_, began)
        except FluenceError:  # such as a graph without ranks, for which no R can be written
            if takes:
                self._undo(job)
            raise
        if takes:
            self._named[job] = (name, size)
            self._record(self._hold(outcome, now))
        self._count(found.seconds, failed=False)
        return found

    def explain(self, jobspec: str, *, now: int) -> Explanation:
        self._check_time(now, "now")
        return explain(self._matcher, self._matcher.compile(self._parse(jobspec)), now=now)

    def cancel(self, job: int) -> None:
        self._matcher.cancel(job)
        self._named.pop(job, None)
        self._record(journal.Cancel(self.source.graph, job))

    def partial_cancel(self, job: int, text: str, reader: str) -> PartReleased:
        freed = self._matcher.partial_cancel(job, text, reader=reader)
        if freed.whole_job:
            self._named.pop(job, None)
        self._record(journal.PartialCancel(self.source.graph, job, journal.packed(text), reader))
        graph = self._matcher.graph
        return PartReleased([graph.path(row) or "" for row in freed.vertices.tolist()], freed.whole_job)

    def update(
        self, job: int, text: str, reader: str, *, at: int, duration: int, now: int, name: str, format_: str
    ) -> Match:
        self._check_update(job, at=at, duration=duration, now=now, format_=format_)
        began = time.perf_counter()
        placed = self._matcher.update(job, text, reader=reader, at=at, duration=duration, now=now)
        try:
            found = self._answer(placed, format_, began)
        except FluenceError:
            self._undo(job)
            raise
        self._named[job] = (name, 1)
        self._record(self._held(job, now))
        return found

    # -- jobs ------------------------------------------------------------------------------------------------

    def has_job(self, job: int) -> bool:
        return job in self._matcher.ledger.jobs

    def job(self, job: int, format_: str) -> tuple[JobEntry, str, Sequence[ShareOf]]:
        self._check_format(format_)
        placed = self._placed(job)
        text = self._render(placed, format_) if format_ else ""
        return self._entry(job), text, self._shares(placed)

    def jobs(self) -> Iterable[JobEntry]:
        return [self._entry(job) for job in self._matcher.ledger.jobs]

    # -- the graph -------------------------------------------------------------------------------------------

    def find(self, criteria: str, *, now: int, format_: str) -> Found:
        self._check_format(format_)
        found = self._found(criteria, now)
        graph = self._matcher.graph
        if format_ == VERBOSE_JGF:
            text = _json(jgf_value(found, verbose=True))
        else:
            text = write(found, format_) if format_ else ""
        return Found(text, [graph.path(row) or "" for row in found.selection.vertices.tolist()])

    def grow(self, jgf: str) -> int:
        self._check_growth(jgf)
        before = self.vertices
        self._matcher.grow(jgf, source="jgf")
        self._changed(journal.Grow(self.source.graph, journal.packed(jgf)))
        return self.vertices - before

    def shrink(self, paths: Sequence[str]) -> Shrunk:
        if not paths:
            raise InvalidInput("names no vertex: give the paths of vertices to remove", where="paths")
        lost = self._shrink(paths)
        self._changed(journal.Shrink(self.source.graph, tuple(paths)))
        return lost

    def set_status(self, path: str, *, up: bool) -> None:
        self._matcher.set_status(path, up=up)
        self._changed(journal.SetStatus(self.source.graph, path, up))

    def render(self, format_: str) -> str:
        if self._rendered is None or self._rendered[0] != format_:
            text = files.render(self._matcher.graph, format_)
            if len(text) > _RENDERED_BYTES:
                return text
            self._rendered = (format_, text)
        return self._rendered[1]

    def statistics(self) -> Statistics:
        graph = self._matcher.graph
        rows = np.flatnonzero(graph.alive)
        types = []
        for code in dict.fromkeys(graph.type[rows].tolist()):
            of = graph.vertices_of_type(code)
            down = int((~graph.up[of]).sum())
            types.append(TypeCount(graph.types.words[code], len(of), sum(graph.size[of].tolist()), down))
        matches, failures, total, least, most = self._times
        return Statistics(
            vertices=len(graph),
            edges=sum(1 for _ in files.edges(graph)),
            jobs=len(self._matcher.ledger.jobs),
            matches=int(matches),
            failures=int(failures),
            load_seconds=self._load_seconds,
            min_seconds=least,
            max_seconds=most,
            avg_seconds=total / (matches + failures) if matches + failures else 0.0,
            types=types,
        )

    def close(self) -> None:
        """Nothing was started."""

    # -- records ---------------------------------------------------------------------------------------------

    def restore(self, change: journal.Change) -> None:
        """Replay a recorded change."""
        match change:
            case journal.Hold():
                rows, needs, exclusive = change.columns()
                selection = Selection.of(self._matcher.tree, rows, needs, exclusive)
                placed = Placed(change.job, change.at, change.end, change.reserved, selection)
                self._matcher.hold(placed, now=change.now)
                self._named[change.job] = (change.name, change.size)
            case journal.Cancel():
                self._matcher.cancel(change.job)
                self._named.pop(change.job, None)
            case journal.PartialCancel():
                text = journal.unpacked(change.text)
                if self._matcher.partial_cancel(change.job, text, reader=change.reader).whole_job:
                    self._named.pop(change.job, None)
            case journal.Grow():
                self._matcher.grow(journal.unpacked(change.text), source="jgf")
                self._graph_changes.append(change)
            case journal.Shrink():
                self._shrink(change.paths)
                self._graph_changes.append(change)
            case journal.SetStatus():
                self._matcher.set_status(change.path, up=change.up)
                self._graph_changes.append(change)
            case _:
                raise TypeError(type(change).__name__)

    def snapshot(self) -> Iterator[journal.Change]:
        """The changes that make an engine with this graph and these jobs."""
        yield self.source
        self._graph_changes = journal.without_repeats(self._graph_changes)
        yield from self._graph_changes
        for job in self._matcher.ledger.jobs:
            yield self._held(job, 0)

    @property
    def change_count(self) -> int:
        """How many changes the graph had since it was loaded."""
        return len(self._graph_changes)

    def rebased(self) -> MatcherEngine | None:
        """An engine with the same graph and jobs, loaded from the current graph. None if writing and reading
        it would give another graph."""
        matcher = self._matcher
        graph, ledger = matcher.graph, matcher.ledger
        rows = np.flatnonzero(graph.alive)
        text = journal.packed(files.render(graph, "jgf"))
        load = msgspec.structs.replace(self.source, text=text, format="jgf", allow=())
        found = MatcherEngine(load, max_vertices=self.max_vertices, record=self._record, keeps=self._keeps)
        new = found._matcher.graph
        if new.rows != len(rows) or any(
            graph.path(row) != new.path(number) for number, row in enumerate(rows.tolist())
        ):
            self.can_rebase = False
            return None
        place = np.full(graph.rows, -1, np.int32)
        place[rows] = np.arange(len(rows), dtype=np.int32)
        for job, record in ledger.jobs.items():
            hold = self._held(job, 0)
            vertices = place[hold.columns()[0]]
            found.restore(msgspec.structs.replace(hold, rows=vertices.astype("<i4").tobytes()))
            assert len(found._matcher.ledger.jobs[job].spans) == len(record.spans)
        new.nodes_up = graph.nodes_up
        found._times, found._load_seconds = self._times, self._load_seconds
        return found

    # -- internals -------------------------------------------------------------------------------------------

    def _ask(
        self, operation: Operation, request: Request, jobspec: str, *, job: int | None, now: int
    ) -> Outcome:
        """The answer of the matcher. If a job is given, it holds the result."""
        return self._matcher.match(operation, request, job=job, now=now)

    def _undo(self, job: int) -> None:
        """Free what a failed call allocated."""
        self._matcher.cancel(job)

    def _found(self, criteria: str, now: int) -> Grant:
        return find(self._matcher, criteria, now=now)

    def _parse(self, text: str) -> Jobspec:
        known = self._jobspecs.get(text)
        if known is None:
            if not text.strip():
                raise InvalidInput("is empty: give a jobspec (RFC 14) in YAML or JSON", where="jobspec")
            known = Jobspec.parse(text, source="jobspec")
            if _weight(known, text) <= _JOBSPEC_CACHE_BYTES // 64:
                self._jobspecs[text] = known
        return known

    def _shrink(self, paths: Sequence[str]) -> Shrunk:
        matcher = self._matcher
        tree = matcher.tree.shape()
        gone: set[int] = set()
        for path in paths:
            found = matcher.graph.vertices_at(path)
            if not found:
                raise NotFound(f"no vertex has the path {path}")
            for vertex in found:
                gone.update(tree.subtree(vertex).tolist() if vertex in tree else [vertex])
        lost = matcher.remove_vertices(np.array(sorted(gone), np.int32))
        return Shrunk(len(gone), sorted(lost))

    def _changed(self, change: journal.GraphChange) -> None:
        self._rendered = None
        if self._keeps:
            self._graph_changes.append(change)
        self._record(change)

    def _refusal(self, outcome: Wait | Never, jobspec: str, *, now: int, explain: bool) -> Refusal:
        words = _IMPOSSIBLE
        if isinstance(outcome, Wait):
            words = _BUSY if outcome.reason == "busy" else outcome.reason
        if explain:
            words = "; ".join((words, *(line.strip() for line in self.explain(jobspec, now=now).lines())))
        return Refusal("impossible" if isinstance(outcome, Never) else "busy", words)

    def _answer(self, placed: Placed, format_: str, began: float) -> Match:
        text = self._render(placed, format_) if format_ and len(placed.selection) else ""
        seconds = time.perf_counter() - began
        return Match(placed.job, placed.at, placed.end, placed.reserved, text, self._shares(placed), seconds)

    def _render(self, placed: Placed, format_: str) -> str:
        found = grant(self._matcher, placed)
        return _json(jgf_value(found, verbose=True)) if format_ == VERBOSE_JGF else write(found, format_)

    def _shares(self, placed: Placed) -> list[ShareOf]:
        graph = self._matcher.graph
        ids = self._node_ids(placed.selection)
        return [
            ShareOf(
                share.name,
                ids.get(share.name, share.name),
                share.rank,
                share.is_node,
                share.is_whole,
                share.amounts,
            )
            for share in shares(graph, placed)
        ]

    def _node_ids(self, selection: Selection) -> dict[str, str]:
        """By name of a vertex, the name of the node in Kubernetes. In graphs of the predecessors, which have
        subnets, that is the basename; the vertex name has a number appended."""
        graph = self._matcher.graph
        node, subnet = graph.types.find("node"), graph.types.find("subnet")
        rows, parents = selection.vertices, selection.parents
        if node is None or subnet is None:
            return {}
        nodes = (graph.type[rows] == node) & (parents >= 0) & (graph.type[parents] == subnet)
        return {
            graph.name[row]: graph.basenames.words[int(graph.basename[row])] for row in rows[nodes].tolist()
        }

    def _placed(self, job: int) -> Placed:
        """What a job holds now, which may be less than it was given."""
        ledger = self._matcher.ledger
        record = ledger.job(job)
        rows, needs = ledger.vertex[record.spans], ledger.needs[record.spans]
        selection = Selection.of(self._matcher.tree, rows, needs, ledger.exclusive[record.spans])
        return Placed(job, record.start, record.end, record.reserved, selection)

    def _held(self, job: int, now: int) -> journal.Hold:
        return self._hold(self._placed(job), now)

    def _hold(self, placed: Placed, now: int) -> journal.Hold:
        chosen = placed.selection
        name, size = self._named.get(placed.job, ("", 1))
        return journal.Hold(
            graph=self.source.graph,
            job=placed.job,
            at=placed.at,
            end=placed.end,
            reserved=placed.reserved,
            now=now,
            name=name,
            size=size,
            **journal.hold_columns(chosen.vertices, chosen.needs, chosen.exclusive),
        )

    def _entry(self, job: int) -> JobEntry:
        record = self._matcher.ledger.job(job)
        name, size = self._named.get(job, ("", 1))
        state = "reserved" if record.reserved else "allocated"
        return JobEntry(job, name, state, record.start, record.end, size)

    def _count(self, seconds: float, *, failed: bool) -> None:
        matches, failures, total, least, most = self._times
        first = not matches + failures
        self._times = [
            matches + (not failed),
            failures + failed,
            total + seconds,
            seconds if first else min(least, seconds),
            max(most, seconds),
        ]

    def _check_growth(self, jgf: str) -> None:
        """Refuse too large a JGF before it is read, because added vertices cannot be removed again. Every
        vertex has paths."""
        if self.rows + jgf.count('"paths"') > self.max_vertices:
            raise InvalidGraph(
                f"more than {self.max_vertices:,} vertices, with those that were removed (--max-vertices)",
                where="jgf",
            )

    def _check_update(self, job: int, *, at: int, duration: int, now: int, format_: str) -> None:
        self._check_format(format_)
        _check_job(job)
        for value, where in ((now, "now"), (at, "at"), (at + max(duration, 1) - 1, "duration")):
            self._check_time(value, where)

    def _check_format(self, format_: str) -> None:
        if format_ and format_ not in FORMATS:
            raise InvalidInput(
                f"{format_[:40]!r} is not a valid format: choose one of {', '.join(FORMATS)}", where="format"
            )

    def _check_time(self, value: int, where: str) -> None:
        if not 0 <= value < self._matcher.horizon:
            raise InvalidInput(f"{value} s: must be from 0 to {self._matcher.horizon - 1}", where=where)


def _check_job(job: int) -> None:
    if not 0 <= job < _MAX_JOB:
        raise InvalidInput(f"{job} is not a valid id: it must be from 0 to {_MAX_JOB - 1}", where="job")


def _weight(jobspec: Jobspec, text: str = "") -> int:
    """The approximate size of a jobspec in bytes."""
    pending, count = list(jobspec.resources), 1
    while pending:
        resource = pending.pop()
        count += 1
        pending.extend(resource.with_)
    return 1024 + 512 * count + 4 * len(text)


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode() + "\n"
