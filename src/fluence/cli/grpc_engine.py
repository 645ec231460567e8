"""GrpcEngine: a match service in the style of Fluxion as the engine: Fluence's own, or a real Fluxion behind
gRPC.

A real Fluxion's service ignores the requested operation: it always allocates, or reserves if `reservation` is
set, and a request that does not fit is a plain error. So a request that allocates nothing is sent as a match
whose job, if there is one, is cancelled at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

from fluence.cli.engines import (
    BUSY,
    LIMIT_S,
    NEVER,
    NO_JOB,
    TAKING,
    EngineCannot,
    EngineFailed,
    EngineJob,
    EngineRefuses,
    GraphFile,
    placed,
    satisfiable,
)
from fluence.errors import InvalidInput, InvalidJobspec
from fluence.graph import jgf
from fluence.match.matcher import Matcher
from fluence.match.request import Operation, Outcome, Placed, Wait

NO_REASON: Final = Wait(
    "the other service gives no reason: what the job needs is taken or down, or the graph does not have it"
)
_RESERVING: Final = (Operation.ALLOCATE_OR_RESERVE, Operation.TRY_FUTURE, Operation.JUDGE)
_NO_FIT: Final = "not possible"  # part of a real Fluxion's "Allocation was not possible"
_START_S: Final = 10.0  # to connect
_FILES: Final = ("ca", "certificate", "key")


class GrpcEngine:
    """`fluxion.FluxionService` of a match service. Its default graph is replaced by ours."""

    last_id: int | None = None

    def __init__(
        self, target: str, matcher: Matcher, graph: GraphFile, *, now: int, secure: bool = False
    ) -> None:
        import grpc

        from fluence.service import fluxion_pb2 as messages

        self._matcher, self._now = matcher, now
        self._messages, self._grpc = messages, grpc
        self._channel = _channel(grpc, target, secure=secure)
        text = graph.text.decode() if graph.format == "jgf" else matcher.graph.render("jgf")
        self._match = self._method("Match", messages.MatchResponse)
        self._cancel = self._method("Cancel", messages.CancelResponse)
        self._ids: dict[int, int] = {}  # the service's ids of our jobs
        try:
            try:
                grpc.channel_ready_future(self._channel).result(_START_S)
            except grpc.FutureTimeoutError:
                raise EngineFailed(
                    f"--engine: UNAVAILABLE: {target} does not answer within {_START_S:g} s"
                ) from None
            init = self._method("Init", messages.InitResponse)
            reply = self._call(init, messages.InitRequest(policy=matcher.policy.name, jgf=text))
            if reply.status != messages.InitResponse.INIT_SUCCESS:
                raise EngineFailed(f"--engine: {target} refused the graph")
        except BaseException:
            self.close()
            raise

    def match(self, operation: Operation, job: EngineJob) -> Outcome:
        codes = self._grpc.StatusCode
        request = self._messages.MatchRequest(
            jobspec=job.text.decode(), request=operation.value, reservation=operation in _RESERVING
        )
        try:
            reply = self._match(request, timeout=LIMIT_S)
        except self._grpc.RpcError as error:
            if error.code() is codes.RESOURCE_EXHAUSTED:
                return BUSY
            if error.code() is codes.FAILED_PRECONDITION:
                return NEVER
            if error.code() is codes.INVALID_ARGUMENT:
                raise InvalidJobspec(str(error.details())) from None
            if error.code() is codes.UNKNOWN and _NO_FIT in str(error.details()).lower():
                return NO_REASON
            raise EngineFailed(f"--engine: {error.code().name}: {error.details()}") from None
        if reply.status != self._messages.MatchResponse.MATCH_SUCCESS:
            return NO_REASON
        takes = operation in TAKING
        if takes:
            self._ids[job.number] = reply.jobid
        elif reply.jobid:  # a real Fluxion has allocated it
            self._call(self._cancel, self._messages.CancelRequest(jobID=reply.jobid))
        if operation is Operation.JUDGE:
            return satisfiable(self._matcher, self._now)
        at = self._now + reply.at
        end = at + self._matcher.duration(job.request, self._now)
        try:
            taken = {
                vertex.metadata.paths[self._matcher.subsystems[0]]: (
                    vertex.metadata.size,
                    vertex.metadata.exclusive,
                )
                for vertex in jgf.Document(reply.allocation).vertices()
            }
            number = job.number if takes else NO_JOB
            return placed(self._matcher, number, at, end, self._now, taken, queue=job.request.queue)
        except (EngineFailed, InvalidInput, KeyError) as error:
            if takes:
                self.cancel(job.number)
            if isinstance(error, EngineFailed):
                raise
            raise EngineFailed(f"--engine: its allocation cannot be read: {error}") from None

    def cancel(self, number: int) -> None:
        self._call(self._cancel, self._messages.CancelRequest(jobID=self._ids.pop(number)))

    def partial_cancel(self, number: int, text: bytes, reader: str) -> None:
        raise _refused("partial cancel")

    def forget(self, number: int) -> None:
        self._ids.pop(number, None)

    def update(self, number: int, text: bytes, reader: str, at: int, duration: int) -> Placed:
        raise _refused("update")

    def grow(self, text: bytes) -> None:
        messages = self._messages
        self._change("Grow", messages.GrowRequest(jgf=text.decode()), messages.GrowResponse)

    def shrink(self, paths: Sequence[str]) -> None:
        messages = self._messages
        self._change("Shrink", messages.ShrinkRequest(nodepaths=paths), messages.ShrinkResponse)

    def set_status(self, path: str, *, up: bool) -> None:
        raise _refused("set status")

    def find(self, criteria: str) -> set[str] | None:
        return None

    def close(self) -> None:
        self._channel.close()

    def _method(self, name: str, reply: type) -> Callable[..., Any]:
        method: Callable[..., Any] = self._channel.unary_unary(
            f"/fluxion.FluxionService/{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply.FromString,  # type: ignore[attr-defined]
        )
        return method

    def _call(self, method: Callable[..., Any], message: object) -> Any:
        try:
            return method(message, timeout=LIMIT_S)
        except self._grpc.RpcError as error:
            raise EngineFailed(f"--engine: {error.code().name}: {error.details()}") from None

    def _change(self, name: str, message: object, reply: type) -> None:
        try:
            answer = self._method(name, reply)(message, timeout=LIMIT_S)
        except self._grpc.RpcError as error:
            raise EngineRefuses(f"the other service does not do it: {error.details()}") from None
        if answer.status != 0:
            raise EngineRefuses("the other service does not do it, and gives no reason")


def _channel(grpc: Any, target: str, *, secure: bool) -> Any:
    """A channel to HOST:PORT; over TLS also HOST:PORT?ca=FILE&certificate=FILE&key=FILE."""
    where, _, query = target.partition("?")
    options = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]
    given = dict(parse_qsl(query, keep_blank_values=True))
    unknown = sorted(set(given) - set(_FILES))
    if unknown or (given and not secure) or ("certificate" in given) != ("key" in given):
        raise InvalidInput(
            f"grpcs://HOST:PORT takes {', '.join(_FILES)} as files behind a '?', certificate and key "
            "together; grpc:// takes none",
            where="engine",
        )
    if not secure:
        return grpc.insecure_channel(where, options=options)
    try:
        texts = {name: Path(file).read_bytes() for name, file in given.items()}
    except OSError as error:
        raise InvalidInput(f"{error.filename}: {error.strerror}", where="engine") from None
    credentials = grpc.ssl_channel_credentials(texts.get("ca"), texts.get("key"), texts.get("certificate"))
    return grpc.secure_channel(where, credentials, options=options)


def _refused(what: str) -> EngineCannot:
    return EngineCannot(
        f"{what}: a service has no call for it: use --engine resource-query:/PATH, or no engine"
    )
