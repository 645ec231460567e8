"""Legacy: the gRPC services of the predecessors, so that programs built for them work here.

    fluxion.FluxionService          Init, Match, Cancel, Grow, Shrink      fluxqueue
                                    Match, Cancel with pods                fluxnetes
    fluxcli.FluxcliService          Match with a pod and a count, Cancel   flux-k8s
    service.ExternalPluginService   GetResources, ListGroups, GetGroup     the kubectl plugin of flux-k8s

All of them use the graph "default". Time stands still, as in Fluxion's API: a match is at 0 unless the
service has a clock. Cancelling a missing job succeeds, as in all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

import msgspec
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from fluence.errors import InvalidInput, NotFound
from fluence.match.request import Operation
from fluence.service import external_pb2 as external
from fluence.service import fluxcli_pb2 as fluxcli
from fluence.service import fluxion_pb2 as fluxion
from fluence.service import fluxnetes_pb2 as fluxnetes
from fluence.service.engine import Match
from fluence.service.graphs import DEFAULT, Graphs
from fluence.service.matcher_engine import VERBOSE_JGF
from fluence.service.rpc import Calls, Handlers, Worker, fitting

_MAX_COUNT: Final = 1_000_000
_POD_SECONDS: Final = 3600  # the duration that the predecessors write into the jobspec of a pod


class _PodSpec(Protocol):
    """The pod of flux-k8s or of fluxnetes: the fields are the same."""

    id: str
    cpu: int
    memory: int
    gpu: int

    @property
    def labels(self) -> Any: ...


class LegacyServices:
    """The methods of all of them. ``dialect``: whose messages FluxionService expects."""

    def __init__(
        self, graphs: Graphs, worker: Worker, clock: Callable[[], int], *, dialect: str = "auto"
    ) -> None:
        self._graphs = graphs
        self._worker = worker
        self._clock = clock
        self._dialect = dialect

    def handlers(self, calls: Calls) -> dict[str, Handlers]:
        """The methods of each service."""
        fluxion_handlers: Handlers = {
            "Init": calls.unary(fluxion.InitRequest.FromString, self._init, large=True),
            "Match": calls.bulky(self._match_request, self._match),
            "Cancel": calls.unary(self._cancel_request, self._cancel),
            "Grow": calls.unary(fluxion.GrowRequest.FromString, self._grow, large=True),
            "Shrink": calls.unary(fluxion.ShrinkRequest.FromString, self._shrink),
        }
        return {
            "fluxion.FluxionService": fluxion_handlers,
            "fluxion.FluxcliService": fluxion_handlers,  # an older build of the same program
            "fluxcli.FluxcliService": {
                "Match": calls.bulky(fluxcli.MatchRequest.FromString, self._match_pods),
                "Cancel": calls.unary(fluxcli.CancelRequest.FromString, self._cancel_pods),
            },
            "service.ExternalPluginService": {
                "GetResources": calls.bulky(external.ResourceRequest.FromString, self._get_resources),
                "ListGroups": calls.bulky(external.GroupRequest.FromString, self._list_groups),
                "GetGroup": calls.unary(external.GroupRequest.FromString, self._get_group),
            },
        }

    # -- fluxion.FluxionService ------------------------------------------------------------------------------

    async def _init(self, request: fluxion.InitRequest) -> Message:
        def load() -> None:
            self._graphs.load(
                DEFAULT, request.jgf, format_="jgf", policy=request.policy, replace=True, source="jgf"
            )

        await self._worker.do(load)
        return fluxion.InitResponse(status=fluxion.InitResponse.INIT_SUCCESS)

    async def _grow(self, request: fluxion.GrowRequest) -> Message:
        await self._worker.do(lambda: self._graphs.get().engine.grow(request.jgf))
        return fluxion.GrowResponse(status=fluxion.GrowResponse.GROW_SUCCESS)

    async def _shrink(self, request: fluxion.ShrinkRequest) -> Message:
        paths = list(request.nodepaths)
        await self._worker.do(lambda: self._graphs.get().engine.shrink(paths))
        return fluxion.ShrinkResponse(status=fluxion.ShrinkResponse.SHRINK_SUCCESS)

    def _match_request(self, data: bytes) -> fluxion.MatchRequest | fluxnetes.MatchRequest:
        """Decode a match request. Both dialects use one method: field 1 is a jobspec or an encoded pod."""
        dialect = self._dialect
        if dialect == "auto":
            dialect = "fluxnetes" if _is_of_fluxnetes(data) else "fluxion"
        if dialect == "fluxnetes":
            return fluxnetes.MatchRequest.FromString(data)
        request = fluxion.MatchRequest.FromString(data)
        # In older clients field 3 is a count; 1 can be either.
        if dialect == "fluxion-count" or _fields(data).get(3, 1) != 1:
            request.reservation = False
        return request

    async def _match(self, request: fluxion.MatchRequest | fluxnetes.MatchRequest) -> Message:
        if isinstance(request, fluxnetes.MatchRequest):
            return await self._match_fluxnetes(request)
        operation = _operation(request.request)
        if request.reservation and operation is Operation.ALLOCATE:
            operation = Operation.ALLOCATE_OR_RESERVE
        found = await self._place(operation, request.jobspec, format_=VERBOSE_JGF)
        return fluxion.MatchResponse(
            allocation=found.allocation,
            jobid=max(found.job, 0),
            reserved=found.reserved,
            at=found.at,
            overhead=found.seconds,
            status=fluxion.MatchResponse.MATCH_SUCCESS,
        )

    async def _match_fluxnetes(self, request: fluxnetes.MatchRequest) -> Message:
        operation = Operation.ALLOCATE_OR_RESERVE if request.reserve else Operation.ALLOCATE
        pod = request.podspec
        name = request.jobName or pod.id
        found = await self._place(operation, _jobspec(pod, request.count), name=name, size=request.count)
        return fluxnetes.MatchResponse(
            fluxID=max(found.job, 0),
            nodelist=[
                fluxnetes.NodeAlloc(nodeID=node, tasks=tasks) for node, tasks in _tasks(found, pod).items()
            ],
            reserved=found.reserved,
            reserved_at=found.at if found.reserved else 0,
            allocated=not found.reserved,
        )

    def _cancel_request(self, data: bytes) -> tuple[int, bool]:
        """The job, and whether it may be missing. Fluxnetes has the id in field 1, the others in field 2."""
        fields = _fields(data)
        if self._dialect == "fluxnetes" or (self._dialect == "auto" and 1 in fields):
            request = fluxnetes.CancelRequest.FromString(data)
            return request.fluxID, request.NoExistOK
        return fluxion.CancelRequest.FromString(data).jobID, True

    async def _cancel(self, request: tuple[int, bool]) -> Message:
        job, missing_ok = request
        await self._cancel_job(job, missing_ok=missing_ok)
        return fluxion.CancelResponse(jobID=job, status=fluxion.CancelResponse.CANCEL_SUCCESS)

    # -- fluxcli.FluxcliService ------------------------------------------------------------------------------

    async def _match_pods(self, request: fluxcli.MatchRequest) -> Message:
        pod = request.ps
        found = await self._place(
            _operation(request.request), _jobspec(pod, request.count), name=pod.id, size=request.count
        )
        nodes = [fluxcli.NodeAlloc(nodeID=node, tasks=tasks) for node, tasks in _tasks(found, pod).items()]
        return fluxcli.MatchResponse(podID=pod.id, nodelist=nodes, jobID=max(found.job, 0))

    async def _cancel_pods(self, request: fluxcli.CancelRequest) -> Message:
        await self._cancel_job(request.jobID, missing_ok=True)
        return fluxcli.CancelResponse(jobID=request.jobID)

    # -- service.ExternalPluginService -----------------------------------------------------------------------

    async def _get_resources(self, request: external.ResourceRequest) -> Message:
        text = await self._worker.do(lambda: self._graphs.get().engine.render(VERBOSE_JGF))
        return external.ResourceResponse(graph=text)

    async def _list_groups(self, request: external.GroupRequest) -> Message:
        names = [name for name, _ in await self._groups()]
        return external.GroupResponse(name=",".join(names), size=len(names))

    async def _get_group(self, request: external.GroupRequest) -> Message:
        wanted = request.group
        for name, size in await self._groups():
            if name == wanted:
                return external.GroupResponse(name=name, size=size)
        raise NotFound(f"no group {wanted[:253]!r} holds or awaits resources: ListGroups names all")

    async def _groups(self) -> list[tuple[str, int]]:
        """The name and the size of every job. A job without a name is named by its id."""

        def groups() -> list[tuple[str, int]]:
            return [(job.name or str(job.job), job.size) for job in self._graphs.get().engine.jobs()]

        return await self._worker.do(groups)

    # -- internals -------------------------------------------------------------------------------------------

    async def _place(
        self, operation: Operation, jobspec: str, *, name: str = "", size: int = 1, format_: str = ""
    ) -> Match:
        return fitting(
            await self._worker.do(
                lambda: self._graphs.match(
                    DEFAULT, operation, jobspec, now=self._clock(), label=name, size=size, format_=format_
                )
            )
        )

    async def _cancel_job(self, job: int, *, missing_ok: bool) -> None:
        def cancel() -> None:
            engine = self._graphs.get().engine
            if not engine.has_job(job) and missing_ok:
                return
            engine.cancel(job)

        if job == 0:
            raise InvalidInput("names no job: ids begin with 1", where="jobID")
        await self._worker.do(cancel)


def _operation(request: str) -> Operation:
    """The operation that a request names; the predecessors always allocate."""
    try:
        return Operation(request.strip().lower() or Operation.ALLOCATE.value)
    except ValueError:
        known = ", ".join(operation.value for operation in Operation)
        raise InvalidInput(
            f"{request[:40]!r} is not a valid request: choose one of {known}", where="request"
        ) from None


def _fields(data: bytes) -> dict[int, Any]:
    """The fields of an encoded message by number, without a schema; none if it cannot be read."""
    try:
        unknown = UnknownFieldSet(external.ResourceRequest.FromString(data))  # it has no fields of its own
    except DecodeError:
        return {}  # the next reader reports the message
    return {unknown[i].field_number: unknown[i].data for i in range(len(unknown))}


def _is_of_fluxnetes(data: bytes) -> bool:
    """Whether a match request carries a pod and not a jobspec.

    Only fluxnetes has fields 4 and 5, and only the others have field 2. Field 1 is bytes in both; a text is
    hardly ever a valid pod without unknown fields.
    """
    fields = _fields(data)
    if 4 in fields or 5 in fields:
        return True
    first = fields.get(1)
    if 2 in fields or not isinstance(first, bytes) or not first:
        return False
    try:
        return not len(UnknownFieldSet(fluxnetes.PodSpec.FromString(first)))
    except DecodeError:
        return False


def _jobspec(pod: _PodSpec, count: int) -> str:
    """The jobspec that the predecessors make from a pod: a slot for each, in one zone if a label says so."""
    if not 1 <= count <= _MAX_COUNT:
        raise InvalidInput(f"{count} pods: must be from 1 to {_MAX_COUNT:,}", where="count")
    for field in ("cpu", "memory", "gpu"):
        if getattr(pod, field) < 0:
            raise InvalidInput(f"{getattr(pod, field)}: must not be negative", where=f"podspec.{field}")
    inside = [{"type": "core", "count": max(pod.cpu, 1)}]
    if pod.memory >> 20:
        inside.append({"type": "memory", "count": pod.memory >> 20})
    if pod.gpu:
        inside.append({"type": "gpu", "count": pod.gpu})
    resources: list[dict[str, Any]] = [{"type": "slot", "count": count, "label": "default", "with": inside}]
    if "zone" in pod.labels:
        resources = [
            {"type": "subnet", "count": 1, "with": [{"type": "node", "count": 1, "with": resources}]}
        ]
    document = {
        "version": 9999,
        "resources": resources,
        "tasks": [{"command": [pod.id or "pod"], "slot": "default", "count": {"per_slot": 1}}],
        "attributes": {"system": {"duration": _POD_SECONDS}},
    }
    return msgspec.json.encode(document).decode()


def _tasks(found: Match, pod: _PodSpec) -> dict[str, int]:
    """How many of the pods each node gets."""
    tasks: dict[str, int] = {}
    for share in found.shares:
        if share.is_node:
            cores = share.amounts.get("core", 0)
            tasks[share.node_id] = tasks.get(share.node_id, 0) + cores // max(pod.cpu, 1)
    return tasks
