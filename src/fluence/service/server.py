"""Server: the port, TLS, health and reflection around the services, from start to end.

    async with MatchServer(settings, graphs) as server:
        await server.run()

It is healthy when all graphs are loaded. At shutdown, calls in progress are answered first.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import grpc
import grpc.aio
from google.protobuf import text_format
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection, reflection_pb2

from fluence.errors import FluenceError, InvalidInput
from fluence.service import external_pb2, fluxcli_pb2, fluxion_pb2, match_v1_pb2
from fluence.service.api import MatchApi
from fluence.service.graphs import Graphs
from fluence.service.journal import Journal
from fluence.service.legacy import LegacyServices
from fluence.service.rpc import CallLimits, Calls, Replies, Worker
from fluence.service.settings import ServiceSettings

logger = logging.getLogger(__name__)

_GRACE_S: Final = 5.0
_LOOPBACK: Final = ("127.0.0.1:", "localhost:", "[::1]:", "unix:")
_DESCRIBED: Final = (external_pb2, fluxcli_pb2, fluxion_pb2, match_v1_pb2)


def open_graphs(settings: ServiceSettings) -> Graphs:
    """The graphs of a service: those in its state directory, and the one of its file."""
    journal = None if settings.state is None else Journal(Path(settings.state))
    graphs = Graphs(
        policy=settings.match_policy,
        max_graphs=settings.max_graphs,
        max_vertices=settings.max_vertices,
        max_jobs=settings.max_jobs,
        journal=journal,
    )
    try:
        count = graphs.restore()
        if count:
            jobs = sum(1 for graph in graphs for _ in graph.engine.jobs())
            logger.info("%d records of %s carried out: %d jobs", count, settings.state, jobs)
        if settings.graph is not None:
            try:
                text = Path(settings.graph).read_bytes()
            except OSError as error:
                raise InvalidInput(f"{settings.graph}: {error.strerror}", where="graph") from None
            graphs.load_file(
                text, format_=settings.graph_format or "", allow=settings.allow, source=settings.graph
            )
        graphs.commit()
    except BaseException:
        graphs.close()
        raise
    return graphs


class MatchServer:
    """One server on one port."""

    def __init__(self, settings: ServiceSettings, graphs: Graphs) -> None:
        self._settings = settings
        self._graphs = graphs
        self.address = ""
        self._limits = CallLimits(
            calls=settings.max_calls,
            request_bytes=settings.max_request,
            large_bytes=settings.max_message,
            receive_s=settings.receive_timeout,
            send_s=settings.send_timeout,
            streams=settings.max_streams,
        )
        self._health = HealthServicer()
        self._server: grpc.aio.Server | None = None
        self._worker: Worker | None = None
        self._work: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        settings = self._settings
        clock = _wall if settings.service_clock == "wall" else _zero
        api = MatchApi(self._graphs, clock)
        worker = self._worker = Worker(self._graphs, changed=api.changed)
        api.use(worker)
        replies = Replies(settings.max_replies)
        replies.wake = worker.wake
        calls = Calls(self._limits, replies)
        legacy = LegacyServices(self._graphs, worker, clock, dialect=settings.dialect)
        server = self._server = grpc.aio.server(options=self._options())
        services = {**legacy.handlers(calls), **api.handlers(calls)}
        for name, handlers in services.items():
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, handlers),))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        described = [
            service.full_name
            for module in _DESCRIBED
            for service in module.DESCRIPTOR.services_by_name.values()
        ]
        server.add_generic_rpc_handlers(_reflection(described))
        self.address = self._bind(server)
        self._work = asyncio.create_task(worker.run())
        await server.start()
        for name in ("", *described):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return self

    async def run(self) -> None:
        """Serve until cancelled. A fault of the journal ends it."""
        assert self._work is not None
        await asyncio.shield(self._work)  # calls in progress must still be answered when this is cancelled

    async def __aexit__(
        self,
        type_: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._worker is not None and self._server is not None and self._work is not None
        await self._health.enter_graceful_shutdown()
        await self._server.stop(_GRACE_S)
        self._work.cancel()
        await asyncio.wait({self._work})
        self._worker.close()

    def _options(self) -> list[tuple[str, int]]:
        return [
            ("grpc.max_receive_message_length", self._settings.max_message + 1024),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),  # a port in use is an error
            ("grpc.max_concurrent_streams", self._settings.max_calls),
            ("grpc.http2.bdp_probe", 0),  # unread data is not buffered beyond the window
            ("grpc.keepalive_time_ms", 60_000),  # detects clients that vanished
            ("grpc.keepalive_timeout_ms", 20_000),
        ]

    def _bind(self, server: grpc.aio.Server) -> str:
        settings = self._settings
        address = settings.service_address
        _check_address(address)
        try:
            if settings.tls_certificate is None:
                if not address.startswith(_LOOPBACK):
                    logger.warning(
                        "%s is off loopback and has no TLS: everybody who reaches it may call", address
                    )
                port = server.add_insecure_port(address)
            else:
                port = server.add_secure_port(address, _credentials(settings))
        except RuntimeError as error:
            raise FluenceError(f"{address}: cannot listen: {error}") from None
        if address.startswith("unix:"):
            return address
        return f"{address.rpartition(':')[0]}:{port}"


def _reflection(described: Sequence[str]) -> list[grpc.GenericRpcHandler]:
    """Reflection as v1, which clients ask first, and as v1alpha. grpcio has v1alpha only; the messages of v1
    differ in their package."""
    alpha = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(alpha)
    alpha.options.Clear()
    v1 = text_format.Parse(str(alpha).replace("v1alpha", "v1"), FileDescriptorProto())
    pool = DescriptorPool()
    for module in (*_DESCRIBED, health_pb2, reflection_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(v1.SerializeToString())
    health = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
    versions = [f"{file.package}.{service.name}" for file in (alpha, v1) for service in file.service]
    servicer = reflection.aio.ReflectionServicer([*described, health, *versions], pool=pool)
    info = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return [grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": info}) for name in versions]


def _check_address(address: str) -> None:
    """Raise the reason why the service cannot listen there: gRPC's own error does not have it."""
    if address.startswith("unix:"):
        folder = Path(address.removeprefix("unix:")).parent
        if not folder.is_dir():
            raise FluenceError(f"{address}: cannot listen: there is no folder {folder}")
        return
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdecimal()) or int(port) > 65_535:
        raise InvalidInput(
            f"{address!r} must be HOST:PORT, such as 127.0.0.1:4242, or unix:/PATH", where="service-address"
        )
    try:
        places = socket.getaddrinfo(
            host.strip("[]") or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise FluenceError(f"{address}: cannot listen: {error.strerror}") from None
    reason = ""
    for family, kind, protocol, _, place in places:  # one is enough, as for gRPC
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
                return
        except OSError as error:
            reason = error.strerror or str(error)
    raise FluenceError(f"{address}: cannot listen: {reason}")


def _check_certificates(key: Path, certificate: Path, authority: Path | None) -> None:
    """Raise `ssl.SSLError` if the files are not PEM, or the key is not that of the certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key, password="")  # without it, ssl asks the terminal
    if authority is not None:
        context.load_verify_locations(authority)


def _credentials(settings: ServiceSettings) -> grpc.ServerCredentials:
    """Certificates from files, which are read again when they change."""
    files = [
        Path(name) for name in (settings.tls_key, settings.tls_certificate, settings.tls_client_ca) if name
    ]
    unusable = f"{', '.join(map(str, files))}: must be PEM files, and the key that of the certificate"

    def mark() -> object:
        return [(found.st_ino, found.st_size, found.st_mtime_ns) for found in (file.stat() for file in files)]

    def read() -> grpc.ServerCertificateConfiguration:
        texts = [file.read_bytes() for file in files]
        _check_certificates(files[0], files[1], files[2] if files[2:] else None)
        return grpc.ssl_server_certificate_configuration(
            [(texts[0], texts[1])], texts[2] if texts[2:] else None
        )

    try:
        seen, first = mark(), read()
    except ssl.SSLError:
        raise InvalidInput(unusable, where="tls-certificate") from None
    except OSError as error:
        raise InvalidInput(f"{error.filename}: {error.strerror}", where="tls-certificate") from None

    def fetch() -> grpc.ServerCertificateConfiguration:
        nonlocal seen, first
        try:
            now = mark()
            if now != seen:
                first, seen = read(), now
        except ssl.SSLError:  # only one of them is new
            logger.warning("%s: the certificates stay as they are", unusable)
        except OSError as error:  # it is being replaced
            logger.warning("%s: %s: the certificates stay as they are", error.filename, error.strerror)
        return first

    return grpc.dynamic_ssl_server_credentials(
        first, fetch, require_client_authentication=settings.tls_client_ca is not None
    )


def _zero() -> int:
    return 0


def _wall() -> int:
    return int(time.time())
