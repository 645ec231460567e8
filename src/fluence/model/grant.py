"""Marks of Fluence on pods and Jobs: held by admission, and granted by the scheduler.

Held: a gate `fluxqueue` holds a pod, and `suspend` holds a Job. The label `fluxqueue.seen` says that
admission did it, so that a gate or a suspension of the user's own is left alone. The scheduler that
`schedulerName` names binds the pods: this one, or kube-scheduler where the plan pins them.

Granted: the scheduler holds capacity and writes to other objects only because of something that the owner of
a pod cannot write. Labels, annotations and specs of users' objects are requests. A grant that is not visible
as a binding is therefore a condition in the status (the roles `view`, `edit` and `admin` cannot write
`pods/status` and `jobs/status`), written before the write that acts on it:

    a pod handed to kube-scheduler      the node to which it is pinned
    a pod with external resources       the devices
    a pod that is ended at its limit    that limit, and the queue that ends it
    a pod whose user has several queues the queue that it counts in
    a Job that is released              the node of each of its pods, and the generation that was planned
    a JobSet or RayCluster              the same; the status of other objects of operators is not trusted

The annotations with the same content are for people and for the container; no decision reads them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec
from msgspec import structs

from fluence import names
from fluence.errors import InvalidInput
from fluence.model import hostlist, idset
from fluence.model.meta import Condition
from fluence.model.owner import Owner
from fluence.model.pod import Pod, PodSpec
from fluence.units import parse_rfc3339

MAX_SIZE = 100_000
"""The largest gang that may be declared, and the largest grant that is read: more than any cluster holds."""

_MAX_DEVICES = 256  # of one pod
_MAX_LABEL = 63  # characters of a label
_MAX_TIME_MS = 1 << 49  # milliseconds: later times are not accepted


class DeviceNote(msgspec.Struct, frozen=True, array_like=True):
    """Units of a device that a pod has."""

    device: str  # the names on the path to it, separated by /
    type: str
    amount: int


class LimitNote(msgspec.Struct, frozen=True, array_like=True):
    """When a pod started and when the scheduler ends it, in milliseconds, and the queue with that rule."""

    start: int
    end: int
    queue: str


class PodGrant(msgspec.Struct, frozen=True, omit_defaults=True):
    """The grant of a pod: its node, its external resources, an enforced limit, and the queue whose quota it
    uses."""

    node: str
    devices: tuple[DeviceNote, ...] = ()
    own: bool = False  # no other pod of its gang shares its devices
    limit: LimitNote | None = None
    queue: str | None = None  # None: only one queue was open to its user

    def condition(self) -> Condition:
        return _condition("Placed", msgspec.json.encode(self).decode())


def fluxqueue_labels(number: str, nodes: Sequence[str]) -> dict[str, str]:
    """The labels that fluxqueue puts on released objects: the job, and as many of its nodes as fit into a
    label."""
    joined = "__".join(nodes)
    labels = {names.FLUXQUEUE_JOBID: number}
    return labels | {names.FLUXQUEUE_NODES: joined} if 0 < len(joined) <= _MAX_LABEL else labels


class _JobGrant(msgspec.Struct, frozen=True, omit_defaults=True):
    """A `ReleaseNote` as it is written."""

    job: str
    allocation: str
    generation: int
    nodes: str
    indexes: str | None = None


@dataclass(frozen=True, slots=True)
class ReleaseNote:
    """The node of each pod of a released Job. It is valid for the planned generation of the Job: any later
    change of the spec except its release makes it invalid."""

    number: str  # of its job
    allocation: str
    nodes: tuple[tuple[int, str], ...]  # by index
    generation: int = 0  # of the Job, while it was suspended

    def labels(self) -> dict[str, str]:
        return fluxqueue_labels(self.number, [node for _, node in self.nodes])

    def annotations(self) -> dict[str, str]:
        """The same for people; fluxqueue's names."""
        annotations = {
            names.JOBID: self.number,
            names.ALLOCATION: self.allocation,
            names.FLUXQUEUE_NODES: hostlist.encode(node for _, node in self.nodes),
        }
        indexes = self._indexes()
        return annotations if indexes is None else annotations | {names.FLUXQUEUE_INDEXES: indexes}

    def condition(self) -> Condition:
        hosts = hostlist.encode(node for _, node in self.nodes)
        note = _JobGrant(self.number, self.allocation, self.generation, hosts, self._indexes())
        return _condition("Released", msgspec.json.encode(note).decode())

    def is_carried_out(self, owner: Owner) -> bool:
        """Whether the Job was released with this note; it may have been suspended again since."""
        return (owner.metadata.generation or 0) > self.generation

    def holds_for(self, owner: Owner) -> bool:
        """Whether the release is the only change of the Job's spec since this note."""
        return not owner.spec.suspend and (owner.metadata.generation or 0) == self.generation + 1

    def _indexes(self) -> str | None:
        """The indexes, where they are not 0, 1, 2 …"""
        indexes = [index for index, _ in self.nodes]
        return None if indexes == list(range(len(indexes))) else idset.encode(indexes)


