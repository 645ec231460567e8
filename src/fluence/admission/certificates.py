"""Certificates: those of servers that the API server calls, created in memory, announced there, and renewed.

Each process has its own authority, so the API server trusts a bundle of them, and no key is ever stored. A
process that adds its authority removes those that have expired, and the oldest if the bundle would get too
long. The authority of a new certificate is first added to the webhook configuration. The certificate is used
only after the server had time to read it, so no call fails during a renewal. While the API server cannot be
reached, nothing changes until the certificate expires: the server still knows the old authority.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fluence.kube.client import Client
from fluence.kube.errors import ApiConflict, KubeError, Missing
from fluence.kube.resource import Json, Resource

logger = logging.getLogger(__name__)

LIFE: Final = timedelta(days=30)
MAX_AUTHORITIES: Final = 16
"""The length of a bundle: authorities of replicas, those that they replace, and those of killed processes."""
EARLY: Final = timedelta(hours=1)
"""A certificate is valid from a time before it was created, because clocks differ."""
_PEM: Final = serialization.Encoding.PEM


@dataclass(frozen=True, slots=True)
class Issued:
    """A server's certificate, its key, and the authority that vouches for it; all as PEM."""

    authority: bytes
    chain: bytes  # the certificate and its key: never logged, never written
    made: datetime
    ends: datetime

    @property
    def renews(self) -> datetime:
        """When the next one is created, long before this one expires."""
        return self.made + (self.ends - self.made) * 2 / 3

    def __repr__(self) -> str:
        return f"Issued(ends={self.ends:%Y-%m-%dT%H:%M:%SZ})"


def issue(hosts: Sequence[str], now: datetime, life: timedelta = LIFE) -> Issued:
    """Create an authority and the one certificate that it signs. The authority's key is discarded at once."""
    ends = now + life
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    # The names must differ: the server searches a bundle by name and would find the wrong one.
    number = x509.random_serial_number()
    authority_name = _name(f"fluence-webhook-ca-{number:x}"[:60])
    authority = (
        x509.CertificateBuilder(authority_name, authority_name, authority_key.public_key(), number)
        .not_valid_before(now - EARLY)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .add_extension(_usage(signs=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    certificate = (
        x509.CertificateBuilder(
            authority_name, _name(hosts[0][:60]), key.public_key(), x509.random_serial_number()
        )
        .not_valid_before(now - EARLY)
        .not_valid_after(ends)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )
    secret = key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Issued(authority.public_bytes(_PEM), certificate.public_bytes(_PEM) + secret, now, ends)


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def load(context: ssl.SSLContext, issued: Issued) -> None:
    """Use this certificate for new handshakes; open connections stay."""
    # OpenSSL reads a chain only from a file, and a pod may have no writable directory: this file is in
    # memory.
    file = os.memfd_create("certificate")
    try:
        os.write(file, issued.chain)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)


def with_authority(bundle: bytes, authority: bytes, now: datetime) -> bytes:
    """A bundle with this authority last, without those that have expired or cannot be read."""
    others: list[bytes] = []
    for part in _split(bundle):
        try:
            certificate = x509.load_pem_x509_certificate(part)
        except ValueError:
            continue
        pem = certificate.public_bytes(_PEM)
        if certificate.not_valid_after_utc > now and pem != authority and pem not in others:
            others.append(pem)
    return b"".join([*others[-(MAX_AUTHORITIES - 1) :], authority])


def holds(bundle: bytes, authority: bytes) -> bool:
    return authority.strip() in bundle


def _split(bundle: bytes) -> list[bytes]:
    end = b"-----END CERTIFICATE-----"
    return [part[part.index(b"-----BEGIN") :] + end for part in bundle.split(end) if b"-----BEGIN" in part]


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


WEBHOOK_CONFIGURATIONS: Final[Resource[Json]] = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    dict[str, object],
    namespaced=False,
)
_MAX_CONFLICTS: Final = 8
_RETRY_S: Final = 5.0
_UNKNOWN: Final = "the API server does not know our certificate yet"


@dataclass(frozen=True, slots=True)
class Renewal:
    """How long a certificate lives, and how often it is checked."""

    life: timedelta = LIFE
    check_s: float = 60.0
    settle_s: float = 30.0
    """Between announcing a new certificate to the API server and using it."""
    first_s: float = 3.0
    """Between announcing the first certificate and being ready."""

    @classmethod
    def of(cls, life: timedelta) -> Renewal:
        """The times for certificates with this lifetime: a renewal ends well before one expires."""
        usual, part = cls(), life.total_seconds() / 10
        return cls(life, min(usual.check_s, part), min(usual.settle_s, part), min(usual.first_s, part))


class CertificateKeeper:
    """Keeps a valid certificate in ``context`` while ``run`` runs, until it is cancelled.

    It is announced in an object of ``resource``; ``bundles`` are the parts of that object with a
    ``caBundle``.
    """

    resource: Resource[Json] = WEBHOOK_CONFIGURATIONS

    def bundles(self, configuration: dict[str, Any]) -> list[dict[str, Any]]:
        return [webhook["clientConfig"] for webhook in configuration.get("webhooks") or ()]

    def __init__(
        self,
        client: Client,
        name: str,
        hosts: Sequence[str],
        context: ssl.SSLContext,
        *,
        renewal: Renewal | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.problem = _UNKNOWN
        self.rotations = 0
        self._client = client
        self._name = name
        self._hosts = hosts
        self._context = context
        self._renewal = renewal or Renewal()
        self._now = now
        self.current: Issued = issue(hosts, now(), self._renewal.life)
        load(context, self.current)

    async def run(self) -> None:
        while True:
            due = self._now() >= self.current.renews
            issued = issue(self._hosts, self._now(), self._renewal.life) if due else self.current
            if not await self._announced(issued):
                await asyncio.sleep(min(_RETRY_S, self._renewal.check_s))
                continue
            if due:
                await asyncio.sleep(self._renewal.settle_s)
                load(self._context, issued)
                self.current = issued
                self.rotations += 1
                logger.info("a new certificate is in use: %r", issued)
            elif self.problem:
                self.problem = _UNKNOWN
                await asyncio.sleep(self._renewal.first_s)
            self.problem = ""
            await asyncio.sleep(self._renewal.check_s)

    async def _announced(self, issued: Issued) -> bool:
        """Whether every part of the configuration trusts this certificate now."""
        try:
            await self._announce(issued.authority)
        except Missing:
            self.problem = f"{self.resource.kind.lower()} {self._name} does not exist; apply it first"
            logger.warning("%s", self.problem)
        except KubeError as error:
            problem = f"our certificate could not be announced to the API server: {error}"
            if self.problem or self._now() >= self.current.ends:
                self.problem = problem
            logger.warning("%s", problem)
        else:
            return True
        return False

    async def _announce(self, authority: bytes) -> None:
        for attempt in range(_MAX_CONFLICTS):
            configuration: dict[str, Any] = await self._client.get(self.resource, self._name)
            if not self._add(configuration, authority):
                return
            try:
                await self._client.replace(self.resource, self._name, configuration)
                return
            except ApiConflict:
                if attempt == _MAX_CONFLICTS - 1:  # another replica adds its own, and both must be present
                    raise

    def _add(self, configuration: dict[str, Any], authority: bytes) -> bool:
        """Add the authority to bundles that lack it. Returns whether there were any."""
        changed = False
        for client in self.bundles(configuration):
            bundle = base64.b64decode(client.get("caBundle") or "")
            if not holds(bundle, authority):
                added = with_authority(bundle, authority, self._now())
                client["caBundle"] = base64.b64encode(added).decode()
                changed = True
        return changed
