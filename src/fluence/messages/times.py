"""Times for people.

Output that is read at once has the distance from now: ``2026-09-01 09:54:10 UTC (in 40 s)``. Conditions and
events are read later, when "in 40 s" would be wrong: they have the time alone.
"""

from __future__ import annotations

from datetime import UTC, datetime

from fluence.units import rfc3339, spell_duration

_EPOCH = 1_000_000_000_000  # from here on ms are a date; smaller ones count from the start of a simulation
_MINUTE = 60_000
_NEAR = 12 * 60 * _MINUTE  # a time this close needs no date

_UNKNOWN = "The start is unknown"
_KEPT_LIMITS = ", if running jobs keep their limits"


def when(at: int, now: int) -> str:
    """A time in ms, and how far it is from now."""
    if at == now:
        away = "now"
    else:
        away = f"in {spell_duration(at - now)}" if at > now else f"{spell_duration(now - at)} ago"
    return f"{stamp(at)} ({away})" if at >= _EPOCH else away


def moment(at: int) -> str:
    """A time in ms, for texts that are read later."""
    return stamp(at) if at >= _EPOCH else f"{spell_duration(at)} after the start"


def clock(at: int, *, dated: bool) -> str:
    """A time in ms to the minute, for texts that are read later; ``dated``: with its date."""
    if at < _EPOCH:
        return moment(at)
    date, _, time = rfc3339(at * 1000, "minutes").removesuffix("Z").partition("T")
    return f"{date} {time} UTC" if dated else f"{time} UTC"


def stamp(at: int) -> str:
    """``2026-09-01 09:54:10 UTC``, rounded up to whole seconds: a bound may be late but never early."""
    rounded = datetime.fromtimestamp(-(-at // 1000), UTC)
    return rounded.strftime("%Y-%m-%d %H:%M:%S UTC")


# -- the start in conditions and events ----------------------------------------------------------------------


def start_sentence(
    latest: int | None, expected: int | None, *, firm: bool, endless: bool = False, now: int
) -> str:
    """``Starts by 15:50 UTC (expected 15:48), if running jobs keep their limits.``

    ``firm``: Fluence enforces the limits that the promise depends on. ``endless``: the job waits for work
    that has no time limit.
    """
    if latest is not None:
        likely = "" if expected is None else f" (expected {_clock(expected, now)})"
        return f"Starts by {_clock(latest, now)} UTC{likely}{'' if firm else _KEPT_LIMITS}."
    if expected is not None:
        return f"Expected to start at {_clock(expected, now)} UTC."
    return f"{_UNKNOWN}." if endless else ""


def _clock(at: int, now: int) -> str:
    """To the minute, with the date if the time is far away."""
    date, _, time = rfc3339(at * 1000, "minutes").removesuffix("Z").partition("T")
    return time if abs(at - now) < _NEAR else f"{date} {time}"
