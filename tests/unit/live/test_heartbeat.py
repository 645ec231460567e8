"""A core that comes round is alive, however seldom; one that does not hangs."""

from __future__ import annotations

import asyncio

from fluence.clock import ManualClock
from fluence.live.threads import Heartbeat


async def test_a_core_hangs_when_it_has_not_come_round_for_longer_than_the_limit() -> None:
    clock = ManualClock()
    heart = Heartbeat(clock, limit_s=0.04)
    beats = asyncio.create_task(heart.run())
    await asyncio.sleep(0)
    clock.advance(0.04)
    assert heart.hung() == "", "merely long"
    clock.advance(0.001)
    assert heart.hung() == "the core hangs: it has not come round for 0 s (stuck-after: 0.04 s)"
    await asyncio.sleep(0.05)  # it comes round
    assert heart.hung() == ""
    beats.cancel()
    await asyncio.wait({beats})
    clock.advance(61)
    assert "for 61 s" in heart.hung()
