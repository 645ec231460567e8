"""Conditions: what to write about pods and groups, as a function of what is there and what should be.

Called by the live scheduler and by the embedded cluster of the simulator. Each function answers None where
nothing changed, so a status is written once per change and not once per cycle. Start times move a little all
the time; one that was written stays until the new one is clearly another.

    pods        PodScheduled=False      Unschedulable      it waits, or it never fits; autoscalers read this
                                        WaitingForGroup    its siblings or its PodGroup are not there yet
                                        WaitingForVolumes  it has a node, and its claims are being bound
                StartPromised=True      LimitsEnforced     the start that it was told, as the message
                                        LimitsDeclared     the same, if durations hold
    PodGroups   PodGroupScheduled (1.36), PodGroupInitiallyScheduled (1.37)
                True Scheduled; False Unschedulable; False SchedulerError for a group that is refused

True is never taken back, and a group that is no gang gets no False: its pods have their own (KEP-4671).
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal, NamedTuple, cast

from fluence import messages, names
from fluence.model.grant import ReleaseNote
from fluence.model.group import Group
from fluence.model.meta import Condition
from fluence.model.pod import Pod
from fluence.model.reason import COUNTS, Code, Reason, Value
from fluence.schedule import recovery
from fluence.schedule.producer_gates import GateOutcome, OpenGate
from fluence.schedule.status import SchedulingStatus, StatusReport
from fluence.units import rfc3339

Json = dict[str, object]

MESSAGE_BYTES = 4096  # the server takes 32 KiB; nobody reads that
NOTE_BYTES = 1024  # of an event

POD_SCHEDULED = "PodScheduled"
GROUP_CONDITIONS = {
    "scheduling.k8s.io/v1alpha2": "PodGroupScheduled",
    "scheduling.k8s.io/v1beta1": "PodGroupInitiallyScheduled",
}

_SECOND = 1000
_MINUTE = 60 * _SECOND
# How finely a start is written, by how far away it is.
_STEPS = (
    (10 * _MINUTE, _MINUTE),
    (120 * _MINUTE, 5 * _MINUTE),
    (24 * 60 * _MINUTE, 30 * _MINUTE),
)
_FAR_STEP = 6 * 60 * _MINUTE

_STAMP = r"(\d{4,}-\d\d-\d\dT\d\d:\d\dZ)"
_LATEST = re.compile(rf"Starts no later than {_STAMP}")
_EXPECTED = re.compile(rf"expected {_STAMP}\.$")
_LOOSE = " if durations hold"  # those that nothing enforces
_TIMES = re.compile(
    rf" (?:Starts no later than {_STAMP}(?:{_LOOSE})?(?:; expected {_STAMP})?|Start expected {_STAMP})\.$"
)
# Numbers of nodes come and go with every pod of every user: they are shown and do not count as a change.
_COUNTS = re.compile(
    r"(?<=[:;] )\d+(?= )|\bon \d+ nodes?|\b\d+ of \d+ (?:seats|would fit)|\bskew would be \d+"
    r"| \([^()]* there\)"
    r"|\bwaits for \d+ \w+(?: and \d+ \w+)* of (?:another namespace|other namespaces) that [^;.]+"
)


_POD_REASONS = {
    SchedulingStatus.INCOMPLETE: "WaitingForGroup",
    SchedulingStatus.PREPARES: "WaitingForVolumes",
}


@dataclass(frozen=True, slots=True)
class EventNote:
    """An event."""

    kind: Literal["Normal", "Warning"]
    reason: str
    action: str
    text: str


# -- messages ------------------------------------------------------------------------------------------------


def message(report: StatusReport) -> str:
    """The reasons and both start times, in one text."""
    times = ""
    expected = _stamp(report.expected) if report.expected is not None else ""
    if report.no_later_than is not None:
        times = f" Starts no later than {_stamp(report.no_later_than)}{'' if report.firm else _LOOSE}"
        times += f"; expected {expected}." if expected else "."
    elif expected:
        times = f" Start expected {expected}."
    why = clip(" ".join(messages.texts(report.reasons).split()), MESSAGE_BYTES - len(times) - 1)
    if times and not why.endswith((".", "!", "?", "…")):
        why += "."
    return (why + times).strip()


class Written(NamedTuple):
    """What a message says."""

    meaning: Hashable
    no_later_than: int | None
    expected: int | None


class WrittenMessages:
    """What the messages of this process mean, by their text: the last of them, a bounded number.

    It answers for conditions that this process wrote, whichever object they stand on: the pods of a gang
    carry one text. So nothing is to be forgotten when an object goes.
    """

    def __init__(self, limit: int = 16_384) -> None:
        self._limit = limit
        self._found: OrderedDict[str, Written] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    def keep(self, text: str, written: Written) -> None:
        self._found[text] = written
        self._found.move_to_end(text)
        while len(self._found) > self._limit:
            self._found.popitem(last=False)

    def find(self, text: str) -> Written | None:
        return self._found.get(text)


def fingerprint(reason: Reason) -> Hashable:
    """What of a reason counts as a change: its code and its parameters; of numbers of nodes and seats only
    whether there are any, since "no seat" is another word than "3 of 8 seats"."""
    # Text that was given carries its numbers in it.
    if reason.code is Code.GIVEN:
        return reason.code, _without_counts(str(reason["text"]))
    parts = ((key, bool(value) if key in COUNTS else _part(value)) for key, value in reason.params)
    return reason.code, tuple(parts)


def _part(value: Value) -> Hashable:
    if isinstance(value, Reason):
        return fingerprint(value)
    return tuple(map(_part, value)) if isinstance(value, tuple) else value


def settle(report: StatusReport, *, latest: int | None, expected: int | None, now: int) -> StatusReport:
    """The same report with the times that were written before, where they still hold, else rounded up."""
    return replace(
        report,
        no_later_than=_round(report.no_later_than, latest, now, is_bound=True),
        expected=_round(report.expected, expected, now),
    )


def read_message(text: str) -> tuple[str, int | None, int | None]:
    """A message taken apart: the reason, no later than, expected. For `fluence explain`, and for what was
    written before this process was started."""
    latest, expected = _LATEST.search(text), _EXPECTED.search(text)
    return (
        _TIMES.sub("", text).strip().removesuffix("."),
        _millis(latest.group(1)) if latest else None,
        _millis(expected.group(1)) if expected else None,
    )


def rests_on_durations(text: str) -> bool:
    """Whether the start in a message rests on limits that nothing enforces."""
    found = _TIMES.search(text)
    return found is not None and _LOOSE in found.group()


def same(one: str, other: str) -> bool:
    """Two messages say the same, numbers of nodes aside."""
    return one == other or _without_counts(one) == _without_counts(other)


def _without_counts(text: str) -> str:
    return _COUNTS.sub("#", text)


def _changed(
    report: StatusReport, there: str, *, now: int, memory: WrittenMessages | None
) -> tuple[str, bool]:
    """The message of a report where ``there`` stands now, and whether that says something else."""
    before = memory.find(there) if memory is not None else None
    if before is not None:
        latest, expected = before.no_later_than, before.expected
    else:
        _, latest, expected = read_message(there)
    report = settle(report, latest=latest, expected=expected, now=now)
    text = message(report)
    meaning = report.firm, *map(fingerprint, report.reasons)
    written = Written(meaning, report.no_later_than, report.expected)
    # Who wrote what is there? If this process did, it knows what it meant. After a restart, or where somebody
    # else wrote it, only the text is left: it is compared with the numbers of nodes masked, so that a new
    # process does not write every condition of a cluster again.
    changed = text != there and (before != written if before is not None else not same(there, text))
    if changed and memory is not None:
        memory.keep(text, written)
    return text, changed


def clip(text: str, limit: int) -> str:
    """At most ``limit`` bytes of UTF-8, with an ellipsis where something is lost."""
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
    memory: WrittenMessages | None = None,
) -> Json | None:
    """The patch of ``pods/status`` (strategic merge) that tells a waiting pod why it waits; ``notes`` are
    annotations that go with it: unlike specs, the server takes them in a patch of the status. ``memory``:
    what this process wrote before.

    The server itself says True when a pod is bound, and SchedulingGated while it is gated; it leaves the
    latter standing when the gates are gone, so that is replaced like any other.
    """
    if report.outcome is SchedulingStatus.SCHEDULED or pod.spec.node_name or pod.is_terminal or pod.is_gated:
        return None
    if pod.metadata.deletion_timestamp is not None:
        return None
    there = pod.condition(POD_SCHEDULED) or Condition()
    text, changed = _changed(report, there.message, now=now, memory=memory)
    # NB autoscalers add nodes for Unschedulable, and more nodes would help neither of the other two.
    reason = _POD_REASONS.get(report.outcome, "Unschedulable")
    new = {key: note for key, note in (notes or {}).items() if pod.annotations.get(key) != note}
    if (
        there.status == "False"
        and there.reason == reason
        and not (changed or new or _asks_other(pod, report))
    ):
        return None
    condition = {"type": POD_SCHEDULED, "status": "False", "reason": reason, "message": text}
    return {
        "metadata": {"uid": pod.metadata.uid, **({"annotations": new} if new else {})},
        "status": {"conditions": [_timed(condition, there, now), *_promise(pod, report, now)]},
    }


def text_of(patch: Json) -> str:
    """What a patch of `pod_condition` tells people."""
    status = cast("dict[str, list[dict[str, str]]]", patch["status"])
    return status["conditions"][0]["message"]


def group_condition(
    group: Group, report: StatusReport, *, now: int, memory: WrittenMessages | None = None
) -> Json | None:
    """The patch of ``podgroups/status`` (strategic merge), as kube-scheduler writes it for its own groups."""
    kind = GROUP_CONDITIONS.get(group.source)
    if kind is None:
        return None  # 1.35 has no status to write, and other PodGroups have their own controller
    there = next((each for each in group.conditions if each.type == kind), Condition())
    if report.outcome is SchedulingStatus.SCHEDULED:
        if there.status == "True":
            return None
        return _patch(group.uid, there, kind, "True", "Scheduled", "", now)
    if there.status == "True" or not group.is_gang:
        return None
    text, changed = _changed(report, there.message, now=now, memory=memory)
    reason = "SchedulerError" if report.outcome is SchedulingStatus.REFUSED else "Unschedulable"
    if there.status == "False" and there.reason == reason and not changed:
        return None
    return _patch(group.uid, there, kind, "False", reason, text, now)


def bound(pod: Pod, node: str) -> EventNote:
    """The event about a pod that has its node: kube-scheduler's words, under our own name."""
    text = f"Successfully assigned {pod.key} to {node}"
    return EventNote("Normal", "Scheduled", "Binding", clip(text, NOTE_BYTES))


