"""Conditions: the statuses of pods and groups, for people and for programs, from the current and the wanted
state.

The live scheduler and the embedded cluster of the simulator call it. Each function returns None if nothing
changed, so a status is written once per change and not once per cycle. Start times move a little all the
time; a written one stays until the new one differs clearly.

    pods        PodScheduled=False      Unschedulable      more nodes would help; autoscalers read this
                                        WaitingForTurn     a promise, jobs ahead, a limit, a device
                                        WaitingForGroup    its siblings or its PodGroup are not there yet
                                        WaitingForVolumes  its claims are missing, or being bound
                                        SchedulerError     it is refused or quarantined
                WaitReported=True       the first code     the reasons and both times for programs, as JSON
                StartPromised=True      LimitsEnforced     the promised start, as the message
                                        LimitsDeclared     the same, if durations hold
    PodGroups   PodGroupScheduled (1.36), PodGroupInitiallyScheduled (1.37)
                True Scheduled; False Unschedulable; False SchedulerError for a group that is refused;
                and WaitReported, as for pods

True is never withdrawn, and only gangs get False: in other groups, the pods have their own conditions
(KEP-4671).

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
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, cast

import msgspec

from fluence import messages, names
from fluence.messages.rendering import start_sentence
from fluence.model.grant import ReleaseNote
from fluence.model.job_state import JobState
from fluence.model.meta import Condition
from fluence.model.owner import Group
from fluence.model.pod import Pod
from fluence.model.reason import COUNTS, Code, Reason, Value
from fluence.schedule import restart
from fluence.schedule.external_resources.producer_gates import GateOutcome, OpenGate
from fluence.schedule.status.status import PodReason, StatusReport
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


Json = dict[str, object]

MESSAGE_BYTES = 4096  # the server accepts 32 KiB, which is too long for people
NOTE_BYTES = 1024  # of an event

POD_SCHEDULED = "PodScheduled"
GROUP_CONDITIONS = {
    "scheduling.k8s.io/v1alpha2": "PodGroupScheduled",
    "scheduling.k8s.io/v1beta1": "PodGroupInitiallyScheduled",
}

_SECOND = 1000
_MINUTE = 60 * _SECOND
# The precision of a written start, by its distance.
_STEPS = (
    (10 * _MINUTE, _MINUTE),
    (120 * _MINUTE, 5 * _MINUTE),
    (24 * 60 * _MINUTE, 30 * _MINUTE),
)
_FAR_STEP = 6 * 60 * _MINUTE

# Waits that users asked for are not failures.
_OF_USERS = frozenset((PodReason.ARRAY, PodReason.HELD, PodReason.DEPENDENCY, PodReason.NEVER))
_UNLIMITED = frozenset((Code.WAITS_FOR_UNLIMITED, Code.WAITS_FOR_UNLIMITED_OF_OTHERS))


@dataclass(frozen=True, slots=True)
class EventNote:
    """An event."""

    kind: Literal["Normal", "Warning"]
    reason: str
    action: str
    text: str


# -- messages ------------------------------------------------------------------------------------------------


def message(report: StatusReport, *, now: int) -> str:
    """The reasons, then the start: sentences for people, in one line. No program reads them."""
    start = start_sentence(
        report.no_later_than,
        report.expected,
        firm=report.firm,
        endless=any(reason.code in _UNLIMITED for reason in report.reasons),
        now=now,
    )
    why = clip(" ".join(messages.texts(report.reasons).split()), MESSAGE_BYTES - len(start) - 2)
    if why and not why.endswith((".", "!", "?", "…")):
        why += "."
    return f"{why} {start}".strip()


def settle(report: StatusReport, *, latest: int | None, expected: int | None, now: int) -> StatusReport:
    """The same report with the times written before where they still hold, otherwise rounded up."""
    return replace(
        report,
        no_later_than=_round(report.no_later_than, latest, now, is_bound=True),
        expected=_round(report.expected, expected, now),
    )


def _changed(
    report: StatusReport, there: Condition, before: WaitReport | None, now: int
) -> tuple[StatusReport, bool]:
    """A report with settled times, and whether it differs from the one on the object: by its report, and by
    whether the sentence is still the one that was written with it."""
    report = settle(
        report,
        latest=None if before is None else before.no_later_than,
        expected=None if before is None else before.expected,
        now=now,
    )
    same = before is not None and before.says(report) and is_sentence_of(before, there.message)
    return report, not same


def clip(text: str, limit: int) -> str:
    """At most ``limit`` bytes of UTF-8, with an ellipsis if something is cut off."""
    data = text.encode()
    if len(data) <= limit:
        return text
    return data[: limit - 3].decode(errors="ignore") + "…"


# -- what to write -------------------------------------------------------------------------------------------


def pod_condition(
    pod: Pod,
    report: StatusReport,
    *,
    now: int,
    notes: Mapping[str, str] | None = None,
) -> Json | None:
    """The patch of ``pods/status`` (strategic merge) that says why a pod waits. ``notes`` are annotations
    that go with it: unlike changes of the spec, the server accepts them in a patch of the status.

    The server itself writes True when a pod is bound, and SchedulingGated while it is gated. It leaves the
    latter after the gates are gone, so this is replaced like any other reason.
    """
    if report.state is JobState.RUNNING or pod.spec.node_name or pod.is_terminal or pod.is_gated:
        return None
    if pod.metadata.deletion_timestamp is not None:
        return None
    there = pod.condition(POD_SCHEDULED) or Condition()
    generation = pod.metadata.generation
    settled, changed = _changed(report, there, wait_report(pod.status.conditions), now)
    # On servers with generations, a condition says which one it is about.
    changed |= there.observed_generation not in (None, generation)
    reason = report.pod_reason.value
    new = {key: note for key, note in (notes or {}).items() if pod.annotations.get(key) != note}
    if (
        there.status == "False"
        and there.reason == reason
        and not (changed or new or _asks_other(pod, report))
    ):
        return None
    text = message(settled, now=now)
    condition = {"type": POD_SCHEDULED, "status": "False", "reason": reason, "message": text}
    reported = _timed(wait_condition(settled, text), pod.condition(names.WAIT_REPORTED) or Condition(), now)
    conditions = [_timed(condition, there, now), reported, *_promise(pod, report, now)]
    if generation is not None:
        conditions = [{**each, "observedGeneration": generation} for each in conditions]
    return {
        "metadata": {"uid": pod.metadata.uid, **({"annotations": new} if new else {})},
        "status": {"conditions": conditions},
    }


def text_of(patch: Json) -> str:
    """The sentence for people in a patch of `pod_condition`."""
    status = cast("dict[str, list[dict[str, str]]]", patch["status"])
    return status["conditions"][0]["message"]


def group_condition(group: Group, report: StatusReport, *, now: int) -> Json | None:
    """The patch of ``podgroups/status`` (strategic merge), as kube-scheduler writes it for its own groups."""
    kind = GROUP_CONDITIONS.get(group.source)
    if kind is None:
        return None  # 1.35 has no status to write, and other PodGroups have their own controller
    present = {condition.type: condition for condition in group.conditions}
    there = present.get(kind, Condition())
    reported = present.get(names.WAIT_REPORTED, Condition())
    if report.state is JobState.RUNNING:
        if there.status == "True":
            return None
        done = {"type": kind, "status": "True", "reason": "Scheduled", "message": ""}
        conditions = [_timed(done, there, now)]
        if reported.status == "True":
            ended = {"type": names.WAIT_REPORTED, "status": "False", "reason": "Scheduled", "message": ""}
            conditions.append(_timed(ended, reported, now))
        return _patch(group.uid, conditions)
    if there.status == "True" or not group.is_gang:
        return None
    report, changed = _changed(report, there, wait_report(group.conditions), now)
    reason = "SchedulerError" if report.state is JobState.REFUSED else "Unschedulable"
    if there.status == "False" and there.reason == reason and not changed:
        return None
    text = message(report, now=now)
    waits = {"type": kind, "status": "False", "reason": reason, "message": text}
    return _patch(group.uid, [_timed(waits, there, now), _timed(wait_condition(report, text), reported, now)])


def bound(pod: Pod, node: str) -> EventNote:
    """The event about a bound pod, in kube-scheduler's words and under our own name."""
    text = f"Successfully assigned {pod.key} to {node}"
    return EventNote("Normal", "Scheduled", "Binding", clip(text, NOTE_BYTES))


