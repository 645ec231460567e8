"""Standing: the place of a workload in the queue, as the status of its FluxJob; a pure function.

A status is written when something changed that a user can see. The place in the queue is exact for the first
ten, and then rounded in growing steps; start times are rounded as in conditions. The jobs it waits for and
its expected start are updated with such a change, and at once for the first job in the queue. So a queue of
ten thousand jobs costs a bounded number of writes per job.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from fluence import messages, names
from fluence.act import conditions
from fluence.controller.flux_job import FluxCondition, FluxJobSpec, FluxJobStatus, SubmitStatus, Workload
from fluence.controller.unstarted import refusal
from fluence.model.grant import pinned_node
from fluence.model.job_state import JobState
from fluence.model.operators import CustomOwner
from fluence.model.owner import Job, Owner
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.pod_set import PodSet
from fluence.schedule.queueing.placeholder import is_placeholder
from fluence.schedule.restart import PriorPromise, Promise, promise_condition, read_promise
from fluence.schedule.status.status import StatusReport
from fluence.units import parse_rfc3339, rfc3339

_TO = " to "
_EXACT = 10  # places that are shown exactly; then 20, 50, 100, 200, 500 …
_MESSAGE_BYTES = 1024
_FAR = 366 * 86_400_000
_REPORTED = ("Pending", "Reserved", "Unschedulable")


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a workload."""

    workload: Workload
    gang: Gang | None
    pod_sets: Mapping[str, PodSet]
    report: StatusReport | None  # its last report
    position: int | None  # its place in the queue


def status(found: Standing, before: FluxJobStatus, *, generation: int, now: int) -> FluxJobStatus:
    """The status that a FluxJob should have. ``before`` is the current one."""
    phase, reason, text = _phase(found)
    report = found.report if phase in ("Pending", "Reserved") else None
    if report is not None:
        report = conditions.settle(
            report, latest=_millis(before.no_later_than), expected=_millis(before.expected), now=now
        )
    position = rounded(found.position) if phase in ("Pending", "Reserved") else None
    latest = _stamp(report.no_later_than) if report is not None else None
    expected = _stamp(report.expected) if report is not None and _is_near(report.expected, now) else None
    same = (phase, reason, position, latest) == (
        *(before.phase, before.reason, before.position, before.no_later_than),
    )
    if same and position is not None and position > _EXACT:
        expected = before.expected
    stays = same and expected == before.expected and position != 1
    reported = _reported(found.report if phase in _REPORTED else None, before, stays=stays)
    if stays or (reported is not None and reported in (before.conditions or ())):
        text = before.message  # the holders of nodes change with every pod of every user
    main = _main(found)
    holds = main is not None and main.state.has_nodes
    made = FluxJobStatus(
        submit_status=_SUBMIT.get(phase, SubmitStatus.SUBMIT),
        phase=phase,
        position=position,
        reason=reason,
        message=conditions.clip(text, _MESSAGE_BYTES),
        queued=before.queued or _queued(found),
        no_later_than=latest,
        expected=expected,
        started=_stamp(main.started) if main is not None and holds else before.started,
        nodes=_nodes(found) or before.nodes,
        allocation=str(main.number) if main is not None and holds else before.allocation,
    )
    if made.allocation == before.allocation and not (found.gang is not None and found.gang.shrinks):
        # The nodes of ended pods still count.
        made = replace(made, nodes=list(dict.fromkeys((*(before.nodes or ()), *(made.nodes or ())))) or None)
    if phase in ("Pending", "Reserved", "Held", "Unschedulable", "Refused"):
        made = replace(made, started=None, nodes=None, allocation="")  # it has lost its nodes
    kept = {each.type: each for each in before.conditions or ()}
    scheduled = phase in ("Starting", "Running", "Completed", "Failed")
    finished = phase in ("Completed", "Failed")
    never = phase == "Unschedulable"
    pairs = (
        ("Scheduled", scheduled, reason or phase, text),
        ("Finished", finished, phase, ""),
        ("Unschedulable", never, reason or phase, text if never else ""),
    )
    return replace(
        made,
        start=made.started or made.no_later_than,
        conditions=[
            *(
                _condition(kept.get(kind), kind, is_so, why, said, generation, now)
                for kind, is_so, why, said in pairs
            ),
            *([] if reported is None else [_dated(reported, kept, generation, now)]),
            *_promised(found, latest, kept.get(names.START_PROMISED), now),
        ],
    )


