"""Proxy: stands in front of a real API server on loopback and makes things go wrong by script.

It speaks plain HTTP to the client and the server's own TLS, as the administrator, to the server; for tests
only.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Self

import aiohttp
import msgspec
from aiohttp import web
from yarl import URL

from fluence.kube.access import Access
from fluence.kube.lines import LineSplitter
from fluence.kube.transport import Connector, tls_context
from fluence.sandbox.faults import Rule, verb_of

_HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "host", "upgrade"}


class SeenRequest(msgspec.Struct, frozen=True):
    verb: str
    path: str
    status: int


class Proxy:
    """``async with Proxy(access) as proxy: Client(proxy.access)``; ``proxy.rules`` may change at any time."""

    def __init__(self, upstream: Access, rules: list[Rule] | None = None, *, port: int = 0) -> None:
        self.rules = rules if rules is not None else []
        self.seen: list[SeenRequest] = []
        self._upstream = upstream
        self._port = port
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=Connector(
                limit=0,
                ssl=tls_context(self._upstream, self._upstream.client_cert, self._upstream.client_key),
            ),
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        app = web.Application(client_max_size=64 << 20)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    @property
    def access(self) -> Access:
        """How to reach the server through the proxy."""
        return Access(server=f"http://127.0.0.1:{self._port}", source="fault proxy")

    def count(self, verb: str | None = None, path: str = "") -> int:
        """How many requests of this kind have come."""
        return sum(1 for each in self.seen if verb in (None, each.verb) and path in each.path)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        verb = verb_of(request.method, request.path, request.query)
        rule = next((each for each in self.rules if each.applies(verb, request.path)), None) or Rule()
        if rule.latency_s:
            await asyncio.sleep(rule.latency_s)
        if rule.status is not None:
            self.seen.append(SeenRequest(verb, request.path, rule.status))
            return _refusal(rule.status, rule.retry_after)
        assert self._session is not None
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        url = URL(self._upstream.server + request.path_qs, encoded=True)
        try:
            async with self._session.request(
                request.method, url, data=await request.read() or None, headers=headers
            ) as answer:
                self.seen.append(SeenRequest(verb, request.path, answer.status))
                return await self._forward(request, answer, rule, is_watch=verb == "watch")
        except (aiohttp.ClientError, OSError):
            _abort(request)  # the server behind us is gone: so are we
            return web.Response(status=502)

    async def _forward(
        self, request: web.Request, answer: aiohttp.ClientResponse, rule: Rule, *, is_watch: bool
    ) -> web.StreamResponse:
        headers = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP_BY_HOP}
        response = web.StreamResponse(status=answer.status, headers=headers)
        if rule.cut_after == 0:
            await answer.read()
            _abort(request)
            return response
        await response.prepare(request)
        with contextlib.suppress(ConnectionError):
            if is_watch and answer.status == 200:
                await self._forward_watch(request, response, answer, rule)
            else:
                await _forward_bytes(request, response, answer, rule)
        return response

    async def _forward_watch(
        self,
        request: web.Request,
        response: web.StreamResponse,
        answer: aiohttp.ClientResponse,
        rule: Rule,
    ) -> None:
        splitter, events = LineSplitter(), 0
        async for chunk in answer.content.iter_any():
            for line in splitter.feed(chunk):
                for limit, act in (
                    (rule.drop_after, _abort),
                    (rule.hang_after, None),
                    (rule.gone_after, 410),
                    (rule.error_after, 500),
                ):
                    if limit is None or events < limit:
                        continue
                    if act is None:
                        await asyncio.Event().wait()  # until the client gives up
                    elif isinstance(act, int):
                        await response.write(_error_event(act))
                    else:
                        act(request)
                    return
                if rule.delay_s:
                    await asyncio.sleep(rule.delay_s)
                for _ in range(2 if rule.duplicate else 1):
                    await response.write(line + b"\n")
                events += 1
        await response.write_eof()


async def _forward_bytes(
    request: web.Request, response: web.StreamResponse, answer: aiohttp.ClientResponse, rule: Rule
) -> None:
    sent = 0
    async for chunk in answer.content.iter_any():
        if rule.cut_after is not None and sent + len(chunk) > rule.cut_after:
            await response.write(chunk[: rule.cut_after - sent])
            _abort(request)
            return
        await response.write(chunk)
        sent += len(chunk)
    await response.write_eof()


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _refusal(status: int, retry_after: float | None) -> web.Response:
    reasons = {404: "NotFound", 409: "Conflict", 410: "Expired", 429: "TooManyRequests"}
    headers = {"Retry-After": f"{retry_after:g}"} if retry_after is not None else {}
    body = _status(status, reasons.get(status, "InternalError"))
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def _error_event(code: int) -> bytes:
    status = msgspec.Raw(_status(code, "Expired" if code == 410 else "InternalError"))
    return msgspec.json.encode({"type": "ERROR", "object": status}) + b"\n"


def _status(code: int, reason: str) -> bytes:
    return msgspec.json.encode(
        {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": code,
            "reason": reason,
            "message": "made by the fault proxy",
        }
    )
