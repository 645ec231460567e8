"""Listener: connections to a port that strangers can reach, so many and so long, and no more.

A peer that connects and says nothing, sends half a request, or does not read its answer is cut off. When all
places are taken, newcomers wait, and the address that has fewest places goes first. A place
becomes free when a peer leaves, or is taken from one that says nothing: first from those who never finished a
request, first from the address that has most.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

_BACKLOG = 128


@dataclass(frozen=True, slots=True)
class ListenerLimits:
    """How many connections, and how long each may take for what."""

    connections: int = 128
    request_s: float = 5.0
    """For a handshake, for the head of a request, and to read an answer."""
    idle_s: float = 60.0
    """Before and between requests."""
    check_s: float = 0.1
    grace_s: float = 0.5
    """How long a newcomer may keep its place while others want it and it has said nothing."""
    waiting: int = 256
    """How many newcomers may wait for a place."""


@dataclass(eq=False, slots=True)
class _Peer:
    """One connection."""

    address: str
    since: float
    """When it began to wait, or to be answered."""
    answers: bool = False
    """Whether a request of it is being answered."""
    connected: bool = False
    """Whether hands were shaken. Go's clients, such as the API server, keep connections for later that they
    never used; one that is cut off as it is used is a call that fails."""
    answered: bool = False
    begun: bool = False
    """Whether the head of its next request has begun."""
    stalls: bool = False
    """Whether it does not read what it is sent."""
    end: Callable[[], object] = field(default=lambda: None)

    def is_late(self, now: float, limits: ListenerLimits) -> bool:
        if self.answers and not self.stalls:
            return False  # whoever answers has a time limit of its own
        is_idle = self.connected and not self.begun and not self.stalls
        return now - self.since > (limits.idle_s if is_idle else limits.request_s)


class _Connection(web.RequestHandler):
    """aiohttp's protocol, which also says what its peer does."""

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
    """Middleware for applications behind a listener: it says when a request is being answered."""
    protocol = request.protocol
    assert isinstance(protocol, _Connection)
    peer = protocol.peer
    peer.answers, peer.begun, peer.since = True, False, time.monotonic()
    try:
        return await handler(request)
    finally:
        peer.answers, peer.answered, peer.since = False, True, time.monotonic()


class Listener:
    """Accepts connections for a server of aiohttp's."""

    def __init__(self, server: web.Server, tls: ssl.SSLContext | None, limits: ListenerLimits) -> None:
        self._server = server
        self._tls = tls
        self._limits = limits
        self._peers: set[_Peer] = set()
        self._waiting: dict[_Peer, socket.socket] = {}
        self._handshakes: set[asyncio.Task[None]] = set()

    @property
    def count(self) -> int:
        return len(self._peers)

    @contextlib.asynccontextmanager
    async def listening(self, address: tuple[str, int]) -> AsyncIterator[int]:
        """Accept while the block runs; gives the port."""
        sock = _bound(address)
        tasks = [asyncio.create_task(each) for each in (self._accept(sock), self._watch())]
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
            except OSError:  # the peer is gone already, or there are no more files to open
                await asyncio.sleep(0.05)
                continue
            self._waiting[_Peer(str(address[0]), time.monotonic())] = connection
            if len(self._waiting) > self._limits.waiting:
                many = Counter(each.address for each in self._waiting)
                self._waiting.pop(min(self._waiting, key=lambda each: -many[each.address])).close()
            self._admit()

    def _admit(self) -> None:
        """Give free places to those that wait."""
        while self._waiting:
            count = Counter(each.address for each in self._peers)
            peer = min(self._waiting, key=lambda each: (count[each.address], each.since))
            if len(self._peers) >= self._limits.connections and not self._evict(peer, count):
                return
            connection = self._waiting.pop(peer)
            self._peers.add(peer)
            peer.since = time.monotonic()
            task = asyncio.create_task(self._shake_hands(connection, peer))
            peer.end = task.cancel
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)

    async def _shake_hands(self, connection: socket.socket, peer: _Peer) -> None:
        """Shake hands; from then on the connection is aiohttp's."""
        limits = self._limits
        timeouts: dict[str, float] = {}
        if self._tls is not None:
            timeouts = {"ssl_handshake_timeout": limits.request_s, "ssl_shutdown_timeout": 1.0}
        made: list[_Connection] = []

        def protocol() -> _Connection:
            # NB idle connections are ended here, as are those that never were busy
            made.append(
                _Connection(
                    self._server,
                    peer,
                    lambda: self._leave(peer),
                    keepalive_timeout=2 * limits.idle_s,
                    lingering_time=0,
                    auto_decompress=False,  # a few bytes may become gigabytes
                    access_log=None,
                )
            )
            return made[-1]

        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                protocol, connection, ssl=self._tls, **timeouts
            )
        except (OSError, asyncio.CancelledError):  # NB a faulty handshake is an OSError
            connection.close()
            self._leave(peer)

    def _leave(self, peer: _Peer) -> None:
        if peer in self._peers:
            self._peers.discard(peer)
            self._admit()

    def _evict(self, newcomer: _Peer, count: Counter[str]) -> bool:
        """Take the place of somebody who says nothing; whether there is one."""
        silent = [each for each in self._peers if not each.answers]
        if not silent:
            return False
        peer = min(silent, key=lambda each: (each.answered, -count[each.address], each.since))
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
            for peer in [each for each in self._peers if each.is_late(now, limits)]:
                peer.end()
                self._leave(peer)
            for peer in [each for each in self._waiting if now - each.since > limits.request_s]:
                self._waiting.pop(peer).close()
            self._admit()


def _bound(address: tuple[str, int]) -> socket.socket:
    """A socket for a host, or for all addresses of this machine, those of IPv6 too where there are any."""
    host, port = address
    options: dict[str, Any] = {"backlog": _BACKLOG}
    if not host and socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            found = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, **options)
            found.setblocking(False)
            return found
    family, _, _, _, place = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)[0]
    found = socket.create_server(place[:2], family=family, **options)
    found.setblocking(False)
    return found