def _reported(report: StatusReport | None, before: FluxJobStatus, *, stays: bool) -> FluxCondition | None:
    """The reasons for programs, without times, which have their own fields. Reasons with the same meaning
    stay as they were written."""
    if report is None or not report.reasons:
        return None
    known = conditions.wait_report(before.conditions)
    if known is not None and (stays or known.meaning == conditions.meaning_of(report.reasons)):
        return next(each for each in before.conditions or () if each.type == names.WAIT_REPORTED)
    made = conditions.wait_condition(dataclasses.replace(report, no_later_than=None, expected=None), "")
    return FluxCondition(type=made["type"], status="True", reason=made["reason"], message=made["message"])


def _dated(
    reported: FluxCondition, kept: Mapping[str, FluxCondition], generation: int, now: int
) -> FluxCondition:
    before = kept.get(reported.type)
    return _condition(before, reported.type, True, reported.reason, reported.message, generation, now)


def _promised(
    found: Standing, latest: str | None, before: FluxCondition | None, now: int
) -> Iterator[FluxCondition]:
    """The promise of a start with the limit and the generation of the workload that it was made for. The spec
    and the owner of a FluxJob can be changed by its user, so they do not count."""
    at = _millis(latest)
    if at is not None:
        limit = found.gang.limit if found.gang is not None else None
        said = promise_condition(Promise(at, limit=limit))
        generation = found.workload.object.metadata.generation or 0
        kind, why, text = names.START_PROMISED, said["reason"], f"{said['message']}{_TO}{found.workload.uid}"
        yield _condition(before, kind, True, why, text, generation, now)


def told(spec: FluxJobSpec, before: FluxJobStatus, uid: str) -> PriorPromise | None:
    """The promise and the arrival time of a waiting workload, for a scheduler that takes over. ``uid``: of
    the workload that is named as its owner."""
    at = _millis(before.no_later_than) if before.phase in ("Pending", "Reserved") else None
    promise: Promise | None = None
    generation = None
    if at is not None:
        said = next((each for each in before.conditions or () if each.type == names.START_PROMISED), None)
        # The status of an earlier version lacks the condition: its spec has the limit.
        promise = Promise(at, limit=spec.duration * 1000 or None)
        if said is not None:
            text, _, whom = said.message.partition(_TO)
            promise = read_promise(replace(said, message=text)) if whom == uid else None
            generation = said.observed_generation
        promise = promise and promise._replace(expected=_millis(before.expected))
    queued = parse_rfc3339(before.queued or "")
    return None if promise is None and queued is None else PriorPromise(promise, queued, generation)


def rounded(position: int | None) -> int | None:
    """A place as it is shown: exact at the front, then rounded up to 20, 50, 100, 200, 500 …"""
    if position is None or position <= _EXACT:
        return position
    step = _EXACT
    while True:
        for factor in (2, 5, 10):
            if position <= step * factor:
                return step * factor
        step *= 10


def _phase(found: Standing) -> tuple[str, str, str]:
    """Phase, reason code and message."""
    gang, item = found.gang, found.workload.object
    ended = _ended(item)
    if ended is not None:
        return ended, ended, ""
    if gang is None:
        is_released = isinstance(item, Job | CustomOwner) and not item.spec.suspend
        return ("Starting" if is_released else "Held"), "", ""
    waits = [each for each in found.pod_sets.values() if not each.state.has_nodes]
    held = [each for each in found.pod_sets.values() if each.state.has_nodes]
    if not held:
        if gang.is_over and not waits:
            return ("Running" if gang.ended else "Held"), "", ""  # its owner has not counted them yet
        if gang.fault is not None:
            never = gang.fault.code is Code.CLUSTER_HOLDS_FEWER
            return "Unschedulable" if never else "Refused", *_said(gang.fault)
        if any(each.state is JobState.UNSCHEDULABLE for each in waits):
            return "Unschedulable", *_told(found.report, waits)
        if gang.missing is not None and not any(each.state is not JobState.GATHERING for each in waits):
            return "Held", *_said(gang.missing)
        if waits and all(each.state is JobState.GATHERING for each in waits):
            return "Held", *_told(found.report, waits)  # it depends on other jobs
        phase = "Reserved" if any(each.state is JobState.RESERVED for each in waits) else "Pending"
        return phase, *_told(found.report, waits)
    there = [pod for pod in gang.placed if pod.spec.node_name and not is_placeholder(pod)]
    if any(each.state is not JobState.RUNNING or each.expects or each.arrived for each in held) and not there:
        return "Starting", *_refused(gang)
    more = len([pod for pod in gang.members if not is_placeholder(pod)])
    if waits and more:
        reason, text = _told(found.report, waits)
        return "Running", reason, f"{more} more wait: {text}" if text else f"{more} more wait"
    return "Running", "", ""


