"""Recovery: what runs, read from the pods alone; ids come from uids, and each pod says its job and its times.

A pod that was bound by Fluence carries ``jobid`` and ``allocation`` annotations, written with the binding. So
a scheduler that knows nothing finds the jobs that run, under the numbers that they had, with the same ends.
Its user may change them, and harms nobody else by that: what it holds on its node follows from the bind, and
the devices that it holds, and a limit at which it is ended, are in its status (`model.grant`). Nodes that the
server refused for a group are written on its pods, too, so that they are not tried again. Pods that wait say
when they came, and what start they were told: in their status, which users cannot write."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import msgspec

from fluence.model.device import DeviceGrant
from fluence.model.grant import DeviceNote, limit_note, pod_grant
from fluence.model.held import STAND_IN
from fluence.model.meta import Condition
from fluence.model.pod import Pod
from fluence.names import ALLOCATION, EXCLUDED, JOBID, QUEUED, START_PROMISED
from fluence.schedule.annotations import MAX_EXCLUDED_NODES
from fluence.units import parse_duration, parse_rfc3339, rfc3339

_FIRM, _LOOSE = "LimitsEnforced", "LimitsDeclared"  # what a promise rests on
_FOR = " for "


class AllocationNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a pod says of the job that it was started with; times in milliseconds."""

    start: int
    end: int | None = None  # None: it has no limit
    devices: tuple[DeviceNote, ...] = ()


@dataclass(frozen=True, slots=True)
class Running:
    """Pods that were started together."""

    number: int
    pods: tuple[Pod, ...]
    start: int
    end: int | None
    grants: tuple[DeviceGrant, ...] = ()
    queue: str | None = None  # the one that ends it; None: as its pods say


def annotations_for(
    number: int, start: int, end: int | None, grants: Iterable[DeviceGrant] = ()
) -> dict[str, str]:
    """What a binding says, to be read again after a restart; the devices for people."""
    devices = device_notes(grants)
    return {
        JOBID: str(number),
        ALLOCATION: msgspec.json.encode(AllocationNote(start, end, devices)).decode(),
    }


def device_notes(grants: Iterable[DeviceGrant]) -> tuple[DeviceNote, ...]:
    """Devices that belong to no node as a grant says them."""
    return tuple(DeviceNote("/".join(each.device), each.type, each.amount) for each in grants)


def excluded_note(nodes: Collection[str]) -> dict[str, str]:
    """What a pod says of the nodes that its group must not have."""
    return {EXCLUDED: ",".join(sorted(nodes)[:MAX_EXCLUDED_NODES])} if nodes else {}


def queued_note(at: int) -> dict[str, str]:
    """What a pod that waits says of when it came; microseconds."""
    return {QUEUED: rfc3339(at, "microseconds")} if at else {}


def queued_of(pods: Iterable[Pod]) -> int | None:
    """When the first of some pods came, as they say. Anybody may write annotations: it counts only among
    those whom the server made in the same second."""
    said = (parse_rfc3339(pod.annotations.get(QUEUED, "")) for pod in pods)
    return min((each for each in said if each is not None), default=None)


class Promise(NamedTuple):
    """A start that one that waits was told, and for how long; milliseconds."""

    no_later_than: int
    expected: int | None = None
    firm: bool = False
    limit: int | None = None

    def covers(self, limit: int | None) -> bool:
        """Whether a job with this limit asks for no more than the one that was told."""
        return self.limit is None or (limit is not None and limit <= self.limit)


def promise_condition(told: Promise) -> dict[str, str]:
    """The condition that says until when a pod starts."""
    times = (each for each in (told.expected, told.no_later_than) if each is not None)
    until = "/".join(rfc3339(each * 1000, "milliseconds") for each in times)
    return {
        "type": START_PROMISED,
        "status": "True",
        "reason": _FIRM if told.firm else _LOOSE,
        "message": until if told.limit is None else f"{until}{_FOR}{told.limit}ms",
    }


def no_promise() -> dict[str, str]:
    """The same where no start is told any more."""
    return {"type": START_PROMISED, "status": "False", "reason": "Unknown", "message": ""}


