"""Health and metrics as kubelets and Prometheus ask for them: over HTTP."""

from __future__ import annotations

import socket
import ssl

import aiohttp
import pytest

from fluence.live.http_server import Check, health_routes, metrics_routes, self_signed, serve

HOST = "127.0.0.1"


def fine() -> str:
    return ""


async def up() -> bytes:
    return b"up 1\n"


FINE = health_routes(healthy=fine, ready=fine)


async def ask(
    port: int, path: str, *, token: str | None = None, tls: ssl.SSLContext | None = None
) -> tuple[int, str, str]:
    url = f"{'https' if tls else 'http'}://{HOST}:{port}{path}"
    headers = {} if token is None else {"Authorization": token}
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers=headers, ssl=tls or True) as answer,
    ):
        return answer.status, await answer.text(), answer.content_type


async def test_a_healthy_scheduler_says_ok_everywhere() -> None:
    async with serve((HOST, 0), FINE) as port:
        for path in ("/healthz", "/livez", "/readyz"):
            assert await ask(port, path) == (200, "ok\n", "text/plain")


@pytest.mark.parametrize(
    ("healthy", "ready", "codes"),
    [(lambda: "stuck", fine, (503, 503, 200)), (fine, lambda: "not synced", (200, 200, 503))],
    ids=["unhealthy", "unready"],
)
async def test_what_is_wrong_is_said_where_it_is_asked(
    healthy: Check, ready: Check, codes: tuple[int, int, int]
) -> None:
    async with serve((HOST, 0), health_routes(healthy=healthy, ready=ready)) as port:
        found = [await ask(port, path) for path in ("/healthz", "/livez", "/readyz")]
    assert tuple(code for code, _, _ in found) == codes
    wrong = healthy() or ready()
    assert {text for code, text, _ in found if code == 503} == {f"{wrong}\n"}


async def test_it_is_asked_each_time() -> None:
    wrong = ["not synced", ""]
    async with serve((HOST, 0), health_routes(healthy=fine, ready=lambda: wrong.pop(0))) as port:
        assert [(await ask(port, "/readyz"))[0] for _ in range(2)] == [503, 200]


async def test_metrics_are_there_or_somewhere_else() -> None:
    async with serve((HOST, 0), [*FINE, *metrics_routes(up)]) as port:
        assert await ask(port, "/metrics") == (200, "up 1\n", "text/plain")
        assert (await ask(port, "/healthz"))[0] == 200
    async with serve((HOST, 0), FINE) as port:
        assert (await ask(port, "/metrics"))[0] == 404
        assert (await ask(port, "/"))[0] == 404


async def test_metrics_that_are_not_for_everybody_ask_for_a_token() -> None:
    asked = []

    async def may_read(token: str) -> int:
        asked.append(token)
        return {"reader": 200, "other": 403, "later": 503}.get(token, 401)

    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    async with serve((HOST, 0), metrics_routes(up, may_read=may_read), tls=self_signed()) as port:
        said = [
            await ask(port, "/metrics", token=token, tls=tls)
            for token in (
                None,
                "reader",
                "Basic reader",
                "Bearer ",
                "Bearer x",
                "Bearer other",
                "Bearer later",
            )
        ]
        assert [status for status, _, _ in said] == [401, 401, 401, 401, 401, 403, 503]
        assert not any("up 1" in text for _, text, _ in said)
        assert asked == ["x", "other", "later"], "somebody was asked about without a token"
        for token in ("Bearer reader", "bearer reader"):
            assert (await ask(port, "/metrics", token=token, tls=tls))[:2] == (200, "up 1\n")
        assert (await ask(port, "/healthz", tls=tls))[0] == 404
        with pytest.raises(aiohttp.ClientError):
            await ask(port, "/metrics", token="Bearer reader")  # never in the clear


async def test_the_port_is_free_again_afterwards() -> None:
    async with serve((HOST, 0), FINE) as port:
        assert port > 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))


async def test_a_port_that_is_taken_is_a_fault_at_once() -> None:
    async with serve((HOST, 0), FINE) as port:
        with pytest.raises(OSError):
            async with serve((HOST, port), FINE):
                pass
