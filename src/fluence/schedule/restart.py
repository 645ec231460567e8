"""Restart: what a new process reads from pods: which jobs run, and the promises of waiting jobs.

A pod that Fluence bound has ``jobid`` and ``allocation`` annotations, which are written with the bind. So a
new scheduler finds the running jobs under the same numbers, with the same ends. A user may change these
annotations without harm to others: the resources that a pod holds on its node follow from the bind, and its
external resources and its enforced limit are in its status (`model.grant`). Nodes that the server refused for
a group are also written on its pods, so that they are not tried again. Waiting pods have their arrival time
and their promised start in their status, which users cannot write.

`Takeover` keeps the promises of the previous scheduler until all groups are known. A promise is on the pods
(`promise_of`) or on a FluxJob. After a rebuild within a process, it comes from the previous queue. The cycle
plans only when it has taken in all groups that existed at the start: a plan for the first groups alone would
use resources that were promised to the others. A group that changes its request later gets a new promise.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

import msgspec

from fluence.model.external_resources import DeviceGrant
from fluence.model.grant import PLACEHOLDER, DeviceNote, limit_note, pod_grant, queue_note
from fluence.model.meta import Condition
from fluence.model.owner import Owner, claimed_by, identity
from fluence.model.pod import Pod
from fluence.names import ALLOCATION, EXCLUDED, JOBID, QUEUED, START_PROMISED
from fluence.schedule.gangs.annotations import MAX_EXCLUDED_NODES
from fluence.units import parse_duration, parse_rfc3339, rfc3339

_FIRM, _LOOSE = "LimitsEnforced", "LimitsDeclared"  # what a promise depends on
_FOR = " for "


class AllocationNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """The job that a pod started with, as its annotation says. Times are in milliseconds."""

    start: int
    end: int | None = None  # None: no limit
    devices: tuple[DeviceNote, ...] = ()


@dataclass(frozen=True, slots=True)
class Running:
    """Pods that started together."""

    number: int
    pods: tuple[Pod, ...]
    start: int
    end: int | None
    grants: tuple[DeviceGrant, ...] = ()
    queue: str | None = None  # the queue it counts in, by its status; None: the one its user names


def annotations_for(
    number: int, start: int, end: int | None, grants: Iterable[DeviceGrant] = ()
) -> dict[str, str]:
    """The annotations of a bind, to be read after a restart. The devices are there for people."""
    devices = device_notes(grants)
    return {
        JOBID: str(number),
        ALLOCATION: msgspec.json.encode(AllocationNote(start, end, devices)).decode(),
    }


def device_notes(grants: Iterable[DeviceGrant]) -> tuple[DeviceNote, ...]:
    """External resources in the form of a grant."""
    return tuple(DeviceNote("/".join(each.device), each.type, each.amount) for each in grants)


def excluded_note(nodes: Collection[str]) -> dict[str, str]:
    """The annotation that lists the nodes a group must not use."""
    return {EXCLUDED: ",".join(sorted(nodes)[:MAX_EXCLUDED_NODES])} if nodes else {}


def queued_note(at: int) -> dict[str, str]:
    """The annotation with the arrival time of a waiting pod, in microseconds."""
    return {QUEUED: rfc3339(at, "microseconds")} if at else {}


def queued_of(pods: Iterable[Pod]) -> int | None:
    """The earliest arrival time in the annotations of some pods. Anybody may write annotations, so it only
    orders pods that the server created in the same second."""
    said = (parse_rfc3339(pod.annotations.get(QUEUED, "")) for pod in pods)
    return min((each for each in said if each is not None), default=None)


class Promise(NamedTuple):
    """A start that was promised to a waiting job, for a given limit. Times are in milliseconds."""

    no_later_than: int
    expected: int | None = None
    firm: bool = False
    limit: int | None = None

    def covers(self, limit: int | None) -> bool:
        """Whether the promise holds for a job with this limit: the limit must not be longer than the promised
        one."""
        return self.limit is None or (limit is not None and limit <= self.limit)


def promise_condition(told: Promise) -> dict[str, str]:
    """The condition that records a promised start."""
    times = (each for each in (told.expected, told.no_later_than) if each is not None)
    until = "/".join(rfc3339(each * 1000, "milliseconds") for each in times)
    return {
        "type": START_PROMISED,
        "status": "True",
        "reason": _FIRM if told.firm else _LOOSE,
        "message": until if told.limit is None else f"{until}{_FOR}{told.limit}ms",
    }


def no_promise() -> dict[str, str]:
    """The condition of a pod whose start is not promised any more."""
    return {"type": START_PROMISED, "status": "False", "reason": "Unknown", "message": ""}


def read_promise(said: Condition) -> Promise | None:
    """The promise in such a condition; None if it has no valid promise."""
    until, _, length = said.message.partition(_FOR)
    expected, _, latest = until.rpartition("/")
    at, likely, limit = parse_rfc3339(latest), parse_rfc3339(expected), parse_duration(length)
    if said.status != "True" or at is None or (length and limit is None):
        return None
    return Promise(at // 1000, likely and likely // 1000, said.reason == _FIRM, limit)


def promise_of(pods: Iterable[Pod]) -> Promise | None:
    """The promised start of some pods: the latest if they differ. None if a pod without a promise was created
    after the promise: a group that grew while no scheduler ran asks for more than it was promised."""
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
    """The jobs of the bound pods of one group. Pods without a valid number belong to ``fallback``.
    ``per_pod``: placeholders have devices of their own; for pods, their status says it."""
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
        queue = next((name for pod in members if (name := queue_note(pod)) is not None), None)
        grants = _grants(members, per_pod=per_pod)
        found.append(Running(number, tuple(members), min(start, now), end, grants, queue))
    return found


def job_of(annotations: Mapping[str, str], fallback: int) -> int:
    """The job number in a pod's annotations."""
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
    """The devices that the pods of one job were granted, by status and not by annotation."""
    users: dict[tuple[DeviceNote, Hashable], set[Hashable]] = {}  # with the uid of the pod if it is its own
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
    """The devices of a pod, and whether they are its own. They are read from its status; a placeholder has
    them from the grant of its Job."""
    if PLACEHOLDER in pod.metadata.uid:
        said = _allocation(pod)
        return (() if said is None else said.devices), per_pod
    granted = pod_grant(pod)
    return ((), False) if granted is None else (granted.devices, granted.own)


