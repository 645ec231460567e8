"""Health and metrics as kubelets and Prometheus ask for them: over HTTP."""

from __future__ import annotations

import socket

import aiohttp
import pytest

from fluence.live.health import Check, serve

HOST = "127.0.0.1"


def fine() -> str:
    return ""


async def ask(port: int, path: str) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://{HOST}:{port}{path}") as answer:
        return answer.status, await answer.text(), answer.content_type


async def test_a_healthy_scheduler_says_ok_everywhere() -> None:
    async with serve((HOST, 0), healthy=fine, ready=fine, metrics=lambda: b"up 1\n") as port:
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
    async with serve((HOST, 0), healthy=healthy, ready=ready, metrics=None) as port:
        found = [await ask(port, path) for path in ("/healthz", "/livez", "/readyz")]
    assert tuple(code for code, _, _ in found) == codes
    wrong = healthy() or ready()
    assert {text for code, text, _ in found if code == 503} == {f"{wrong}\n"}


async def test_it_is_asked_each_time() -> None:
    wrong = ["not synced", ""]
    async with serve((HOST, 0), healthy=fine, ready=lambda: wrong.pop(0), metrics=None) as port:
        assert [(await ask(port, "/readyz"))[0] for _ in range(2)] == [503, 200]


async def test_metrics_are_there_or_somewhere_else() -> None:
    async with serve((HOST, 0), healthy=fine, ready=fine, metrics=lambda: b"up 1\n") as port:
        assert await ask(port, "/metrics") == (200, "up 1\n", "text/plain")
    async with serve((HOST, 0), healthy=fine, ready=fine, metrics=None) as port:
        assert (await ask(port, "/metrics"))[0] == 404
        assert (await ask(port, "/"))[0] == 404


async def test_the_port_is_free_again_afterwards() -> None:
    async with serve((HOST, 0), healthy=fine, ready=fine, metrics=None) as port:
        assert port > 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))


async def test_a_port_that_is_taken_is_a_fault_at_once() -> None:
    async with serve((HOST, 0), healthy=fine, ready=fine, metrics=None) as port:
        with pytest.raises(OSError):
            async with serve((HOST, port), healthy=fine, ready=fine, metrics=None):
                pass
