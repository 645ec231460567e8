"""Health: /healthz, /readyz and /metrics over HTTP, for kubelets and Prometheus.

It is served from a thread (``LoopThread``), so that it answers while a cycle runs: what it asks may be asked
from any thread. Health is told to everybody who can reach the address, the metrics to those who ``may_read``.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from fluence.live.listener import Listener, ListenerLimits, note_answers

Check = Callable[[], str]  # what is wrong; empty: nothing
Scrape = Callable[[], Awaitable[bytes]]
MayRead = Callable[[str], Awaitable[int]]  # a bearer's token in, an HTTP status out; 200: yes

_BEARER = "bearer "
_REFUSED = {
    401: "say who you are: Authorization: Bearer TOKEN\n",
    403: "you may not get the nonResourceURL /metrics\n",
    503: "who you are cannot be found out now\n",
}


def health_routes(*, healthy: Check, ready: Check, remark: Check = lambda: "") -> list[web.RouteDef]:
    """What kubelets ask. A ``remark`` is told with the readiness, and changes nothing about it."""

    def answer(check: Check, remark: Check = lambda: "") -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(request: web.Request) -> web.Response:
            wrong, also = check(), remark()
            text = f"{wrong or 'ok'}\n" + (f"{also}\n" if also else "")
            return web.Response(status=503 if wrong else 200, text=text)

        return handle

    return [
        web.get("/healthz", answer(healthy)),
        web.get("/livez", answer(healthy)),
        web.get("/readyz", answer(ready, remark)),
    ]


def metrics_routes(scrape: Scrape, *, may_read: MayRead | None = None) -> list[web.RouteDef]:
    """What Prometheus asks. Without ``may_read`` everybody may: for loopback only."""

    async def handle(request: web.Request) -> web.Response:
        if may_read is not None:
            said = request.headers.get("Authorization", "")
            token = said[len(_BEARER) :].strip() if said.lower().startswith(_BEARER) else ""
            status = await may_read(token) if token else 401
            if status != 200:
                headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
                return web.Response(status=status, text=_REFUSED[status], headers=headers)
        return web.Response(body=await scrape(), content_type="text/plain", charset="utf-8")

    return [web.get("/metrics", handle)]


@contextlib.asynccontextmanager
async def serve(
    address: tuple[str, int],
    routes: list[web.RouteDef],
    *,
    tls: ssl.SSLContext | None = None,
    limits: ListenerLimits | None = None,
) -> AsyncIterator[int]:
    """Answer on a host and port while the block runs; gives the port, which is chosen where it is 0."""
    app = web.Application(middlewares=[note_answers])
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        assert runner.server is not None
        async with Listener(runner.server, tls, limits or ListenerLimits()).listening(address) as port:
            yield port
    finally:
        await runner.cleanup()
