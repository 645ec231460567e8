"""Rendering: the text of a reason, from one template per code, and of times.

A text is a sentence without its full stop, so that it can be used alone, in a list, or before other
sentences.

Output that is read at once has the distance from now: ``2026-09-01 09:54:10 UTC (in 40 s)``. Conditions and
events are read later, when "in 40 s" would be wrong: they have the time alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, TypeAlias

from fluence.model.reason import Code, Reason, Value
from fluence.units import rfc3339, spell_duration

# The text of a code: a pattern that names its parameters, or a function if a pattern is not enough.
Template: TypeAlias = str | Callable[[Reason], str]
Templates: TypeAlias = dict[Code, Template]

TEMPLATES: Templates = {}  # of all codes, once `fluence.messages` is imported

_MAX_NAMES = 5


def text(reason: Reason) -> str:
    """The message of a reason, without a full stop."""
    template = TEMPLATES[reason.code]
    if callable(template):
        return template(reason)
    return template.format_map({key: shown(value) for key, value in reason.params})


def texts(reasons: Iterable[Reason]) -> str:
    """Several reasons, each a sentence; without the last full stop."""
    return " ".join(map(sentence, reasons)).removesuffix(".")


def sentence(reason: Reason) -> str:
    message = text(reason)
    return message if message.endswith((".", "!", "?")) else f"{message}."


# -- parts of templates --------------------------------------------------------------------------------------


def shown(value: Value) -> str | int | None:
    """A parameter as text; several are separated by commas."""
    if isinstance(value, Reason):
        return text(value)
    return ", ".join(str(shown(part)) for part in value) if isinstance(value, tuple) else value


def values(reason: Reason) -> dict[str, Any]:
    """The parameters of a reason, whose types follow from its code."""
    return dict(reason.params)


def reasons(value: Value) -> list[Reason]:
    """The reasons in a parameter that is a list of them."""
    return [reason for reason in value if isinstance(reason, Reason)] if isinstance(value, tuple) else []


def names(value: Value) -> str:
    """The first names, and how many more there are."""
    assert isinstance(value, tuple)
    some = ", ".join(map(str, value[:_MAX_NAMES]))
    more = len(value) - _MAX_NAMES
    return f"{some} and {more} more" if more > 0 else some


def all_of(value: Value) -> str:
    """`1 and 2`."""
    return " and ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def be(number: Value) -> str:
    return "is" if number == 1 else "are"


def count(number: int, word: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


# -- the start in conditions and events ----------------------------------------------------------------------


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
