"""Answers of `fluence whatif`: lines for people, and a value for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluence.messages import rendering
from fluence.messages.rendering import count, text, texts
from fluence.model.job_state import JobState
from fluence.queue.job import SECOND
from fluence.queue.reasons import Change, Delay, EndsFor, WhatIfAnswer
from fluence.units import spell_duration

ANOTHER_NAMESPACE = "(another namespace)"
"""In place of the key of a job whose name the reader may not know."""


def lines(answer: WhatIfAnswer, shown: int | None = None) -> list[str]:
    """What would happen to the job and to others; at most ``shown`` of them are named."""
    if answer.never:
        return [f"{JobState.UNSCHEDULABLE.phase}: {texts(answer.reason.reasons)}"]
    return [*own_lines(answer, shown), *delay_lines(answer.delays, shown)]


def own_lines(answer: WhatIfAnswer, shown: int | None = None) -> list[str]:
    """What would happen to the job itself."""
    if answer.never:
        return lines(answer, shown)
    if answer.starts_now:
        began = answer.start is not None and answer.start < answer.now
        return ["it has started already" if began else "it would start now"]
    start = "it would wait; the start is unknown"
    if answer.start is None and answer.expected is not None:
        start = "it would wait; no start is promised"
    elif answer.start is not None:
        start = f"it would wait and start {rendering.when(answer.start, answer.now)} at the latest"
    rows = [start]
    if answer.expected is not None:
        rows.append(f"expected, from earlier run times: {rendering.when(answer.expected, answer.now)}")
    rows.append(f"blocked by {answer.reason.kind.value}: {texts(answer.reason.reasons)}")
    if answer.reason.waits_for:
        rows.append(f"waiting for {_list(answer.reason.waits_for, shown)}")
    rows.extend(text(reason) for reason in answer.preemption)
    rows.extend(end_text(each, answer.now) for each in answer.ends[:shown])
    if shown is not None and len(answer.ends) > shown:
        rows.append(f"… and {len(answer.ends) - shown} more (see -o wide)")
    rows.extend(f"sooner: {change_text(change, answer.now)}" for change in answer.reason.changes)
    return rows


def end_text(ends: EndsFor, now: int) -> str:
    """Who would end, when, and what is lost."""
    when = "now" if ends.at <= now else rendering.when(ends.at, now)
    if ends.job == ANOTHER_NAMESPACE:
        return f"{_job(ends.job)} would end {when}"
    lost = f"{spell_duration(ends.lost)} of its work would be lost, {ends.cost:,.0f} cluster-seconds"
    return f"job {ends.job} would end {when} ({count(ends.pods, 'pod')}): {lost}"


def delay_lines(delays: Sequence[Delay], shown: int | None = None) -> list[str]:
    """The jobs that would wait longer."""
    if not delays:
        return ["no other job would start later"]
    rows = [
        f"{_job(delay.job)} would start {spell_duration(delay.after - delay.before)} later"
        for delay in delays[:shown]
    ]
    if shown is not None and len(delays) > shown:
        rows.append(f"… and {len(delays) - shown} more (see -o wide)")
    return rows


def change_text(change: Change, now: int) -> str:
    """A change to the job, and when it would start then."""
    how = {
        "size": f"request {change.value} instead",
        "limit": f"lower its time limit to {spell_duration(change.value or 0)}",
        "constraint": "remove its constraint",
    }[change.what]
    return f"{how}: it would start {'now' if change.start <= now else rendering.when(change.start, now)}"


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
        "preemption": {
            "codes": [reason.code.value for reason in answer.preemption],
            "text": texts(answer.preemption),
            "ends": [
                {
                    "job": each.job,
                    "pods": each.pods,
                    "at": each.at / SECOND,
                    "lost_s": each.lost / SECOND,
                    "cost_cluster_s": round(each.cost, 3),
                }
                for each in answer.ends
            ],
        },
        "delays": delay_values(answer.delays),
    }


def delay_values(delays: Sequence[Delay]) -> list[dict[str, Any]]:
    return [
        {"job": delay.job, "before": delay.before / SECOND, "after": delay.after / SECOND} for delay in delays
    ]


def _job(key: str) -> str:
    return "a job of another namespace" if key == ANOTHER_NAMESPACE else f"job {key}"


def _list(keys: tuple[str, ...], shown: int | None) -> str:
    more = 0 if shown is None else len(keys) - shown
    return ", ".join(keys[:shown]) + (f" and {more} more" if more > 0 else "")


def _state(answer: WhatIfAnswer) -> str:
    if answer.never:
        return JobState.UNSCHEDULABLE.phase
    if answer.starts_now:
        return JobState.STARTING.phase
    return (JobState.PENDING if answer.start is None else JobState.RESERVED).phase


def _seconds(time: int | None) -> float | None:
    return None if time is None else time / SECOND


def _change(change: Change) -> dict[str, Any]:
    if change.what == "limit" and change.value is not None:
        return {"what": "limit", "to_s": change.value / SECOND, "start": change.start / SECOND}
    return {"what": change.what, "to": change.value, "start": change.start / SECOND}