def _ms(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp() * 1000)


_LONGEST = 10_000  # ms that planning may wait for groups to be taken in


@dataclass(frozen=True, slots=True)
class PriorPromise:
    """An earlier promise to a waiting job, and its arrival time."""

    promise: Promise | None = None
    queued: int | None = None  # microseconds
    generation: int | None = None  # of the workload that the promise was made for; None: unknown


class Takeover:
    """``said`` maps the key of a pod set, or the identity of a held workload, to its earlier promise."""

    def __init__(self, said: Mapping[str, PriorPromise] | None = None) -> None:
        self.said = dict(said or {})
        self._backlog: set[str] | None = None  # groups that existed at the start and are not taken in yet
        self._ends = 0
        self._has_told = False

    def remember(self, said: Mapping[str, PriorPromise]) -> None:
        """Add earlier promises from other sources. It has no effect after the first cycle."""
        if self._backlog is None:
            self.said.update(said)

    def begin(self, groups: Iterable[str], now: int) -> None:
        """Called at the start of each cycle. The first call records the groups that exist."""
        if self._backlog is None:
            self._backlog, self._ends = set(groups), now + _LONGEST
            if not self._backlog:
                self.said.clear()  # no group is left that these promises were for
            self._has_told = bool(self.said)

    def took(self, group: str, now: int) -> None:
        """Record that a group is taken in."""
        if self._backlog:
            self._backlog.discard(group)
            if not self._backlog or now > self._ends:
                self._backlog.clear()
                self.said.clear()

    def found(self, group: str) -> bool:
        """Whether a group existed at the start and is not taken in yet."""
        return self._backlog is not None and group in self._backlog

    @property
    def holds_back(self) -> bool:
        """Whether planning waits for groups with earlier promises."""
        return self._has_told and bool(self._backlog)

    @property
    def has_begun(self) -> bool:
        """Whether a cycle has run."""
        return self._backlog is not None

    def told(
        self, group: str, key: str, pods: Iterable[Pod], owners: Callable[[Pod], Iterable[Owner]]
    ) -> PriorPromise | None:
        """The earlier promise to the pods of a group, found by the key of their pod set or by one of their
        owners."""
        if self._backlog is not None and group not in self._backlog:
            return None
        pods = tuple(pods)
        found = self.said.get(key) or (self._of_workloads(pods, owners) if self.said else None)
        if found is None and (promise := promise_of(pods)) is not None:
            found = PriorPromise(promise)
        self._has_told = self._has_told or (found is not None and found.promise is not None)
        return found

    def _of_workloads(
        self, pods: tuple[Pod, ...], owners: Callable[[Pod], Iterable[Owner]]
    ) -> PriorPromise | None:
        """The earlier promise to the workloads of some pods. It holds only for workloads that have not
        changed: a workload that asked for more while no scheduler ran gets a new promise."""
        found: dict[str, PriorPromise] = {}
        holds = True
        for pod in pods:
            known = [
                (self.said[each], now, each) for each, now in _workloads(pod, owners) if each in self.said
            ]
            found.update((each, said) for said, _, each in known)
            holds = holds and any(said.generation in (None, now) for said, now, _ in known)
        first = next(iter(found.values()), None)
        return first if first is None or holds else replace(first, promise=None)


def _workloads(pod: Pod, owners: Callable[[Pod], Iterable[Owner]]) -> Iterator[tuple[str, int]]:
    """The identity and the generation of a pod, and of the owners that claim it."""
    meta = pod.metadata
    yield identity(meta.namespace, "Pod", meta.name, meta.uid), meta.generation or 0
    for owner in claimed_by(meta, owners(pod)):
        yield owner.identity, owner.metadata.generation or 0
