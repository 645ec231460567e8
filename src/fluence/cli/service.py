"""`fluence service`: the matcher, or another program as its engine, as a gRPC service.

Our matcher also holds the allocations of the program, so that jobs are listed and shown in all formats;
changes of the graph are carried out in both. The program has no time of its own: calls are made at time 0.
Requests that it does not support are refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import click
import numpy as np

from fluence.cli.choice import load_settings, settings_options
from fluence.cli.comparison import Comparison, EnginesDiffer
from fluence.cli.engines import (
    NO_JOB,
    Engine,
    EngineCannot,
    EngineJob,
    EngineRefuses,
    GraphFile,
    start,
    vertices_of,
)
from fluence.commands.running import run_until_stopped
from fluence.errors import Conflict, FluenceError, InvalidInput, NotFound
from fluence.graph import files
from fluence.graph import jgf as jgf_reader
from fluence.graph.filters import DEFAULT as DEFAULT_FILTERS
from fluence.graph.selection import Selection
from fluence.graph.writers import Grant
from fluence.match.request import Operation, Outcome, Placed, Request
from fluence.service import journal
from fluence.service.engine import Match, PartReleased, Shrunk
from fluence.service.graphs import DEFAULT, Graphs
from fluence.service.matcher_engine import MatcherEngine
from fluence.service.server import MatchServer, open_graphs
from fluence.service.settings import ServiceSettings

T = TypeVar("T")
_READERS = ("jgf", "rv1exec")
_UPDATE_READERS = ("jgf", "jgf_shorthand", "rv1exec")
_DOES_IT = ["carries it out"]
_EVERYTHING = "status=up or status=down"


class AnswersDiffer(FluenceError):
    """The other program and our matcher answer differently."""


class OtherEngine(MatcherEngine):
    """``spec``: as for `fluence match --engine`. With ``compare``, our matcher also answers."""

    can_rebase = False  # the other program keeps its graph

    def __init__(self, load: journal.LoadGraph, spec: str, *, compare: bool, max_vertices: int) -> None:
        super().__init__(
            load, max_vertices=max_vertices, record=lambda change: None, bug_compatible=compare, keeps=False
        )
        graph = GraphFile(load.plain_text, load.format, ",".join(load.allow) or None)
        self._spec = spec
        self._out_of_step = ""  # why the two graphs are not the same any more
        self._other: Engine = start(spec, self._matcher, graph, now=0)
        self._comparison: Comparison | None = None
        if compare:
            self._other = self._comparison = Comparison(spec, self._matcher, graph, self._other, 0, {})

    # -- jobs ------------------------------------------------------------------------------------------------

    def cancel(self, job: int) -> None:
        if self.has_job(job):
            self._other.cancel(job)
        super().cancel(job)

    def partial_cancel(self, job: int, text: str, reader: str) -> PartReleased:
        _check_reader(reader, _READERS)
        record = self._matcher.ledger.job(job)
        if (
            record.reserved or record.start != 0
        ):  # Fluxion also calls an allocation that it restores for later a reservation
            raise InvalidInput(
                f"job {job} is a reservation, of which {self._spec} gives no part back: cancel it",
                where="job",
            )
        freed = self._in_both(
            f"partial cancel of job {job}",
            lambda: self._other.partial_cancel(job, text.encode(), reader),
            lambda: super(OtherEngine, self).partial_cancel(job, text, reader),
            lambda: f"jobid-span={job}" if self.has_job(job) else "sched-now=allocated",
        )
        if freed.whole_job:
            self._other.forget(job)
        return freed

    def update(
        self, job: int, text: str, reader: str, *, at: int, duration: int, now: int, name: str, format_: str
    ) -> Match:
        self._check_update(job, at=at, duration=duration, now=now, format_=format_)
        self._check_now(now)
        self._check_in_step()
        self._check_free(job)
        _check_reader(reader, _UPDATE_READERS)
        if duration <= 0:
            raise InvalidInput(f"{duration} s: must be 1 or more", where="duration")
        began = time.perf_counter()
        try:
            there: Placed | EngineRefuses = self._other.update(job, text.encode(), reader, at, duration)
        except EngineRefuses as error:
            if self._comparison is None or isinstance(error, EngineCannot):
                raise
            there = error
        if self._comparison is None:
            assert isinstance(there, Placed)
            self._matcher.hold(there, now=now)
            placed = there
        else:
            placed = self._compared_update(
                self._comparison, job, text, reader, at=at, duration=duration, there=there
            )
        try:
            found = self._answer(placed, format_, began)
        except FluenceError:
            self._undo(job)
            raise
        self._named[job] = (name, 1)
        return found

    def _compared_update(
        self,
        comparison: Comparison,
        job: int,
        text: str,
        reader: str,
        *,
        at: int,
        duration: int,
        there: Placed | EngineRefuses,
    ) -> Placed:
        here: Placed | FluenceError
        try:
            here = self._matcher.update(job, text, reader=reader, at=at, duration=duration, now=0)
        except FluenceError as error:
            if isinstance(there, EngineRefuses):
                raise
            here = error
        one, two = comparison.words(there), comparison.words(here)
        if one != two:
            report = comparison.report(f"update of job {job}", one, two)
            if isinstance(there, Placed):
                self._other.cancel(job)
            if self.has_job(job):
                self._matcher.cancel(job)
            raise _differ(report)
        assert isinstance(here, Placed)
        return here

    # -- the graph -------------------------------------------------------------------------------------------

    def grow(self, jgf: str) -> int:
        self._check_growth(jgf)
        jgf_reader.read(jgf, source="jgf", into=self._matcher.graph)  # errors in it are reported first
        return self._in_both(
            "grow",
            lambda: self._other.grow(jgf.encode()),
            lambda: super(OtherEngine, self).grow(jgf),
            lambda: _EVERYTHING,
        )

    def shrink(self, paths: Sequence[str]) -> Shrunk:
        chosen = [path for path in dict.fromkeys(paths) if not any(_is_above(other, path) for other in paths)]
        graph = self._matcher.graph
        for path in chosen:
            found = graph.vertices_at(path)
            if not found:
                raise NotFound(f"no vertex has the path {path}")
            if self._matcher.tree.root in found:
                raise Conflict("the root cannot be removed")
        return self._in_both(
            "shrink",
            lambda: self._other.shrink(chosen),
            lambda: super(OtherEngine, self).shrink(chosen),
            lambda: _EVERYTHING,
        )

    def set_status(self, path: str, *, up: bool) -> None:
        if not self._matcher.graph.vertices_at(path):
            raise NotFound(f"no vertex has the path {path}")
        self._in_both(
            "set status",
            lambda: self._other.set_status(path, up=up),
            lambda: super(OtherEngine, self).set_status(path, up=up),
            lambda: "status=down",
        )

    def close(self) -> None:
        self._other.close()

    def _found(self, criteria: str, now: int) -> Grant:
        """What the other program finds. Our own filters count for the rest of the answer."""
        self._check_now(now)
        self._check_in_step()
        here = super()._found(criteria, now)
        try:
            paths = self._other.find(criteria)
        except EnginesDiffer as difference:
            raise _differ(difference) from None
        if paths is None or self._comparison is not None:
            return here
        matcher = self._matcher
        rows = np.array(
            sorted({found[-1] for path in paths if (found := vertices_of(matcher, path))}), np.int32
        )
        chosen = Selection.of(
            matcher.tree.shape(), rows, matcher.graph.size[rows], np.ones(len(rows), np.bool_)
        )
        return replace(here, selection=chosen)

    # -- internals -------------------------------------------------------------------------------------------

    def _ask(
        self, operation: Operation, request: Request, jobspec: str, *, job: int | None, now: int
    ) -> Outcome:
        self._check_now(now)
        self._check_in_step()
        if job is not None:
            self._check_free(job)
        asked = EngineJob(NO_JOB if job is None else job, jobspec.encode(), request)
        try:
            outcome = self._other.match(operation, asked)
        except EnginesDiffer as difference:
            raise _differ(difference) from None
        if isinstance(outcome, Placed) and job is not None and self._comparison is None:
            self._matcher.hold(outcome, now=now)
        return outcome

    def _undo(self, job: int) -> None:
        self._other.cancel(job)
        super()._undo(job)

    def _in_both(
        self, what: str, theirs: Callable[[], None], ours: Callable[[], T], look: Callable[[], str]
    ) -> T:
        """Carry out a change in both graphs. ``look``: an expression that shows whether they are the same."""
        self._check_in_step()
        comparison = self._comparison
        refusal: EngineRefuses | None = None
        try:
            theirs()
        except EngineRefuses as error:
            if comparison is None or isinstance(error, EngineCannot):
                raise
            refusal = error
        try:
            found = ours()
        except FluenceError as error:
            if refusal is not None:
                raise
            self._out_of_step = what
            if comparison is None:
                raise
            raise _differ(comparison.report(what, _DOES_IT, [str(error)])) from None
        if comparison is None:
            return found
        try:
            if refusal is not None:
                raise comparison.report(what, [str(refusal)], _DOES_IT)
            comparison.find(look())
        except EnginesDiffer as difference:
            self._out_of_step = what
            raise _differ(difference) from None
        return found

    def _check_in_step(self) -> None:
        if self._out_of_step:
            raise AnswersDiffer(
                f"{self._spec} and Fluence have had different graphs or jobs since a {self._out_of_step}: "
                "restart the service"
            )

    def _check_now(self, now: int) -> None:
        if now != 0:
            raise InvalidInput(f"{now}: {self._spec} has no time of its own; leave it out", where="now")

    def _check_free(self, job: int) -> None:
        if self.has_job(job):
            raise Conflict(f"job {job} already holds resources: cancel it first or choose another id")


def _check_reader(reader: str, known: Sequence[str]) -> None:
    if reader not in known:
        raise InvalidInput(f"{reader[:40]!r} is not known: choose one of {', '.join(known)}", where="reader")


def _is_above(path: str, other: str) -> bool:
    return other.startswith(f"{path.rstrip('/')}/")


def _differ(difference: EnginesDiffer) -> AnswersDiffer:
    return AnswersDiffer("\n".join(difference.lines))


@click.group()
def service() -> None:
    """Serve the matcher on a port, to programs in any language.

    \b
    Example:
      fluence service run --graph cluster.json
    """


@service.command()
@settings_options(ServiceSettings)
def run(config_file: str | None, **flags: object) -> None:
    """Serve a graph by gRPC: the services of fluxqueue, fluxnetes and flux-k8s, and an API of Fluence's own.

    The graph comes from a file, from a client (Init, LoadGraph), or is the running cluster (--live), which is
    only read: a match then says what its scheduler would do. With --state, graphs and jobs survive a restart:
    what was answered is on disk.

    \b
    Examples:
      fluence service run                                     an old client brings the graph: Init
      fluence service run --graph cluster.json --state /var/lib/fluence-service
      fluence service run --graph cluster.json --engine resource-query:/usr/bin/resource-query --compare
      fluence service run --live --service-address 0.0.0.0:4242 --tls-certificate tls.crt --tls-key tls.key
      grpcurl -plaintext localhost:4242 list                  what it serves

    \b
    Exit codes: 0 told to stop; 1 a fault; 2 a wrong command line.
    """
    settings = load_settings(ServiceSettings, config_file, flags).settings
    settings.check()
    ready = _live_graphs(settings) if settings.live else None
    if settings.engine is not None:
        ready = _engine_graphs(settings, settings.engine)

    async def work() -> None:
        graphs = ready or open_graphs(settings)
        try:
            async with MatchServer(settings, graphs) as server:
                secure = ", with TLS" if settings.tls_certificate else ""
                click.echo(f"fluence: serves on {server.address}{secure}", err=True)
                await server.run()
        finally:
            graphs.close()

    run_until_stopped(work, log_level=settings.log_level)


def _engine_graphs(settings: ServiceSettings, spec: str) -> Graphs:

    graphs = Graphs(
        max_graphs=settings.max_graphs, max_vertices=settings.max_vertices, max_jobs=settings.max_jobs
    )
    assert settings.graph is not None
    load = journal.LoadGraph(
        graph=DEFAULT,
        text=journal.packed(text := Path(settings.graph).read_bytes()),
        format=settings.graph_format or files.guess(text, source=settings.graph),
        policy=settings.match_policy,
        source=settings.graph,
        digest=journal.digest(text),
        filters=DEFAULT_FILTERS,
        allow=settings.allow,
        pools=(),
    )
    engine = OtherEngine(load, spec, compare=settings.compare, max_vertices=settings.max_vertices)
    graphs.add(DEFAULT, engine, source=settings.graph)
    return graphs


def _live_graphs(settings: ServiceSettings) -> Graphs:
    from fluence.commands import cluster as live  # it loads the client of the cluster
    from fluence.commands.cluster import ask_leader
    from fluence.service.live_engine import LiveEngine

    leader = ask_leader(settings.kubeconfig, settings.context, environ={})
    graphs = Graphs(
        max_graphs=settings.max_graphs, max_vertices=settings.max_vertices, max_jobs=settings.max_jobs
    )
    engine = LiveEngine(lambda: live.list_as(leader), leader.settings, namespace=leader.access.namespace)
    graphs.add(DEFAULT, engine, source=leader.access.server)
    return graphs
