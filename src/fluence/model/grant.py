"""Grants: what the scheduler gave to a pod or a Job, in the object's status, where its owner cannot write it.

Capacity is held, and other objects are written, only on the strength of something that the
owner of a pod cannot write. Labels, annotations and specs of users' objects are requests. What was granted
and is not visible as a binding is therefore a condition of the status (`pods/status` and `jobs/status` are in
none of the roles `view`, `edit` and `admin`), written before the write that acts on it:

    a pod handed to kube-scheduler      the node to which it is pinned
    a pod with devices of no node       the devices
    a pod that is ended at its limit    that limit, and the queue that ends it
    a Job that is released              the node of each of its pods, and the generation that was planned

The annotations with the same content are for people and for the container; nothing is decided by them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from fluence import names
from fluence.errors import InvalidInput
from fluence.model import hostlist, idset
from fluence.model.meta import Condition
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.units import parse_rfc3339

MAX_SIZE = 100_000
"""The largest gang that may be declared, and the largest grant that is read: more than any cluster holds."""

_MOST_DEVICES = 256  # of one pod
_FAR = 1 << 49  # milliseconds: no time is later


class DeviceNote(msgspec.Struct, frozen=True, array_like=True):
    """Units of a device that a pod has."""

    device: str  # the names on the way to it, with / between them
    type: str
    amount: int


class LimitNote(msgspec.Struct, frozen=True, array_like=True):
    """When a pod started and when the scheduler ends it, in milliseconds, and the queue with that rule."""

    start: int
    end: int
    queue: str


class PodGrant(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a pod was given: its node, its devices that belong to no node, and a limit that is enforced."""

    node: str
    devices: tuple[DeviceNote, ...] = ()
    own: bool = False  # no other pod of its gang shares its devices
    limit: LimitNote | None = None

    def condition(self) -> Condition:
        return _condition("Placed", msgspec.json.encode(self).decode())


class _JobGrant(msgspec.Struct, frozen=True, omit_defaults=True):
    """A `ReleaseNote` as it is written."""

    job: str
    allocation: str
    generation: int
    nodes: str
    indexes: str | None = None


@dataclass(frozen=True, slots=True)
class ReleaseNote:
    """Which pod of a released Job has which node. It holds for the Job of the generation that was planned:
    any later change of the Job's spec but its release makes it void."""

    number: str  # of its job
    allocation: str
    nodes: tuple[tuple[int, str], ...]  # by index
    generation: int = 0  # of the Job, while it was suspended

    def labels(self) -> dict[str, str]:
        return {names.FLUXQUEUE_JOBID: self.number}

    def annotations(self) -> dict[str, str]:
        """The same for people; fluxqueue's names."""
        found = {
            names.JOBID: self.number,
            names.ALLOCATION: self.allocation,
            names.FLUXQUEUE_NODES: hostlist.encode(node for _, node in self.nodes),
        }
        indexes = self._indexes()
        return found if indexes is None else found | {names.FLUXQUEUE_INDEXES: indexes}

    def condition(self) -> Condition:
        hosts = hostlist.encode(node for _, node in self.nodes)
        note = _JobGrant(self.number, self.allocation, self.generation, hosts, self._indexes())
        return _condition("Released", msgspec.json.encode(note).decode())

    def is_carried_out(self, owner: Owner) -> bool:
        """Whether the Job was released with this note; it may have been suspended again since."""
        return (owner.metadata.generation or 0) > self.generation

    def holds_for(self, owner: Owner) -> bool:
        """Whether the Job is as this note released it: its spec has changed by that and nothing else."""
        return not owner.spec.suspend and (owner.metadata.generation or 0) == self.generation + 1

    def _indexes(self) -> str | None:
        """The indexes, where they are not 0, 1, 2 …"""
        indexes = [index for index, _ in self.nodes]
        return None if indexes == list(range(len(indexes))) else idset.encode(indexes)


def pod_grant(pod: Pod) -> PodGrant | None:
    """What a pod was given, by its status."""
    said = _granted(pod.status.conditions)
    if said is None:
        return None
    try:
        found = msgspec.json.decode(said.message, type=PodGrant)
    except msgspec.MsgspecError:
        return None
    return found if len(found.devices) <= _MOST_DEVICES else None


def limit_note(pod: Pod) -> LimitNote | None:
    """The limit at which the scheduler ends a pod, by its status, on the node that was granted with it."""
    granted = pod_grant(pod)
    if granted is None or granted.limit is None or granted.node != pod.spec.node_name:
        return None
    found = granted.limit
    return found if 0 <= found.start < found.end < _FAR else None


def release_note(owner: Owner) -> ReleaseNote | None:
    """What a Job was released with, by its status."""
    said = _granted(owner.status.conditions)
    if said is None:
        return None
    try:
        note = msgspec.json.decode(said.message, type=_JobGrant)
        nodes = hostlist.decode(note.nodes, limit=MAX_SIZE)
        count = len(nodes)
        indexes = list(range(count)) if note.indexes is None else idset.decode(note.indexes, limit=MAX_SIZE)
    except (msgspec.MsgspecError, InvalidInput):
        return None
    if not nodes or len(nodes) != len(indexes) or not note.allocation:
        return None
    return ReleaseNote(note.job, note.allocation, tuple(zip(indexes, nodes, strict=True)), note.generation)


def granted_at(owner: Owner) -> int | None:
    """When a Job was given what its note says, in milliseconds."""
    said = _granted(owner.status.conditions)
    at = parse_rfc3339((said.last_transition_time or "") if said is not None else "")
    return None if at is None else at // 1000


def with_condition(conditions: Iterable[Condition] | None, new: Condition) -> list[Condition]:
    """Some conditions with a new one in place of that of its type; as the server merges them."""
    return [*(each for each in conditions or () if each.type != new.type), new]


def _condition(reason: str, message: str) -> Condition:
    return Condition(type=names.GRANTED, status="True", reason=reason, message=message)


def _granted(conditions: Iterable[Condition] | None) -> Condition | None:
    found = (each for each in conditions or () if each.type == names.GRANTED)
    return next((each for each in found if each.status == "True"), None)
