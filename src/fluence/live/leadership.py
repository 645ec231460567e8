"""Leadership: the lease of this process, kept by a thread that a busy core cannot delay.

The thread has a loop and a connection of its own. It renews the lease while the core comes round
(``Heartbeat``), however long a cycle takes, and stops when the core hangs. Who has led once leads no more: a
process whose lease is lost ends, and its supervisor starts a fresh one, which finds the truth in the API.

    held      by the clock alone, from any thread: a process that was stopped knows it before its next write
    lost      the work is cancelled, and ``lead`` raises; nothing is sent any more
    the end   if the core cannot even do that, ``end`` is called after ``grace_s``
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import structlog

from fluence.errors import FluenceError
from fluence.kube.lease import Elector
from fluence.live.heartbeat import Heartbeat
from fluence.live.loop_thread import LoopThread

log = structlog.get_logger("fluence.scheduler")

GRACE_S = 5.0  # for a process without a lease to end by itself


class LeaseLost(FluenceError):
    """Another replica may lead now."""


class Leadership:
    """``await Leadership(elector, core).lead(work)``; the elector's client is used by nobody else."""

    def __init__(
        self,
        elector: Elector,
        core: Heartbeat,
        *,
        end: Callable[[], None] | None = None,
        grace_s: float = GRACE_S,
    ) -> None:
        self.elector = elector
        self.lost = ""  # why
        self._core = core
        self._end = end
        self._grace_s = grace_s

    @property
    def held(self) -> bool:
        return self.elector.held

    async def lead(self, work: Callable[[], Awaitable[None]]) -> None:
        """Stand for the lease, then work until the work is done or the lease is lost: LeaseLost."""
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
                # NB the work stops first, while the lease still protects it; then the lease goes.
                for task in (working, holding):
                    task.cancel()
                    await asyncio.wait({task})

    async def _hold(self, won: Callable[[], object]) -> str:
        """On the thread's loop: from standing to the loss, without a turn of the core's loop between."""
        elector = self.elector
        try:
            await elector.stand()
            won()
            self.lost = await elector.keep(self._core.hung)
            self._end_soon()  # NB before the log, which a core that hangs may have locked
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
            timer = threading.Timer(self._grace_s, self._end)
            timer.daemon = True
            timer.start()


async def _after(won: asyncio.Event, work: Callable[[], Awaitable[None]]) -> None:
    await won.wait()
    await work()
