"""Gate dependency: what a gated pod waits for, and what a producer announced, read from annotations.

    depends-on-producer: simulate        a pod, a group, or what made the pods (a Job); in the same namespace
    depends-on-gate: example.org/ready   the gate that is opened then; without it `quantum.braket/ready`
    depends-on-kind: finished            without it `quantum-submit`: the producer announces its task

A pod with the gate `quantum.braket/ready` that names no producer waits for the group `<its group>-producer`.
Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fluence import names
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.schedule.gangs.size import GroupLabel, group_field, group_label
from fluence.units import parse_rfc3339, rfc3339

PRODUCER_SUFFIX = "-producer"
MAX_TASK = 1024  # characters of a task id; vendors use fewer than a hundred
_SHOWN = 120
_RESERVED = (".k8s.io", ".x-k8s.io", ".kubernetes.io")  # domains of Kubernetes and its projects
_QUEUES = ("fluxqueue",)


class DependencyKind(StrEnum):
    """The event of a producer that a pod waits for."""

    QUANTUM_SUBMIT = "quantum-submit"
    STARTED = "started"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class GateDependency:
    """The gate to remove, the producer that a pod waits for, and the awaited event."""

    producer: str  # a pod, a group or an owner in the pod's namespace
    gate: str
    kind: DependencyKind


def dependency_of(pod: Pod) -> GateDependency | Reason | None:
    """What a pod waits for. None: no gate of ours to remove. A `Reason`: the annotations are invalid."""
    gates = {each.name for each in pod.spec.scheduling_gates or ()}
    notes = pod.annotations
    gate = notes.get(names.DEPENDS_ON_GATE) or names.GATES[0]
    if gate not in gates:
        return None
    if is_others(gate):
        return Reason.of(Code.GATE_OF_OTHERS, key=names.DEPENDS_ON_GATE, gate=gate[:_SHOWN])
    space, slash, name = notes.get(names.DEPENDS_ON_PRODUCER, "").strip().rpartition("/")
    if slash and space != pod.metadata.namespace:
        # A user who could name pods of another namespace could read what they announce.
        return Reason.of(
            Code.FOREIGN_PRODUCER,
            key=names.DEPENDS_ON_PRODUCER,
            value=f"{space}/{name}"[:_SHOWN],
            namespace=pod.metadata.namespace,
        )
    if not name and gate in names.GATES:
        name = next((f"{each}{PRODUCER_SUFFIX}" for each in groups_of(pod)), "")
    if not name:
        return None
    kind = notes.get(names.DEPENDS_ON_KIND) or DependencyKind.QUANTUM_SUBMIT
    if kind not in tuple(DependencyKind):
        return Reason.of(
            Code.UNKNOWN_DEPENDENCY,
            key=names.DEPENDS_ON_KIND,
            value=kind[:_SHOWN],
            kinds=tuple(each.value for each in DependencyKind),
        )
    return GateDependency(name, gate, DependencyKind(kind))


def is_others(gate: str) -> bool:
    """Whether a gate belongs to another controller, such as Kueue's quota or a queue. A user must not get
    past it by naming it here."""
    domain, slash, _ = gate.rpartition("/")
    return gate in _QUEUES or (bool(slash) and f".{domain}".endswith(_RESERVED))


def waits_for_producer(gated: Sequence[Pod], pods: int) -> Reason | None:
    """Why gated pods wait, if all of them wait for the same producer."""
    found = {dependency_of(pod) for pod in gated}
    if len(found) != 1:
        return None
    reason = found.pop()
    if isinstance(reason, GateDependency):
        return Reason.of(
            Code.WAITS_FOR_PRODUCER,
            gated=len(gated),
            pods=pods,
            producer=reason.producer,
            kind=reason.kind.value,
        )
    return reason


def groups_of(pod: Pod) -> Iterator[str]:
    """The groups that a pod's field or labels name."""
    field, label = group_field(pod), group_label(pod)
    if field is not None:
        yield field.name
    if isinstance(label, GroupLabel):
        yield label.name


def aliases(pod: Pod) -> set[str]:
    """The names under which other pods may wait for a pod: its own, its groups' and its owner's."""
    owner = pod.metadata.controller_reference
    return {pod.metadata.name, *groups_of(pod), *(() if owner is None else (owner.name,))}


# -- announcements of producers ------------------------------------------------------------------------------


def task_of(pod: Pod) -> str | None:
    """The task that a pod announced; None if it cannot be a task id."""
    task = pod.annotations.get(names.QUANTUM_JOB_ID, "").strip()
    return task if is_task(task) else None


def is_task(text: str) -> bool:
    """Whether this can be a task id: one line without spaces at the ends, and not too long."""
    return 0 < len(text) <= MAX_TASK and text.isprintable() and text == text.strip()


# -- notes on waiting pods -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProducerNote:
    """Which producer was seen running, and since when, in milliseconds."""

    uid: str
    at: int

    def annotation(self) -> dict[str, str]:
        return {names.PRODUCER_STARTED: f"{self.uid} {rfc3339(self.at * 1000, 'milliseconds')}"}


def producer_note(pod: Pod, now: int) -> ProducerNote | None:
    """The producer that was noted on a pod. Anybody may write annotations, so a time in the future is
    ignored."""
    uid, _, text = pod.annotations.get(names.PRODUCER_STARTED, "").partition(" ")
    at = parse_rfc3339(text)
    if not uid or at is None:
        return None
    found = round(at / 1000)
    return ProducerNote(uid, found) if found <= now else None
