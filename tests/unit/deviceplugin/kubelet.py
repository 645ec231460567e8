"""A kubelet's side of the device plugin API, over a real socket: it registers, calls back and counts."""

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from fluence.deviceplugin import v1beta1_pb2 as api

SERVICE = "v1beta1"


class PeerKubelet:
    """As the kubelet does it: all other sockets are removed at its start, and each plugin is called back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.requests: list[api.RegisterRequest] = []
        self.offers: dict[str, int] = {}  # resource -> healthy devices in the last list
        self.lists: list[tuple[str, list[str]]] = []
        self.refuse = ""
        self.deaf = False  # registers, and never calls back
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        for path in self.folder.iterdir():
            path.unlink()
        self.offers.clear()
        self._server = server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(
            self._register, api.RegisterRequest.FromString, api.Empty.SerializeToString
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(f"{SERVICE}.Registration", {"Register": handler}),)
        )
        server.add_insecure_port(f"unix://{self.folder / 'kubelet.sock'}")
        await server.start()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def _register(self, request: api.RegisterRequest, context: Any) -> api.Empty:
        if self.refuse:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, self.refuse)
        # NB served before it registers: the socket must be there by now.
        assert (self.folder / request.endpoint).is_socket()
        self.requests.append(request)
        if not self.deaf:
            task = asyncio.create_task(self._watch(request))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return api.Empty()

    async def _watch(self, request: api.RegisterRequest) -> None:
        name = request.resource_name
        async with grpc.aio.insecure_channel(f"unix://{self.folder / request.endpoint}") as channel:
            watch = channel.unary_stream(
                f"/{SERVICE}.DevicePlugin/ListAndWatch",
                request_serializer=api.Empty.SerializeToString,
                response_deserializer=api.ListAndWatchResponse.FromString,
            )
            try:
                async for answer in watch(api.Empty()):
                    healthy = [each.ID for each in answer.devices if each.health == "Healthy"]
                    self.offers[name] = len(healthy)
                    self.lists.append((name, healthy))
            except grpc.aio.AioRpcError:
                pass
            if self.offers.get(name):
                self.offers[name] = 0  # a plugin that ended: its devices are unhealthy

    async def allocate(self, endpoint: str, containers: list[list[str]]) -> api.AllocateResponse:
        async with grpc.aio.insecure_channel(f"unix://{self.folder / endpoint}") as channel:
            call = channel.unary_unary(
                f"/{SERVICE}.DevicePlugin/Allocate",
                request_serializer=api.AllocateRequest.SerializeToString,
                response_deserializer=api.AllocateResponse.FromString,
            )
            asked = [api.ContainerAllocateRequest(devices_ids=each) for each in containers]
            answer: api.AllocateResponse = await call(api.AllocateRequest(container_requests=asked))
            return answer
