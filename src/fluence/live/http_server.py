"""HTTP for kubelets, Prometheus and the API server: health, metrics, TLS, and bounds on connections.

It runs in a thread (``LoopThread``), so that it answers while a cycle runs; its checks may be called from any
thread. Anyone who can reach the address may read the health, and ``may_read`` decides who may read the
metrics.

A listener accepts a limited number of connections. It disconnects a peer that sends nothing, sends half a
request, or does not read its answer. When the limit is reached, new connections wait, and the address with
the fewest connections goes first. A connection becomes free when a peer leaves, or by closing one that is
silent: first those that never finished a request, and those of the address with the most connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from aiohttp import web

_VALIDITY = timedelta(days=3650)  # longer than any process lives; a new one is made at each start


def self_signed() -> ssl.SSLContext:
    """A self-signed certificate, as kube-scheduler makes one if it has none.

    It keeps the traffic private. A client that must verify the server needs a proxy in front.
    """
    from cryptography import x509  # imported late: slow to import, and loopback does not need it
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    host = socket.gethostname()[:63] or "fluence"
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + _VALIDITY)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # OpenSSL reads a chain only from a file, and a pod may have no writable directory: this file is in
    # memory.
    file = os.memfd_create("certificate")
    try:
        os.write(file, certificate.public_bytes(pem) + secret)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context


_BACKLOG = 128


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """The limits of connections and of their times."""

    connections: int = 128
    request_s: float = 5.0
    """For a handshake, for the head of a request, and to read an answer."""
    idle_s: float = 60.0
    """Before and between requests."""
    check_s: float = 0.1
    grace_s: float = 0.5
    """How long a silent new connection is kept while others wait."""
    waiting: int = 256
    """How many new connections may wait."""


@dataclass(eq=False, slots=True)
class _Peer:
    """One connection."""

    address: str
    since: float
    """Since when it waits or is being answered."""
    answers: bool = False
    """Whether one of its requests is being answered."""
    connected: bool = False
    """Whether the handshake is complete. Go clients, such as the API server, keep unused connections for
    later; closing one just as it is used makes a call fail."""
    answered: bool = False
    begun: bool = False
    """Whether the head of its next request has begun."""
    stalls: bool = False
    """Whether it does not read its answer."""
    end: Callable[[], object] = field(default=lambda: None)

    def is_late(self, now: float, limits: ListenerLimits) -> bool:
        if self.answers and not self.stalls:
            return False  # the answer has a time limit of its own
        is_idle = self.connected and not self.begun and not self.stalls
        return now - self.since > (limits.idle_s if is_idle else limits.request_s)


class _Connection(web.RequestHandler):
    """aiohttp's protocol, which also records what its peer does."""

    __slots__ = ("_leave", "_peer")

    def __init__(self, server: web.Server, peer: _Peer, leave: Callable[[], None], **more: Any) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), **more)
        self._peer, self._leave = peer, leave

    @property
    def peer(self) -> _Peer:
        return self._peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._peer.end = transport.abort  # type: ignore[attr-defined]
        self._peer.connected, self._peer.since = True, time.monotonic()

    def data_received(self, data: bytes) -> None:
        peer = self._peer
        if not peer.answers and not peer.begun:
            peer.begun, peer.since = True, time.monotonic()
        super().data_received(data)

    def pause_writing(self) -> None:
        self._peer.stalls, self._peer.since = True, time.monotonic()
        super().pause_writing()

    def resume_writing(self) -> None:
        self._peer.stalls, self._peer.since = False, time.monotonic()
        super().resume_writing()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._leave()
        super().connection_lost(exc)


