"""Standing: where a workload stands in the queue, as the status of its FluxJob; a pure function.

A status is written when something changed that a user can see: the place in the queue exactly while it is
among the first ten, then in ever coarser steps, and start times as they stand in conditions. Whom it waits
for, and when it will probably start, is told anew with such a change, and at once to the first in the queue.
So a queue of ten thousand costs a bounded number of writes per job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from fluence import messages, names
from fluence.act import conditions
from fluence.controller.flux_job import FluxCondition, FluxJobSpec, FluxJobStatus, SubmitStatus
from fluence.controller.refusals import refusal
from fluence.controller.workloads import Workload
from fluence.model.held import pinned_node
from fluence.model.owner import Job, Owner
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.queue.job import Phase
from fluence.schedule.gang import Gang
from fluence.schedule.pod_set import PodSet
from fluence.schedule.recovery import Promise, promise_condition, read_promise
from fluence.schedule.stand_in import is_stand_in
from fluence.schedule.status import StatusReport
from fluence.schedule.takeover import Told
from fluence.units import parse_rfc3339, rfc3339

_TO = " to "
_EXACT = 10  # places that are told exactly; then 20, 50, 100, 200, 500 …
_MESSAGE_BYTES = 1024
_FAR = 366 * 86_400_000


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a workload."""

    workload: Workload
    gang: Gang | None
    pod_sets: Mapping[str, PodSet]
    report: StatusReport | None  # what it was told last
    position: int | None  # among those that wait


def status(found: Standing, before: FluxJobStatus, *, generation: int, now: int) -> FluxJobStatus:
    """The status that a FluxJob should have; ``before``: the one that it has."""
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
    if (same and expected == before.expected and position != 1) or conditions.same(text, before.message):
        text = before.message  # who holds the nodes changes with every pod of every user
    main = _main(found)
    holds = main is not None and main.phase.holds
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
        # Those whose pods have ended are still its nodes.
        made = replace(made, nodes=list(dict.fromkeys((*(before.nodes or ()), *(made.nodes or ())))) or None)
    if phase in ("Pending", "Reserved", "Held", "Unschedulable", "Refused"):
        made = replace(made, started=None, nodes=None, allocation="")  # what it had, it has no more
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
        start=made.started or made.no_later_than or made.expected,
        conditions=[
            *(
                _condition(kept.get(kind), kind, is_so, why, said, generation, now)
                for kind, is_so, why, said in pairs
            ),
            *_promised(found, latest, kept.get(names.START_PROMISED), now),
        ],
    )


def _promised(
    found: Standing, latest: str | None, before: FluxCondition | None, now: int
) -> Iterator[FluxCondition]:
    """What the promise of a start was made for: how long, and which workload in which generation. The spec
    and the owner of a FluxJob are its user's."""
    at = _millis(latest)
    if at is not None:
        limit = found.gang.limit if found.gang is not None else None
        said = promise_condition(Promise(at, limit=limit))
        generation = found.workload.object.metadata.generation or 0
        kind, why, text = names.START_PROMISED, said["reason"], f"{said['message']}{_TO}{found.workload.uid}"
        yield _condition(before, kind, True, why, text, generation, now)


def told(spec: FluxJobSpec, before: FluxJobStatus, uid: str) -> Told | None:
    """What one that waits was told, for a scheduler that takes over. ``uid``: of the workload that is named
    as its owner."""
    at = _millis(before.no_later_than) if before.phase in ("Pending", "Reserved") else None
    promise: Promise | None = None
    generation = None
    if at is not None:
        said = next((each for each in before.conditions or () if each.type == names.START_PROMISED), None)
        # NB without it, it is the status of an earlier version: its spec says for how long.
        promise = Promise(at, limit=spec.duration * 1000 or None)
        if said is not None:
            text, _, whom = said.message.partition(_TO)
            promise = read_promise(replace(said, message=text)) if whom == uid else None
            generation = said.observed_generation
        promise = promise and promise._replace(expected=_millis(before.expected))
    queued = parse_rfc3339(before.queued or "")
    return None if promise is None and queued is None else Told(promise, queued, generation)


def rounded(position: int | None) -> int | None:
    """A place as it is told: exact at the front, then rounded up to 20, 50, 100, 200, 500 …"""
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
        return ("Starting" if isinstance(item, Job) and not item.spec.suspend else "Held"), "", ""
    waits = [each for each in found.pod_sets.values() if not each.phase.holds]
    held = [each for each in found.pod_sets.values() if each.phase.holds]
    if not held:
        if gang.is_over and not waits:
            return ("Running" if gang.ended else "Held"), "", ""  # its owner has not counted them yet
        if gang.fault is not None:
            never = gang.fault.code is Code.CLUSTER_HOLDS_FEWER
            return "Unschedulable" if never else "Refused", *_said(gang.fault)
        if any(each.phase is Phase.NEVER for each in waits):
            return "Unschedulable", *_told(found.report, waits)
        if gang.missing is not None and not any(each.phase is not Phase.GATHERING for each in waits):
            return "Held", *_said(gang.missing)
        phase = "Reserved" if any(each.phase is Phase.RESERVED for each in waits) else "Pending"
        return phase, *_told(found.report, waits)
    there = [pod for pod in gang.placed if pod.spec.node_name and not is_stand_in(pod)]
    if any(each.phase is not Phase.RUNNING or each.expects or each.arrived for each in held) and not there:
        return "Starting", *_refused(gang)
    more = len([pod for pod in gang.members if not is_stand_in(pod)])
    if waits and more:
        reason, text = _told(found.report, waits)
        return "Running", reason, f"{more} more wait: {text}" if text else f"{more} more wait"
    return "Running", "", ""


def _refused(gang: Gang) -> tuple[str, str]:
    """What kube-scheduler says of pods that it was told to bind."""
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
    never = next((each for each in waits if each.phase is Phase.NEVER and each.story), None)
    return _said(never.story[-1].reason) if never is not None else (Code.QUEUED_BEHIND_OTHERS.value, "")


def _said(reason: Reason) -> tuple[str, str]:
    return reason.code.value, messages.text(reason)


def _main(found: Standing) -> PodSet | None:
    """The pod set that the gang began with, or one of those that it has."""
    key = found.gang.key if found.gang is not None else ""
    held = (each for each in found.pod_sets.values() if each.phase.holds)
    return found.pod_sets.get(key) or next(held, None)


def _queued(found: Standing) -> str | None:
    came = (each.job.queued for each in found.pod_sets.values() if each.job.queued)
    first = min(came, default=None)
    return None if first is None else rfc3339(first, "microseconds")


def _nodes(found: Standing) -> list[str] | None:
    """The nodes that it has, in the order of its pods, each once."""
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
    """Whether a start is worth telling: behind work without a limit, it is a guess of centuries."""
    return at is not None and at - now < _FAR


def _stamp(ms: int | None) -> str | None:
    return None if ms is None else rfc3339(ms * 1000)


def _millis(stamp: str | None) -> int | None:
    at = parse_rfc3339(stamp or "")
    return None if at is None else at // 1000
