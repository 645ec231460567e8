"""Actions: what a cycle wants done, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.schedule.stand_ins import ReleaseNote


@dataclass(frozen=True, slots=True)
class Bind:
    """Put a pod on a node; annotations travel in the same write."""

    pod: Pod
    node: str
    job: str  # the queue's key: binds of one job stand or fall together until the first is sent
    annotations: Mapping[str, str]

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid


@dataclass(frozen=True, slots=True)
class Release:
    """Let a suspended Job make its pods; which node each of them has goes along in the same write."""

    owner: Owner  # as it was planned with: if its spec has changed since, nothing is written
    job: str  # the queue's key
    note: ReleaseNote

    @property
    def uid(self) -> str:
        return self.owner.metadata.uid


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