def note(report: StatusReport, text: str) -> EventNote:
    """The event that goes with a condition, whose text it has: what is rounded there is rounded here."""
    if report.outcome is SchedulingStatus.PREPARES:
        return EventNote("Normal", "WaitingForVolumes", "Scheduling", clip(text, NOTE_BYTES))
    return EventNote("Warning", "FailedScheduling", "Scheduling", clip(text, NOTE_BYTES))


def warning(reason: Reason) -> EventNote:
    """The event about what is declared and not used."""
    return EventNote("Warning", reason.code.value, "Scheduling", clip(messages.text(reason), NOTE_BYTES))


def released(release: ReleaseNote) -> EventNote:
    """The event about a Job that was let go."""
    nodes = release.annotations()[names.FLUXQUEUE_NODES]
    return EventNote("Normal", "Released", "Releasing", clip(f"Starts on {nodes}", NOTE_BYTES))


def limit_note(reason: Reason) -> EventNote:
    """The event about a limit that has passed."""
    return EventNote("Warning", reason.code.value, "EnforcingLimit", clip(messages.text(reason), NOTE_BYTES))


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
    """The event about a gate that was opened, or could not be."""
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
    """The condition with the start that a pod is told, for programs and for the scheduler after this one: to
    the millisecond. It goes with the other one and never alone."""
    there = pod.condition(names.START_PROMISED) or Condition()
    if report.no_later_than is not None:
        told = recovery.Promise(report.no_later_than, report.expected, report.firm, report.limit)
        made = recovery.promise_condition(told)
    elif there.status == "True" and report.outcome is not SchedulingStatus.PREPARES:
        made = recovery.no_promise()
    else:
        return []
    return [_timed(made, there, now)]


