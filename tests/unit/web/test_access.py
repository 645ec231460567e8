"""Who asks: headers count only with the certificate of the API server's front proxy."""

from __future__ import annotations

from typing import Any

from multidict import CIMultiDict

from fluence.web.access import FrontProxy, User

CONFIG = {
    "client-ca-file": "-----BEGIN CERTIFICATE-----\nusers\n-----END CERTIFICATE-----\n",
    "requestheader-client-ca-file": "-----BEGIN CERTIFICATE-----\nproxy\n-----END CERTIFICATE-----\n",
    "requestheader-allowed-names": '["front-proxy-client"]',
    "requestheader-username-headers": '["X-Remote-User"]',
    "requestheader-group-headers": '["X-Remote-Group"]',
    "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
}


def certificate(name: str) -> dict[str, Any]:
    return {"subject": ((("organizationName", "x"),), (("commonName", name),))}


HEADERS = CIMultiDict(
    [
        ("X-Remote-User", "ann"),
        ("x-remote-group", "physics"),
        ("X-Remote-Group", "system:authenticated"),
        ("X-Remote-Extra-Scopes", "a"),
        ("X-Remote-Extra-scopes", "b"),
    ]
)


def test_the_front_proxy_names_the_user() -> None:
    proxy = FrontProxy.read(CONFIG)
    assert proxy is not None
    assert proxy.user(certificate("front-proxy-client"), HEADERS) == User(
        "ann", "", ("physics", "system:authenticated"), (("scopes", ("a", "b")),)
    )


def test_headers_of_anybody_else_do_not_count() -> None:
    proxy = FrontProxy.read(CONFIG)
    assert proxy is not None
    assert proxy.user(certificate("ann"), HEADERS) is None
    assert proxy.user({}, HEADERS) is None
    assert proxy.user(certificate("front-proxy-client"), CIMultiDict()) is None


def test_an_authority_that_signs_users_is_no_proof_without_a_name() -> None:
    """Every user has a certificate of it."""
    same = CONFIG | {"requestheader-client-ca-file": CONFIG["client-ca-file"]}
    assert FrontProxy.read(same) is not None, "the name of the certificate is demanded"
    assert FrontProxy.read(same | {"requestheader-allowed-names": "[]"}) is None
    assert FrontProxy.read({}) is None
    assert FrontProxy.read(CONFIG | {"requestheader-allowed-names": "no JSON"}) is not None
