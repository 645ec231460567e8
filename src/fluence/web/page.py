"""The page of `fluence web`: static files, and the view API with the rights of the user who started it.

    browser ──► http://127.0.0.1:PORT/KEY/        the files in `static`
                                     /KEY/apis/…  ──► the API server, with the user's credentials
                                                      or a file that was saved before (`SavedView`)
                                     /KEY/advice/…  the explanation of `fluence explain` for a job

The server listens only on the loopback address. Another user of the machine, or a page of another site, could
also reach that address. So the path begins with a random key, a request must name the address itself (not a
name that another site points to it), requests that a browser sends for a page of another site are refused,
and the view API can only be read.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlencode

import msgspec
from aiohttp import web

from fluence.errors import FluenceError, InvalidInput
from fluence.kube.client import Client
from fluence.kube.errors import ApiError, KubeError
from fluence.names import VIEW_GROUP

API: Final = f"/apis/{VIEW_GROUP}/v1"
RESOURCES: Final = (
    *("nodes", "queue", "jobs", "groups", "devices"),
    *("plan", "promises", "decisions", "settings"),
)
ADVICE: Final = ("blocks", "sooner", "warnings", "notes")  # the parts of an explanation that the page shows
_KEY_BYTES: Final = 16
_IDLE_S: Final = 90.0  # without a byte on a stream, the connection is dead
_SHUTDOWN_S: Final = 1.0  # streams last until the browser closes them
_PAGE: Final = "1000"  # rows per request
_MAX_SAVED: Final = 64 << 20
_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


Explain = Callable[[str, str, str], Awaitable[Mapping[str, Any]]]
"""An explanation of an object, by its kind, namespace and name."""


class ViewSource(Protocol):
    """The source of the answers of the view API."""

    async def get(self, path: str, query: Mapping[str, str]) -> bytes:
        """The answer, as JSON. Raises `KubeError` if it is refused."""

    def follow(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """The answer as a stream of server-sent events, sent again whenever it changes."""


class LiveView:
    """The view API of a running scheduler, through the API server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, path: str, query: Mapping[str, str]) -> bytes:
        return await self._client.request("GET", f"{API}/{path}", params=query)

    async def follow(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        target, headers = f"{API}/{path}?{urlencode(query)}", {"Accept": "text/event-stream"}
        stream = self._client.transport.stream(
            target, headers=headers, idle_s=_IDLE_S, request=f"GET {API}/{path}"
        )
        async with stream as content:
            async for part in content.iter_any():
                yield part


class SavedView:
    """A view that `save` wrote: the same answers, from one moment."""

    def __init__(self, text: bytes, *, source: str) -> None:
        try:
            document = msgspec.json.decode(text, type=dict[str, Any])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise InvalidInput(f"{source}: not a saved view: {error}") from None
        if document.get("kind") != "SavedView":
            raise InvalidInput(f"{source}: not a saved view; make one with `fluence web --save FILE`")
        self._lists: dict[str, Any] = document.get("lists", {})
        self._jobs: dict[str, Any] = document.get("jobs", {})

    async def get(self, path: str, query: Mapping[str, str]) -> bytes:
        parts = path.split("/")
        if parts[0] == "namespaces":
            found = self._jobs.get(f"{parts[1]}/{parts[-1]}")
        else:
            found = self._lists.get(parts[0])
            if found is not None and len(parts) > 1:
                items = [item for item in found["items"] if item.get("name") == parts[1]]
                found = {**found, "items": items} if items else None
        if found is None:
            raise web.HTTPNotFound(text='{"message": "this is not in the saved view"}')
        return msgspec.json.encode({**found, "metadata": {**found.get("metadata", {}), "saved": True}})

    async def follow(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        yield b"event: list\ndata: " + await self.get(path, query) + b"\n\n"
        await asyncio.Event().wait()  # nothing changes


async def save(view: ViewSource) -> bytes:
    """All lists and all jobs, as a document for `SavedView`."""
    lists: dict[str, Any] = {}
    for resource in RESOURCES:
        query = {"limit": _PAGE, **({"expand": "true"} if resource == "plan" else {})}  # as the page asks
        page = lists[resource] = msgspec.json.decode(await view.get(resource, query))
        while more := page["metadata"].pop("continue", ""):
            page = msgspec.json.decode(await view.get(resource, {**query, "continue": more}))
            lists[resource].setdefault("items", []).extend(page.get("items", ()))
    jobs = {}
    for row in lists["jobs"].get("items", ()):
        if not row.get("hidden"):
            path = f"namespaces/{row['namespace']}/jobs/{row['name']}"
            with contextlib.suppress(KubeError):  # it has ended meanwhile
                jobs[f"{row['namespace']}/{row['name']}"] = msgspec.json.decode(await view.get(path, {}))
    return msgspec.json.encode({"kind": "SavedView", "lists": lists, "jobs": jobs})


def read_saved(path: str) -> SavedView:
    """A saved view from a file."""
    with Path(path).open("rb") as file:
        text = file.read(_MAX_SAVED + 1)
    if len(text) > _MAX_SAVED:
        raise InvalidInput(f"{path}: larger than {_MAX_SAVED >> 20} MiB: not a saved view")
    return SavedView(text, source=path)


@contextlib.asynccontextmanager
async def serving(view: ViewSource, *, port: int = 0, explain: Explain | None = None) -> AsyncIterator[str]:
    """Serve the page while the context lasts. Yields its address."""
    page = Page(view, explain)
    runner = web.AppRunner(
        page.application(), access_log=None, shutdown_timeout=_SHUTDOWN_S, handler_cancellation=True
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        page.port = runner.addresses[0][1]
        yield f"http://127.0.0.1:{page.port}/{page.key}/"
    finally:
        await runner.cleanup()


class Page:
    """One page, with a key of its own."""

    def __init__(self, view: ViewSource, explain: Explain | None = None) -> None:
        self._explain = explain
        self._explains = asyncio.Lock()  # an explanation lists the whole cluster, so only one runs at a time
        self.key = secrets.token_urlsafe(_KEY_BYTES)
        self.port = 0
        self._view = view
        folder = files("fluence.web") / "static"
        self._files = {file.name: file.read_bytes() for file in folder.iterdir()}

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=1)
        app.router.add_get("/{key}/" + f"{API[1:]}/" + "{path:.+}", self._answer)
        app.router.add_get("/{key}/advice/{kind:[A-Za-z]+}/{namespace}/{name:[^/]+}", self._advice)
        app.router.add_get("/{key}/{file:[a-z.]*}", self._file)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        key = request.match_info.get("key", "")
        if not secrets.compare_digest(key.encode(), self.key.encode()):
            raise web.HTTPNotFound(text="open the address that `fluence web` printed", headers=_HEADERS)
        if request.host not in (f"127.0.0.1:{self.port}", f"localhost:{self.port}"):
            raise web.HTTPMisdirectedRequest(text="this address is for this machine only", headers=_HEADERS)
        if request.headers.get("Sec-Fetch-Site", "none") not in ("same-origin", "none"):
            raise web.HTTPForbidden(text="this address is not for pages of other sites", headers=_HEADERS)
        try:
            response: web.StreamResponse = await handler(request)
        except web.HTTPException as refusal:
            refusal.headers.update(_HEADERS)
            raise
        return response

    async def _file(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["file"] or "index.html"
        content = self._files.get(name)
        if content is None:
            raise web.HTTPNotFound(text="there is no such file")
        kind = _TYPES[name.rpartition(".")[2]]
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=_HEADERS)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path, query, status = request.match_info["path"], dict(request.query), 200
        if query.get("watch") == "true":
            return await self._stream(request, path, query)
        try:
            body = await self._view.get(path, query)
        except ApiError as error:
            status, body = error.code or 502, msgspec.json.encode({"message": str(error)})
        except KubeError as error:
            status, body = 503, msgspec.json.encode({"message": str(error)})
        return web.Response(status=status, body=body, content_type="application/json", headers=_HEADERS)

    async def _advice(self, request: web.Request) -> web.StreamResponse:
        kind, namespace, name = (request.match_info[part] for part in ("kind", "namespace", "name"))
        status, answer = 404, {"message": "there is no cluster that could be asked"}
        if self._explain is not None:
            try:
                async with self._explains:
                    found = await self._explain(kind, namespace, name)
                status, answer = 200, {key: found[key] for key in ADVICE if key in found}
            except FluenceError as error:
                answer = {"message": str(error)}
        body = msgspec.json.encode(answer)
        return web.Response(status=status, body=body, content_type="application/json", headers=_HEADERS)

    async def _stream(self, request: web.Request, path: str, query: dict[str, str]) -> web.StreamResponse:
        """The stream of the view, until one side ends it. When the browser leaves, this is cancelled."""
        response: web.StreamResponse | None = None
        try:
            async with contextlib.aclosing(self._view.follow(path, query)) as parts:
                async for part in parts:
                    if response is None:
                        response = web.StreamResponse(headers=_HEADERS)
                        response.content_type = "text/event-stream"
                        await response.prepare(request)
                    await response.write(part)
        except KubeError as error:
            if response is None:
                return web.Response(status=503, text=str(error), headers=_HEADERS)
        except ConnectionError:
            pass  # the browser has left
        return response or web.Response(status=503, text="the stream has ended", headers=_HEADERS)
