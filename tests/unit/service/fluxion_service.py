"""A service that behaves as converged-computing/fluxion does, with our matcher where it has Fluxion.

It never looks at `request`: it allocates, or reserves where `reservation` is set. What does not fit, for
whatever reason, is a plain Go error, which gRPC calls UNKNOWN.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc

from fluence import FluenceError, Jobspec, Matcher, Placed, ResourceGraph, render
from fluence.service import fluxion_pb2 as messages


class FluxionService:
    """Its methods; ``calls`` has what was asked."""

    def __init__(self) -> None:
        self.matcher: Matcher | None = None
        self.next_job = 1
        self.calls: list[str] = []

    def init(self, request: messages.InitRequest, context: grpc.ServicerContext) -> messages.InitResponse:
        self.matcher = Matcher(ResourceGraph.parse(request.jgf), request.policy or "first")
        return messages.InitResponse(status=messages.InitResponse.INIT_SUCCESS)

    def match(self, request: messages.MatchRequest, context: grpc.ServicerContext) -> messages.MatchResponse:
        assert self.matcher is not None
        operation = "allocate_orelse_reserve" if request.reservation else "allocate"
        self.calls.append(operation)
        try:
            found = self.matcher.match(operation, Jobspec.parse(request.jobspec), job=self.next_job)
        except FluenceError as error:
            context.abort(grpc.StatusCode.UNKNOWN, f"ERROR: {error}")
            raise
        if not isinstance(found, Placed):
            context.abort(grpc.StatusCode.UNKNOWN, "Allocation was not possible")
            raise AssertionError
        self.next_job += 1
        return messages.MatchResponse(
            allocation=render(self.matcher, found, "jgf"),
            jobid=found.job,
            reserved=found.reserved,
            at=found.at,
            status=messages.MatchResponse.MATCH_SUCCESS,
        )

    def cancel(
        self, request: messages.CancelRequest, context: grpc.ServicerContext
    ) -> messages.CancelResponse:
        assert self.matcher is not None
        self.calls.append("cancel")
        self.matcher.cancel(request.jobID)
        return messages.CancelResponse(jobID=request.jobID, status=messages.CancelResponse.CANCEL_SUCCESS)


@contextmanager
def fluxion_service(
    credentials: grpc.ServerCredentials | None = None,
) -> Iterator[tuple[FluxionService, str]]:
    """The service and its address, until the end of the block."""
    service = FluxionService()
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            method, request_deserializer=asked.FromString, response_serializer=answered.SerializeToString
        )
        for name, method, asked, answered in (
            ("Init", service.init, messages.InitRequest, messages.InitResponse),
            ("Match", service.match, messages.MatchRequest, messages.MatchResponse),
            ("Cancel", service.cancel, messages.CancelRequest, messages.CancelResponse),
        )
    }
    server = grpc.server(ThreadPoolExecutor(2), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("fluxion.FluxionService", handlers),)
    )
    if credentials is None:
        port = server.add_insecure_port("127.0.0.1:0")
    else:
        port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    try:
        yield service, f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()
