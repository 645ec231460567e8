"""Proxy: a proxy in front of a real API server on loopback that injects faults by a script.

It uses plain HTTP to the client, and TLS as the administrator to the server; for tests only.

The script:
    - {verb: watch, path: /pods, drop_after: 3, times: 2}      # cut two watches, each after three events
    - {verb: create, path: binding$, status: 503, every: 5}    # every fifth binding
    - {path: /nodes, status: 429, retry_after: 1, times: 3}
    - {verb: list, latency_s: 0.5}                             # always

The first rule that applies to a request is used. Verbs are Kubernetes': get, list, watch, create, update,
patch, delete.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import aiohttp
import msgspec
import yaml
from aiohttp import web
from yarl import URL

from fluence.errors import InvalidInput
from fluence.kube.access import Access
from fluence.kube.transport import Connector, LineSplitter, tls_context
from fluence.yaml_loader import load


class Rule(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Which requests, how often, and what happens to them."""

    verb: str | None = None
    path: str = ""  # a regular expression, searched for in the path
    times: int | None = None  # None: always
    after: int = 0  # let this many through first
    every: int = 1

    latency_s: float = 0.0  # before anything else; it may be lowered while requests wait
    status: int | None = None  # answer this; the server never gets the request
    retry_after: float | None = None
    cut_after: int | None = None  # bytes of the answer; 0 drops the answer of a request that was carried out
    # for watches; counted in events
    drop_after: int | None = None  # the connection is cut
    hang_after: int | None = None  # no more events, but the connection stays: half-open
    gone_after: int | None = None  # an ERROR event with 410
    error_after: int | None = None  # an ERROR event with 500
    duplicate: bool = False
    delay_s: float = 0.0  # each event comes late

    seen: int = 0
    used: int = 0

    def applies(self, verb: str, path: str) -> bool:
        """Whether the rule applies to this request. Counts the request if it is of the rule's kind."""
        if (self.verb is not None and self.verb != verb) or not re.search(self.path, path):
            return False
        if self.times is not None and self.used >= self.times:
            return False
        self.seen += 1
        if self.seen <= self.after or (self.seen - self.after - 1) % self.every:
            return False
        self.used += 1
        return True


def read_script(path: Path) -> list[Rule]:
    try:
        rules = msgspec.convert(load(path.read_text()) or [], list[Rule])
        for rule in rules:
            re.compile(rule.path)
    except OSError as error:
        raise InvalidInput(str(error.strerror), where=str(path)) from None
    except (yaml.YAMLError, msgspec.ValidationError, re.error) as error:
        raise InvalidInput(" ".join(str(error).split()), where=str(path)) from None
    return rules


def verb_of(method: str, path: str, query: Mapping[str, str]) -> str:
    """The Kubernetes verb of a request."""
    if method == "GET":
        if query.get("watch") in ("true", "1"):
            return "watch"
        return "get" if _has_name(path) else "list"
    return {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(
        method, method.lower()
    )


def _has_name(path: str) -> bool:
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    return len(rest) > 1 or not rest


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
        """How many requests of this kind have arrived."""
        return sum(1 for request in self.seen if verb in (None, request.verb) and path in request.path)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        verb = verb_of(request.method, request.path, request.query)
        rule = (
            next((candidate for candidate in self.rules if candidate.applies(verb, request.path)), None)
            or Rule()
        )
        began = asyncio.get_running_loop().time()
        while (left := began + rule.latency_s - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(min(left, 0.05))
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
            _abort(request)  # the server is gone: close the connection too
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
