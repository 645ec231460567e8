"""Registration: how the API server and the view trust each other.

The view reads the certificate of the front proxy from the API server (ConfigMap
kube-system/extension-apiserver-authentication). If an APIService forwards the view's group to us, the view
makes a certificate for the Service that it names and adds the authority to its caBundle, as the webhook does.
No key is stored. Without an APIService the view only accepts tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from typing import Any, Final

from fluence.admission.certificates import CertificateKeeper
from fluence.kube.client import Client
from fluence.kube.errors import KubeError, Missing
from fluence.kube.resource import Json, Resource
from fluence.live.http_server import self_signed
from fluence.names import VIEW_GROUP
from fluence.web.access import AUTHENTICATION, CONFIG_MAPS, Access, FrontProxy
from fluence.web.resources import VERSION

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
