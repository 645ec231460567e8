"""Server: the HTTP of the view: routes, pages, streams, and the bounds on each of them.

Only reads are answered, and requests have no body. The answer is one page of a resource, or a stream: with
``watch=true`` the page is sent again as a server-sent event whenever it has changed. Making pages shares the
processor with the scheduler, so it may use at most a third of one. A page is made once for all readers with
the same rights, until something changes. Each user may have a limited number of requests and streams at a
time.

A question about manifests (``whatif``) is a POST that changes nothing: a copy of the scheduler answers it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec
from aiohttp import web
from cachetools import LRUCache

from fluence.model.meta import Requirement
from fluence.names import VIEW_GROUP
from fluence.units import rfc3339
from fluence.web import rows, whatif
from fluence.web.access import Access, Reader, Refused, User
from fluence.web.cluster_rows import RESOURCES, totals
from fluence.web.kept import Rows
from fluence.web.openapi import MAX_COLUMNS_LIMIT, MAX_LIMIT, NAMESPACED, document
from fluence.web.past_jobs import KINDS, PastJobs, PastQuery, parse_past
from fluence.web.resources import API_VERSION, VERSION, ItemList, ListMeta
from fluence.web.rows import Filter
from fluence.web.selectors import parse_selector
from fluence.web.view import Busy, Snapshot, View

BASE: Final = f"/apis/{VIEW_GROUP}/{VERSION}"
DEFAULT_LIMIT: Final = 500
MAX_STREAMS: Final = 256
MAX_STREAMS_PER_USER: Final = 8
MAX_REQUESTS_PER_USER: Final = 16
STREAM_SECONDS: Final = 1800.0  # after that, a client reconnects
_TICK_SECONDS: Final = 1.0
_ALIVE_SECONDS: Final = 15.0
_REST: Final = 2.0  # the pause after a page, as a multiple of its time
_HANDLING_SECONDS: Final = 0.0005  # the cost of a request with a cached page
_AHEAD_SECONDS: Final = 0.5  # how far the next pages of a list may run ahead of such pauses
_KEPT_SECONDS: Final = 60.0  # how long the next page of a snapshot can be requested
_KEPT: Final = 4
_MAX_PAGES: Final = 16 << 20  # bytes of pages that are cached for the next reader
_MAX_QUERY: Final = 4096
_NOT_LEADING: Final = "this replica does not lead, and knows no plan: ask again, or read the pods' conditions"
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_REASONS: Final = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    408: "Timeout",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    503: "ServiceUnavailable",
}


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request."""

    resource: str
    namespace: str = ""
    name: str = ""
    wanted: Filter
    limit: int = DEFAULT_LIMIT
    start: str = ""  # the continue token
    watch: bool = False
    columns: tuple[str, ...] = ()  # the selected fields, by their names in JSON; empty: all
    past: PastQuery | None = None  # a query of the history


