"""Health: /healthz, /readyz and /metrics over HTTP, for kubelets and Prometheus."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

from aiohttp import web

Check = Callable[[], str]  # what is wrong; empty: nothing


@contextlib.asynccontextmanager
async def serve(
    address: tuple[str, int], *, healthy: Check, ready: Check, metrics: Callable[[], bytes] | None
) -> AsyncIterator[int]:
    """Answer on a host and port while the block runs; gives the port, which is chosen where it is 0."""
    host, port = address

    def answer(check: Check) -> Callable[[web.Request], web.Response]:
        def handle(request: web.Request) -> web.Response:
            wrong = check()
            return web.Response(status=503 if wrong else 200, text=f"{wrong or 'ok'}\n")

        return handle

    async def show(request: web.Request) -> web.Response:
        if metrics is None:
            raise web.HTTPNotFound(text="the metrics are at another address: see metrics-address\n")
        return web.Response(body=metrics(), content_type="text/plain", charset="utf-8")

    app = web.Application()
    for paths, check in ((("/healthz", "/livez"), healthy), (("/readyz",), ready)):
        handle = answer(check)

        async def route(
            request: web.Request, handle: Callable[[web.Request], web.Response] = handle
        ) -> web.Response:
            return handle(request)

        for path in paths:
            app.router.add_get(path, route)
    app.router.add_get("/metrics", show)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, host or None, port).start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
