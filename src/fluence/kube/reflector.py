"""Reflector: keeps a store equal to the objects of the server, through all faults of servers and networks.

start ──► streaming list (1.34+) ──┐         ┌──────────────── watch ends, connection lost
              or paged list ───────────┴──► watch┘
                 ▲                           │
                 └────── 410 Gone, ERROR ────┘   after a pause that grows: 0.8 s to 30 s, full jitter

The rules: a list replaces the store at once, so that deletes during a gap are found. A watch continues from
the last seen version, including bookmarks. Versions are only passed back, never compared. Every stream has a
time limit on both ends, because a half-open connection stays silent forever. 403 and 404 are retried slowly
and logged, never in a hot loop.

An object that was deleted and created again under the same name between two lists is two changes: (old,
None), then (None, new). Versions are opaque: they are equal or not, never older or newer.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from fluence.backoff import Backoff
from fluence.kube.client import Client
from fluence.kube.errors import (
    ONCE,
    ApiError,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    Missing,
    TooManyRequests,
    Unauthorized,
    Unreachable,
    error_for,
)
from fluence.kube.resource import Page, Resource
from fluence.kube.transport import LineSplitter
from fluence.model.meta import KubeObject, ObjectMeta

logger = logging.getLogger(__name__)


class HasMeta(Protocol):
    @property
    def metadata(self) -> ObjectMeta: ...


T = TypeVar("T", bound=HasMeta)
Key = tuple[str, str]  # namespace, name
Handler = Callable[[T | None, T | None], None]
Index = Callable[[T], Iterable[Hashable]]


def key_of(item: HasMeta) -> Key:
    return item.metadata.namespace, item.metadata.name


class Store(Generic[T]):
    """``Store({"node": lambda pod: [pod.spec.node_name]})`` then ``store.by("node", "n1")``."""

    def __init__(self, indexes: Mapping[str, Index[T]] | None = None) -> None:
        self._items: dict[Key, T] = {}
        self._index_of = dict(indexes or {})
        self._indexes: dict[str, dict[Hashable, dict[Key, T]]] = {name: {} for name in self._index_of}
        self._handlers: list[Handler[T]] = []
        self.handler_errors = 0
        self.changes = 0

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._items.values()))

    def get(self, name: str, namespace: str = "") -> T | None:
        return self._items.get((namespace, name))

    def by(self, index: str, value: Hashable) -> list[T]:
        """All objects that the named index files under this value."""
        return list(self._indexes[index].get(value, {}).values())

    def on_change(self, handler: Handler[T], *, replay: bool = True) -> None:
        """Call ``handler(old, new)`` after each change; with ``replay`` first (None, object) for all that is
        held."""
        self._handlers.append(handler)
        if replay:
            for item in self:
                self._call(handler, None, item)

    def put(self, item: T) -> bool:
        """An object as the server has it now. False if it is what we hold already."""
        key = key_of(item)
        old = self._items.get(key)
        if old is not None:
            same_object = old.metadata.uid == item.metadata.uid
            if same_object and old.metadata.resource_version == item.metadata.resource_version:
                return False
            if not same_object:
                self.remove(key)
                old = None
        self._items[key] = item
        self._reindex(key, old, item)
        self._tell(old, item)
        return True

    def remove(self, key: Key, *, last: T | None = None) -> bool:
        """Remove an object; ``last`` is its last state, if the server sent it. Returns False if the store did
        not have it."""
        old = self._items.pop(key, None)
        if old is None:
            return False
        self._reindex(key, old, None)
        if last is not None and last.metadata.uid == old.metadata.uid:
            old = last
        self._tell(old, None)
        return True

    def replace(self, items: Iterable[T], *, keep: Iterable[Key] = ()) -> tuple[int, int, int]:
        """Replace the contents by this list: objects that are not in it were deleted. ``keep`` names objects
        that exist but could not be parsed. Returns (added, changed, removed).
        """
        fresh = {key_of(item): item for item in items}
        kept = set(keep)
        added = changed = removed = 0
        for key in [key for key in self._items if key not in fresh and key not in kept]:
            removed += self.remove(key)
        for key, item in fresh.items():
            was_held = key in self._items
            if self.put(item):
                added, changed = added + (not was_held), changed + was_held
        return added, changed, removed

    def _reindex(self, key: Key, old: T | None, new: T | None) -> None:
        for name, index_of in self._index_of.items():
            buckets = self._indexes[name]
            before = set(self._values(name, index_of, old)) if old is not None else set()
            after = set(self._values(name, index_of, new)) if new is not None else set()
            for value in before - after:
                bucket = buckets.get(value, {})
                bucket.pop(key, None)
                if not bucket:
                    buckets.pop(value, None)
            if new is not None:
                for value in after:
                    buckets.setdefault(value, {})[key] = new

    def _values(self, name: str, index_of: Index[T], item: T) -> list[Hashable]:
        """An index function that fails on one object leaves it out of the index; the same object always
        fails."""
        try:
            return list(index_of(item))
        except Exception:
            self.handler_errors += 1
            logger.exception("index %s failed on %s", name, "/".join(key_of(item)))
            return []

    def _tell(self, old: T | None, new: T | None) -> None:
        self.changes += 1
        for handler in self._handlers:
            self._call(handler, old, new)

    def _call(self, handler: Handler[T], old: T | None, new: T | None) -> None:
        try:
            handler(old, new)
        except Exception:  # a handler's fault must not end the stream that feeds everybody else
            self.handler_errors += 1
            shown = new if new is not None else old
            logger.exception(
                "handler failed on %s", "/".join(key_of(shown)) if shown is not None else "nothing"
            )


S = TypeVar("S")

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """All waits of a reflector, in seconds."""

    base_s: float = 0.8
    cap_s: float = 30.0
    slow_s: float = 30.0  # after 403 and 404: an administrator must change something first
    healthy_s: float = 60.0  # a stream that lived this long clears the count of failures
    watch_min_s: float = 240.0
    watch_max_s: float = 480.0
    idle_extra_s: float = 30.0
    list_timeout_s: float = 60.0


class Stats(msgspec.Struct):
    """The metrics of one reflector."""

    lists: int = 0
    watches: int = 0
    events: int = 0
    bookmarks: int = 0
    bytes_read: int = 0
    failures: int = 0
    denied: int = 0
    undecodable: int = 0
    last_error: str = ""


class _WatchEvent(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


_event_decoder = msgspec.json.Decoder(_WatchEvent)
_meta_decoder = msgspec.json.Decoder(KubeObject)
_raw_decoder = msgspec.json.Decoder(Page[msgspec.Raw])
_DEEPEST = 10_000  # nesting levels of a document that the API server accepts


class _Ended(Exception):
    """The stream ended normally."""


class Reflector(Generic[T]):
    """``run()`` feeds ``store`` until cancelled; ``synced`` is set once the first list is in it, ``refresh``
    waits for another one."""

    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        store: Store[T] | None = None,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        streaming_list: bool = True,
        page_size: int = 500,
        optional: bool = False,
        may_be_denied: bool = False,
        timing: Timing | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.store: Store[T] = store if store is not None else Store()
        self.synced = asyncio.Event()
        self.stats = Stats()
        self._client = client
        self._resource = resource
        self._namespace = namespace
        self._selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        self._streaming = streaming_list
        self._page_size = page_size
        self._may_be_denied = may_be_denied  # without the right to read the kind, the store is empty
        self._optional = optional  # the kind may be missing: then the store is empty
        self._timing = timing or Timing()
        self._rng = rng or random.Random()
        self._version: str | None = None  # where to watch from; None: list first
        self._turn: asyncio.Task[None] | None = None
        self._listed = asyncio.Event()
        self._failures = 0
        self._gone_pages = 0
        self._stream_faults = 0

    async def run(self) -> None:
        """Until cancelled."""
        this = asyncio.current_task()
        while True:
            self._turn = asyncio.create_task(self._once())
            try:
                await self._turn
            except asyncio.CancelledError:
                if this is None or this.cancelling():
                    raise
                # else by ``refresh``: list next

    async def refresh(self) -> None:
        """List now, even during a watch, and wait for the result. A watch may be late, hang, or wait for its
        next try; after this call, the store has all objects that existed when it was called."""
        before, listed = self._listed, asyncio.Event()
        self._listed, self._version, self._failures = listed, None, 0
        if self._turn is not None:
            self._turn.cancel()
        await listed.wait()
        before.set()  # earlier callers have it as well

    async def _once(self) -> None:
        """A list or a watch, and the pause after it."""
        clock = self._client.clock
        began = clock.monotonic()
        events = self.stats.events + self.stats.bookmarks
        pause = 0.0
        try:
            if self._version is not None:
                await self._watch()
            elif self._streaming and self._stream_faults < 2:
                await self._stream_list()
            else:
                await self._paged_list()
                return
        except _Ended:
            # A stream that ends at once without events is a failure too: without a pause there would be a hot
            # loop.
            if self.stats.events + self.stats.bookmarks == events and clock.monotonic() - began < 1.0:
                pause = self._failed(None)
        except (KubeError, msgspec.DecodeError) as error:
            pause = self._failed(error)
        if clock.monotonic() - began >= self._timing.healthy_s:
            self._failures = 0
        if pause:
            await asyncio.sleep(pause)

    def _failed(self, error: Exception | None) -> float:
        """Record a failure, and decide where to continue and how long to wait before that."""
        stats, timing = self.stats, self._timing
        stats.failures += 1
        if error is not None:
            stats.last_error = str(error)
        self._failures += 1
        pause = Backoff(timing.base_s, timing.cap_s).jittered(self._failures, self._rng)
        match error:
            case Gone():
                self._version = None  # list again; the pause only prevents a hot loop with a confused server
            case TooManyRequests():
                pause = max(pause, error.retry_after or 0.0)
            case Forbidden() | Missing() | Unauthorized():
                stats.denied += 1
                self._version = None
                pause = self._rng.uniform(timing.slow_s / 2, timing.slow_s)
                if (self._optional and isinstance(error, Missing)) or (
                    self._may_be_denied and isinstance(error, Forbidden)
                ):
                    self._replace((), [], "")
                logger.error(
                    "%s cannot be watched, next try in %.0f s: %s", self._resource.name, pause, error
                )
                return pause
            case Invalid() if self._version is None and self._streaming:
                # 400, 422: this server has no streaming lists (before 1.34, or the gate is off)
                self._streaming = False
                return 0.0
            case ApiError():
                # An etcd before 3.5.13 answers streaming lists with 500: after two, list in pages this once.
                self._stream_faults += self._version is None
                self._version = None
            case Unreachable() | None:
                pass  # continue from the last version
            case _:
                self._version = None  # a document that cannot be parsed: list again
        logger.warning(
            "%s: %s; next try in %.1f s", self._resource.name, error or "the watch ended at once", pause
        )
        return pause

    # Lists

    async def _paged_list(self) -> None:
        """Read all pages, then replace the store at once. If a list expires half-way twice, it is read
        without pages."""
        self.stats.lists += 1
        unread: list[Key] = []
        try:
            page = await self._client.list(
                self._resource,
                namespace=self._namespace,
                label_selector=self._selectors["labelSelector"],
                field_selector=self._selectors["fieldSelector"],
                limit=self._page_size if self._gone_pages < 2 else 0,
                timeout_s=self._timing.list_timeout_s,
                retry=ONCE,
                decode=lambda content: self._decode_page(content, unread),
            )
        except Gone:
            self._gone_pages += 1
            raise
        self._gone_pages = self._stream_faults = 0
        self._replace(page.items or (), unread, page.metadata.resource_version)

    async def _stream_list(self) -> None:
        """WatchList (KEP-3157): the initial objects come as events, a bookmark ends them, and the watch
        continues."""
        self.stats.lists += 1
        initial: dict[Key, T] = {}
        unread: list[Key] = []
        params = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        is_initial = True
        async with aclosing(self._events(params)) as events:
            async for kind, raw in events:
                if not is_initial:
                    self._apply(kind, raw)
                    continue
                if kind == "BOOKMARK":
                    meta = _meta_decoder.decode(raw).metadata
                    if (meta.annotations or {}).get(INITIAL_EVENTS_END) == "true":
                        self._replace(initial.values(), unread, meta.resource_version)
                        is_initial = False
                        initial = {}
                        self._stream_faults = 0
                    continue
                item = self._decode(raw, unread)
                if item is None:
                    continue
                self.stats.events += 1
                if kind == "DELETED":
                    initial.pop(key_of(item), None)
                else:
                    initial[key_of(item)] = item

    def _replace(self, items: Iterable[T], unread: list[Key], version: str) -> None:
        added, changed, removed = self.store.replace(items, keep=unread)
        self._version = version or None
        self._listed.set()
        if not self.synced.is_set():
            self.synced.set()
        elif added or changed or removed:
            logger.info(
                "%s listed again: %d added, %d changed, %d removed meanwhile",
                self._resource.name,
                added,
                changed,
                removed,
            )

    # Watches

    async def _watch(self) -> None:
        assert self._version is not None
        async with aclosing(self._events({"resourceVersion": self._version})) as events:
            async for kind, raw in events:
                self._apply(kind, raw)

    def _apply(self, kind: str, raw: msgspec.Raw) -> None:
        if kind == "BOOKMARK":
            self._version = _meta_decoder.decode(raw).metadata.resource_version
            self.stats.bookmarks += 1
            return
        item = self._decode(raw, [])
        if item is None:
            self._version = _meta_decoder.decode(raw).metadata.resource_version
            return
        if kind == "DELETED":
            self.store.remove(key_of(item), last=item)
        else:
            self.store.put(item)
        self._version = item.metadata.resource_version
        self.stats.events += 1

    async def _events(self, params: dict[str, str]) -> AsyncGenerator[tuple[str, msgspec.Raw], None]:
        """The events of one watch; ERROR becomes an exception, the stream's end becomes _Ended."""
        timing = self._timing
        seconds = self._rng.uniform(timing.watch_min_s, timing.watch_max_s)
        self.stats.watches += 1
        params = {
            **self._selectors,
            **params,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, round(seconds))),
        }
        splitter = LineSplitter()
        async with self._client.watch(
            self._resource, namespace=self._namespace, params=params, idle_s=seconds + timing.idle_extra_s
        ) as stream:
            async for chunk in stream.iter_any():
                self.stats.bytes_read += len(chunk)
                lines = splitter.feed(chunk)
                for count, line in enumerate(lines, 1):
                    event = _shallow_or_deep(_event_decoder.decode, line)
                    if event.type == "ERROR":
                        raise _error_event(self._resource.name, event.object)
                    yield event.type, event.object
                    if count % 200 == 0:
                        await asyncio.sleep(0)  # a burst must not hold up the lease's renewal
        if splitter.pending:
            raise Unreachable(f"watch {self._resource.name}: the answer was cut in the middle of an event")
        raise _Ended

    # Decoding

    def _decode_page(self, content: bytes, unread: list[Key]) -> Page[T]:
        self.stats.bytes_read += len(content)
        try:
            return self._resource.page_decoder.decode(content)
        except (msgspec.ValidationError, RecursionError):
            # One object that does not fit our struct must not hide the other 499.
            page = _shallow_or_deep(_raw_decoder.decode, content)
            items = [item for raw in page.items or () if (item := self._decode(raw, unread)) is not None]
            return Page(page.metadata, items)

    def _decode(self, raw: msgspec.Raw, unread: list[Key]) -> T | None:
        try:
            return _shallow_or_deep(self._resource.decoder.decode, raw)
        except msgspec.ValidationError as error:
            meta = _meta_decoder.decode(raw).metadata
            self.stats.undecodable += 1
            unread.append((meta.namespace, meta.name))
            logger.error("%s %s/%s cannot be read: %s", self._resource.name, meta.namespace, meta.name, error)
            return None


def _shallow_or_deep(decode: Callable[[Any], S], content: Any) -> S:
    """What a decoder makes of a document. One of a custom resource may be nested as deeply as the API server
    takes it, and is read all the same: it must not hide others."""
    try:
        return decode(content)
    except RecursionError:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(limit, 4 * _DEEPEST))
        try:
            return decode(content)
        finally:
            sys.setrecursionlimit(limit)


def _error_event(name: str, raw: msgspec.Raw) -> ApiError:
    body = bytes(raw)
    code = msgspec.json.decode(body, type=_Code).code
    return error_for(f"watch {name}", code or 500, body)


class _Code(msgspec.Struct, frozen=True):
    code: int = 0
