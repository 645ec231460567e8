"""fluence.match.v1.MatchService: Fluence's own API, with time, explanations, several graphs and a stream.

Messages in, calls on the engine of a graph, messages out; docs/service.md has the table of methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Final, TypeVar

from google.protobuf.message import Message

from fluence.errors import InvalidInput, NotFound
from fluence.match.request import Operation
from fluence.service import match_v1_pb2 as v1
from fluence.service.engine import Engine, JobEntry, Match, PartReleased, ShareOf
from fluence.service.graphs import Graphs, NamedGraph
from fluence.service.matcher_engine import MatcherEngine
from fluence.service.rpc import Calls, Handlers, Worker, fitting

SERVICE: Final = "fluence.match.v1.MatchService"
_PAGE: Final = 1000
_GATHER_S: Final = 0.05  # changes of a plan within this time are sent together
_LOOK_S: Final = 5.0  # between two checks of a graph that others change

T = TypeVar("T")
_OPERATIONS: Final = {
    v1.OPERATION_UNSPECIFIED: Operation.ALLOCATE,
    v1.ALLOCATE: Operation.ALLOCATE,
    v1.ALLOCATE_WITH_SATISFIABILITY: Operation.ALLOCATE_OR_JUDGE,
    v1.ALLOCATE_ORELSE_RESERVE: Operation.ALLOCATE_OR_RESERVE,
    v1.SATISFIABILITY: Operation.JUDGE,
    v1.WITHOUT_ALLOCATING: Operation.TRY,
    v1.WITHOUT_ALLOCATING_FUTURE: Operation.TRY_FUTURE,
}


class MatchApi:
    """The methods of the service. ``changed`` is called with the names of graphs that changed."""

    def __init__(self, graphs: Graphs, clock: Callable[[], int]) -> None:
        self._graphs = graphs
        self._clock = clock
        self._worker: Worker | None = None
        self._watchers: dict[str, set[asyncio.Event]] = {}

    def use(self, worker: Worker) -> None:
        self._worker = worker

    def changed(self, names: Iterable[str]) -> None:
        """Wake the clients that watch the plans of these graphs."""
        for name in names:
            for event in self._watchers.get(name, ()):
                event.set()

    def handlers(self, calls: Calls) -> dict[str, Handlers]:
        return {
            SERVICE: {
                "Match": calls.bulky(v1.MatchRequest.FromString, self._match),
                "Explain": calls.bulky(v1.ExplainRequest.FromString, self._explain),
                "Cancel": calls.unary(v1.CancelRequest.FromString, self._cancel),
                "PartialCancel": calls.bulky(
                    v1.PartialCancelRequest.FromString, self._partial_cancel, large=True
                ),
                "Update": calls.bulky(v1.UpdateRequest.FromString, self._update, large=True),
                "Info": calls.bulky(v1.InfoRequest.FromString, self._info),
                "ListJobs": calls.bulky(v1.ListJobsRequest.FromString, self._list_jobs),
                "WatchPlan": calls.stream(v1.WatchPlanRequest.FromString, self._watch_plan),
                "LoadGraph": calls.unary(v1.LoadGraphRequest.FromString, self._load_graph, large=True),
                "UnloadGraph": calls.unary(v1.UnloadGraphRequest.FromString, self._unload_graph),
                "ListGraphs": calls.unary(v1.ListGraphsRequest.FromString, self._list_graphs),
                "GetGraph": calls.bulky(v1.GetGraphRequest.FromString, self._get_graph),
                "Find": calls.bulky(v1.FindRequest.FromString, self._find),
                "Stat": calls.unary(v1.StatRequest.FromString, self._stat),
                "Grow": calls.unary(v1.GrowRequest.FromString, self._grow, large=True),
                "Shrink": calls.unary(v1.ShrinkRequest.FromString, self._shrink),
                "SetStatus": calls.unary(v1.SetStatusRequest.FromString, self._set_status),
            }
        }

    # -- jobs ------------------------------------------------------------------------------------------------

    async def _match(self, request: v1.MatchRequest) -> Message:
        operation = _OPERATIONS.get(request.operation)
        if operation is None:
            raise InvalidInput(
                f"{request.operation} is not a valid operation: see Operation", where="operation"
            )
        result = await self._do(
            lambda: self._graphs.match(
                request.graph,
                operation,
                request.jobspec,
                job=request.job if request.HasField("job") else None,
                now=self._now(request),
                label=request.name,
                format_=request.format,
                explain=request.explain,
            )
        )
        return _match_response(fitting(result))

    async def _explain(self, request: v1.ExplainRequest) -> Message:
        found = await self._ask(
            request.graph, lambda engine: engine.explain(request.jobspec, now=self._now(request))
        )
        return v1.ExplainResponse(
            verdict=found.verdict,
            nearest=found.nearest,
            blocking=found.blocking,
            earliest_end=found.earliest_end,
            levels=[
                v1.Level(
                    path=level.path,
                    wanted=level.wanted,
                    considered=level.considered,
                    fit=level.fit,
                    causes=level.causes,
                    lacks=dict(level.lacks),
                    hint=level.hint or "",
                )
                for level in found.levels
            ],
            lines=found.lines(),
        )

    async def _cancel(self, request: v1.CancelRequest) -> Message:
        def cancel(engine: Engine) -> bool:
            if request.missing_ok and not engine.has_job(request.job):
                return False
            engine.cancel(request.job)
            return True

        return v1.CancelResponse(existed=await self._ask(request.graph, cancel))

    async def _partial_cancel(self, request: v1.PartialCancelRequest) -> Message:
        def partial_cancel(engine: Engine) -> PartReleased:
            if request.missing_ok and not engine.has_job(request.job):
                return PartReleased((), whole_job=True)
            return engine.partial_cancel(request.job, request.text, request.reader or "rv1exec")

        found = await self._ask(request.graph, partial_cancel)
        return v1.PartialCancelResponse(whole_job=found.whole_job, paths=found.paths)

    async def _update(self, request: v1.UpdateRequest) -> Message:
        result = await self._do(
            lambda: self._graphs.update(
                request.graph,
                request.job,
                request.text,
                request.reader or "jgf",
                at=request.at,
                duration=request.duration,
                now=self._now(request),
                label=request.name,
                format_=request.format,
            )
        )
        return _match_response(result)

    async def _info(self, request: v1.InfoRequest) -> Message:
        entry, text, shares = await self._ask(
            request.graph, lambda engine: engine.job(request.job, request.format)
        )
        return _job_info(entry, allocation=text, shares=shares)

    async def _list_jobs(self, request: v1.ListJobsRequest) -> Message:
        def page(engine: Engine) -> tuple[list[JobEntry], int, bool]:
            jobs = sorted(engine.jobs(), key=lambda entry: entry.job)
            behind = [entry for entry in jobs if entry.job > request.after] if request.after else jobs
            most = min(request.limit, _PAGE) if request.limit > 0 else _PAGE
            return behind[:most], len(jobs), len(behind) > most

        entries, total, more = await self._ask(request.graph, page)
        return v1.ListJobsResponse(jobs=[_job_info(entry) for entry in entries], total=total, more=more)

    async def _watch_plan(self, request: v1.WatchPlanRequest) -> AsyncGenerator[Message, None]:
        """The current jobs, then the changes. If changes come faster than the client reads, they are
        combined."""
        graph = await self._do(lambda: self._graphs.get(request.graph))
        event = asyncio.Event()
        self._watchers.setdefault(graph.name, set()).add(event)
        told: dict[int, JobEntry] = {}
        synced = False
        try:
            while True:
                event.clear()
                jobs = {entry.job: entry for entry in await self._jobs_of(graph)}
                for job in [job for job in told if job not in jobs]:
                    yield v1.PlanEvent(type=v1.PlanEvent.REMOVED, job=_job_info(told.pop(job)))
                for job, entry in jobs.items():
                    known = told.get(job)
                    if known != entry:
                        told[job] = entry
                        kind = v1.PlanEvent.ADDED if known is None else v1.PlanEvent.CHANGED
                        yield v1.PlanEvent(type=kind, job=_job_info(entry))
                if not synced:
                    synced = True
                    yield v1.PlanEvent(type=v1.PlanEvent.SYNCED)
                # Other engines do not report changes.
                await _wait(event, None if isinstance(graph.engine, MatcherEngine) else _LOOK_S)
                await asyncio.sleep(_GATHER_S)
        finally:
            watchers = self._watchers[graph.name]
            watchers.discard(event)
            if not watchers:
                del self._watchers[graph.name]

    async def _jobs_of(self, graph: NamedGraph) -> list[JobEntry]:
        def jobs() -> list[JobEntry]:
            if graph.name not in self._graphs or self._graphs.get(graph.name) is not graph:
                raise NotFound(f"graph {graph.name!r} was unloaded or replaced: watch it again")
            return list(graph.engine.jobs())

        return await self._do(jobs)

    # -- graphs ----------------------------------------------------------------------------------------------

    async def _load_graph(self, request: v1.LoadGraphRequest) -> Message:
        def load() -> Message:
            return _graph_info(
                self._graphs.load(
                    request.graph,
                    request.text,
                    format_=request.format,
                    policy=request.policy,
                    allow=list(request.allow),
                    pools=list(request.pools),
                    filters=request.prune_filters,
                    replace=request.replace,
                )
            )

        return await self._do(load)

    async def _unload_graph(self, request: v1.UnloadGraphRequest) -> Message:
        if not request.graph:
            raise InvalidInput("name the graph: there is no default for what cannot be undone", where="graph")
        return v1.UnloadGraphResponse(jobs=await self._do(lambda: self._graphs.unload(request.graph)))

    async def _list_graphs(self, request: v1.ListGraphsRequest) -> Message:
        graphs = await self._do(lambda: [_graph_info(graph) for graph in self._graphs])
        return v1.ListGraphsResponse(graphs=graphs)

    async def _get_graph(self, request: v1.GetGraphRequest) -> Message:
        text = await self._ask(request.graph, lambda engine: engine.render(request.format or "jgf"))
        return v1.GetGraphResponse(text=text)

    async def _find(self, request: v1.FindRequest) -> Message:
        found = await self._ask(
            request.graph,
            lambda engine: engine.find(
                request.criteria, now=self._now(request), format_=request.format or "jgf"
            ),
        )
        return v1.FindResponse(text=found.text, paths=found.paths)

    async def _stat(self, request: v1.StatRequest) -> Message:
        found = await self._ask(request.graph, lambda engine: engine.statistics())
        types = [
            v1.TypeCount(type=each.type, count=each.count, size=each.size, down=each.down)
            for each in found.types
        ]
        return v1.StatResponse(
            vertices=found.vertices,
            edges=found.edges,
            jobs=found.jobs,
            matches=found.matches,
            failures=found.failures,
            load_seconds=found.load_seconds,
            min_seconds=found.min_seconds,
            max_seconds=found.max_seconds,
            avg_seconds=found.avg_seconds,
            types=types,
        )

    async def _grow(self, request: v1.GrowRequest) -> Message:
        return v1.GrowResponse(
            vertices=await self._ask(request.graph, lambda engine: engine.grow(request.jgf))
        )

    async def _shrink(self, request: v1.ShrinkRequest) -> Message:
        found = await self._ask(request.graph, lambda engine: engine.shrink(list(request.paths)))
        return v1.ShrinkResponse(vertices=found.vertices, jobs=found.jobs)

    async def _set_status(self, request: v1.SetStatusRequest) -> Message:
        await self._ask(request.graph, lambda engine: engine.set_status(request.path, up=not request.down))
        return v1.SetStatusResponse()

    # -- internals -------------------------------------------------------------------------------------------

    async def _do(self, work: Callable[[], T]) -> T:
        assert self._worker is not None
        return await self._worker.do(work)

    async def _ask(self, graph: str, question: Callable[[Engine], T]) -> T:
        return await self._do(lambda: question(self._graphs.get(graph).engine))

    def _now(self, request: v1.MatchRequest | v1.ExplainRequest | v1.UpdateRequest | v1.FindRequest) -> int:
        return request.now if request.HasField("now") else self._clock()


async def _wait(event: asyncio.Event, seconds: float | None) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


def _match_response(found: Match) -> v1.MatchResponse:
    return v1.MatchResponse(
        job=found.job,
        at=found.at,
        end=found.end,
        reserved=found.reserved,
        allocation=found.allocation,
        shares=_shares(found.shares),
        seconds=found.seconds,
    )


def _shares(shares: Sequence[ShareOf]) -> list[v1.Share]:
    return [
        v1.Share(
            name=share.name,
            rank=share.rank,
            is_node=share.is_node,
            is_whole=share.is_whole,
            amounts=share.amounts,
        )
        for share in shares
    ]


def _job_info(entry: JobEntry, *, allocation: str = "", shares: Sequence[ShareOf] = ()) -> v1.JobInfo:
    return v1.JobInfo(
        job=entry.job,
        name=entry.name,
        state=entry.state,
        at=entry.at,
        end=entry.end,
        size=entry.size,
        reason=entry.reason,
        allocation=allocation,
        shares=_shares(shares),
    )


def _graph_info(graph: NamedGraph) -> v1.GraphInfo:
    return v1.GraphInfo(
        graph=graph.name,
        policy=graph.engine.policy,
        vertices=graph.engine.vertices,
        jobs=sum(1 for _ in graph.engine.jobs()),
        read_only=graph.engine.read_only,
        source=graph.source,
    )