def pod_grant(pod: Pod) -> PodGrant | None:
    """The grant of a pod, from its status."""
    condition = _granted(pod.status.conditions)
    if condition is None:
        return None
    try:
        grant = msgspec.json.decode(condition.message, type=PodGrant)
    except msgspec.MsgspecError:
        return None
    return grant if len(grant.devices) <= _MAX_DEVICES else None


def limit_note(pod: Pod) -> LimitNote | None:
    """The limit at which the scheduler ends a pod, from its status, if it runs on the granted node."""
    granted = pod_grant(pod)
    if granted is None or granted.limit is None or granted.node != pod.spec.node_name:
        return None
    limit = granted.limit
    return limit if 0 <= limit.start < limit.end < _MAX_TIME_MS else None


def queue_note(pod: Pod) -> str | None:
    """The queue in which a running pod counts, from its status, if it runs on the granted node. None: it was
    not written."""
    granted = pod_grant(pod)
    if granted is None or granted.node != pod.spec.node_name:
        return None
    return granted.limit.queue if granted.queue is None and granted.limit is not None else granted.queue


def release_note(owner: Owner) -> ReleaseNote | None:
    """The release note of a Job, from its status."""
    condition = _granted(owner.status.conditions)
    if condition is None:
        return None
    try:
        note = msgspec.json.decode(condition.message, type=_JobGrant)
        nodes = hostlist.decode(note.nodes, limit=MAX_SIZE)
        count = len(nodes)
        indexes = list(range(count)) if note.indexes is None else idset.decode(note.indexes, limit=MAX_SIZE)
    except (msgspec.MsgspecError, InvalidInput):
        return None
    if not nodes or len(nodes) != len(indexes) or not note.allocation:
        return None
    return ReleaseNote(note.job, note.allocation, tuple(zip(indexes, nodes, strict=True)), note.generation)


def granted_at(owner: Owner) -> int | None:
    """The time of the release note of a Job, in milliseconds."""
    condition = _granted(owner.status.conditions)
    at = parse_rfc3339((condition.last_transition_time or "") if condition is not None else "")
    return None if at is None else at // 1000


def with_condition(conditions: Iterable[Condition] | None, new: Condition) -> list[Condition]:
    """The conditions with a new one that replaces the one of its type, as the server merges them."""
    return [*(old for old in conditions or () if old.type != new.type), new]


def _condition(reason: str, message: str) -> Condition:
    return Condition(type=names.GRANTED, status="True", reason=reason, message=message)


def _granted(conditions: Iterable[Condition] | None) -> Condition | None:
    granted = (condition for condition in conditions or () if condition.type == names.GRANTED)
    return next((condition for condition in granted if condition.status == "True"), None)


JOB_CONTROLLER = "kubernetes.io/job-controller"
PLACEHOLDER = "#"  # marks the uid of a placeholder: it occurs in no name and in no other uid


def is_held_by_admission(of: Pod | Owner) -> bool:
    """Whether admission held this object, or its owner."""
    return (of.metadata.labels or {}).get(names.SEEN) == names.SEEN_YES


def has_gate(spec: PodSpec) -> bool:
    """Whether it has the gate of Fluence."""
    return any(gate.name == names.GATE_FLUXQUEUE for gate in spec.scheduling_gates or ())


