"""A small HTTP server that answers as a test tells it to: for what a real API server cannot be made to do."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from aiohttp import web

from fluence.kube.access import Access

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[Access]:
    app = web.Application(client_max_size=32 << 20)

    async def answer(request: web.Request) -> web.StreamResponse:
        return await handler(request)

    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield Access(server=f"http://127.0.0.1:{runner.addresses[0][1]}", source="test")
    finally:
        await runner.cleanup()


def status(code: int, reason: str = "", message: str = "no", **headers: str) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code, headers={k.replace("_", "-"): v for k, v in headers.items()})


def pod(name: str, version: str = "1", *, uid: str = "", **annotations: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": "ns", "uid": uid or f"uid-{name}", "resourceVersion": version}
    return {"metadata": {**meta, "annotations": annotations}, "spec": {}, "status": {}}


def event(kind: str, item: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"type": kind, "object": item}) + b"\n"


def bookmark(version: str, *, ends_list: bool = False) -> bytes:
    notes = {"k8s.io/initial-events-end": "true"} if ends_list else {}
    return event("BOOKMARK", {"metadata": {"resourceVersion": version, "annotations": notes}})


async def stream(request: web.Request, *chunks: bytes, hold: bool = True) -> web.StreamResponse:
    """Send these bytes as a watch and, unless told otherwise, keep it open."""
    response = web.StreamResponse()
    await response.prepare(request)
    for chunk in chunks:
        await response.write(chunk)
    if hold:
        await asyncio.sleep(60)
    return response


async def until(check: Callable[[], object], *, timeout_s: float = 120.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not check():
            await asyncio.sleep(0.01)