def _refused(gang: Gang) -> tuple[str, str]:
    """What kube-scheduler reports about delegated pods."""
    for pod in (*gang.placed, *gang.members):
        said = refusal(pod)
        if said is not None:
            return "RefusedByKubeScheduler", f"kube-scheduler refuses {pod.key} on {pinned_node(pod)}: {said}"
    return "", ""


def _ended(item: Pod | Owner) -> str | None:
    if isinstance(item, Pod):
        ends = {"Succeeded": "Completed", "Failed": "Failed"}
        return ends.get(item.status.phase)
    for each in item.status.conditions or ():
        if each.status == "True" and each.type in ("Complete", "Failed"):
            return "Completed" if each.type == "Complete" else "Failed"
    return None


def _told(report: StatusReport | None, waits: list[PodSet]) -> tuple[str, str]:
    if report is not None and report.reasons:
        return report.reasons[0].code.value, messages.texts(report.reasons)
    never = next((each for each in waits if each.state is JobState.UNSCHEDULABLE and each.story), None)
    return _said(never.story[-1].reason) if never is not None else (Code.QUEUED_BEHIND_OTHERS.value, "")


def _said(reason: Reason) -> tuple[str, str]:
    return reason.code.value, messages.text(reason)


def _main(found: Standing) -> PodSet | None:
    """The pod set that the gang started with, or another one that has nodes."""
    key = found.gang.key if found.gang is not None else ""
    held = (each for each in found.pod_sets.values() if each.state.has_nodes)
    return found.pod_sets.get(key) or next(held, None)


def _queued(found: Standing) -> str | None:
    came = (each.job.queued for each in found.pod_sets.values() if each.job.queued)
    first = min(came, default=None)
    return None if first is None else rfc3339(first, "microseconds")


def _nodes(found: Standing) -> list[str] | None:
    """Its nodes in the order of its pods, each once."""
    if found.gang is None:
        return None
    unbound = {uid: node for each in found.pod_sets.values() for uid, node in each.unbound.items()}
    pods = sorted((*found.gang.placed, *found.gang.members), key=lambda pod: pod.metadata.name)
    nodes = (pod.spec.node_name or unbound.get(pod.metadata.uid) for pod in pods)
    return list(dict.fromkeys(node for node in nodes if node)) or None


def is_unschedulable(made: FluxJobStatus) -> bool:
    return made.phase == "Unschedulable"


_SUBMIT = {
    "Held": SubmitStatus.NEW,
    "Refused": SubmitStatus.ERROR,
    "Unschedulable": SubmitStatus.ERROR,
}


def _condition(
    before: FluxCondition | None, kind: str, is_so: bool, reason: str, text: str, generation: int, now: int
) -> FluxCondition:
    value = "True" if is_so else "False"
    since = before.last_transition_time if before is not None and before.status == value else _stamp(now)
    return FluxCondition(
        type=kind,
        status=value,
        reason=reason or "Unknown",
        message=text,
        last_transition_time=since,
        observed_generation=generation,
    )


def _is_near(at: int | None, now: int) -> bool:
    """Whether a start is worth showing: behind work without a limit, it is centuries away."""
    return at is not None and at - now < _FAR


def _stamp(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms * 1000)


def _millis(stamp: str | None) -> int | None:
    at = parse_rfc3339(stamp or "")
    return None if at is None else at // 1000
