"""Gate dependency: what a gated pod waits for, and what a producer has announced, by their annotations.

    depends-on-producer: simulate        a pod, a group, or what made the pods (a Job); in the same namespace
    depends-on-gate: example.org/ready   the gate that is opened then; without it `quantum.braket/ready`
    depends-on-kind: finished            without it `quantum-submit`: the producer announces its task

A pod behind `quantum.braket/ready` that names no producer waits for the group `<its group>-producer`. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from fluence import names
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.schedule.group_labels import GroupLabel, group_field, group_label
from fluence.units import parse_rfc3339, rfc3339

PRODUCER_SUFFIX = "-producer"
MAX_TASK = 1024  # characters of a task's id; a vendor's are below a hundred
_SHOWN = 120
_RESERVED = (".k8s.io", ".x-k8s.io", ".kubernetes.io")  # domains of Kubernetes and its projects
_QUEUES = ("fluxqueue",)


class DependencyKind(StrEnum):
    """What of a producer is waited for."""

    QUANTUM_SUBMIT = "quantum-submit"
    STARTED = "started"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class GateDependency:
    """Which gate opens when which producer has done what."""

    producer: str  # a pod, a group or an owner in the pod's namespace
    gate: str
    kind: DependencyKind


def dependency_of(pod: Pod) -> GateDependency | Reason | None:
    """What a pod waits for. None: nothing that is ours to open; a `Reason`: it says so wrongly."""
    gates = {each.name for each in pod.spec.scheduling_gates or ()}
    notes = pod.annotations
    gate = notes.get(names.DEPENDS_ON_GATE) or names.GATES[0]
    if gate not in gates:
        return None
    if is_others(gate):
        return Reason.of(Code.GATE_OF_OTHERS, key=names.DEPENDS_ON_GATE, gate=gate[:_SHOWN])
    space, slash, name = notes.get(names.DEPENDS_ON_PRODUCER, "").strip().rpartition("/")
    if slash and space != pod.metadata.namespace:
        # Whoever may name another namespace's pods could read what they announce.
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
    """Whether a gate is some controller's own (Kueue's quota, a queue's): a user who names it here must not
    get past it."""
    domain, slash, _ = gate.rpartition("/")
    return gate in _QUEUES or (bool(slash) and f".{domain}".endswith(_RESERVED))


def waits_for_producer(gated: Sequence[Pod], pods: int) -> Reason | None:
    """Why gated pods wait, where all of them wait for the same producer."""
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
    """The names by which a pod can be waited for: its own, its groups', its owner's."""
    owner = next((each.name for each in pod.metadata.owner_references or () if each.controller), None)
    return {pod.metadata.name, *groups_of(pod), *(() if owner is None else (owner,))}


# -- what producers announce ---------------------------------------------------------------------------------


def task_of(pod: Pod) -> str | None:
    """The task that a pod has announced. What no vendor gives out is none."""
    task = pod.annotations.get(names.QUANTUM_JOB_ID, "").strip()
    return task if is_task(task) else None


def is_task(text: str) -> bool:
    """Whether this can be a task's id: one line without blanks at its ends, and not too long."""
    return 0 < len(text) <= MAX_TASK and text.isprintable() and text == text.strip()


# -- what is remembered on those who wait --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProducerNote:
    """Which producer was seen running, and since when, in milliseconds."""

    uid: str
    at: int

    def annotation(self) -> dict[str, str]:
        return {names.PRODUCER_STARTED: f"{self.uid} {rfc3339(self.at * 1000, 'milliseconds')}"}


def producer_note(pod: Pod, now: int) -> ProducerNote | None:
    """What was written on a pod. Anybody may write annotations: a time to come is none."""
    uid, _, text = pod.annotations.get(names.PRODUCER_STARTED, "").partition(" ")
    at = parse_rfc3339(text)
    if not uid or at is None:
        return None
    found = round(at / 1000)
    return ProducerNote(uid, found) if found <= now else None
