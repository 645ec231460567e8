"""Transport: one HTTP exchange with the API server: TLS, proxies, keep-alive, and the lines of a watch."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakSet

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from yarl import URL

from fluence.clock import Clock
from fluence.kube.access import Access
from fluence.kube.auth import Authenticator, Credentials
from fluence.kube.errors import ApiError, Misconfigured, NotHeld, TimedOut, Unreachable, error_for


class LineSplitter:
    """Splits chunks into lines; a chunk is never copied more than once, even for very long lines."""

    def __init__(self) -> None:
        self._partial: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        first, *rest = chunk.split(b"\n")
        if not rest:
            self._partial.append(first)
            return []
        self._partial.append(first)
        lines = [b"".join(self._partial), *rest[:-1]]
        self._partial = [rest[-1]] if rest[-1] else []
        return [line for line in lines if line]

    @property
    def pending(self) -> int:
        """Bytes of a line that has no end yet: not zero at the end of a stream means that it was cut."""
        return sum(map(len, self._partial))


USER_AGENT = "fluence"
_CLOSING_TURNS = 100


class Connector(aiohttp.TCPConnector):
    """Connections that are closed when ``close`` returns.

    aiohttp forgets a connection as soon as a call is given up or its keep-alive has expired, while TLS still
    shuts down: until the server answers, up to 30 s, its socket is open, and would outlive the loop.
    """

    def __init__(self, **options: Any) -> None:
        self._made: WeakSet[socket.socket] = WeakSet()
        super().__init__(socket_factory=self._make, **options)

    def _make(self, info: tuple[Any, ...]) -> socket.socket:
        made = _keepalive_socket(info)
        self._made.add(made)
        return made

    async def close(self, *, abort_ssl: bool = True) -> None:
        await super().close(abort_ssl=abort_ssl)
        for connection in self._made:
            with contextlib.suppress(OSError):  # closed, or not connected yet
                connection.shutdown(socket.SHUT_RDWR)  # its transport sees the end at the loop's next turn
        for turn in range(_CLOSING_TURNS):
            if all(connection.fileno() == -1 for connection in self._made):
                return
            await asyncio.sleep(0 if turn < _CLOSING_TURNS // 2 else 0.01)


class GuardedBody(aiohttp.BytesPayload):
    """A body that is sent only if ``held`` returns True when the first byte is written.

    aiohttp writes it, with the headers, in a separate task after it has connected. An earlier check would be
    stale by an iteration of the loop, which may run a cycle, or by the time that the process is stopped.
    """

    def __init__(self, body: bytes, held: Callable[[], bool]) -> None:
        super().__init__(body)
        self.is_refused = False
        self._held = held

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        if not self._held():
            self.is_refused = True
            raise NotHeld("the lease is not held")
        await super().write_with_length(writer, content_length)


class Transport:
    """Connections to one API server. Watches have their own connections, so they never block plain calls."""

    def __init__(self, access: Access, *, clock: Clock, connections: int = 64) -> None:
        self.access = access
        self.is_loopback = is_loopback(access.server)
        self.auth = Authenticator(access, clock=clock)
        self._connections = connections
        self._proxy = proxy_for(access, os.environ)
        self._tls: tuple[bytes | None, ssl.SSLContext | bool] | None = None
        self._calls: aiohttp.ClientSession | None = None
        self._streams: aiohttp.ClientSession | None = None
        self._closed = False

    async def close(self) -> None:
        self._closed = True
        for session in (self._calls, self._streams):
            if session is not None:
                await session.close()
        self._calls = self._streams = None

    async def call(
        self,
        method: str,
        target: str,
        *,
        body: bytes | None,
        headers: Mapping[str, str],
        timeout_s: float,
        request: str,
        ambiguous: bool = False,
        held: Callable[[], bool] | None = None,
    ) -> bytes:
        """One request and its whole answer; raises what ``errors`` draws. Nothing is sent unless ``held``."""
        if self._calls is None:
            self._calls = self._session(self._connections)
        credentials = await self.auth.credentials()
        options = self._options(credentials, headers)
        timeout = _timeout(timeout_s)
        for again in (False, True):
            data = body if held is None else GuardedBody(body or b"", held)
            try:
                async with self._calls.request(
                    method, self._url(target), data=data, timeout=timeout, **options
                ) as answer:
                    content = await answer.read()
                    if answer.status < 400:
                        return content
                    if answer.status == 401 and not again and await self.auth.refresh(credentials):
                        credentials = await self.auth.credentials()
                        options = self._options(credentials, headers)
                        continue
                    raise self._refusal(request, answer, content, credentials, ambiguous=ambiguous)
            except (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError) as error:
                if isinstance(data, GuardedBody) and data.is_refused:
                    raise NotHeld(f"{request}: not sent: the lease is not held") from None
                raise self._unreachable(request, error, timeout_s) from error
        raise AssertionError("unreachable")  # pragma: no cover

    @contextlib.asynccontextmanager
    async def stream(
        self, target: str, *, headers: Mapping[str, str], idle_s: float, request: str
    ) -> AsyncIterator[aiohttp.StreamReader]:
        """An answer that is read as it arrives; ``idle_s`` without a byte is a failure (a half-open
        connection)."""
        if self._streams is None:
            self._streams = self._session(0)
        credentials = await self.auth.credentials()
        options = self._options(credentials, headers)
        timeout = aiohttp.ClientTimeout(total=None, connect=30.0, sock_read=idle_s)
        for again in (False, True):
            try:
                answer = await self._streams.request("GET", self._url(target), timeout=timeout, **options)
            except (aiohttp.ClientError, TimeoutError, OSError, ssl.SSLError) as error:
                raise self._unreachable(request, error, idle_s) from error
            try:
                if answer.status >= 400:
                    content = await answer.read()
                    if answer.status == 401 and not again and await self.auth.refresh(credentials):
                        credentials = await self.auth.credentials()
                        options = self._options(credentials, headers)
                        continue
                    raise self._refusal(request, answer, content, credentials)
                yield answer.content
                return
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise self._unreachable(request, error, idle_s) from error
            finally:
                # Without a TLS shutdown: the rest is not read, and a loop that ends soon would leak the
                # socket.
                if answer.connection is not None and answer.connection.transport is not None:
                    answer.connection.transport.abort()
                answer.close()

    def _session(self, connections: int) -> aiohttp.ClientSession:
        if self._closed:
            raise Unreachable(f"{self.access.server}: the client is closed", sent=False)
        return aiohttp.ClientSession(
            connector=Connector(limit=connections, ttl_dns_cache=60, keepalive_timeout=75),
            skip_auto_headers=("Content-Type",),
            # the server compresses answers above 128 KiB when asked; on loopback that only costs
            headers={
                "User-Agent": USER_AGENT,
                "Accept": "application/json",
                "Accept-Encoding": "identity" if self.is_loopback else "gzip",
            },
        )

    def _url(self, target: str) -> URL:
        return URL(self.access.server + target, encoded=True)

    def _options(self, credentials: Credentials, headers: Mapping[str, str]) -> dict[str, Any]:
        if credentials.header is not None:
            headers = {**headers, "Authorization": credentials.header}
        if self.access.impersonate:
            headers = {**headers, "Impersonate-User": self.access.impersonate}
        options: dict[str, Any] = {"headers": headers, "allow_redirects": False}
        if self._proxy is not None:
            options["proxy"] = self._proxy
        if self.access.server.startswith("https:"):
            options["ssl"] = self._context(credentials)
            if self.access.tls_server_name:
                options["server_hostname"] = self.access.tls_server_name
        return options

    def _context(self, credentials: Credentials) -> ssl.SSLContext | bool:
        """One TLS context per client certificate: connections are pooled by context."""
        if self._tls is not None and self._tls[0] == credentials.cert:
            return self._tls[1]
        context = tls_context(self.access, credentials.cert, credentials.key)
        self._tls = (credentials.cert, context)
        return context

    def _refusal(
        self,
        request: str,
        answer: aiohttp.ClientResponse,
        content: bytes,
        credentials: Credentials,
        *,
        ambiguous: bool = False,
    ) -> ApiError:
        return error_for(
            request,
            answer.status,
            content,
            cure=self.auth.expired(credentials) if answer.status == 401 else "",
            retry_after=answer.headers.get("Retry-After"),
            ambiguous=ambiguous,
        )

    def _unreachable(self, request: str, error: BaseException, timeout_s: float) -> Unreachable:
        server, source = self.access.server, self.access.source
        if isinstance(error, TimeoutError):
            return TimedOut(f"{request}: no answer from {server} within {timeout_s:.3g} s")
        if isinstance(error, aiohttp.ClientConnectorCertificateError):
            why = " ".join(str(error.certificate_error).split())
            return Unreachable(
                f"{request}: the certificate of {server} is not trusted ({why}); "
                f"correct certificate-authority-data in {source or 'the kubeconfig'}",
                sent=False,
            )
        if isinstance(error, aiohttp.ClientConnectorDNSError):
            return Unreachable(
                f"{request}: the name in {server} cannot be resolved; correct cluster.server in {source}",
                sent=False,
            )
        if isinstance(error, aiohttp.ClientConnectorError):
            if error.errno == errno.ECONNREFUSED:
                why = f"nothing listens at {server}; is the cluster up, and cluster.server in {source} right?"
            else:
                why = f"cannot connect to {server}: {error.os_error or error}"
            return Unreachable(f"{request}: {why}", sent=False)
        if isinstance(error, aiohttp.ClientHttpProxyError):
            return Unreachable(f"{request}: the proxy {self._proxy} refused: {error.status}", sent=False)
        detail = " ".join(str(error).split()) or type(error).__name__
        return Unreachable(f"{request}: the connection to {server} was lost: {detail}")


@lru_cache(maxsize=8)
def _timeout(total_s: float) -> aiohttp.ClientTimeout:
    """Most calls have the same; the rest are cheap to make again."""
    return aiohttp.ClientTimeout(total=total_s)


def tls_context(access: Access, cert: bytes | None, key: bytes | None) -> ssl.SSLContext:
    """TLS 1.2 or newer, this CA (else the system's), this client certificate."""
    context = ssl.create_default_context()
    if access.ca is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_verify_locations(cadata=access.ca.decode("ascii"))
        except (ssl.SSLError, UnicodeDecodeError):
            raise Misconfigured(
                f"{access.source}: cluster.certificate-authority holds no PEM certificate"
            ) from None
    if access.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if cert is not None and key is not None:
        # OpenSSL reads a chain from a file only; ours lives for the length of this call, readable by us
        # alone.
        with tempfile.NamedTemporaryFile(prefix="fluence-") as file:
            file.write(cert + b"\n" + key)
            file.flush()
            try:
                context.load_cert_chain(file.name)
            except ssl.SSLError as error:
                raise Misconfigured(
                    f"{access.source}: client-certificate and client-key do not fit together ({error.reason})"
                ) from None
    return context


def is_loopback(server: str) -> bool:
    host = urlsplit(server).hostname or ""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def proxy_for(access: Access, env: Mapping[str, str]) -> str | None:
    """The proxy on the way to the server: the kubeconfig's, else the environment's by Go's rules."""
    proxy = access.proxy_url
    if proxy is None:
        if is_loopback(access.server):
            return None
        scheme = urlsplit(access.server).scheme
        proxy = next(
            (env[name] for name in (f"{scheme.upper()}_PROXY", f"{scheme}_proxy") if env.get(name)), None
        )
        if proxy is None or _bypassed(access.server, env.get("NO_PROXY") or env.get("no_proxy") or ""):
            return None
        if "://" not in proxy:
            proxy = f"http://{proxy}"
    if not proxy.startswith(("http://", "https://")):
        shown = urlsplit(proxy)._replace(netloc=urlsplit(proxy).hostname or "").geturl()
        raise Misconfigured(
            f"{access.source}: proxy {shown} is not supported; use an http:// or https:// proxy"
        )
    return proxy


def _bypassed(server: str, no_proxy: str) -> bool:
    parts = urlsplit(server)
    host = (parts.hostname or "").rstrip(".")
    try:
        address: ipaddress.IPv4Address | ipaddress.IPv6Address | None = ipaddress.ip_address(host)
    except ValueError:
        address = None
    for rule in (entry.strip() for entry in no_proxy.split(",")):
        if not rule:
            continue
        if rule == "*":
            return True
        if "/" in rule:
            with contextlib.suppress(ValueError):
                if address is not None and address in ipaddress.ip_network(rule, strict=False):
                    return True
            continue
        name, _, port = rule.rpartition(":") if rule.count(":") == 1 else (rule, "", "")
        if port and port != str(parts.port or ""):
            continue
        bare = name.lstrip("*").lstrip(".")
        if host == bare and not name.startswith(("*", ".")):
            return True
        if address is None and host.endswith(f".{bare}"):
            return True
    return False


def _keepalive_socket(info: tuple[Any, ...]) -> socket.socket:
    """TCP keep-alive that notices a vanished peer in about a minute; the system's default takes two hours."""
    family, kind, protocol = info[:3]
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 30),
        ("TCP_KEEPINTVL", 10),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 60_000),
    ):
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made