class ViewServer:
    """``routes`` are for `fluence.live.http_server`."""

    def __init__(self, view: View, access: Access, history: PastJobs | None = None) -> None:
        self._view = view
        self._access = access
        self._history = history
        self._lock = asyncio.Lock()
        self._rest_until = 0.0
        self._lists: LRUCache[tuple[object, ...], Rows] = LRUCache(_KEPT)
        self._pages: LRUCache[tuple[object, ...], bytes] = LRUCache(_MAX_PAGES, getsizeof=len)
        self._kept: OrderedDict[int, tuple[float, Snapshot]] = OrderedDict()
        self._streams: Counter[str] = Counter()
        self._requests: Counter[str] = Counter()
        self._questions_of: Counter[str] = Counter()
        self._questions = whatif.Questions()

    @property
    def routes(self) -> list[web.RouteDef]:
        return [web.route("*", "/{path:.*}", self._handle)]

    # -- requests --------------------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        try:
            answer = await self._answer(request)
        except Refused as refusal:
            return _failure(refusal.status, str(refusal))
        except ConnectionError:
            raise
        for key, value in _HEADERS.items():
            if not answer.prepared:
                answer.headers[key] = value
        return answer

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.method == "POST" and request.path.startswith(f"{BASE}/"):
            parts = request.path.removeprefix(f"{BASE}/").split("/")
            if len(parts) == 3 and parts[0] == "namespaces" and parts[1] and parts[2] == "whatif":
                return await self._what_if(request, parts[1])
        if request.method not in ("GET", "HEAD"):
            raise Refused(405, f"{request.method}: this API is only read; write to the objects themselves")
        if request.can_read_body or len(request.query_string) > _MAX_QUERY:
            raise Refused(413, "a request has no body, and a query of at most 4 KiB")
        _check_origin(request)
        fixed = _discovery(request.path)
        if fixed is not None:
            return _json(fixed)
        user, authorized = await self._access.user(_certificate(request), request.headers)
        query = parse_query(request.path, request.query, user)
        verb = "watch" if query.watch else "get" if query.name else "list"
        if not authorized:
            await self._access.check(user, verb, query.resource, query.namespace)
        if query.watch:
            return await self._stream(request, user, query)
        async with _place(self._requests, user.name, MAX_REQUESTS_PER_USER, "requests"):
            if query.past is not None:
                body = await self._past(user, query, query.past)
            else:
                body = await self._page(user, query)
            return web.Response(body=body, content_type="application/json")

    async def _what_if(self, request: web.Request, namespace: str) -> web.Response:
        """What would become of manifests that are not submitted."""
        _check_origin(request)
        if request.content_type != "application/json":
            raise Refused(415, "send application/json")
        if (request.content_length or 0) > whatif.MAX_BODY or request.headers.get("Content-Encoding"):
            raise Refused(413, f"manifests of at most {whatif.MAX_BODY >> 10} KiB, not compressed")
        user, authorized = await self._access.user(_certificate(request), request.headers)
        if not authorized:
            await self._access.check(user, "create", "whatif", namespace)
        reader = await self._access.reader(user, {namespace})
        if not reader.sees(namespace):
            raise Refused(
                403, f"you may not list pods in namespace {namespace}; you need the role `view` there"
            )
        async with (
            _place(self._questions_of, user.name, 1, "question"),
            self._questions.place(namespace),
        ):
            body = await _body(request)
            if not reader.everything:
                snapshot, _ = await self._snapshot("")
                reader = await self._access.reader(user, snapshot.namespaces | {namespace})
            answer = await self._questions.answer(lambda: self._copy(reader, namespace, body))
            return web.Response(body=answer, content_type="application/json")

    async def _copy(self, reader: Reader, namespace: str, body: bytes) -> whatif.Forked:
        """Copy the scheduler while no page is made: what its thread holds is never released in a copy."""
        if not self._view.leads:
            raise Refused(503, _NOT_LEADING)
        async with self._turn():
            try:
                return await self._view.ask(reader, namespace, body)
            except Busy as error:
                raise Refused(503, str(error)) from None

    async def _past(self, user: User, query: Query, past: PastQuery) -> bytes:
        """Answer from the history, which only the leader is sure to have."""
        history = self._history
        if history is None:
            raise Refused(404, "this scheduler keeps no history (its setting history: false)")
        if not self._view.leads:
            raise Refused(503, _NOT_LEADING)
        named = past.which.namespaces
        reader = await self._access.reader(user, named or ())
        if not named and not reader.everything:
            reader = await self._access.reader(user, await history.namespaces())
        make = await history.page(reader, past, query.limit, self._view.scheduler)
        async with self._turn():
            return msgspec.json.encode(make())

    async def _page(self, user: User, query: Query) -> bytes:
        snapshot, offset = await self._snapshot(query.start)
        reader = await self._reader(user, query, snapshot)
        rights = (reader.everything, reader.namespaces, reader.unchecked)
        list_key = (snapshot.number, query.resource, repr(query.wanted), rights)
        key = (list_key, query.namespace, query.name, query.columns, query.limit, offset)
        async with self._turn(ahead=_AHEAD_SECONDS if query.start else 0.0):
            body = self._pages.get(key)
            if body is not None:
                return body
            if query.name:
                page = one(snapshot, reader, query)
            else:
                page = self._make(snapshot, reader, query, offset, list_key)
            if page.metadata.continue_:
                self._keep(snapshot)
            body = msgspec.json.encode(page)
            if len(body) <= _MAX_PAGES // 2:
                self._pages[key] = body
            return body

    def _make(
        self, snapshot: Snapshot, reader: Reader, query: Query, offset: int, key: tuple[object, ...]
    ) -> ItemList:
        """Make a page. The rows of a list are determined once for all of its pages."""
        whole = self._lists.pop(key, None)
        if whole is None:
            whole = rows_of(snapshot, reader, query)
        page = make_page(snapshot, reader, query, offset, whole)
        if page.metadata.continue_:
            self._lists[key] = whole
        return page

    @contextlib.asynccontextmanager
    async def _turn(self, ahead: float = 0.0) -> AsyncIterator[None]:
        """Make one page at a time, and then pause, so that the scheduler gets the processor. The pause delays
        the next page, not this one. Further pages of a list may come ``ahead`` of it, because users wait for
        the whole list."""
        async with self._lock:
            await asyncio.sleep(max(0.0, self._rest_until - ahead - time.monotonic()))
            began = time.monotonic()
            try:
                yield
            finally:
                now = time.monotonic()
                spent = max(now - began, _HANDLING_SECONDS)
                self._rest_until = max(now, self._rest_until) + _REST * spent

    async def _snapshot(self, token: str) -> tuple[Snapshot, int]:
        """The current snapshot, or the one whose next page is requested."""
        if token:
            number, _, offset = token.partition(".")
            if not (number.isdecimal() and offset.isdecimal()) or len(token) > 40:
                raise Refused(400, "continue: not one that this API has given")
            kept = self._kept.get(int(number))
            if kept is None or time.monotonic() - kept[0] > _KEPT_SECONDS:
                raise Refused(410, "continue: too old; ask for the first page again")
            return kept[1], int(offset)
        try:
            snapshot = await self._view.snapshot()
        except Busy as error:
            raise Refused(503, str(error)) from None
        if snapshot is None:
            raise Refused(503, _NOT_LEADING)
        return snapshot, 0

    def _keep(self, snapshot: Snapshot) -> None:
        self._kept.setdefault(snapshot.number, (time.monotonic(), snapshot))
        while len(self._kept) > _KEPT:
            self._kept.popitem(last=False)

    async def _reader(self, user: User, query: Query, snapshot: Snapshot) -> Reader:
        reader = await self._access.reader(user, {query.namespace} if query.namespace else ())
        if query.namespace or reader.everything:
            return reader
        return await self._access.reader(user, snapshot.namespaces)

    # -- streams ---------------------------------------------------------------------------------------------

    async def _stream(self, request: web.Request, user: User, query: Query) -> web.StreamResponse:
        if self._streams.total() >= MAX_STREAMS:
            raise Refused(429, f"{MAX_STREAMS} streams are open: try again later, or ask without watch")
        async with _place(self._streams, user.name, MAX_STREAMS_PER_USER, "streams"):
            first = await self._page(user, query)  # before the stream starts, so that errors have a status
            response = web.StreamResponse(headers={**_HEADERS, "Content-Type": "text/event-stream"})
            await response.prepare(request)
            with contextlib.suppress(Refused, ConnectionError):  # a stream that has started can only end
                await self._send(request, response, user, query, first)
            return response

    async def _send(
        self, request: web.Request, response: web.StreamResponse, user: User, query: Query, page: bytes
    ) -> None:
        sent, spoke = b"", time.monotonic()
        end = spoke + STREAM_SECONDS
        while time.monotonic() < end:
            if request.transport is None or request.transport.is_closing():
                return  # the client has left: another one may connect
            rows_of = _content(page)
            if rows_of != sent:
                await response.write(b"event: list\ndata: " + page + b"\n\n")
                sent, spoke = rows_of, time.monotonic()
            elif time.monotonic() - spoke > _ALIVE_SECONDS:
                await response.write(b": still here\n\n")
                spoke = time.monotonic()
            await asyncio.sleep(_TICK_SECONDS)
            page = await self._page(user, query)
        await response.write(b"event: end\ndata: {}\n\n")


