"""Events in, orders out: everything that the scheduler observes, in any order, and what a cycle orders, as
data.

The edge (`fluence.live`, or the embedded cluster of `fluence.sim`) makes events from watches and from the
results of binds, and passes them to `Scheduler.handle`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from msgspec.structs import replace

from fluence import names
from fluence.model.claims import (
    CsiNode,
    DeviceClass,
    PersistentVolume,
    ResourceClaimTemplate,
    ResourceSlice,
    StorageClass,
    VolumeClaim,
)
from fluence.model.grant import DeviceNote, LimitNote, PodGrant, ReleaseNote, is_delegated, with_condition
from fluence.model.kueue import KueueObject
from fluence.model.meta import ConfigMap, KubeObject, PriorityClass, Service
from fluence.model.node import Node
from fluence.model.owner import Group, Owner
from fluence.model.pod import Pod, PodDisruptionBudget
from fluence.model.queue_documents import QueueObject
from fluence.units import rfc3339


@dataclass(frozen=True, slots=True)
class Bind:
    """Bind a pod to a node. The annotations are part of the same write."""

    pod: Pod
    node: str
    job: str  # the queue's key; until the first bind is sent, binds of one job succeed or fail together
    annotations: Mapping[str, str]
    devices: tuple[DeviceNote, ...] = ()  # external resources of the pod
    own_devices: bool = False  # no other pod of its gang shares them
    limit: LimitNote | None = None  # at which the scheduler ends the pod
    queue: str | None = None  # the queue it counts in, if its user could name another one

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid

    @property
    def grant(self) -> PodGrant | None:
        """The note to write to the pod's status before the bind, for what a restart cannot read from the bind
        itself."""
        if self.devices or self.limit is not None or self.queue is not None or is_delegated(self.pod):
            return PodGrant(self.node, self.devices, own=self.own_devices, limit=self.limit, queue=self.queue)
        return None

    def carried_out(self, pod: Pod) -> Pod:
        """The pod as the server will show it once it is bound."""
        return replace(self.granted(pod), spec=replace(pod.spec, node_name=self.node))

    def granted(self, pod: Pod) -> Pod:
        """The pod as the server will show it before the bind, or after it was delegated."""
        meta, status = pod.metadata, pod.status
        if self.grant is not None:
            status = replace(status, conditions=with_condition(status.conditions, self.grant.condition()))
        notes = {**pod.annotations, **self.annotations}
        return replace(pod, metadata=replace(meta, annotations=notes), status=status)


@dataclass(frozen=True, slots=True)
class Release:
    """Unsuspend a Job so that it creates its pods. The note with the nodes of the pods is written first."""

    owner: Owner  # the planned version: if its spec has changed since, nothing is written
    job: str  # the queue's key
    note: ReleaseNote

    @property
    def key(self) -> str:
        """The identity of the Job."""
        return self.owner.identity

    def carried_out(self, owner: Owner) -> Owner:
        """The Job as the server will show it once it is released."""
        meta, note, status = owner.metadata, self.note, owner.status
        notes = {**owner.annotations, **note.annotations()}
        return replace(
            owner,
            metadata=replace(meta, annotations=notes, generation=note.generation + 1),
            spec=replace(owner.spec, suspend=False),
            status=replace(status, conditions=with_condition(status.conditions, note.condition())),
        )


@dataclass(frozen=True, slots=True)
class Preempt:
    """End pods of one group, so that other work can start, because their queue is drained, or because the
    rest of their gang was ended."""

    group: str  # of the victims
    pods: tuple[Pod, ...]
    owners: tuple[Owner, ...]  # Jobs to suspend again instead: their controller ends the pods
    preemptor: Pod | None  # one of the pods that start; None: a drained queue, or no name to show
    priority: int  # of the preemptor
    victim_priority: int
    nodes: tuple[str, ...]  # nodes for the preemptor
    queue: str = ""  # the queue that is drained, or that reclaims its guarantee
    at: int = 0  # when to end them: as late as the start of the preemptor allows
    lost: int = 0  # how long it ran since its start or its last checkpoint

    def with_pods(self, pods: tuple[Pod, ...]) -> Preempt:
        """The same order for other pods of the group."""
        return dataclasses.replace(self, pods=pods)


@dataclass(frozen=True, slots=True)
class PlanEnd:
    """Write on a running pod when it will end for other work; None removes the time."""

    pod: Pod
    at: int | None

    def carried_out(self, pod: Pod) -> Pod:
        """The pod as the server will show it afterwards."""
        notes = {key: value for key, value in pod.annotations.items() if key != names.ENDS_AT}
        notes |= {} if self.at is None else {names.ENDS_AT: rfc3339(self.at * 1000)}
        return replace(pod, metadata=replace(pod.metadata, annotations=notes))


@dataclass(frozen=True, slots=True)
class Nominate:
    """Write on a waiting pod which node is being freed for it; None removes the node."""

    pod: Pod
    node: str | None


@dataclass(frozen=True, slots=True)
class ClaimUpdate:
    """Write the chosen node to a claim that waits for its first consumer, or remove it again."""

    claim: tuple[str, str]  # namespace, name
    uid: str
    node: str | None  # None: remove the choice
    volume: str | None = None  # an existing volume; None: it is provisioned on the node
    was: str | None = None  # the choice to remove; any other choice is left alone


class BindOutcome(Enum):
    """The result of a bind."""

    BOUND = "bound"
    AGAIN = "again"  # the placement is fine: the server failed, or was not reached
    GONE = "gone"  # the pod is gone or terminating
    ELSEWHERE = "elsewhere"  # something else has bound it
    STALE = "stale"  # the node is gone or closed since the match, as the graph knows or soon will
    HANDED_OVER = "handed over"  # kube-scheduler knows where to bind it
    IMPOSSIBLE = "impossible"  # the server refuses this pod on this node for good


@dataclass(frozen=True, slots=True)
class BindResult:
    """The result of a bind, with its bind."""

    bind: Bind
    outcome: BindOutcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """The result of a release: BOUND, AGAIN, GONE, or STALE if the Job has changed."""

    release: Release
    outcome: BindOutcome
    reason: str = ""


# A bare KubeObject is a namespace, whose labels are all that matters.
Object: TypeAlias = (
    Node
    | Pod
    | Group
    | Owner
    | VolumeClaim
    | PersistentVolume
    | StorageClass
    | CsiNode
    | ResourceSlice
    | DeviceClass
    | ResourceClaimTemplate
    | PriorityClass
    | Service
    | PodDisruptionBudget
    | ConfigMap
    | QueueObject
    | KueueObject
    | KubeObject
)


@dataclass(frozen=True, slots=True)
class Changed:
    """An object is new (``old`` is None), changed, or gone (``new`` is None)."""

    old: Object | None
    new: Object | None

    @property
    def object(self) -> Object:
        """The new object, or the last known one if it is gone."""
        found = self.new if self.new is not None else self.old
        assert found is not None
        return found


@dataclass(frozen=True, slots=True)
class BindFinished:
    """The result of a bind has arrived."""

    result: BindResult


@dataclass(frozen=True, slots=True)
class ReleaseFinished:
    """The result of a release has arrived."""

    result: ReleaseResult


@dataclass(frozen=True, slots=True)
class NotBound:
    """A pod that counted as bound is not. Only `Scheduler` makes this event."""

    pod: Pod


Event: TypeAlias = Changed | BindFinished | ReleaseFinished
