"""Wait report: why a pod or a group waits and when it starts, as a condition that programs read.

The sentence in `PodScheduled` is for people. Everything that a program needs is in a condition of our own,
`fluence.flux-framework.org/WaitReported`, as JSON: the codes of the reasons with their parameters, both start
times, and what these depend on. It is written in the same patch as the sentence. The scheduler compares it
with the current report, and `fluence explain` shows it; neither reads the sentence. Users cannot write a
pod's status. A report that cannot be read counts as missing and is written again.

    {"reasons": [{"code": "TooFewSeats", "wanted": 4, …}], "meaning": "6f1a0c7b", "sentence": "1d0e4c2a",
     "noLaterThan": "2026-09-01T13:30:00Z", "expected": "2026-09-01T13:00:00Z", "restsOn": "limits"}

A job that was held or depended on other jobs also has `eligible`, since when it may start, and `opened`, a
digest of its dependencies. The next scheduler reads them (`schedule.eligibility`), because the producers may
be gone by then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec

from fluence import messages, names
from fluence.model.meta import Condition
from fluence.model.reason import COUNTS, Code, Reason, Value
from fluence.schedule.status.status import StatusReport
from fluence.units import parse_rfc3339, rfc3339

MAX_BYTES: Final = 8192  # of the reasons; the server accepts 32 KiB
_MAX_NAMES: Final = 3
_MAX_COUNT: Final = 1_000_000


class _Wire(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    meaning: str
    sentence: str
    rests_on: Literal["limits", "durations"]
    reasons: list[dict[str, Any]] = []
    no_later_than: str | None = None
    expected: str | None = None
    eligible: str | None = None
    opened: str = ""


_decoder: Final = msgspec.json.Decoder(_Wire)


@dataclass(frozen=True, slots=True)
class WaitReport:
    """The contents of the condition. Times are in milliseconds since 1970."""

    meaning: str
    sentence: str  # a digest that shows whether the sentence beside it is still ours
    firm: bool
    no_later_than: int | None = None
    expected: int | None = None
    eligible: int | None = None
    opened: str = ""
    reasons: tuple[Reason, ...] = ()  # empty if there were too many to write, or a newer version wrote them

    def says(self, report: StatusReport) -> bool:
        """Whether a report with settled times says the same."""
        same_times = (self.no_later_than, self.expected) == (report.no_later_than, report.expected)
        same_start = (self.eligible, self.opened) == (report.eligible, _opened(report))
        return (
            same_times
            and same_start
            and (self.meaning, self.firm) == (meaning_of(report.reasons), report.firm)
        )

    @property
    def text(self) -> str:
        """The reasons in words; empty if they are unknown to this version."""
        try:
            return messages.texts(self.reasons)
        except (KeyError, TypeError, ValueError, IndexError):  # parameters of another version
            return ""


def wait_condition(report: StatusReport, sentence: str) -> dict[str, str]:
    """The condition for a report. ``sentence`` is the text for people beside it."""
    reasons = [_to_data(reason) for reason in report.reasons]
    if len(msgspec.json.encode(reasons)) > MAX_BYTES:
        reasons = []
    wire = _Wire(
        meaning_of(report.reasons),
        _digest(sentence),
        "limits" if report.firm else "durations",
        reasons,
        _stamp(report.no_later_than),
        _stamp(report.expected),
        _stamp(report.eligible),
        _opened(report),
    )
    code = report.reasons[0].code.value if report.reasons else "Waiting"
    return {
        "type": names.WAIT_REPORTED,
        "status": "True",
        "reason": code,
        "message": msgspec.json.encode(wire).decode(),
    }


def wait_report(conditions: Iterable[Condition] | None) -> WaitReport | None:
    """The report in the conditions of an object; None if it has none that can be read."""
    condition = next((each for each in conditions or () if each.type == names.WAIT_REPORTED), None)
    if condition is None or condition.status != "True":
        return None
    try:
        wire = _decoder.decode(condition.message)
    except (msgspec.MsgspecError, RecursionError):
        return None
    try:
        reasons = tuple(_from_data(data) for data in wire.reasons)
    except (KeyError, TypeError, ValueError, RecursionError):
        reasons = ()
    return WaitReport(
        wire.meaning,
        wire.sentence,
        wire.rests_on == "limits",
        _millis(wire.no_later_than),
        _millis(wire.expected),
        _millis(wire.eligible),
        wire.opened,
        reasons,
    )


def _opened(report: StatusReport) -> str:
    return "" if report.eligible is None else report.opened


def is_sentence_of(report: WaitReport, sentence: str) -> bool:
    """Whether this sentence was written together with the report."""
    return report.sentence == _digest(sentence)


def meaning_of(reasons: Iterable[Reason]) -> str:
    """A digest of what counts as a change (`fingerprint`), the same in every process."""
    return _digest(repr([fingerprint(reason) for reason in reasons]))


def fingerprint(reason: Reason) -> Hashable:
    """The part of a reason that counts as a change: its code and its parameters. For numbers of nodes and
    seats, only whether they are zero counts, since "no seat" reads differently from "3 of 8 seats"."""
    parts = ((key, bool(value) if key in COUNTS else _part(value)) for key, value in reason.params)
    return reason.code.value, tuple(parts)


def _part(value: Value) -> Hashable:
    if isinstance(value, Reason):
        return fingerprint(value)
    return tuple(map(_part, value)) if isinstance(value, tuple) else value


def _digest(text: str) -> str:
    return hashlib.blake2s(text.encode(errors="replace"), digest_size=8).hexdigest()


# -- reasons as JSON -----------------------------------------------------------------------------------------


def _to_data(reason: Reason) -> dict[str, Any]:
    return {
        "code": reason.code.value,
        **{key: _value_to_data(value, key in COUNTS) for key, value in reason.params},
    }


def _value_to_data(value: Value, counts: bool = False) -> Any:
    if isinstance(value, Reason):
        return _to_data(value)
    if isinstance(value, tuple):
        if counts and len(value) > _MAX_NAMES and all(isinstance(item, str) for item in value):
            return {"count": len(value), "first": list(value[:_MAX_NAMES])}  # thousands of nodes
        return [_value_to_data(item) for item in value]
    return value


def _from_data(data: Mapping[str, Any]) -> Reason:
    params = {key: _value_from_data(value) for key, value in data.items() if key != "code"}
    return Reason.of(Code(data["code"]), **params)


def _value_from_data(value: Any) -> Value:
    if isinstance(value, dict):
        if "code" in value:
            return _from_data(value)
        first, count = value["first"], value["count"]
        if not isinstance(count, int) or not 0 < count < _MAX_COUNT:
            raise ValueError(f"no count: {count!r}")
        return (*map(str, first), *("…" for _ in range(count - len(first))))
    if isinstance(value, list):
        return tuple(_value_from_data(item) for item in value)
    if value is None or isinstance(value, str | int):
        return value
    raise ValueError(f"no value of a reason: {value!r}")


def _stamp(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms * 1000, "milliseconds")


def _millis(stamp: str | None) -> int | None:
    at = parse_rfc3339(stamp or "")
    return None if at is None else at // 1000
