"""DevicePlugins: a plugin for each type of the document, through its changes and restarts of the kubelet.

A kubelet that starts removes all sockets in its directory and creates its own; registrations are lost. So
both sockets are checked once a second. If our socket is gone, or the kubelet's has changed, or the kubelet
does not listen although we registered, a plugin serves and registers again. If there is no kubelet, it waits
for one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import grpc
import grpc.aio

from fluence.backoff import Backoff
from fluence.clock import Clock, SystemClock
from fluence.deviceplugin import v1beta1_pb2 as api
from fluence.deviceplugin.settings import offered
from fluence.model.external_resources import DeviceTree

VERSION: Final = "v1beta1"
KUBELET_SOCKET: Final = "kubelet.sock"
HEALTHY: Final = "Healthy"
_PATH_BYTES: Final = 107  # the kernel's limit for the path of a socket
_CALL_S: Final = 10.0
_LAST_LIST_S: Final = 5.0  # for the kubelet to receive the empty list
_Call: TypeAlias = "grpc.aio.ServicerContext[object, object]"

# Local sockets need no proxy, even if the environment names one.
_CHANNEL: Final = (("grpc.enable_http_proxy", 0),)


def socket_name(resource: str) -> str:
    """A unique file name for a resource, short enough for the path of a socket even if the type has a long
    name."""
    _, _, type_ = resource.rpartition("/")
    short = re.sub("[^a-z0-9]", "-", type_.lower())[:24]
    return f"fluence-{short}-{hashlib.sha256(resource.encode()).hexdigest()[:8]}.sock"


class TypePlugin:
    """``folder`` is the kubelet's directory with its socket, where it also looks for ours."""

    def __init__(self, resource: str, capacity: int, folder: Path) -> None:
        self.resource = resource
        self.path = folder / socket_name(resource)
        self._kubelet = folder / KUBELET_SOCKET
        _, _, type_ = resource.rpartition("/")
        self._devices = [api.Device(ID=f"{type_}-{number}", health=HEALTHY) for number in range(capacity)]
        self._changed = asyncio.Event()
        self._withdrawn = False
        self._watchers = 0
        self._told_nothing = asyncio.Event()  # the kubelet has received the empty list
        self._server: grpc.aio.Server | None = None

    @property
    def is_watched(self) -> bool:
        """Whether the kubelet listens. A kubelet that does not has no such resource."""
        return self._watchers > 0

    @property
    def is_serving(self) -> bool:
        """Whether the kubelet can reach us: a kubelet that starts removes all sockets."""
        return self._server is not None and self.path.is_socket()

    async def serve(self) -> None:
        """Listen, again if necessary."""
        await self.close()
        if len(bytes(self.path)) > _PATH_BYTES:
            raise OSError(f"{self.path}: a socket's path has at most {_PATH_BYTES} bytes: name a shorter one")
        self.path.unlink(missing_ok=True)
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self._handlers(),))
        try:
            server.add_insecure_port(f"unix://{self.path}")
        except RuntimeError as error:  # grpc's way to report that it cannot bind
            raise OSError(f"{self.path}: {error}") from None
        await server.start()
        self._server = server

    async def register(self) -> None:
        """Tell the kubelet where we listen. Raises OSError if there is no kubelet or it refuses us."""
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
        """Offer an empty list, and end. Without the empty list, the number would stay on the node for
        minutes."""
        self._withdrawn = True
        self._changed.set()
        if self.is_watched:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_LIST_S):
                    await self._told_nothing.wait()
        await self.close()

    async def close(self) -> None:
        """End, and remove the socket."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)
            self.path.unlink(missing_ok=True)

    # -- calls of the kubelet --------------------------------------------------------------------------------

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
        """Send the whole list to each caller, and again if it changes."""
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
        """Return nothing for each container: the scheduler has written its devices on the pod."""
        given = [api.ContainerAllocateResponse() for _ in request.container_requests]
        return api.AllocateResponse(container_responses=given)


logger = logging.getLogger(__name__)

POLL_SECONDS: Final = 1.0
_REREGISTER_SECONDS: Final = 10.0  # after this time without a listening kubelet, register once more
_BACKOFF: Final = Backoff(1.0, 30.0)  # seconds after a failed registration


@dataclass(slots=True, eq=False)
class _Entry:
    """A plugin, and its registration with the kubelet."""

    plugin: TypePlugin
    kubelet: object = None  # the kubelet that it is registered with
    heard_at: float = 0.0  # when the kubelet last listened, or when we registered
    next_try: float = 0.0
    pause: float = _BACKOFF.first
    told: str = ""  # the last logged fault


class DevicePlugins:
    """``await DevicePlugins(folder, capacity=1000).run(trees)`` runs until cancelled."""

    def __init__(
        self, folder: Path, *, capacity: int, look_s: float = POLL_SECONDS, clock: Clock | None = None
    ) -> None:
        self._folder = folder
        self._capacity = capacity
        self._look_s = look_s
        self._clock = clock or SystemClock()
        self._entries: dict[str, _Entry] = {}
        self._wanted: dict[str, int] = {}
        self._wake = asyncio.Event()
        self._kubelet_missing = False

    @property
    def registered(self) -> list[str]:
        """The resources that the kubelet knows and listens to."""
        return sorted(name for name, entry in self._entries.items() if entry.plugin.is_watched)

    async def run(self, trees: AsyncIterator[DeviceTree]) -> None:
        follows = asyncio.create_task(self._follow(trees))
        try:
            while not follows.done():
                await self._look()
                self._wake.clear()
                try:
                    async with asyncio.timeout(self._look_s):
                        await self._wake.wait()
                except TimeoutError:
                    pass
            follows.result()
        finally:
            follows.cancel()
            await asyncio.wait({follows})
            for entry in self._entries.values():
                await entry.plugin.close()

    async def _follow(self, trees: AsyncIterator[DeviceTree]) -> None:
        async for tree in trees:
            self._wanted = offered(tree, self._capacity)
            logger.info("offers %s", ", ".join(self._wanted) or "nothing: the document declares no resource")
            self._wake.set()

    async def _look(self) -> None:
        for name in [entry for entry in self._entries if entry not in self._wanted]:
            await self._entries.pop(name).plugin.withdraw()
            logger.info("%s is no longer offered", name)
        for name, capacity in self._wanted.items():
            if name not in self._entries:
                self._entries[name] = _Entry(TypePlugin(name, capacity, self._folder))
        kubelet = _mark(self._folder / KUBELET_SOCKET)
        if not self._entries or self._is_missing(kubelet):
            return
        await asyncio.gather(*(self._keep(entry, kubelet) for entry in self._entries.values()))

    def _is_missing(self, kubelet: object) -> bool:
        missing = kubelet is None
        if missing and not self._kubelet_missing:
            logger.warning("waits for the kubelet: %s is not there", self._folder / KUBELET_SOCKET)
        self._kubelet_missing = missing
        return missing

    async def _keep(self, entry: _Entry, kubelet: object) -> None:
        """Make sure that one plugin is served and registered."""
        now, plugin = self._clock.monotonic(), entry.plugin
        known = entry.kubelet == kubelet
        if plugin.is_watched and known:
            entry.heard_at = now
        if plugin.is_serving and known and now - entry.heard_at < _REREGISTER_SECONDS:
            return
        if known and now < entry.next_try:
            return
        try:
            if not plugin.is_serving or not known:
                await plugin.serve()
            await plugin.register()
        except OSError as error:
            entry.kubelet = kubelet
            entry.heard_at = now - _REREGISTER_SECONDS  # not registered: the next try follows after its pause
            entry.next_try, entry.pause = now + entry.pause, _BACKOFF.longer(entry.pause)
            if entry.told != str(error):
                logger.warning("%s is not registered: %s; it is tried again", plugin.resource, error)
            entry.told = str(error)
            return
        entry.kubelet, entry.heard_at = kubelet, now
        entry.pause, entry.told = _BACKOFF.first, ""
        logger.info("%s is registered", plugin.resource)


def _mark(path: Path) -> object:
    """Identifies the kubelet's socket, and changes when the kubelet restarts; None without a socket."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns
