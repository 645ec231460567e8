"""Serving: the view API of a live scheduler on its address, from a thread of its own, trusted by the API
server.

Only the leader has a plan. Other replicas forward each connection to the leader unchanged, TLS included, so
that a Service may lead to any of them. The leader publishes its address on its Lease.

The view reads the certificate of the front proxy from the API server (ConfigMap
kube-system/extension-apiserver-authentication). If an APIService forwards the view's group to us, the view
makes a certificate for the Service that it names and adds the authority to its caBundle, as the webhook does.
No key is stored. Without an APIService the view only accepts tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from fluence import names
from fluence.admission.certificates import CertificateKeeper
from fluence.database_url import DatabaseUrl
from fluence.kube.access import Access as KubeAccess
from fluence.kube.client import Client
from fluence.kube.errors import KubeError, Missing
from fluence.kube.lease import LEASE_OBJECTS
from fluence.kube.resource import Json, Resource
from fluence.live.http_server import ListenerLimits, self_signed, serve
from fluence.live.scheduler import LiveScheduler
from fluence.names import VIEW_GROUP
from fluence.schedule.settings import SchedulerSettings
from fluence.web.access import AUTHENTICATION, CONFIG_MAPS, Access, FrontProxy
from fluence.web.past_jobs import PastJobs
from fluence.web.resources import VERSION
from fluence.web.server import ViewServer
from fluence.web.view import View

if TYPE_CHECKING:
    from fluence.store.history_store import HistoryStore


logger = logging.getLogger(__name__)

API_SERVICE: Final = f"{VERSION}.{VIEW_GROUP}"
API_SERVICES: Final[Resource[Json]] = Resource(
    "apiregistration.k8s.io", "v1", "apiservices", "APIService", dict[str, object], namespaced=False
)
_LOOK_SECONDS: Final = 30.0  # between two reads of the API server's configuration


class _ServiceCertificates(CertificateKeeper):
    """Announces the certificate in the APIService."""

    resource = API_SERVICES

    def bundles(self, configuration: dict[str, Any]) -> list[dict[str, Any]]:
        spec = configuration["spec"]
        if spec.get("caBundle") and spec.get("insecureSkipTLSVerify"):
            spec.pop("insecureSkipTLSVerify")  # the server refuses both together
        return [spec]


class Registration:
    """``context`` is for the listener. It has a certificate from the start."""

    def __init__(self, client: Client, access: Access) -> None:
        self.context: ssl.SSLContext = self_signed()
        self.problem = "the API server was not asked yet"
        self._client = client
        self._access = access
        self._authority = ""

    async def run(self) -> None:
        """Keep both up to date until cancelled."""
        keeping: asyncio.Task[None] | None = None
        hosts: tuple[str, ...] = ()
        try:
            while True:
                await self._read_front_proxy()
                named = await self._service_hosts()
                if named and named != hosts:
                    hosts = named
                    if keeping is not None:
                        keeping.cancel()
                    keeper = _ServiceCertificates(self._client, API_SERVICE, hosts, self.context)
                    keeping = asyncio.create_task(keeper.run())
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            if keeping is not None:
                keeping.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await keeping

    async def _read_front_proxy(self) -> None:
        namespace, name = AUTHENTICATION
        try:
            found = await self._client.get(CONFIG_MAPS, name, namespace=namespace)
        except KubeError as error:
            self._note(f"users are known by tokens only: ConfigMap {namespace}/{name}: {error}")
            return
        data = found.get("data")
        proxy = FrontProxy.read(data) if isinstance(data, dict) else None
        if proxy is None:
            self._note("users are known by tokens only: the API server has no front proxy of its own")
        else:
            self._note("")
            if proxy.authority != self._authority:
                self.context.load_verify_locations(cadata=proxy.authority)
                self.context.verify_mode = ssl.CERT_OPTIONAL
                self._authority = proxy.authority
        self._access.front_proxy = proxy

    async def _service_hosts(self) -> tuple[str, ...]:
        try:
            found: dict[str, Any] = await self._client.get(API_SERVICES, API_SERVICE)
        except Missing:
            return ()
        except KubeError as error:
            logger.warning("apiservice %s cannot be read: %s", API_SERVICE, error)
            return ()
        service = (found.get("spec") or {}).get("service") or {}
        name, namespace = service.get("name"), service.get("namespace")
        return (
            (f"{name}.{namespace}.svc", f"{name}.{namespace}.svc.cluster.local") if name and namespace else ()
        )

    def _note(self, problem: str) -> None:
        if problem != self.problem and problem:
            logger.warning("%s", problem)
        self.problem = problem


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
