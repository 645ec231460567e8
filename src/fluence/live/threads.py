"""Threads beside the main loop: event loops for work that must not wait, the heartbeat, and the lease.

Python lets another thread run every 5 ms (`sys.getswitchinterval`), so a cycle in Python delays such work by
milliseconds. A call into C that keeps the lock delays it for as long as it takes.

The main loop runs cycles, watches and answers. While a cycle runs, nothing else on that loop does. If the
loop makes no progress for ``limit_s``, it is considered stuck (``Heartbeat``), and a restart may cure it.

The lease has a thread, an event loop and a connection of its own (``Leadership``). The thread renews the
lease as long as the main loop makes progress, however long a cycle takes. A process that loses its lease
exits, and its supervisor starts a new one, which reads the state from the API.

    held      by the clock alone, from any thread: a process that was stopped knows it before its next write
    lost      the work is cancelled, and ``lead`` raises; nothing is sent any more
    the end   if the main loop cannot even do that, ``end`` is called after ``grace_s``
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any, Self, TypeVar

import structlog

from fluence import event_loop
from fluence.clock import Clock
from fluence.errors import FluenceError
from fluence.kube.lease import Elector

log = structlog.get_logger("fluence.scheduler")


_T = TypeVar("_T")


class LoopThread:
    """``async with LoopThread("lease") as thread: await thread.run(work())``.

    Code that runs there must not use objects of another event loop. Contexts that were entered are left at
    the end of the block.
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
        """Run a coroutine on the thread, and wait here until it has ended, even if it is cancelled."""
        here = asyncio.get_running_loop()
        done: asyncio.Future[asyncio.Task[_T]] = here.create_future()
        begun: list[asyncio.Task[_T]] = []

        def begin() -> None:
            task = self._loop.create_task(work)
            begun.append(task)
            task.add_done_callback(tell)

        def tell(task: asyncio.Task[_T]) -> None:
            with contextlib.suppress(RuntimeError):  # the waiting loop is closed
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


_BEAT_SECONDS = 1.0


class Heartbeat:
    """``run`` on the watched event loop, and ``hung`` from any thread."""

    def __init__(self, clock: Clock, *, limit_s: float) -> None:
        self._clock = clock
        self._limit_s = limit_s
        self._last = clock.monotonic()

    async def run(self) -> None:
        while True:
            self._last = self._clock.monotonic()
            await asyncio.sleep(min(_BEAT_SECONDS, self._limit_s / 4))

    def hung(self) -> str:
        """What is wrong, or "". Anyone may read it, so it contains no names of users' objects."""
        silent = self._clock.monotonic() - self._last
        if silent <= self._limit_s:
            return ""
        return f"the core hangs: it has not come round for {silent:.0f} s (stuck-after: {self._limit_s:g} s)"


GRACE_S = 5.0  # seconds for a process without a lease to exit by itself


class LeaseLost(FluenceError):
    """Another replica may lead now."""


class Leadership:
    """``await Leadership(elector, core).lead(work)``. The elector's client must not be shared."""

    def __init__(
        self,
        elector: Elector,
        core: Heartbeat,
        *,
        end: Callable[[], None] | None = None,
    ) -> None:
        self.elector = elector
        self.lost = ""  # why
        self._core = core
        self._end = end

    @property
    def held(self) -> bool:
        return self.elector.held

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Acquire the lease, then work until the work is done. Raises LeaseLost if the lease is lost."""
        here, won = asyncio.get_running_loop(), asyncio.Event()
        async with LoopThread("lease") as thread:
            holding = asyncio.create_task(thread.run(self._hold(lambda: here.call_soon_threadsafe(won.set))))
            working = asyncio.create_task(_after(won, work))
            try:
                await asyncio.wait({holding, working}, return_when=asyncio.FIRST_COMPLETED)
                if holding.done():
                    raise LeaseLost(f"{holding.result()}; this replica starts anew")
                working.result()
            finally:
                # The work stops first, while the lease still protects it. Then the lease is released.
                for task in (working, holding):
                    task.cancel()
                    await asyncio.wait({task})

    async def _hold(self, won: Callable[[], object]) -> str:
        """Runs on the thread's event loop: acquire and keep the lease until it is lost, independent of the
        main loop."""
        elector = self.elector
        try:
            await elector.stand()
            won()
            self.lost = await elector.keep(self._core.hung)
            self._end_soon()  # before the log, which a stuck main loop may have locked
            log.error("the lease is lost", reason=self.lost, identity=elector.identity)
            return self.lost
        except Exception:
            self._end_soon()
            raise
        finally:
            await elector.release()
            await elector.close()

    def _end_soon(self) -> None:
        if self._end is not None:
            timer = threading.Timer(GRACE_S, self._end)
            timer.daemon = True
            timer.start()


async def _after(won: asyncio.Event, work: Callable[[], Awaitable[None]]) -> None:
    await won.wait()
    await work()
