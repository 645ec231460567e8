"""Certs: the sandbox's own authority, and one certificate for each part and for the user."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALIDITY = timedelta(days=365)
SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
SERVER_ADDRESSES = ("127.0.0.1", "::1", "10.0.0.1")

Key = ec.EllipticCurvePrivateKey


class Authority:
    """Signs the sandbox's certificates. Its key is never stored, so nothing can be signed later."""

    def __init__(self, name: str) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(f"fluence sandbox {name}"[:64])
        self.certificate = (
            _builder(self._name, self._name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(ca=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def server(
        self, common_name: str, *, group: str | None = None, addresses: Sequence[str] = ()
    ) -> tuple[bytes, bytes]:
        """Certificate and key of a server on loopback and these addresses. etcd's peers also use it as
        clients."""
        return self._issue(common_name, group, addresses=(*SERVER_ADDRESSES, *addresses))

    def client(
        self, user: str, group: str | None = None, *, life: timedelta = VALIDITY
    ) -> tuple[bytes, bytes]:
        """Certificate and key of a Kubernetes user (CN) in a group (O). With a negative ``life`` it has
        expired."""
        return self._issue(user, group, life=life)

    def _issue(
        self,
        common_name: str,
        group: str | None,
        *,
        addresses: Sequence[str] = (),
        life: timedelta = VALIDITY,
    ) -> tuple[bytes, bytes]:
        key = ec.generate_private_key(ec.SECP256R1())
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = _builder(_name(common_name, group), self._name, key, life=life)
        if addresses:
            uses.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
            names: list[x509.GeneralName] = [x509.DNSName(name) for name in SERVER_NAMES]
            names += [x509.IPAddress(ipaddress.ip_address(name)) for name in addresses]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(ca=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
            .sign(self._key, hashes.SHA256())
        )
        return certificate.public_bytes(serialization.Encoding.PEM), private_pem(key)


def private_pem(key: Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP256R1())


def public_pem(key: Key) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def write_private(path: Path, content: bytes) -> None:
    """Create a file that only its owner can read, from the start."""
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_bytes(content)


def _name(common_name: str, group: str | None = None) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: Key, *, life: timedelta = VALIDITY
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # the clock of a suspended laptop may be behind
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=ca,
        crl_sign=ca,
        encipher_only=False,
        decipher_only=False,
    )
