"""Certificate: one that a server signs for itself, in memory, as kube-scheduler does when it is given none.

It hides what is said from those who listen; who must also know whom they talk to puts a proxy in front.
"""

from __future__ import annotations

import os
import socket
import ssl
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_LIFE = timedelta(days=3650)  # longer than any process; a new one is made at each start


def self_signed() -> ssl.SSLContext:
    """TLS 1.2 or newer, for a server."""
    key = ec.generate_private_key(ec.SECP256R1())
    host = socket.gethostname()[:63] or "fluence"
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))  # clocks differ
        .not_valid_after(now + _LIFE)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # OpenSSL reads a chain from a file only, and a pod has no place to write one: this file is in memory.
    file = os.memfd_create("certificate")
    try:
        os.write(file, certificate.public_bytes(pem) + secret)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context