def _check_origin(request: web.Request) -> None:
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        raise Refused(403, "pages of other origins may not read this")


async def _body(request: web.Request) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(whatif.BODY_SECONDS):
            async for part in request.content.iter_any():
                body += part
                if len(body) > whatif.MAX_BODY:
                    raise Refused(413, f"manifests of at most {whatif.MAX_BODY >> 10} KiB")
    except TimeoutError:
        raise Refused(408, "the manifests did not arrive in time") from None
    return bytes(body)


def _content(page: bytes) -> bytes:
    """The rows of a page and how many follow, without the parts that change with every snapshot."""
    head, _, items = page.partition(b'"items":')
    return head.partition(b'"remainingItemCount":')[2] + items


@contextlib.asynccontextmanager
async def _place(counts: Counter[str], user: str, most: int, what: str) -> AsyncIterator[None]:
    """Count one request or stream of a user, up to a limit."""
    if counts[user] >= most:
        raise Refused(429, f"{user} has {most} {what} under way: wait until one ends")
    counts[user] += 1
    try:
        yield
    finally:
        counts[user] -= 1
        if not counts[user]:
            del counts[user]


# -- pages ---------------------------------------------------------------------------------------------------


def rows_of(snapshot: Snapshot, reader: rows.Reader, query: Query) -> Rows:
    """All rows of a list that a reader may see."""
    snapshot.tidy()
    return RESOURCES[query.resource][1](snapshot, reader, query.wanted)


