"""Intake: how reviews are read, so that large ones neither take the memory nor the turn of small ones.

Small reviews are read and answered as they come. Large ones have a few places, and are read when they have
one; until then their bytes stay with the sender. So a small review waits for a few large ones at most.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import ClientError, web

from fluence.admission.bounds import MOST_BYTES
from fluence.admission.hooks import TIMEOUT_S

SMALL_BYTES: Final = 64 << 10
LARGE_AT_ONCE: Final = 3
WAIT_S: Final = TIMEOUT_S - 2.0
"""How long a large review waits for a place: the server goes on without an answer after its timeout."""
READ_S: Final = TIMEOUT_S - 1.0
"""How long a review may take to arrive, with its wait."""
MOST_READ: Final = 64 << 20
"""How much of what is too long is read, and dropped, so that its sender reads our answer."""
_HEAD_BYTES: Final = 4096


class TooLong(Exception):
    """A review is over the bound; ``head`` is its beginning."""

    def __init__(self, head: bytes) -> None:
        super().__init__()
        self.head = head


class TooLate(Exception):
    """A review was not there in time: it came slowly, or it ``waited`` for a place behind others."""

    def __init__(self, head: bytes, *, waited: bool) -> None:
        super().__init__()
        self.head, self.waited = head, waited


class Intake:
    """Places for large reviews and for large answers."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(LARGE_AT_ONCE)

    @contextlib.asynccontextmanager
    async def reading(self, request: web.Request) -> AsyncIterator[bytearray]:
        """The body of a request; a large one has its place until the block ends."""
        body = bytearray()
        try:
            async with contextlib.AsyncExitStack() as stack, asyncio.timeout(READ_S) as limit:
                is_large = False
                async for chunk in request.content.iter_any():
                    if not is_large and len(body) + len(chunk) > SMALL_BYTES:
                        is_large = True
                        await self._place(stack, request, bytes(body or chunk)[:_HEAD_BYTES])
                    body += chunk
                    if len(body) > MOST_BYTES:
                        head = bytes(body[:_HEAD_BYTES])
                        body.clear()
                        await _drop(request)
                        raise TooLong(head)
                if is_large:
                    await asyncio.sleep(0)  # who is small and there goes first
                limit.reschedule(None)
                yield body
        except TimeoutError:
            raise TooLate(b"", waited=False) from None
        except (web.RequestPayloadError, ClientError, ConnectionError):  # the sender is gone
            raise TooLate(b"", waited=False) from None

    async def send(self, request: web.Request, response: web.Response) -> None:
        """Send a large answer, one at a time of few: who does not read it keeps its place, not our memory."""
        if isinstance(response.body, bytes) and len(response.body) > SMALL_BYTES:
            async with self._places:
                with contextlib.suppress(ConnectionError):  # it was cut off, or went
                    await response.prepare(request)
                    await response.write_eof()

    async def _place(self, stack: contextlib.AsyncExitStack, request: web.Request, head: bytes) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                await stack.enter_async_context(self._places)
        except TimeoutError:
            await _drop(request)
            raise TooLate(head, waited=True) from None


async def _drop(request: web.Request) -> None:
    left = MOST_READ
    async for chunk in request.content.iter_any():
        left -= len(chunk)
        if left < 0:
            return
