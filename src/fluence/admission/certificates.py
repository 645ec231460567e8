"""Certificates: an authority and a server's certificate made in memory; no key is ever stored anywhere.

Each process has its own authority, so the API server trusts a bundle of them. Whoever adds one leaves out
those that have ended, and those that would make it too long.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE: Final = timedelta(days=30)
MOST: Final = 16
"""Authorities in a bundle: replicas, those that they replace, and what was killed lately."""
EARLY: Final = timedelta(hours=1)
"""Before it is made a certificate is valid already: clocks differ."""
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
        """When the next one is made, long before this one ends."""
        return self.made + (self.ends - self.made) * 2 / 3

    def __repr__(self) -> str:
        return f"Issued(ends={self.ends:%Y-%m-%dT%H:%M:%SZ})"


def issue(hosts: Sequence[str], now: datetime, life: timedelta = LIFE) -> Issued:
    """An authority whose key is forgotten at once, and the one certificate that it signs."""
    ends = now + life
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    # Names differ, or a bundle of several would be searched by name and the wrong one be found.
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
        .add_extension(x509.SubjectAlternativeName([_host(each) for each in hosts]), critical=False)
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
    """From now on handshakes use this one; connections that are open stay."""
    # OpenSSL reads a chain from a file only, and a pod has no place to write one: this file is in memory.
    file = os.memfd_create("certificate")
    try:
        os.write(file, issued.chain)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)


def with_authority(bundle: bytes, authority: bytes, now: datetime) -> bytes:
    """A bundle that holds this authority last, without those that have ended or cannot be read."""
    found: list[bytes] = []
    for each in _split(bundle):
        try:
            certificate = x509.load_pem_x509_certificate(each)
        except ValueError:
            continue
        pem = certificate.public_bytes(_PEM)
        if certificate.not_valid_after_utc > now and pem != authority and pem not in found:
            found.append(pem)
    return b"".join([*found[-(MOST - 1) :], authority])


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
