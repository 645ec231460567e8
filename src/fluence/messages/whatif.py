"""What-if answers for people, line by line, and for programs. Used by `fluence whatif`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluence.messages import states, times
from fluence.messages.rendering import texts
from fluence.queue.job import SECOND
from fluence.queue.reasons import Change
from fluence.queue.whatif import Delay, WhatIfAnswer
from fluence.units import spell_duration


def lines(answer: WhatIfAnswer, shown: int | None = None) -> list[str]:
    """What would become of the job, and of the others; ``shown`` bounds how many of them are named."""
    if answer.never:
        return [f"{states.UNSCHEDULABLE}: {texts(answer.reason.reasons)}"]
    return [*own_lines(answer, shown), *delay_lines(answer.delays, shown)]


def own_lines(answer: WhatIfAnswer, shown: int | None = None) -> list[str]:
    """What would become of the job itself."""
    if answer.never:
        return lines(answer, shown)
    if answer.starts_now:
        return ["it would start now"]
    when = "at a time that nobody knows"
    if answer.start is not None:
        when = f"no later than {times.when(answer.start, answer.now)}"
    found = [f"it would wait, and start {when}"]
    if answer.expected is not None:
        found.append(f"expected, by how long such jobs ran: {times.when(answer.expected, answer.now)}")
    found.append(f"blocked by {answer.reason.kind.value}: {texts(answer.reason.reasons)}")
    if answer.reason.waits_for:
        found.append(f"waits for {_list(answer.reason.waits_for, shown)}")
    found.extend(f"sooner: {change_text(change, answer.now)}" for change in answer.reason.changes)
    return found


def delay_lines(delays: Sequence[Delay], shown: int | None = None) -> list[str]:
    """Who would wait longer."""
    if not delays:
        return ["nobody else would wait longer"]
    found = [
        f"job {each.job} would start {spell_duration(each.after - each.before)} later"
        for each in delays[:shown]
    ]
    if shown is not None and len(delays) > shown:
        found.append(f"… and {len(delays) - shown} more (see -o wide)")
    return found


def change_text(change: Change, now: int) -> str:
    """What to change, and what that would do."""
    how = {
        "size": f"ask for {change.value} instead",
        "limit": f"lower its limit to {spell_duration(change.value or 0)}",
        "constraint": "drop its constraint",
    }[change.what]
    return f"{how}: it would start {'now' if change.start <= now else times.when(change.start, now)}"


def value(answer: WhatIfAnswer) -> dict[str, Any]:
    """The answer for programs, in seconds."""
    return {
        "now": answer.now / SECOND,
        "state": _state(answer),
        "starts_now": answer.starts_now,
        "never": answer.never,
        "start_no_later_than": _seconds(answer.start),
        "expected_start": _seconds(answer.expected),
        "reason": {
            "kind": answer.reason.kind.value,
            "codes": [reason.code.value for reason in answer.reason.reasons],
            "text": texts(answer.reason.reasons),
        },
        "waits_for": list(answer.reason.waits_for),
        "changes": [_change(change) for change in answer.reason.changes],
        "delays": delay_values(answer.delays),
    }


def delay_values(delays: Sequence[Delay]) -> list[dict[str, Any]]:
    return [
        {"job": each.job, "before": each.before / SECOND, "after": each.after / SECOND} for each in delays
    ]


def _list(keys: tuple[str, ...], shown: int | None) -> str:
    more = 0 if shown is None else len(keys) - shown
    return ", ".join(keys[:shown]) + (f" and {more} more" if more > 0 else "")


def _state(answer: WhatIfAnswer) -> str:
    if answer.never:
        return states.UNSCHEDULABLE
    if answer.starts_now:
        return states.STARTING
    return states.PENDING if answer.start is None else states.RESERVED


def _seconds(time: int | None) -> float | None:
    return None if time is None else time / SECOND


def _change(change: Change) -> dict[str, Any]:
    if change.what == "limit" and change.value is not None:
        return {"what": "limit", "to_s": change.value / SECOND, "start": change.start / SECOND}
    return {"what": change.what, "to": change.value, "start": change.start / SECOND}
