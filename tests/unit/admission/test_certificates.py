"""Certificates: made in memory, for the names that are asked for, and bundles that never grow."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from fluence.admission.certificates import (
    MAX_AUTHORITIES,
    Renewal,
    holds,
    issue,
    load,
    server_context,
    with_authority,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOSTS = ("fluence-webhook.fluence-system.svc", "127.0.0.1")


async def handshake(context: ssl.SSLContext, bundle: bytes, name: str) -> bytes:
    """The certificate that a server shows to a client which trusts the bundle."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    trust = ssl.create_default_context(cadata=bundle.decode())
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname=name)
        shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return bytes(shown)
    finally:
        server.close()


@pytest.mark.parametrize("name", HOSTS)
def test_a_client_that_trusts_the_bundle_connects(name: str) -> None:
    context, issued = server_context(), issue(HOSTS, datetime.now(UTC))
    load(context, issued)
    others = b"".join(issue(HOSTS, datetime.now(UTC)).authority for _ in range(3))
    assert asyncio.run(handshake(context, with_authority(others, issued.authority, datetime.now(UTC)), name))


def test_who_does_not_trust_it_does_not_connect() -> None:
    context = server_context()
    load(context, issue(HOSTS, datetime.now(UTC)))
    with pytest.raises(ssl.SSLCertVerificationError):
        asyncio.run(handshake(context, issue(HOSTS, datetime.now(UTC)).authority, HOSTS[0]))


def test_a_new_certificate_is_shown_without_a_restart() -> None:
    async def both() -> tuple[bytes, bytes]:
        context = server_context()
        one, other = (issue(HOSTS, datetime.now(UTC)) for _ in range(2))
        bundle = with_authority(one.authority, other.authority, datetime.now(UTC))
        load(context, one)
        before = await handshake(context, bundle, HOSTS[0])
        load(context, other)
        return before, await handshake(context, bundle, HOSTS[0])

    before, after = asyncio.run(both())
    assert before != after


def test_it_is_renewed_long_before_it_ends() -> None:
    issued = issue(HOSTS, NOW, timedelta(days=30))
    assert issued.renews == NOW + timedelta(days=20)
    assert "BEGIN" not in repr(issued), "no key in a log"


def test_a_bundle_forgets_what_has_ended_and_keeps_the_rest() -> None:
    old, young, own = (issue(HOSTS, NOW, timedelta(days=days)).authority for days in (1, 9, 9))
    later = NOW + timedelta(days=2)
    bundle = with_authority(old + b"rubbish\n" + young + young, own, later)
    assert bundle == young + own
    assert holds(bundle, own)
    assert with_authority(bundle, own, later) == bundle


def test_a_bundle_has_a_length() -> None:
    bundle = b""
    for _ in range(MAX_AUTHORITIES + 3):
        last = issue(HOSTS, NOW).authority
        bundle = with_authority(bundle, last, NOW)
    assert len(x509.load_pem_x509_certificates(bundle)) == MAX_AUTHORITIES
    assert holds(bundle, last)


@pytest.mark.parametrize("life", [timedelta(seconds=10), timedelta(hours=1), timedelta(days=30)])
def test_a_new_certificate_is_in_use_long_before_the_old_one_ends(life: timedelta) -> None:
    renewal, issued = Renewal.of(life), issue(HOSTS, NOW, life)
    latest = issued.renews + timedelta(seconds=renewal.check_s + renewal.settle_s)
    assert issued.ends - latest >= life / 8
