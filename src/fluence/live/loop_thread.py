"""LoopThread: an event loop in a thread of its own, for what has to go on while the core is busy.

Python lets another thread run every 5 ms (`sys.getswitchinterval`), so a cycle in Python delays such work by
milliseconds; a call into C that keeps the lock delays it for as long as it takes.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Self, TypeVar

from fluence import event_loop

_T = TypeVar("_T")


class LoopThread:
    """``async with LoopThread("lease") as thread: await thread.run(work())``.

    What runs there uses nothing that belongs to another loop. What was entered is left with the block.
    """

    def __init__(self, name: str) -> None:
        self._thread = threading.Thread(target=lambda: event_loop.run(self._turn), name=name, daemon=True)
        self._began = threading.Event()
        self._stack = AsyncExitStack()
        self._loop: asyncio.AbstractEventLoop
        self._over: asyncio.Event

    async def __aenter__(self) -> Self:
        self._thread.start()
        self._began.wait()
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            await self.run(self._stack.aclose())
        finally:
            self._loop.call_soon_threadsafe(self._over.set)
            await asyncio.to_thread(self._thread.join)

    async def enter(self, context: AbstractAsyncContextManager[_T]) -> _T:
        """Enter a context on the thread's loop."""
        return await self.run(self._stack.enter_async_context(context))

    async def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run it there, and wait here until it is over, also if it is cancelled."""
        here = asyncio.get_running_loop()
        done: asyncio.Future[asyncio.Task[_T]] = here.create_future()
        begun: list[asyncio.Task[_T]] = []

        def begin() -> None:
            task = self._loop.create_task(work)
            begun.append(task)
            task.add_done_callback(tell)

        def tell(task: asyncio.Task[_T]) -> None:
            with contextlib.suppress(RuntimeError):  # nobody waits: the loop there is closed
                here.call_soon_threadsafe(done.set_result, task)

        self._loop.call_soon_threadsafe(begin)
        try:
            return (await asyncio.shield(done)).result()
        except asyncio.CancelledError:
            self._loop.call_soon_threadsafe(lambda: begun[0].cancel())
            await asyncio.wait({done})
            raise

    async def _turn(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        self._began.set()
        await self._over.wait()