def _asks_other(pod: Pod, report: StatusReport) -> bool:
    """Whether the start that a pod was told is for another length of time, though it may be the same."""
    told = recovery.promise_of([pod]) if report.no_later_than is not None else None
    return told is not None and told.limit != report.limit


def _patch(uid: str, there: Condition, kind: str, status: str, reason: str, text: str, now: int) -> Json:
    # The uid is a precondition: an object made anew under this name does not get the old one's status.
    condition = _timed({"type": kind, "status": status, "reason": reason, "message": text}, there, now)
    return {"metadata": {"uid": uid}, "status": {"conditions": [condition]}}


def _timed(condition: Mapping[str, str], there: Condition, now: int) -> Json:
    """A condition with the time since which it has its status, where that is another."""
    since = {} if there.status == condition["status"] else {"lastTransitionTime": rfc3339(now * 1000)}
    return {**condition, **since}


# -- times ---------------------------------------------------------------------------------------------------


def _round(at: int | None, before: int | None, now: int, *, is_bound: bool = False) -> int | None:
    if at is None:
        return None
    away = max(0, at - now)
    step = next((step for within, step in _STEPS if away < within), _FAR_STEP)
    # A bound that was written must hold: it may be late and never early.
    if before is not None and before >= now and (0 if is_bound else -step) <= before - at <= step:
        return before
    return -(-max(at, now) // step) * step


def _stamp(ms: int) -> str:
    """To the minute: people read it."""
    return rfc3339(ms * 1000, "minutes")


def _millis(stamp: str) -> int | None:
    try:
        return int(datetime.strptime(stamp, "%Y-%m-%dT%H:%M%z").timestamp() * 1000)
    except ValueError:  # someone else wrote this message
        return None
