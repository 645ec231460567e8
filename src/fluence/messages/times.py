"""Times for people: when, and how far that is from now: `2026-09-01 09:54:10 UTC (in 40 s)`.

For what is read at once. Conditions and events have only the first part: they are read later, and "in 40 s"
would be wrong by then.
"""

from __future__ import annotations

from datetime import UTC, datetime

from fluence.units import spell_duration

_EPOCH = 1_000_000_000_000  # ms this large are a date; smaller ones are a simulation's, after its beginning


def when(at: int, now: int) -> str:
    """A moment in ms, as it is seen from now."""
    if at == now:
        away = "now"
    else:
        away = f"in {spell_duration(at - now)}" if at > now else f"{spell_duration(now - at)} ago"
    return f"{stamp(at)} ({away})" if at >= _EPOCH else away


def moment(at: int) -> str:
    """A moment in ms, for texts that are read later."""
    return stamp(at) if at >= _EPOCH else f"{spell_duration(at)} after the beginning"


def stamp(at: int) -> str:
    """`2026-09-01 09:54:10 UTC`, in whole seconds, rounded up: a bound may be late and never early."""
    rounded = datetime.fromtimestamp(-(-at // 1000), UTC)
    return rounded.strftime("%Y-%m-%d %H:%M:%S UTC")