def is_held(pod: Pod) -> bool:
    """Whether a pod has only the gate of Fluence: it may be placed, and is released then."""
    gates = pod.spec.scheduling_gates or ()
    return len(gates) == 1 and gates[0].name == names.GATE_FLUXQUEUE and is_held_by_admission(pod)


def is_closed(pod: Pod) -> bool:
    """Whether a gate of another controller keeps a pod from being placed."""
    return pod.is_gated and not is_held(pod)


def is_delegated(pod: Pod) -> bool:
    """Whether kube-scheduler binds this pod on the node of the plan: it names kube-scheduler, and has the
    gate of Fluence or was delegated."""
    if pod.spec.scheduler_name != names.KUBE_SCHEDULER or not is_held_by_admission(pod):
        return False
    return has_gate(pod.spec) or PLACEHOLDER in pod.metadata.uid or _handed_over_to(pod) is not None


def is_ours(pod: Pod, scheduler: str) -> bool:
    """Whether this scheduler places a pod."""
    return pod.spec.scheduler_name == scheduler or is_delegated(pod)


_T = TypeVar("_T")


def by_one_name(found: _T, scheduler: str, aliases: Collection[str]) -> _T:
    """A pod or owner with the first name of this scheduler instead of an alias. Other objects are
    unchanged."""
    if isinstance(found, Pod):
        if found.spec.scheduler_name in aliases:
            return structs.replace(found, spec=structs.replace(found.spec, scheduler_name=scheduler))
    elif isinstance(found, Owner):
        template = found.spec.template
        if template is not None and template.spec.scheduler_name in aliases:
            spec = structs.replace(template.spec, scheduler_name=scheduler)
            template = structs.replace(template, spec=spec)
            return structs.replace(found, spec=structs.replace(found.spec, template=template))
    return found


def pinned_node(pod: Pod) -> str | None:
    """The node to which a delegated pod is pinned."""
    if pod.is_gated or pod.spec.scheduler_name != names.KUBE_SCHEDULER or not is_held_by_admission(pod):
        return None
    return _handed_over_to(pod)


def _handed_over_to(pod: Pod) -> str | None:
    """The node to which a pod is bound or pinned by its spec, if that is the granted node. Users may pin
    their pods to any node, but only the scheduler can write the grant."""
    granted = pod_grant(pod)
    return granted.node if granted is not None and granted.node == (pod.spec.node_name or _pin(pod)) else None


def _pin(pod: Pod) -> str | None:
    """The only node that the affinity of a pod allows by name. It cannot be changed once the pod has no
    gate."""
    affinity = pod.spec.affinity.node_affinity if pod.spec.affinity else None
    terms = affinity.required.node_selector_terms if affinity and affinity.required else None
    nodes: set[str] = set()
    for term in terms or ():
        if not term.match_fields and not term.match_expressions:
            continue  # it matches no node
        allowed = [
            set(requirement.values or ())
            for requirement in term.match_fields or ()
            if requirement.key == "metadata.name" and requirement.operator == "In"
        ]
        if not allowed:
            return None
        nodes |= set.intersection(*allowed)
    return nodes.pop() if len(nodes) == 1 else None


def is_cancelled(of: Pod | Owner) -> bool:
    """Whether its FluxJob was deleted: it stays held until a user removes the annotation."""
    return names.CANCELLED in (of.metadata.annotations or {})


def is_held_by_user(annotations: Mapping[str, str] | None) -> bool:
    """Whether the annotation `hold` keeps an object with these annotations from being planned."""
    value = (annotations or {}).get(names.HOLD)
    return value is not None and value.strip().lower() != "false"


def is_for_this_scheduler(owner: Owner, scheduler: str) -> bool:
    """Whether this scheduler will place the pods of an owner, according to its template."""
    template = owner.spec.template
    if (
        template is None
        or not is_held_by_admission(owner)
        or owner.spec.managed_by not in (None, JOB_CONTROLLER)
    ):
        return False  # it is unknown whether another controller creates pods
    name = template.spec.scheduler_name or names.KUBE_SCHEDULER
    if name == scheduler:
        return True
    # A suspended Job whose pods are delegated to kube-scheduler gets the gate when it is released.
    return name == names.KUBE_SCHEDULER and (has_gate(template.spec) or owner.spec.suspend)
