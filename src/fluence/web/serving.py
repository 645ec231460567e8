"""Serving: the view API of a live scheduler on its address, from a thread of its own.

Only the leader has a plan. Other replicas forward each connection to the leader unchanged, TLS included, so
that a Service may lead to any of them. The leader publishes its address on its Lease.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from fluence import names
from fluence.database_url import DatabaseUrl
from fluence.kube.access import Access as KubeAccess
from fluence.kube.client import Client
from fluence.kube.errors import KubeError
from fluence.kube.lease import LEASE_OBJECTS
from fluence.live.http_server import ListenerLimits, serve
from fluence.live.scheduler import LiveScheduler
from fluence.schedule.settings import SchedulerSettings
from fluence.web.access import Access
from fluence.web.past_jobs import PastJobs
from fluence.web.registration import Registration
from fluence.web.server import ViewServer
from fluence.web.view import View

if TYPE_CHECKING:
    from fluence.store.history_store import HistoryStore

_REVIEWS: Final = 100.0  # calls a second for authentication and access reviews
_LEADER_SECONDS: Final = 2.0  # how long the address on the Lease is cached
_LIMITS: Final = ListenerLimits(connections=512)


def reachable_address(settings: SchedulerSettings, access: KubeAccess) -> str:
    """The address where other replicas reach the view of this one; empty: none."""
    at = settings.address(settings.view_address)
    if at is None:
        return ""
    host, port = at
    if host in ("", "0.0.0.0", "::"):
        host = _own_address(access.server)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _own_address(server: str) -> str:
    """This machine's address on the route to the API server. Nothing is sent: UDP only chooses a route."""
    url = urlsplit(server)
    try:
        family, kind, _, _, place = socket.getaddrinfo(url.hostname, url.port or 443, type=socket.SOCK_DGRAM)[
            0
        ]
        with socket.socket(family, kind) as sock:
            sock.connect(place)
            return str(sock.getsockname()[0])
    except OSError:
        return socket.gethostname()


class _Leader:
    """The address of the leader, from its Lease."""

    def __init__(self, view: View, client: Client, live: LiveScheduler) -> None:
        self._view = view
        self._client = client
        self._settings = live.settings
        self._own = live.view_address
        self._known: tuple[float, tuple[str, int] | None] = (-_LEADER_SECONDS, None)

    async def __call__(self) -> tuple[str, int] | None:
        """None: answer here, because this replica leads or no other one is known."""
        if self._view.leads or not self._settings.lease:
            return None
        at, address = self._known
        if time.monotonic() - at > _LEADER_SECONDS:
            address = await self._read()
            self._known = (time.monotonic(), address)
        return address

    async def _read(self) -> tuple[str, int] | None:
        settings = self._settings
        try:
            lease = await self._client.get(
                LEASE_OBJECTS, settings.lease_name, namespace=settings.lease_namespace
            )
        except KubeError:
            return None
        text = (lease.metadata.annotations or {}).get(names.VIEW_ADDRESS, "")
        if text == self._own or not lease.spec.holder_identity:
            return None  # a connection to itself would be forwarded for ever
        with contextlib.suppress(ValueError):
            url = urlsplit(f"//{text}")
            if url.hostname and url.port:
                return url.hostname, url.port
        return None


def _past_jobs(live: LiveScheduler, url: DatabaseUrl | None) -> PastJobs | None:
    writer = live.history
    if url is None or writer is None:
        return None

    def opened() -> HistoryStore:
        from fluence.store.history_store import HistoryStore  # slow to import

        return HistoryStore(url, reads=True)

    return PastJobs(opened, lambda: writer.cluster, live.now)


@contextlib.asynccontextmanager
async def serve_view(
    view: View, live: LiveScheduler, history: DatabaseUrl | None = None
) -> AsyncIterator[int]:
    """Serve while the block runs, on the current event loop. Yields the port. ``history``: where the
    scheduler keeps it."""
    settings = live.settings
    at = settings.address(settings.view_address)
    assert at is not None
    async with Client(live.client.access, qps=_REVIEWS, connections=16) as client:
        access = Access(client)
        registration = Registration(client, access)
        keeping = asyncio.create_task(registration.run())
        try:
            routes = ViewServer(view, access, _past_jobs(live, history)).routes
            leader = _Leader(view, client, live)
            async with serve(at, routes, tls=registration.context, limits=_LIMITS, elsewhere=leader) as port:
                yield port
        finally:
            keeping.cancel()
            await asyncio.wait({keeping})
