"""Actions: what a cycle wants done, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from msgspec.structs import replace

from fluence.model.grant import DeviceNote, LimitNote, PodGrant, ReleaseNote, with_condition
from fluence.model.held import is_delegated
from fluence.model.owner import Owner
from fluence.model.pod import Pod


@dataclass(frozen=True, slots=True)
class Bind:
    """Put a pod on a node; annotations travel in the same write."""

    pod: Pod
    node: str
    job: str  # the queue's key: binds of one job stand or fall together until the first is sent
    annotations: Mapping[str, str]
    devices: tuple[DeviceNote, ...] = ()  # that belong to no node
    own_devices: bool = False  # no other pod of its gang shares them
    limit: LimitNote | None = None  # at which the scheduler ends it

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid

    @property
    def grant(self) -> PodGrant | None:
        """What its status must say before it is bound: what a restart cannot read from the bind itself."""
        if self.devices or self.limit is not None or is_delegated(self.pod):
            return PodGrant(self.node, self.devices, own=self.own_devices, limit=self.limit)
        return None

    def carried_out(self, pod: Pod) -> Pod:
        """A pod as the server will show it once it is bound."""
        return replace(self.granted(pod), spec=replace(pod.spec, node_name=self.node))

    def granted(self, pod: Pod) -> Pod:
        """A pod as the server will show it before that, or when it was handed over."""
        meta, status = pod.metadata, pod.status
        if self.grant is not None:
            status = replace(status, conditions=with_condition(status.conditions, self.grant.condition()))
        notes = {**pod.annotations, **self.annotations}
        return replace(pod, metadata=replace(meta, annotations=notes), status=status)


@dataclass(frozen=True, slots=True)
class Release:
    """Let a suspended Job make its pods; which node each of them has is written before."""

    owner: Owner  # as it was planned with: if its spec has changed since, nothing is written
    job: str  # the queue's key
    note: ReleaseNote

    @property
    def key(self) -> str:
        """The identity of the Job."""
        return self.owner.identity

    def carried_out(self, owner: Owner) -> Owner:
        """A Job as the server will show it once it is released."""
        meta, note, status = owner.metadata, self.note, owner.status
        notes = {**owner.annotations, **note.annotations()}
        return replace(
            owner,
            metadata=replace(meta, annotations=notes, generation=note.generation + 1),
            spec=replace(owner.spec, suspend=False),
            status=replace(status, conditions=with_condition(status.conditions, note.condition())),
        )


@dataclass(frozen=True, slots=True)
class ClaimUpdate:
    """Tell a claim that waits for its first consumer where its volume is to be, or take that back."""

    claim: tuple[str, str]  # namespace, name
    uid: str
    node: str | None  # None: take it back
    volume: str | None = None  # one that is there; None: it is made on the node
    was: str | None = None  # the choice to take back: another's is left alone


class BindOutcome(Enum):
    """What became of a bind."""

    BOUND = "bound"
    AGAIN = "again"  # nothing is known to be wrong with the place: the server failed, or was not asked
    GONE = "gone"  # the pod is gone, or leaving
    ELSEWHERE = "elsewhere"  # somebody else has bound it
    STALE = "stale"  # the node went, or closed, since the match; the graph knows, or will at once
    HANDED_OVER = "handed over"  # kube-scheduler was told where to bind it
    IMPOSSIBLE = "impossible"  # the server refuses this pod on this node, whatever else is free there


@dataclass(frozen=True, slots=True)
class BindResult:
    """The answer to a bind."""

    bind: Bind
    outcome: BindOutcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """The answer to a release: BOUND, AGAIN, GONE, or STALE if the Job is not what it was."""

    release: Release
    outcome: BindOutcome
    reason: str = ""
