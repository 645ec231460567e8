"""Volume binding: pods that have seats wait there for their volumes; none is bound before all claims are.

    seats ──► decisions are written ──► every claim bound, and reachable ──► binds
                    │
                    └─ a claim or a node is lost, the provisioner takes the decision back, or time is up:
                       the seats are given up, the decisions taken back, and the pods placed anew

This is kube-scheduler's VolumeBinding plug-in (Reserve and PreBind) for a whole pod set. The cycle calls it.
Nothing here is remembered across a restart: a claim itself says which node was chosen, and if it is bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fluence.cluster.claims import Claim
from fluence.cluster.filters.volumes import VolumeDecision
from fluence.cluster.graph import ClusterGraph
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.model.volume import Key
from fluence.schedule.actions import Bind, ClaimUpdate

_NAMED = 3  # claims that a reason names


@dataclass(frozen=True, slots=True)
class Ready:
    """All claims are bound."""


@dataclass(frozen=True, slots=True)
class Failed:
    """It will not come about like this; ``nodes`` turned out not to suit."""

    reason: Reason
    nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Waits:
    """Some claims are not bound yet."""


@dataclass(slots=True)
class VolumeBinding:
    """The claims of a pod set, from its seats to its binds."""

    decisions: Sequence[VolumeDecision]
    binds: list[Bind]
    deadline: int
    seen: set[Key] = field(default_factory=set)  # claims that showed our decision: they may lose it

    def begin(self, cluster: ClusterGraph) -> list[ClaimUpdate]:
        """What is to be written first; a decision that is there already, after a restart, is not."""
        found = []
        for decision in self.decisions:
            self.observe(decision.claim, cluster.claim(decision.claim))
            if decision.claim not in self.seen:
                found.append(ClaimUpdate(decision.claim, decision.uid, decision.node, decision.volume))
        return found

    def observe(self, key: Key, claim: Claim | None) -> None:
        """A claim as it is now."""
        for decision in self.decisions:
            made = decision.claim == key and decision.volume is None
            if made and claim is not None and claim.selected == decision.node:
                self.seen.add(key)

    def check(self, cluster: ClusterGraph, unbound: Mapping[str, str], now: int) -> Ready | Waits | Failed:
        """How far it is."""
        left: list[VolumeDecision] = []
        for decision in self.decisions:
            verdict = self._check_claim(decision, cluster)
            if isinstance(verdict, Failed):
                return verdict
            if not verdict:
                left.append(decision)
        for bind in self.binds:
            lost = _lost(bind, cluster, unbound)
            if lost is not None:
                return Failed(lost)
        if not left:
            return Ready()
        if now >= self.deadline:
            nodes = frozenset(decision.node for decision in left)
            return Failed(Reason.of(Code.CLAIM_TIMED_OUT, claim=left[0].claim[1]), nodes)
        return Waits()

    @property
    def reason(self) -> Reason:
        """What all of them wait for. It is said once: a gang of a thousand is not told of each claim."""
        if len(self.binds) == 1:
            return self.reason_of(self.binds[0].uid)
        named = tuple(map(_what, self.decisions[:_NAMED]))
        return Reason.of(Code.WAITS_FOR_CLAIMS_OF_PODS, claims=named, more=len(self.decisions) - len(named))

    def reason_of(self, uid: str) -> Reason:
        """What one pod waits for."""
        own = tuple(_what(decision) for decision in self.decisions if uid in decision.pods)
        if not own:
            return Reason.of(Code.WAITS_FOR_CLAIMS_OF_GROUP)
        return Reason.of(Code.WAITS_FOR_ITS_CLAIMS, claims=own)

    def end(self, cluster: ClusterGraph) -> list[ClaimUpdate]:
        """What is to be taken back."""
        found = []
        for decision in self.decisions:
            claim = cluster.claim(decision.claim)
            if (
                decision.volume is None
                and claim is not None
                and claim.state == "waits"
                and claim.uid == decision.uid
            ):
                found.append(ClaimUpdate(decision.claim, decision.uid, None, was=decision.node))
        return found

    def _check_claim(self, decision: VolumeDecision, cluster: ClusterGraph) -> bool | Failed:
        """Whether a claim is bound as it was to be."""
        name, claim = decision.claim[1], cluster.claim(decision.claim)
        if claim is None or claim.uid != decision.uid:
            return Failed(Reason.of(Code.CLAIM_GONE, claim=name))
        if claim.state == "bound":
            for bind in self.binds:
                if bind.uid not in decision.pods or cluster.node(bind.node) is None:
                    continue  # of a node that is gone, its own reason is said
                if not cluster.reaches(claim.nodes, bind.node):
                    return Failed(Reason.of(Code.BOUND_VOLUME_OUT_OF_REACH, claim=name, node=bind.node))
            return True
        if claim.is_terminating:
            return Failed(Reason.of(Code.CLAIM_DELETING, claim=name))
        if claim.state != "waits":
            return False  # bound, and its volume has not been seen yet
        if decision.volume is not None and all(each.volume != decision.volume for each in claim.choices):
            return Failed(Reason.of(Code.VOLUME_TAKEN, claim=name, volume=decision.volume))
        if decision.claim in self.seen and claim.selected != decision.node:
            reason = Reason.of(Code.VOLUME_NOT_MADE, claim=name, node=decision.node)
            return Failed(reason, frozenset((decision.node,)))
        return False


class VolumeBindings:
    """What is being prepared, by pod set, and what is to be written to claims."""

    def __init__(self, cluster: ClusterGraph, *, timeout: int) -> None:
        self.timeout = timeout  # how long claims may take before other nodes are tried
        self.active: dict[str, VolumeBinding] = {}
        self._cluster = cluster
        self._updates: list[ClaimUpdate] = []

    def observe(self, key: Key, claim: Claim | None) -> None:
        for binding in self.active.values():
            binding.observe(key, claim)

    def begin(self, key: str, binds: list[Bind], now: int) -> VolumeBinding | None:
        """Prepare the claims of pods that have seats now; None if there are none to prepare."""
        pods: dict[str, Pod] = {bind.uid: bind.pod for bind in binds}
        if not any(pod.spec.volumes for pod in pods.values()):
            return None
        decisions = self._cluster.volume_decisions({bind.uid: bind.node for bind in binds}, pods)
        if not decisions:
            return None
        made = self.active[key] = VolumeBinding(decisions, binds, now + self.timeout)
        self._updates += made.begin(self._cluster)
        for decision in decisions:
            self._cluster.hold_volume(decision.claim, decision.volume)
        return made

    def end(self, key: str) -> None:
        """Decisions for claims still without a volume are taken back, unless others count on them."""
        binding = self.active.pop(key, None)
        if binding is None:
            return
        awaited = {each.claim for other in self.active.values() for each in other.decisions}
        self._updates += [each for each in binding.end(self._cluster) if each.claim not in awaited]
        for decision in binding.decisions:
            if decision.claim not in awaited:
                self._cluster.hold_volume(decision.claim, None)

    def take_updates(self) -> list[ClaimUpdate]:
        """What is to be written to claims, since the last call."""
        found, self._updates = self._updates, []
        return found

    def next_due(self) -> int | None:
        """When the time of the next of them is up."""
        return min((each.deadline for each in self.active.values()), default=None)


def _lost(bind: Bind, cluster: ClusterGraph, unbound: Mapping[str, str]) -> Reason | None:
    """Why a pod cannot be bound to its seat any more."""
    entry = cluster.pods.entries.get(bind.uid)
    if unbound.get(bind.uid) != bind.node:
        return Reason.of(Code.POD_OVER_OR_BOUND, pod=bind.pod.key)
    if entry is None or entry.node != bind.node or cluster.node(bind.node) is None:
        return Reason.of(Code.NODE_GONE, node=bind.node)
    closed = cluster.closed(entry.pod, bind.node)
    return Reason.of(Code.NODE_CLOSED, node=bind.node, why=closed) if closed else None


def _what(decision: VolumeDecision) -> Reason:
    name = decision.claim[1]
    if decision.volume is not None:
        return Reason.of(Code.CLAIM_TO_BE_BOUND, claim=name, volume=decision.volume)
    return Reason.of(Code.CLAIM_TO_BE_PROVISIONED, claim=name, node=decision.node)
