"""A view of a scheduler in this process, for one reader: for tests, simulations and pictures of the page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping

import msgspec
from cachetools import LRUCache

from fluence.web.access import User
from fluence.web.rows import Reader
from fluence.web.server import BASE, make_page, one, parse_query
from fluence.web.view import Snapshot

_KEPT = 4


class SeesAll:
    """A reader of all namespaces."""

    def sees(self, namespace: str) -> bool:
        return True


class SnapshotView:
    """``take`` returns the current state. ``change`` sends the lists again to clients that follow them."""

    def __init__(self, take: Callable[[], Snapshot], reader: Reader | None = None) -> None:
        self._take = take
        self._reader = reader or SeesAll()
        self._changed = asyncio.Event()
        self._kept: LRUCache[str, Snapshot] = LRUCache(_KEPT)  # by number

    def change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def get(self, path: str, query: Mapping[str, str]) -> bytes:
        asked = parse_query(f"{BASE}/{path}", query, User(""))
        if asked.name:
            return msgspec.json.encode(one(self._take(), self._reader, asked))
        number, _, offset = asked.start.partition(".")
        snapshot = self._kept.get(number) or self._take()
        page = make_page(snapshot, self._reader, asked, int(offset or 0))
        if page.metadata.continue_:
            self._kept[str(snapshot.number)] = snapshot  # further pages are of the same moment
        return msgspec.json.encode(page)

    async def follow(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        while True:
            changed = self._changed
            yield b"event: list\ndata: " + await self.get(path, query) + b"\n\n"
            await changed.wait()