def note(report: StatusReport, text: str) -> EventNote:
    """The event that goes with a condition. It has the same text, with the same rounded times."""
    if report.state is JobState.PREPARING:
        return EventNote("Normal", "WaitingForVolumes", "Scheduling", clip(text, NOTE_BYTES))
    if report.pod_reason in _OF_USERS and report.state is not JobState.REFUSED:
        return EventNote("Normal", report.pod_reason.value, "Scheduling", clip(text, NOTE_BYTES))
    return EventNote("Warning", "FailedScheduling", "Scheduling", clip(text, NOTE_BYTES))


def reminder(pod: Pod, report: StatusReport) -> EventNote | None:
    """The event about a pod that still waits, with its current text; None if it does not wait."""
    there = pod.condition(POD_SCHEDULED)
    if there is None or there.status != "False" or pod.spec.node_name or pod.is_gated or pod.is_terminal:
        return None
    return note(report, there.message)


def warning(reason: Reason) -> EventNote:
    """The event about a declaration without effect."""
    return EventNote("Warning", reason.code.value, "Scheduling", clip(messages.text(reason), NOTE_BYTES))


def released(release: ReleaseNote) -> EventNote:
    """The event about a released Job."""
    nodes = release.annotations()[names.FLUXQUEUE_NODES]
    return EventNote("Normal", "Released", "Releasing", clip(f"Starts on {nodes}", NOTE_BYTES))


