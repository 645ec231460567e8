"""Preparing: pods that have seats and wait there for their volumes; none is bound before all claims are.

    seats ──► choices are written ──► every claim bound, and reachable ──► binds
                    │
                    └─ a claim or a node is lost, the provisioner takes the choice back, or time is up:
                       the seats are given up, the choices taken back, and the pods seated anew

Nothing here is remembered across a restart: a claim itself says which node was chosen, and if it is bound.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fluence import messages
from fluence.cluster.claims import Claim
from fluence.cluster.filters.volumes import VolumeDecision, mounts
from fluence.cluster.graph import ClusterGraph
from fluence.model.node import closed_to
from fluence.model.pod import Pod
from fluence.model.volume import Key
from fluence.schedule.actions import Bind, ClaimUpdate

_NAMED = 3  # claims that a reason names
_SHUN = 60_000  # a node on which a group got no volume is left out for so long: there may be room again


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
class VolumeBinding:
    """The claims of pods that start together, from their seats to their binds."""

    stows: Sequence[VolumeDecision]
    binds: list[Bind]
    deadline: int
    seen: set[Key] = field(default_factory=set)  # claims that showed our choice: they may lose it

    def begin(self, cluster: ClusterGraph) -> list[ClaimUpdate]:
        """What is to be written first; a choice that is there already, after a restart, is not."""
        found = []
        for stow in self.stows:
            claim = cluster.claim(stow.claim)
            self.saw(stow.claim, claim)
            if stow.claim not in self.seen:
                found.append(ClaimUpdate(stow.claim, stow.uid, stow.node, stow.volume))
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
        left: list[VolumeDecision] = []
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

    def end(self, cluster: ClusterGraph) -> list[ClaimUpdate]:
        """What is to be taken back."""
        found = []
        for stow in self.stows:
            claim = cluster.claim(stow.claim)
            if stow.volume is None and claim is not None and claim.state == "waits" and claim.uid == stow.uid:
                found.append(ClaimUpdate(stow.claim, stow.uid, None, was=stow.node))
        return found

    def _claim(self, stow: VolumeDecision, cluster: ClusterGraph) -> bool | Failed:
        """Whether a claim is bound as it was to be."""
        name, claim = stow.claim[1], cluster.claim(stow.claim)
        if claim is None or claim.uid != stow.uid:
            return Failed(f"claim {name!r} is gone")
        if claim.state == "bound":
            for bind in self.binds:
                if bind.uid in stow.pods and not cluster.reaches(claim.nodes, bind.node):
                    return Failed(f"the volume of claim {name!r} cannot be reached from node {bind.node}")
            return True
        if claim.is_terminating and claim.reason is not None:
            return Failed(f"claim {name!r} {messages.text(claim.reason)}")
        if claim.state != "waits":
            return False  # bound, and its volume has not been seen yet
        if stow.volume is not None and all(each.volume != stow.volume for each in claim.choices):
            return Failed(f"volume {stow.volume} for claim {name!r} is not free any more")
        if stow.claim in self.seen and claim.selected != stow.node:
            reason = f"no volume could be made for claim {name!r} on node {stow.node}"
            return Failed(reason, frozenset((stow.node,)))
        return False


class VolumeBindings:
    """All that is being prepared, by part; whom a claim concerns; nodes on which there was no volume."""

    def __init__(self, cluster: ClusterGraph, *, timeout: int) -> None:
        self.timeout = timeout  # how long claims may take before other nodes are tried
        self.of: dict[str, VolumeBinding] = {}
        self.choices: list[ClaimUpdate] = []  # to be written
        self._cluster = cluster
        self._claimants: dict[Key, set[str]] = {}  # claim -> parts whose pods mount it
        self._shunned: dict[str, dict[str, int]] = {}  # per group: nodes without volumes, and until when

    # -- who mounts what -------------------------------------------------------------------------------------

    def enlist(self, part: str, pods: Iterable[Pod]) -> None:
        for pod in pods:
            for claim in mounts(pod):
                self._claimants.setdefault(claim, set()).add(part)

    def strike(self, part: str, pods: Iterable[Pod]) -> None:
        """A part that is over, or not wanted any more."""
        self.end(part)
        for pod in pods:
            for claim in mounts(pod):
                names = self._claimants.get(claim, set())
                names.discard(part)
                if not names:
                    self._claimants.pop(claim, None)

    def concerned(self, claim: Key) -> Collection[str]:
        """The parts whose pods mount a claim."""
        return self._claimants.get(claim, ())

    def given_up(self, pod: Pod) -> set[str]:
        """The parts that a pod's claims concern when it gives them up: a single pod may use some of them."""
        return {part for claim in mounts(pod) for part in self.concerned(claim)} if self._claimants else set()

    def saw(self, key: Key, claim: Claim | None) -> None:
        for preparation in self.of.values():
            preparation.saw(key, claim)

    # -- from seats to binds ---------------------------------------------------------------------------------

    def begin(self, part: str, binds: list[Bind], now: int) -> VolumeBinding | None:
        """Prepare the claims of pods that have seats now; None if there are none to prepare."""
        pods = {bind.uid: bind.pod for bind in binds}
        if not any(pod.spec.volumes for pod in pods.values()):
            return None
        stows = self._cluster.volume_decisions({bind.uid: bind.node for bind in binds}, pods)
        if not stows:
            return None
        made = self.of[part] = VolumeBinding(stows, binds, now + self.timeout)
        self.choices += made.begin(self._cluster)
        for stow in stows:
            self._cluster.hold_volume(stow.claim, stow.volume)
        return made

    def end(self, part: str) -> None:
        """Choices for claims that are still without a volume are taken back, unless others count on them."""
        preparation = self.of.pop(part, None)
        if preparation is None:
            return
        awaited = {stow.claim for each in self.of.values() for stow in each.stows}
        self.choices += [each for each in preparation.end(self._cluster) if each.claim not in awaited]
        for stow in preparation.stows:
            if stow.claim not in awaited:
                self._cluster.hold_volume(stow.claim, None)

    def take_choices(self) -> list[ClaimUpdate]:
        found, self.choices = self.choices, []
        return found

    # -- nodes without volumes -------------------------------------------------------------------------------

    def shun(self, group: str, nodes: Iterable[str], now: int) -> None:
        self._shunned.setdefault(group, {}).update(dict.fromkeys(nodes, now + _SHUN))

    def shunned(self, group: str) -> Collection[str]:
        return self._shunned.get(group, ())

    def pardon(self, group: str) -> None:
        self._shunned.pop(group, None)

    def forgive(self, now: int) -> list[str]:
        """Nodes that had no volume may be tried again: the groups that they are open to now."""
        found = []
        for group, nodes in list(self._shunned.items()):
            kept = {node: until for node, until in nodes.items() if until > now}
            if len(kept) < len(nodes):
                found.append(group)
                self._shunned[group] = kept
            if not kept:
                del self._shunned[group]
        return found

    def times(self) -> list[int]:
        """When to look again even if nothing happens."""
        until = [each for nodes in self._shunned.values() for each in nodes.values()]
        return [*until, *(each.deadline for each in self.of.values())]


def _lost(bind: Bind, cluster: ClusterGraph, unbound: Mapping[str, str]) -> str:
    """Why a pod cannot be bound to its seat any more."""
    entry, node = cluster.pods.entries.get(bind.uid), cluster.node(bind.node)
    if unbound.get(bind.uid) != bind.node:
        return f"pod {bind.pod.key} is over, or has a node already"
    if node is None or entry is None or entry.node != bind.node:
        return f"node {bind.node} is gone"
    closed = closed_to(node, entry.pod)
    return f"node {bind.node}: {closed}" if closed else ""


def _what(stow: VolumeDecision) -> str:
    if stow.volume is not None:
        return f"{stow.claim[1]} to be bound to volume {stow.volume}"
    return f"{stow.claim[1]} to be provisioned on node {stow.node}"
