"""TypePlugin: one resource on one kubelet, by its device plugin API (v1beta1): a socket, and a registration.

    plugin = TypePlugin("fluxion.flux-framework.org/qpu", 1000, folder)
    await plugin.serve()        the kubelet calls back while we register, so this comes first
    await plugin.register()
    await plugin.withdraw()     nothing of it is left on the node
    await plugin.close()

Devices are numbers that no container ever sees: an allocation gives it nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, TypeAlias

import grpc
import grpc.aio

from fluence.deviceplugin import v1beta1_pb2 as api

VERSION: Final = "v1beta1"
KUBELET_SOCKET: Final = "kubelet.sock"
HEALTHY: Final = "Healthy"
_PATH_BYTES: Final = 107  # that the kernel takes for a socket
_CALL_S: Final = 10.0
_LAST_LIST_S: Final = 5.0  # for the kubelet to take the empty list
_Call: TypeAlias = "grpc.aio.ServicerContext[object, object]"

# Sockets of this machine need no proxy, whatever the environment says of one.
_CHANNEL: Final = (("grpc.enable_http_proxy", 0),)


def socket_name(resource: str) -> str:
    """A file name of the resource's own, short enough for a socket's path whatever the type is called."""
    _, _, type_ = resource.rpartition("/")
    short = re.sub("[^a-z0-9]", "-", type_.lower())[:24]
    return f"fluence-{short}-{hashlib.sha256(resource.encode()).hexdigest()[:8]}.sock"


class TypePlugin:
    """``folder`` is the kubelet's: where its socket is, and where it looks for ours."""

    def __init__(self, resource: str, capacity: int, folder: Path) -> None:
        self.resource = resource
        self.path = folder / socket_name(resource)
        self._kubelet = folder / KUBELET_SOCKET
        _, _, type_ = resource.rpartition("/")
        self._devices = [api.Device(ID=f"{type_}-{number}", health=HEALTHY) for number in range(capacity)]
        self._changed = asyncio.Event()
        self._withdrawn = False
        self._watchers = 0
        self._told_nothing = asyncio.Event()  # the kubelet has the empty list
        self._server: grpc.aio.Server | None = None

    @property
    def is_watched(self) -> bool:
        """Whether the kubelet listens. One that does not has no such resource."""
        return self._watchers > 0

    @property
    def is_serving(self) -> bool:
        """Whether the kubelet could reach us: one that starts removes all sockets."""
        return self._server is not None and self.path.is_socket()

    async def serve(self) -> None:
        """Listen, anew if we did before."""
        await self.close()
        if len(bytes(self.path)) > _PATH_BYTES:
            raise OSError(f"{self.path}: a socket's path has at most {_PATH_BYTES} bytes: name a shorter one")
        self.path.unlink(missing_ok=True)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self._handlers(),))
        try:
            server.add_insecure_port(f"unix://{self.path}")
        except RuntimeError as error:  # grpc's own way to say that it cannot bind
            raise OSError(f"{self.path}: {error}") from None
        await server.start()
        self._server = server

    async def register(self) -> None:
        """Tell the kubelet where we listen. Raises OSError if it is not there or refuses us."""
        request = api.RegisterRequest(
            version=VERSION,
            endpoint=self.path.name,
            resource_name=self.resource,
            options=api.DevicePluginOptions(),
        )
        async with grpc.aio.insecure_channel(f"unix://{self._kubelet}", options=_CHANNEL) as channel:
            call = channel.unary_unary(
                f"/{VERSION}.Registration/Register",
                request_serializer=api.RegisterRequest.SerializeToString,
                response_deserializer=api.Empty.FromString,
            )
            try:
                await call(request, timeout=_CALL_S)
            except grpc.aio.AioRpcError as error:
                raise OSError(f"{self._kubelet}: {error.code().name}: {error.details()}") from None

    async def withdraw(self) -> None:
        """Offer none of it, and end. One that only ended would leave its number on the node for minutes."""
        self._withdrawn = True
        self._changed.set()
        if self.is_watched:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_LIST_S):
                    await self._told_nothing.wait()
        await self.close()

    async def close(self) -> None:
        """End, and leave no socket behind."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)
            self.path.unlink(missing_ok=True)

    # -- what the kubelet calls ------------------------------------------------------------------------------

    def _handlers(self) -> grpc.GenericRpcHandler:
        empty = api.Empty.FromString
        return grpc.method_handlers_generic_handler(
            f"{VERSION}.DevicePlugin",
            {
                "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(
                    self._options, empty, api.DevicePluginOptions.SerializeToString
                ),
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                    self._list_and_watch, empty, api.ListAndWatchResponse.SerializeToString
                ),
                "Allocate": grpc.unary_unary_rpc_method_handler(
                    self._allocate, api.AllocateRequest.FromString, api.AllocateResponse.SerializeToString
                ),
            },
        )

    async def _options(self, request: api.Empty, call: _Call) -> api.DevicePluginOptions:
        return api.DevicePluginOptions()

    async def _list_and_watch(
        self, request: api.Empty, call: _Call
    ) -> AsyncIterator[api.ListAndWatchResponse]:
        """The whole list to each who asks, and again if it changes."""
        self._watchers += 1
        try:
            if not self._withdrawn:
                yield api.ListAndWatchResponse(devices=self._devices)
                await self._changed.wait()
            yield api.ListAndWatchResponse()
            self._told_nothing.set()
        finally:
            self._watchers -= 1

    async def _allocate(self, request: api.AllocateRequest, call: _Call) -> api.AllocateResponse:
        """For each container nothing: what it gets, the scheduler has written on its pod."""
        given = [api.ContainerAllocateResponse() for _ in request.container_requests]
        return api.AllocateResponse(container_responses=given)