def limit_note(reason: Reason) -> EventNote:
    """The event about an exceeded limit."""
    return EventNote("Warning", reason.code.value, "EnforcingLimit", clip(messages.text(reason), NOTE_BYTES))


def preemption_note(reason: Reason) -> EventNote:
    """The event about a pod that ends for work of higher priority, in kube-scheduler's words."""
    kind: Literal["Normal", "Warning"] = (
        "Warning" if reason.code in (Code.NOT_PREEMPTED, Code.PREEMPTION_PLANNED) else "Normal"
    )
    others = (Code.PREEMPTED_FOR_OTHERS, Code.RECLAIMED, Code.GANG_ENDED)
    name = Code.PREEMPTED if reason.code in others else reason.code
    return EventNote(kind, name.value, "Preempting", clip(messages.text(reason), NOTE_BYTES))


_GATE_CODES = {
    GateOutcome.ANNOUNCED: Code.PRODUCER_ANNOUNCED,
    GateOutcome.STARTED: Code.PRODUCER_STARTED,
    GateOutcome.FINISHED: Code.PRODUCER_FINISHED,
    GateOutcome.TIMED_OUT: Code.PRODUCER_SILENT,
    GateOutcome.PRODUCER_ENDED: Code.PRODUCER_ENDED,
    GateOutcome.PRODUCER_GONE: Code.PRODUCER_GONE,
}
_AS_WANTED = (GateOutcome.ANNOUNCED, GateOutcome.STARTED, GateOutcome.FINISHED)


def gate_note(order: OpenGate, error: str = "") -> EventNote:
    """The event about a gate that was removed, or could not be."""
    if error:
        reason = Reason.of(Code.GATE_NOT_OPENED, gate=order.gate, error=error)
    else:
        told: dict[str, Value] = {"gate": order.gate, "producer": order.producer}
        if order.outcome is GateOutcome.ANNOUNCED:
            told["task"] = order.task
        elif order.outcome is GateOutcome.TIMED_OUT:
            told["limit"] = order.timeout
        reason = Reason.of(_GATE_CODES[order.outcome], **told)
    kind: Literal["Normal", "Warning"] = "Normal" if not error and order.outcome in _AS_WANTED else "Warning"
    return EventNote(kind, reason.code.value, "OpeningGate", clip(messages.text(reason), NOTE_BYTES))


def _promise(pod: Pod, report: StatusReport, now: int) -> list[Json]:
    """The condition with the promised start of a pod, to the millisecond, for programs and for the next
    scheduler. It is only written together with the other conditions."""
    there = pod.condition(names.START_PROMISED) or Condition()
    if report.no_later_than is not None:
        told = restart.Promise(report.no_later_than, report.expected, report.firm, report.limit)
        made = restart.promise_condition(told)
    elif there.status == "True" and report.state is not JobState.PREPARING:
        made = restart.no_promise()
    else:
        return []
    return [_timed(made, there, now)]


def _asks_other(pod: Pod, report: StatusReport) -> bool:
    """Whether the promise on a pod was made for another limit, even if the start is the same."""
    told = restart.promise_of([pod]) if report.no_later_than is not None else None
    return told is not None and told.limit != report.limit


def _patch(uid: str, conditions: list[Json]) -> Json:
    # The uid is a precondition: a new object with this name must not get the status of the old one.
    return {"metadata": {"uid": uid}, "status": {"conditions": conditions}}


def _timed(condition: Mapping[str, str], there: Condition, now: int) -> Json:
    """A condition with its transition time, if its status changes."""
    since = {} if there.status == condition["status"] else {"lastTransitionTime": rfc3339(now * 1000)}
    return {**condition, **since}


# -- times ---------------------------------------------------------------------------------------------------


def _round(at: int | None, before: int | None, now: int, *, is_bound: bool = False) -> int | None:
    if at is None:
        return None
    away = max(0, at - now)
    step = next((step for within, step in _STEPS if away < within), _FAR_STEP)
    # A written bound must hold: it may be late but never early.
    if before is not None and before >= now and (0 if is_bound else -step) <= before - at <= step:
        return before
    return -(-max(at, now) // step) * step