def read_promise(said: Condition) -> Promise | None:
    """What such a condition says; None: no start, or nonsense."""
    until, _, length = said.message.partition(_FOR)
    expected, _, latest = until.rpartition("/")
    at, likely, limit = parse_rfc3339(latest), parse_rfc3339(expected), parse_duration(length)
    if said.status != "True" or at is None or (length and limit is None):
        return None
    return Promise(at // 1000, likely and likely // 1000, said.reason == _FIRM, limit)


def promise_of(pods: Iterable[Pod]) -> Promise | None:
    """The start that some pods were told. Where they differ, the latest. None if a pod came later that was
    told nothing: a group that grows while no scheduler looks asks for more than it was told a start for."""
    found, since, untold = [], 0, 0
    for pod in pods:
        said = pod.condition(START_PROMISED)
        if said is None or said.status != "True":
            untold = max(untold, _ms(pod.metadata.creation_timestamp) or 0)
            continue
        promise = read_promise(said)
        if promise is not None:
            found.append(promise)
            since = max(since, (parse_rfc3339(said.last_transition_time or "") or 0) // 1000)
    if since < untold:
        return None
    return max(found, key=lambda each: each.no_later_than, default=None)


def running(
    pods: Iterable[Pod], fallback: int, *, now: int, limit: int | None, per_pod: bool = False
) -> list[Running]:
    """The jobs of one group's bound pods. Pods that say nothing, or nonsense, belong to ``fallback``.
    ``per_pod``: stand-ins have devices of their own; pods say it in their status."""
    groups: dict[int, list[Pod]] = {}
    for pod in pods:
        groups.setdefault(job_of(pod.annotations, fallback), []).append(pod)
    found = []
    for number, members in groups.items():
        said = next((each for pod in members if (each := _allocation(pod)) is not None), None)
        firm = next((note for pod in members if (note := limit_note(pod)) is not None), None)
        known = firm or said
        if known is not None:
            start, end = known.start, known.end
        else:
            start = min((_ms(pod.bound_at) or now) for pod in members)
            end = start + limit if limit else None
        queue, grants = None if firm is None else firm.queue, _grants(members, per_pod=per_pod)
        found.append(Running(number, tuple(members), min(start, now), end, grants, queue))
    return found


def job_of(annotations: Mapping[str, str], fallback: int) -> int:
    """The number of the job that a pod says it belongs to."""
    text = annotations.get(JOBID, "")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else 0
    return number if 0 < number < 1 << 62 else fallback


def _allocation(pod: Pod) -> AllocationNote | None:
    text = pod.annotations.get(ALLOCATION)
    if text is None:
        return None
    try:
        said = msgspec.json.decode(text, type=AllocationNote)
    except msgspec.MsgspecError:
        return None  # anybody may write annotations
    sane = 0 <= said.start < 1 << 49 and (said.end is None or said.start < said.end < 1 << 49)
    return said if sane else None


def _grants(pods: Iterable[Pod], *, per_pod: bool) -> tuple[DeviceGrant, ...]:
    """The devices that pods of one job were granted, whatever their annotations say by now."""
    users: dict[tuple[DeviceNote, Hashable], set[Hashable]] = {}  # each pod's own apart
    for pod in pods:
        devices, own = _granted_devices(pod, per_pod=per_pod)
        uid = pod.metadata.uid
        for note in devices:
            users.setdefault((note, uid if own else None), set()).add(uid)
    return tuple(
        DeviceGrant(tuple(note.device.split("/")), note.type, note.amount, frozenset(uids), uid is None)
        for (note, uid), uids in users.items()
    )


def _granted_devices(pod: Pod, *, per_pod: bool) -> tuple[tuple[DeviceNote, ...], bool]:
    """By the pod's status, and whether they are its own; what stands for a pod to come has them from the
    grant of its Job."""
    if STAND_IN in pod.metadata.uid:
        said = _allocation(pod)
        return (() if said is None else said.devices), per_pod
    granted = pod_grant(pod)
    return ((), False) if granted is None else (granted.devices, granted.own)


def _ms(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp() * 1000)