def make_page(
    snapshot: Snapshot,
    reader: rows.Reader,
    query: Query,
    offset: int = 0,
    whole: Rows | None = None,
) -> ItemList:
    """One page of a resource. ``whole``: the rows of all its pages, if they are known."""
    if whole is None:
        whole = rows_of(snapshot, reader, query)
    end = offset + query.limit
    left = max(0, len(whole) - end)
    meta = ListMeta(
        resource_version=str(snapshot.number),
        taken=rfc3339(snapshot.at * 1000),
        scheduler=snapshot.scheduler,
        continue_=f"{snapshot.number}.{end}" if left else "",
        remaining_item_count=left,
        unchecked_namespaces=getattr(reader, "unchecked", 0),
    )
    columns = query.columns
    texts = [row.text(columns, filling) for row, filling in itertools.islice(whole, offset, end)]
    made = msgspec.Raw(b"[%b]" % b",".join(texts))
    return ItemList(
        kind=RESOURCES[query.resource][0],
        metadata=meta,
        items=[] if columns else made,
        totals=totals(snapshot) if query.resource == "promises" else msgspec.UNSET,
        columns=columns or msgspec.UNSET,
        rows=made if columns else msgspec.UNSET,
    )


def one(snapshot: Snapshot, reader: rows.Reader, query: Query) -> ItemList:
    """One object by its name. An object that the reader may not see is missing, as if it did not exist."""
    if query.resource in ("jobs", "queue"):
        details: list[Any] = []
        if reader.sees(query.namespace):
            details = rows.details(snapshot, query.namespace, query.name, expand=query.wanted.expand)
    else:
        narrowed = msgspec.structs.replace(query.wanted, name=query.name)
        found = RESOURCES[query.resource][1](snapshot, reader, narrowed)
        details = [row.struct(filling) for row, filling in found]
    if not details:
        where = f" in namespace {query.namespace}" if query.namespace else ""
        raise Refused(404, f"{query.resource} {query.name}: not known to the scheduler{where}")
    kind = RESOURCES[query.resource][0].removesuffix("List")
    meta = ListMeta(
        resource_version=str(snapshot.number),
        taken=rfc3339(snapshot.at * 1000),
        scheduler=snapshot.scheduler,
    )
    return ItemList(kind=f"{kind}Detail", metadata=meta, items=details)


def parse_query(path: str, given: Mapping[str, str], user: User) -> Query:
    """Parse a path and its query. `Refused` says what is wrong."""
    parts = path.removeprefix(BASE).strip("/").split("/") if path.startswith(f"{BASE}/") else []
    namespace = ""
    if len(parts) >= 3 and parts[0] == "namespaces":
        namespace, parts = parts[1], parts[2:]
    if not 1 <= len(parts) <= 2 or parts[0] not in (*RESOURCES, *KINDS):
        raise Refused(404, f"{path[:200]}: no such resource; there are {', '.join((*RESOURCES, *KINDS))}")
    resource, name = parts[0], parts[1] if len(parts) == 2 else ""
    if resource in KINDS:
        return _parse_past(resource, namespace, name, given, user)
    if namespace and resource not in NAMESPACED:
        raise Refused(404, f"{resource} are not in namespaces")
    if name and resource in NAMESPACED and not namespace:
        raise Refused(
            400, f"{resource}/{name}: say in which namespace: /namespaces/NAMESPACE/{resource}/{name}"
        )
    columns = () if name else _columns(resource, given.get("columns", ""))
    return Query(
        resource=resource,
        namespace=namespace,
        name=name,
        wanted=_filter(given, namespace, user),
        limit=_limit(given.get("limit", ""), MAX_COLUMNS_LIMIT if columns else MAX_LIMIT),
        start=given.get("continue", ""),
        watch=given.get("watch", "") in ("true", "1"),
        columns=columns,
    )


