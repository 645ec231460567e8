"""Preparation: pods that have seats and wait there for their volumes; none is bound before all claims are.

    seats ──► choices are written ──► every claim bound, and reachable ──► binds
                    │
                    └─ a claim or a node is lost, the provisioner takes the choice back, or time is up:
                       the seats are given up, the choices taken back, and the pods seated anew

Nothing here is remembered across a restart: a claim itself says which node was chosen, and if it is bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fluence.act.action import Bind, Choose
from fluence.cluster.claims import Claim
from fluence.cluster.graph import ClusterGraph
from fluence.cluster.storage import Stow
from fluence.model.node import closed_to
from fluence.model.volume import Key

_NAMED = 3  # claims that a reason names


@dataclass(frozen=True, slots=True)
class Ready:
    """All claims are bound."""


@dataclass(frozen=True, slots=True)
class Failed:
    """It will not come about like this; ``nodes`` turned out not to suit."""

    reason: str
    nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Waits:
    """Some claims are not bound yet."""


@dataclass(slots=True)
class Preparation:
    """The claims of pods that start together, from their seats to their binds."""

    stows: Sequence[Stow]
    binds: list[Bind]
    deadline: int
    seen: set[Key] = field(default_factory=set)  # claims that showed our choice: they may lose it

    def begin(self, cluster: ClusterGraph) -> list[Choose]:
        """What is to be written first; a choice that is there already, after a restart, is not."""
        found = []
        for stow in self.stows:
            claim = cluster.claim(stow.claim)
            self.saw(stow.claim, claim)
            if stow.claim not in self.seen:
                found.append(Choose(stow.claim, stow.uid, stow.node, stow.volume))
        return found

    def saw(self, key: Key, claim: Claim | None) -> None:
        """A claim as it is now."""
        for stow in self.stows:
            if (
                stow.claim == key
                and stow.volume is None
                and claim is not None
                and claim.selected == stow.node
            ):
                self.seen.add(key)

    def look(self, cluster: ClusterGraph, unbound: Mapping[str, str], now: int) -> Ready | Waits | Failed:
        """How far it is."""
        left: list[Stow] = []
        for stow in self.stows:
            verdict = self._claim(stow, cluster)
            if isinstance(verdict, Failed):
                return verdict
            if not verdict:
                left.append(stow)
        for bind in self.binds:
            lost = _lost(bind, cluster, unbound)
            if lost:
                return Failed(lost)
        if not left:
            return Ready()
        if now >= self.deadline:
            nodes = frozenset(stow.node for stow in left)
            return Failed(f"claim {left[0].claim[1]!r} was not bound in time", nodes)
        return Waits()

    @property
    def reason(self) -> str:
        """What all of them wait for. It is said once: a gang of a thousand is not told of each claim."""
        if len(self.binds) == 1:
            return self.reason_of(self.binds[0].uid)
        told = ", ".join(map(_what, self.stows[:_NAMED]))
        more = f" and {len(self.stows) - _NAMED} more" if len(self.stows) > _NAMED else ""
        return f"waits for the claims of its pods: {told}{more}"

    def reason_of(self, uid: str) -> str:
        """What one pod waits for."""
        own = [stow for stow in self.stows if uid in stow.pods]
        if not own:
            return "waits for the claims of its group"
        claims = "claim" if len(own) == 1 else "claims"
        return f"waits for its {claims} {', '.join(map(_what, own))}"

    def end(self, cluster: ClusterGraph) -> list[Choose]:
        """What is to be taken back."""
        found = []
        for stow in self.stows:
            claim = cluster.claim(stow.claim)
            if stow.volume is None and claim is not None and claim.state == "waits" and claim.uid == stow.uid:
                found.append(Choose(stow.claim, stow.uid, None, was=stow.node))
        return found

    def _claim(self, stow: Stow, cluster: ClusterGraph) -> bool | Failed:
        """Whether a claim is bound as it was to be."""
        name, claim = stow.claim[1], cluster.claim(stow.claim)
        if claim is None or claim.uid != stow.uid:
            return Failed(f"claim {name!r} is gone")
        if claim.state == "bound":
            for bind in self.binds:
                if bind.uid in stow.pods and not cluster.reaches(claim.nodes, bind.node):
                    return Failed(f"the volume of claim {name!r} cannot be reached from node {bind.node}")
            return True
        if claim.reason == "is being deleted":
            return Failed(f"claim {name!r} {claim.reason}")
        if claim.state != "waits":
            return False  # bound, and its volume has not been seen yet
        if stow.volume is not None and all(each.volume != stow.volume for each in claim.choices):
            return Failed(f"volume {stow.volume} for claim {name!r} is not free any more")
        if stow.claim in self.seen and claim.selected != stow.node:
            reason = f"no volume could be made for claim {name!r} on node {stow.node}"
            return Failed(reason, frozenset((stow.node,)))
        return False


def _lost(bind: Bind, cluster: ClusterGraph, unbound: Mapping[str, str]) -> str:
    """Why a pod cannot be bound to its seat any more."""
    entry, node = cluster.pods.entries.get(bind.uid), cluster.node(bind.node)
    if unbound.get(bind.uid) != bind.node:
        return f"pod {bind.pod.key} is over, or has a node already"
    if node is None or entry is None or entry.node != bind.node:
        return f"node {bind.node} is gone"
    closed = closed_to(node, entry.pod)
    return f"node {bind.node}: {closed}" if closed else ""


def _what(stow: Stow) -> str:
    if stow.volume is not None:
        return f"{stow.claim[1]} to be bound to volume {stow.volume}"
    return f"{stow.claim[1]} to be provisioned on node {stow.node}"