@web.middleware
async def note_answers(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Middleware for applications behind a listener. It records when a request is being answered."""
    protocol = request.protocol
    assert isinstance(protocol, _Connection)
    peer = protocol.peer
    peer.answers, peer.begun, peer.since = True, False, time.monotonic()
    try:
        return await handler(request)
    finally:
        peer.answers, peer.answered, peer.since = False, True, time.monotonic()


Elsewhere = Callable[[], Awaitable[tuple[str, int] | None]]
"""The address to forward a connection to; None to answer it here."""


class Listener:
    """Accepts connections for an aiohttp server, or forwards them ``elsewhere`` unchanged: TLS is then
    between both ends."""

    def __init__(
        self,
        server: web.Server,
        tls: ssl.SSLContext | None,
        limits: ListenerLimits,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._server = server
        self._tls = tls
        self._limits = limits
        self._elsewhere = elsewhere
        self._peers: set[_Peer] = set()
        self._waiting: dict[_Peer, socket.socket] = {}
        self._handshakes: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def listening(self, address: tuple[str, int]) -> AsyncIterator[int]:
        """Accept connections while the block runs. Yields the port."""
        sock = _bound(address)
        tasks = [asyncio.create_task(work) for work in (self._accept(sock), self._watch())]
        try:
            yield int(sock.getsockname()[1])
        finally:
            for task in (*tasks, *self._handshakes):
                task.cancel()
            await asyncio.gather(*tasks, *self._handshakes, return_exceptions=True)
            for connection in self._waiting.values():
                connection.close()
            sock.close()

    async def _accept(self, sock: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, address = await loop.sock_accept(sock)
            except OSError:  # the peer is already gone, or there are too many open files
                await asyncio.sleep(0.05)
                continue
            self._waiting[_Peer(str(address[0]), time.monotonic())] = connection
            if len(self._waiting) > self._limits.waiting:
                many = Counter(peer.address for peer in self._waiting)
                self._waiting.pop(min(self._waiting, key=lambda peer: -many[peer.address])).close()
            self._admit()

    def _admit(self) -> None:
        """Accept waiting connections as far as the limit allows."""
        while self._waiting:
            count = Counter(candidate.address for candidate in self._peers)
            peer = min(self._waiting, key=lambda candidate: (count[candidate.address], candidate.since))
            if len(self._peers) >= self._limits.connections and not self._evict(peer, count):
                return
            connection = self._waiting.pop(peer)
            self._peers.add(peer)
            peer.since = time.monotonic()
            task = asyncio.create_task(self._begin(connection, peer))
            peer.end = task.cancel
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _begin(self, connection: socket.socket, peer: _Peer) -> None:
        """Answer or forward a connection, and remove it when it ends."""
        try:
            address = None if self._elsewhere is None else await self._elsewhere()
            if address is not None:
                peer.answers = True  # the other end limits how long it may be silent
                await _relay(connection, address, self._limits.request_s)
        except (OSError, asyncio.CancelledError, TimeoutError):
            connection.close()
            self._leave(peer)
            return
        if address is None:
            await self._shake_hands(connection, peer)
        else:
            self._leave(peer)

    async def _shake_hands(self, connection: socket.socket, peer: _Peer) -> None:
        """Do the handshake. After that, aiohttp owns the connection."""
        limits = self._limits
        timeouts: dict[str, float] = {}
        if self._tls is not None:
            timeouts = {"ssl_handshake_timeout": limits.request_s, "ssl_shutdown_timeout": 1.0}
        made: list[_Connection] = []

        def protocol() -> _Connection:
            # Idle connections are closed by the listener, including those that were never used.
            made.append(
                _Connection(
                    self._server,
                    peer,
                    lambda: self._leave(peer),
                    keepalive_timeout=2 * limits.idle_s,
                    lingering_time=0,
                    auto_decompress=False,  # a few bytes may expand to gigabytes
                    access_log=None,
                )
            )
            return made[-1]

        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol, connection, ssl=self._tls, **timeouts
            )
        except (OSError, asyncio.CancelledError):  # a failed handshake is an OSError
            connection.close()
            self._leave(peer)

    def _leave(self, peer: _Peer) -> None:
        if peer in self._peers:
            self._peers.discard(peer)
            self._admit()

    def _evict(self, newcomer: _Peer, count: Counter[str]) -> bool:
        """Close a silent connection for a new one. Returns False if all are in use."""
        silent = [candidate for candidate in self._peers if not candidate.answers]
        if not silent:
            return False
        peer = min(
            silent, key=lambda candidate: (candidate.answered, -count[candidate.address], candidate.since)
        )
        has_more = count[peer.address] > count[newcomer.address] + 1
        if not has_more and time.monotonic() - peer.since < self._limits.grace_s:
            return False
        self._peers.discard(peer)
        peer.end()
        return True

    async def _watch(self) -> None:
        limits = self._limits
        while True:
            await asyncio.sleep(limits.check_s)
            now = time.monotonic()
            for peer in [candidate for candidate in self._peers if candidate.is_late(now, limits)]:
                peer.end()
                self._leave(peer)
            for peer in [
                candidate for candidate in self._waiting if now - candidate.since > limits.request_s
            ]:
                self._waiting.pop(peer).close()
            self._admit()


_CHUNK = 65_536


async def _relay(connection: socket.socket, address: tuple[str, int], connect_s: float) -> None:
    """Forward data in both directions until one end closes."""
    async with asyncio.timeout(connect_s):
        there_reader, there_writer = await asyncio.open_connection(*address, limit=_CHUNK)
    here_reader, here_writer = await asyncio.open_connection(sock=connection, limit=_CHUNK)

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()

    ways = [
        asyncio.create_task(way) for way in (copy(here_reader, there_writer), copy(there_reader, here_writer))
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in ways:
            task.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        for writer in (here_writer, there_writer):
            writer.transport.abort()


def _bound(address: tuple[str, int]) -> socket.socket:
    """A socket for a host, or for all addresses of this machine, including IPv6 if available."""
    host, port = address
    options: dict[str, Any] = {"backlog": _BACKLOG}
    if not host and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            sock = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, **options)
            sock.setblocking(False)
            return sock
    family, _, _, _, place = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)[0]
    sock = socket.create_server(place[:2], family=family, **options)
    sock.setblocking(False)
    return sock


Check = Callable[[], str]  # what is wrong, or ""
Scrape = Callable[[], Awaitable[bytes]]
MayRead = Callable[[str], Awaitable[int]]  # from a bearer token to an HTTP status; 200: allowed

_BEARER = "bearer "
_REFUSED = {
    401: "say who you are: Authorization: Bearer TOKEN\n",
    403: "you may not get the nonResourceURL /metrics\n",
    503: "who you are cannot be found out now\n",
}


def health_routes(*, healthy: Check, ready: Check, remark: Check = lambda: "") -> list[web.RouteDef]:
    """The routes for kubelets. A ``remark`` is added to the readiness and does not change it."""

    def answer(check: Check, remark: Check = lambda: "") -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            wrong, also = check(), remark()
            text = f"{wrong or 'ok'}\n" + (f"{also}\n" if also else "")
            return web.Response(status=503 if wrong else 200, text=text)

        return handle

    return [
        web.get("/healthz", answer(healthy)),
        web.get("/livez", answer(healthy)),
        web.get("/readyz", answer(ready, remark)),
    ]


def metrics_routes(scrape: Scrape, *, may_read: MayRead | None = None) -> list[web.RouteDef]:
    """The route for Prometheus. Without ``may_read``, anyone may read it: use that for loopback only."""

    async def handle(request: web.Request) -> web.Response:
        if may_read is not None:
            header = request.headers.get("Authorization", "")
            token = header[len(_BEARER) :].strip() if header.lower().startswith(_BEARER) else ""
            status = await may_read(token) if token else 401
            if status != 200:
                headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
                return web.Response(status=status, text=_REFUSED[status], headers=headers)
        return web.Response(body=await scrape(), content_type="text/plain", charset="utf-8")

    return [web.get("/metrics", handle)]


@contextlib.asynccontextmanager
async def serve(
    address: tuple[str, int],
    routes: list[web.RouteDef],
    *,
    tls: ssl.SSLContext | None = None,
    limits: ListenerLimits | None = None,
    elsewhere: Elsewhere | None = None,
) -> AsyncIterator[int]:
    """Serve on a host and port while the block runs. Yields the port, which is chosen if it is 0."""
    app = web.Application(middlewares=[note_answers])
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        assert runner.server is not None
        listener = Listener(runner.server, tls, limits or ListenerLimits(), elsewhere)
        async with listener.listening(address) as port:
            yield port
    finally:
        await runner.cleanup()