def _columns(resource: str, text: str) -> tuple[str, ...]:
    columns = tuple(dict.fromkeys(part for part in text.split(",") if part))
    known = RESOURCES[resource][2].__struct_encode_fields__
    for column in columns:
        if column not in known:
            raise Refused(400, f"columns: {resource} have no {column[:40]}; there are {', '.join(known)}")
    return columns


def _parse_past(resource: str, namespace: str, name: str, given: Mapping[str, str], user: User) -> Query:
    if name:
        raise Refused(404, f"{resource}/{name[:40]}: {resource} is a list; ask for ?name={name[:40]}")
    if given.get("watch", "") in ("true", "1"):
        raise Refused(400, f"watch: {resource} cannot be followed; ask for `jobs`")
    return Query(
        resource=resource,
        namespace=namespace,
        wanted=Filter(namespace=namespace),
        limit=_limit(given.get("limit", "")),
        past=parse_past(resource, namespace, given, user),
    )


_PARAMETERS: Final = frozenset(
    (
        "limit",
        "continue",
        "watch",
        "state",
        "user",
        "queue",
        "name",
        "labelSelector",
        "expand",
        "columns",
        "timeoutSeconds",
        "timeout",
    )
)


def _filter(given: Mapping[str, str], namespace: str, user: User) -> Filter:
    unknown = sorted(set(given) - _PARAMETERS)
    if unknown:
        raise Refused(
            400, f"{unknown[0][:40]}: no such parameter; there are {', '.join(sorted(_PARAMETERS))}"
        )
    try:
        labels: tuple[Requirement, ...] = parse_selector(given.get("labelSelector", ""))
    except ValueError as error:
        raise Refused(400, f"labelSelector: {error}") from None
    states = frozenset(part.lower() for part in given.get("state", "").split(",") if part)
    users = frozenset(user.own_names([part for part in given.get("user", "").split(",") if part]))
    return Filter(
        namespace=namespace,
        states=states,
        users=users,
        queue=given.get("queue"),
        name=given.get("name", ""),
        labels=labels,
        expand=given.get("expand", "") in ("true", "1"),
    )


def _limit(text: str, most: int = MAX_LIMIT) -> int:
    if not text:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdecimal()) or not int(text[:9]) > 0:
        raise Refused(400, f"limit: {text[:20]!r} is not a number from 1 to {most}")
    return min(int(text[:9]), most)


# -- discovery -----------------------------------------------------------------------------------------------


def _discovery(path: str) -> object | None:
    """What the API server asks of every aggregated server. No resources are listed, so that `kubectl get
    nodes` and `kubectl get jobs` keep their meaning."""
    version = {"groupVersion": API_VERSION, "version": VERSION}
    group = {"name": VIEW_GROUP, "versions": [version], "preferredVersion": version}
    match path.rstrip("/"):
        case "/apis":
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]}
        case value if value == f"/apis/{VIEW_GROUP}":
            return {"kind": "APIGroup", "apiVersion": "v1", **group}
        case value if value == BASE:
            return {
                "kind": "APIResourceList",
                "apiVersion": "v1",
                "groupVersion": API_VERSION,
                "resources": [],
            }
        case "/openapi/v3":
            return {"paths": {BASE.strip("/"): {"serverRelativeURL": f"/openapi/v3{BASE}"}}}
        case value if value == f"/openapi/v3{BASE}":
            return document()
    return None


def _certificate(request: web.Request) -> Mapping[str, object] | None:
    transport = request.transport
    return None if transport is None else transport.get_extra_info("peercert")


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _failure(status: int, message: str) -> web.Response:
    """A failure in the format of the API server, so that kubectl shows it."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": _REASONS.get(status, "Unknown"),
        "code": status,
    }
    response = web.Response(
        status=status, body=msgspec.json.encode(body), content_type="application/json", headers=_HEADERS
    )
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if status in (429, 503):
        response.headers["Retry-After"] = "1"
    if status in (408, 413):
        response.force_close()
    return response
