"""Credentials: the Authorization header and client certificate of each request, renewed when they age.

A token file is read again every minute and after a 401 (the kubelet rotates it about hourly). An exec plugin
runs once, and again shortly before its credentials expire and after a 401 (client.authentication.k8s.io/v1,
v1beta1).
"""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
from datetime import UTC, datetime

import msgspec

from fluence.clock import Clock, SystemClock
from fluence.kube.access import Access, ExecPlugin
from fluence.kube.errors import Misconfigured

REREAD_S = 60.0
EXPIRY_MARGIN_S = 30.0
EXEC_TIMEOUT_S = 60.0
EXEC_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")


class _ExecStatus(msgspec.Struct, frozen=True, rename="camel"):
    token: str | None = None
    client_certificate_data: str | None = None
    client_key_data: str | None = None
    expiration_timestamp: str | None = None


class _ExecCredential(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    kind: str = ""
    status: _ExecStatus | None = None


class Credentials(msgspec.Struct, frozen=True):
    """The current credentials. ``cert`` and ``key`` change only if an exec plugin returns certificates."""

    header: str | None = None
    cert: bytes | None = None
    key: bytes | None = None

    def __repr__(self) -> str:
        return "Credentials(…)"


class Authenticator:
    """Returns the current credentials; ``refresh`` forces new ones."""

    def __init__(self, access: Access, *, clock: Clock | None = None) -> None:
        self._access = access
        self._clock = clock or SystemClock()
        self._lock = asyncio.Lock()
        self._held: Credentials | None = None
        self._good_until: float | None = None  # monotonic; None is forever

    async def credentials(self) -> Credentials:
        held = self._held
        if held is not None and (self._good_until is None or self._clock.monotonic() < self._good_until):
            return held
        return await self._renew(held)

    async def refresh(self, rejected: Credentials) -> bool:
        """After a 401: get new credentials. False if there is nothing newer to try."""
        if self._access.token_file is None and self._access.exec_plugin is None:
            return False
        fresh = await self._renew(rejected)
        return fresh.header != rejected.header or fresh.cert != rejected.cert

    def expired(self, rejected: Credentials) -> str:
        """After a final 401: which of these credentials has expired, and what to do; "" if that is unknown.

        The server says "Unauthorized" and no more; a token and a certificate carry their ends in them.
        """
        now, source = self._clock.now(), self._access.source or "the configuration"
        end = token_end(rejected.header or "")
        if end is not None and end <= now:
            if self._access.exec_plugin is not None:
                where = f"that the exec plugin {self._access.exec_plugin.command!r} of {source} gave"
                cure = "log in again with it"
            elif self._access.token_file is not None:
                where, cure = (
                    f"in {self._access.token_file}",
                    "its writer must renew it",
                )
            else:
                where, cure = f"in {source}", "log in again, or put a new one there (`kubectl create token`)"
            return f"the token {where} expired at {_time(end)}: {cure}"
        end = certificate_end(rejected.cert)
        if end is not None and end <= now:
            cure = "have it renewed, and put certificate and key there"
            return f"the client certificate in {source} expired at {_time(end)}: {cure}"
        return ""

    async def _renew(self, stale: Credentials | None) -> Credentials:
        async with self._lock:
            if self._held is not None and self._held is not stale:
                return self._held  # another task renewed it meanwhile
            self._held, self._good_until = await self._make()
            return self._held

    async def _make(self) -> tuple[Credentials, float | None]:
        access = self._access
        if access.exec_plugin is not None:
            return await self._exec(access.exec_plugin)
        token, good_until = access.token, None
        if access.token_file is not None:
            try:
                token = access.token_file.read_text().strip()
            except OSError as error:
                raise Misconfigured(
                    f"{access.source}: token file {access.token_file}: {error.strerror}"
                ) from None
            good_until = self._clock.monotonic() + REREAD_S
        header = None
        if token:
            header = f"Bearer {token}"
        elif access.username is not None:
            pair = f"{access.username}:{access.password or ''}".encode()
            header = f"Basic {base64.b64encode(pair).decode()}"
        return Credentials(header, access.client_cert, access.client_key), good_until

    async def _exec(self, plugin: ExecPlugin) -> tuple[Credentials, float | None]:
        source = self._access.source
        if plugin.api_version not in EXEC_VERSIONS:
            raise Misconfigured(
                f"{source}: user.exec.apiVersion {plugin.api_version!r} is unknown; use {EXEC_VERSIONS[0]}"
            )
        if plugin.interactive_mode == "Always":
            raise Misconfigured(
                f"{source}: user.exec wants a terminal (interactiveMode Always); log in first"
            )
        if shutil.which(plugin.command) is None:
            hint = f"; {' '.join(plugin.install_hint.split())}" if plugin.install_hint else "; install it"
            raise Misconfigured(f"{source}: the exec plugin {plugin.command!r} is not on this machine{hint}")
        spec: dict[str, object] = {"interactive": False}
        if plugin.provide_cluster_info:
            spec["cluster"] = self._cluster_info()
        info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
        env = dict(os.environ)
        env.update({variable.name: variable.value for variable in plugin.env or ()})
        env["KUBERNETES_EXEC_INFO"] = msgspec.json.encode(info).decode()
        process = await asyncio.create_subprocess_exec(
            plugin.command,
            *(plugin.args or ()),
            env=env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(EXEC_TIMEOUT_S):
                out, err = await process.communicate()
        except (TimeoutError, asyncio.CancelledError) as error:
            process.kill()
            await process.wait()
            if isinstance(error, asyncio.CancelledError):
                raise
            raise Misconfigured(
                f"{source}: the exec plugin {plugin.command!r} did not answer in {EXEC_TIMEOUT_S:.0f} s"
            ) from None
        if process.returncode != 0:
            message = " ".join(err.decode("utf-8", "replace").split())[:300] or "it printed nothing"
            raise Misconfigured(f"{source}: the exec plugin {plugin.command!r} failed: {message}")
        return self._read_exec(plugin, out)

    def _read_exec(self, plugin: ExecPlugin, out: bytes) -> tuple[Credentials, float | None]:
        try:
            answer = msgspec.json.decode(out, type=_ExecCredential)
        except msgspec.DecodeError as error:
            raise Misconfigured(
                f"{self._access.source}: exec plugin {plugin.command!r} printed no ExecCredential: {error}"
            ) from None
        status = answer.status
        if answer.kind != "ExecCredential" or answer.api_version != plugin.api_version or status is None:
            raise Misconfigured(
                f"{self._access.source}: exec plugin {plugin.command!r} printed {answer.kind or '?'} of "
                f"{answer.api_version or 'no version'}; expected an ExecCredential of {plugin.api_version}"
            )
        cert = status.client_certificate_data
        key = status.client_key_data
        credentials = Credentials(
            f"Bearer {status.token}" if status.token else None,
            cert.encode() if cert else self._access.client_cert,
            key.encode() if key else self._access.client_key,
        )
        if not status.expiration_timestamp:
            return credentials, None
        try:
            expires = datetime.fromisoformat(status.expiration_timestamp)
        except ValueError:
            raise Misconfigured(
                f"{self._access.source}: the exec plugin {plugin.command!r} printed the expiry "
                f"{status.expiration_timestamp!r}, which is not a valid RFC 3339 time"
            ) from None
        if expires.tzinfo is None:
            expires = expires.replace(tzinfo=UTC)
        left = expires.timestamp() - self._clock.now()
        # A second at least, or a plugin that hands out expired tokens would run for every request.
        return credentials, self._clock.monotonic() + max(1.0, left - EXPIRY_MARGIN_S)

    def _cluster_info(self) -> dict[str, object]:
        access = self._access
        info: dict[str, object] = {"server": access.server}
        if access.ca:
            info["certificate-authority-data"] = base64.b64encode(access.ca).decode()
        if access.insecure:
            info["insecure-skip-tls-verify"] = True
        if access.tls_server_name:
            info["tls-server-name"] = access.tls_server_name
        if access.proxy_url:
            info["proxy-url"] = access.proxy_url
        return info


class _Claims(msgspec.Struct, frozen=True):
    exp: float | None = None


def token_end(header: str) -> float | None:
    """When a bearer token expires, if it is a JWT with an expiry (RFC 7519 §4.1.4). The server checks its
    signature."""
    parts = header.removeprefix("Bearer ").split(".")
    if len(parts) != 3:
        return None
    try:
        claims = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return msgspec.json.decode(claims, type=_Claims).exp
    except (ValueError, msgspec.DecodeError):  # not a JWT
        return None


def certificate_end(pem: bytes | None) -> float | None:
    """When a certificate expires; None if it is missing or cannot be parsed."""
    if pem is None:
        return None
    from cryptography import x509  # NB 20 ms that only a refused client pays

    try:
        return x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
    except ValueError:
        return None


def _time(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{seconds:g} s after 1970"
