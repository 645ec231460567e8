"""Actions: what a cycle wants done, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from fluence.model.pod import Pod


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
    IMPOSSIBLE = "impossible"  # the server refuses this pod on this node, whatever else is free there


@dataclass(frozen=True, slots=True)
class BindResult:
    """The answer to a bind."""

    bind: Bind
    outcome: BindOutcome
    reason: str = ""
