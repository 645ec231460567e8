"""Volume binding: placed pods wait for their volumes, and none is bound before all claims are bound.

    placed ──► decisions are written ──► every claim bound, and reachable ──► binds
                     │
                     └─ a claim or a node is lost, the provisioner rejects the decision, or time is up:
                        the placements and the decisions are withdrawn, and the pods are placed again

This is kube-scheduler's VolumeBinding plug-in (Reserve and PreBind) for a whole pod set. The cycle calls it.
Nothing here survives a restart: a claim itself says which node was chosen, and whether it is bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from fluence.cluster.claims import Change, Claim, Claims
from fluence.cluster.filters.volumes import VolumeDecision
from fluence.cluster.graph import ClusterGraph
from fluence.model.claims import CsiNode, Key, PersistentVolume, StorageClass, VolumeClaim
from fluence.model.job_state import JobState
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.schedule.events import Bind, Changed, ClaimUpdate, Event, NotBound
from fluence.schedule.status.reports import Waiting
from fluence.schedule.status.status import StatusReport
from fluence.schedule.step import Step, working_on

if TYPE_CHECKING:
    from fluence.cluster.planner import ClusterPlanner
    from fluence.schedule.binding import Binding
    from fluence.schedule.cycle import Decisions
    from fluence.schedule.gangs.groups import Groups
    from fluence.schedule.lifecycle import Lifecycle
    from fluence.schedule.pod_set import Changes, PodSet, PodSets
    from fluence.schedule.status.reports import StatusReports

_NAMED = 3  # how many claims a reason names


@dataclass(frozen=True, slots=True)
class Ready:
    """All claims are bound."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The volumes cannot be bound here. ``nodes`` turned out not to suit."""

    reason: Reason
    nodes: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Waits:
    """Some claims are not bound yet."""


@dataclass(slots=True)
class VolumeBinding:
    """The claims of a pod set, from its placements to its binds."""

    decisions: Sequence[VolumeDecision]
    binds: list[Bind]
    deadline: int
    seen: set[Key] = field(default_factory=set)  # claims that showed our decision, and so may lose it

    def begin(self, cluster: ClusterGraph) -> list[ClaimUpdate]:
        """The first updates of claims. A decision that is already written, after a restart, is left out."""
        found = []
        for decision in self.decisions:
            self.observe(decision.claim, cluster.claim(decision.claim))
            if decision.claim not in self.seen:
                found.append(ClaimUpdate(decision.claim, decision.uid, decision.node, decision.volume))
        return found

    def observe(self, key: Key, claim: Claim | None) -> None:
        """Observe the current state of a claim."""
        for decision in self.decisions:
            made = decision.claim == key and decision.volume is None
            if made and claim is not None and claim.selected == decision.node:
                self.seen.add(key)

    def check(self, cluster: ClusterGraph, unbound: Mapping[str, str], now: int) -> Ready | Waits | Failed:
        """Whether the claims are bound, are still pending, or failed."""
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
        """What the pod set waits for, in one reason: a gang of a thousand pods does not list every claim."""
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
        """The updates that remove our decisions again."""
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
        """Whether a claim is bound as planned."""
        name, claim = decision.claim[1], cluster.claim(decision.claim)
        if claim is None or claim.uid != decision.uid:
            return Failed(Reason.of(Code.CLAIM_GONE, claim=name))
        if claim.state == "bound":
            for bind in self.binds:
                if bind.uid not in decision.pods or cluster.node(bind.node) is None:
                    continue  # a lost node has its own reason
                if not cluster.reaches(claim.nodes, bind.node):
                    return Failed(Reason.of(Code.BOUND_VOLUME_OUT_OF_REACH, claim=name, node=bind.node))
            return True
        if claim.is_terminating:
            return Failed(Reason.of(Code.CLAIM_DELETING, claim=name))
        if claim.state != "waits":
            return False  # bound, and its volume is not known yet
        if decision.volume is not None and all(each.volume != decision.volume for each in claim.choices):
            return Failed(Reason.of(Code.VOLUME_TAKEN, claim=name, volume=decision.volume))
        if decision.claim in self.seen and claim.selected != decision.node:
            reason = Reason.of(Code.VOLUME_NOT_MADE, claim=name, node=decision.node)
            return Failed(reason, frozenset((decision.node,)))
        return False


class VolumeBindings:
    """The pod sets whose volumes are being bound, and the pending updates of claims."""

    def __init__(self, cluster: ClusterGraph, *, timeout: int) -> None:
        self.timeout = timeout  # how long claims may take before other nodes are tried
        self.active: dict[str, VolumeBinding] = {}
        self._cluster = cluster
        self._updates: list[ClaimUpdate] = []

    def observe(self, key: Key, claim: Claim | None) -> None:
        for binding in self.active.values():
            binding.observe(key, claim)

    def begin(self, key: str, binds: list[Bind], now: int) -> VolumeBinding | None:
        """Start to bind the claims of placed pods; None if there is nothing to bind."""
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
        """Remove the decisions for claims still without a volume, unless another pod set depends on them."""
        binding = self.active.pop(key, None)
        if binding is None:
            return
        awaited = {each.claim for other in self.active.values() for each in other.decisions}
        self._updates += [each for each in binding.end(self._cluster) if each.claim not in awaited]
        for decision in binding.decisions:
            if decision.claim not in awaited:
                self._cluster.hold_volume(decision.claim, None)

    def take_updates(self) -> list[ClaimUpdate]:
        """The updates of claims since the last call."""
        found, self._updates = self._updates, []
        return found

    def next_due(self) -> int | None:
        """The next deadline."""
        return min((each.deadline for each in self.active.values()), default=None)


class ClaimChanges(Step):
    """Observes claims, volumes and storage classes, and updates the pods that mount them."""

    def __init__(
        self,
        *,
        cluster: ClusterGraph,
        planner: ClusterPlanner,
        pod_sets: PodSets,
        volumes: VolumeBindings,
        changes: Changes,
    ) -> None:
        self._claims = Claims()
        self._cluster = cluster
        self._planner = planner
        self._pod_sets = pod_sets
        self._volumes = volumes
        self._changes = changes

    def observe(self, event: Event | NotBound, now: int) -> None:
        if not isinstance(event, Changed):
            return
        item, gone, claims = event.object, event.new is None, self._claims
        if isinstance(item, VolumeClaim):
            self.claims_changed(claims.remove_claim(item) if gone else claims.set_claim(item))
        elif isinstance(item, PersistentVolume):
            self.claims_changed(claims.remove_volume(item) if gone else claims.set_volume(item))
        elif isinstance(item, StorageClass):
            (claims.remove_class if gone else claims.set_class)(item)
        elif isinstance(item, CsiNode):
            limits = {} if gone else item.limits
            if self._cluster.set_attach_limits(item.metadata.name, limits):
                self._planner.note_freed()

    def run(self, now: int, decisions: Decisions) -> None:
        """Update waiting claims after changes of volumes and classes, once for all events."""
        self.claims_changed(self._claims.settle())

    def claims_changed(self, changes: list[Change]) -> None:
        for namespace, name, claim in changes:
            key = (namespace, name)
            self._volumes.observe(key, claim)
            if self._cluster.set_claim(namespace, name, claim):
                self._changes.judge_again |= self._pod_sets.mounting((key,))
                self._planner.note_freed()


class VolumeChecks(Step):
    """Checks the pod sets whose volumes are being bound: binds those that are ready, and places the failed
    ones again."""

    def __init__(
        self,
        *,
        groups: Groups,
        cluster: ClusterGraph,
        pod_sets: PodSets,
        volumes: VolumeBindings,
        reports: StatusReports,
        lifecycle: Lifecycle,
        binding: Binding,
    ) -> None:
        self._groups = groups
        self._cluster = cluster
        self._pod_sets = pod_sets
        self._volumes = volumes
        self._reports = reports
        self._lifecycle = lifecycle
        self._binding = binding

    def next_due(self) -> int | None:
        return self._volumes.next_due()

    def prepare(self, pod_set: PodSet, binds: list[Bind], now: int, decisions: Decisions) -> bool:
        """Start to bind the volumes of placed pods. Returns False if they have no volumes to bind."""
        binding = self._volumes.begin(pod_set.key, binds, now)
        if binding is None:
            return False
        self._lifecycle.prepare(pod_set, binding, now)
        self._say_prepares(pod_set, binding, decisions)
        return True

    def run(self, now: int, decisions: Decisions) -> None:
        """Bind pod sets whose claims are all bound. The others continue to wait, or are placed again."""
        for key, binding in list(self._volumes.active.items()):
            pod_set = self._pod_sets.by_key[key]
            with working_on(pod_set.group):
                self._check(pod_set, binding, now, decisions)
        decisions.claim_updates = self._volumes.take_updates()

    def _check(self, pod_set: PodSet, binding: VolumeBinding, now: int, decisions: Decisions) -> None:
        progress = binding.check(self._cluster, pod_set.unbound, now)
        if isinstance(progress, Ready):
            self._lifecycle.volumes_ready(pod_set, now)
            self._binding.send_again(pod_set.group, binding.binds, decisions)
        elif isinstance(progress, Failed):
            gang = self._groups.gang(pod_set.group)
            if gang is not None:
                pods = tuple(bind.pod for bind in binding.binds)
                report = StatusReport(JobState.PENDING, (progress.reason,))
                decisions.waiting += self._reports.say(pod_set.key, Waiting(gang, pods, report))
            self._lifecycle.volumes_failed(pod_set, progress.nodes, now)

    def _say_prepares(self, pod_set: PodSet, binding: VolumeBinding, decisions: Decisions) -> None:
        """Report to each pod its own claims, and to the group all of them."""
        gang = self._groups.gang(pod_set.group)
        if gang is None:
            return
        pods = tuple(bind.pod for bind in binding.binds)
        for pod in pods if len(pods) > 1 else ():
            report = StatusReport(JobState.PREPARING, (binding.reason_of(pod.metadata.uid),))
            decisions.waiting.append(Waiting(gang, (pod,), report))
        everyone = Waiting(gang, pods, StatusReport(JobState.PREPARING, (binding.reason,)))
        self._reports.said[pod_set.key] = everyone
        decisions.waiting.append(everyone if len(pods) == 1 else replace(everyone, pods=()))


def _lost(bind: Bind, cluster: ClusterGraph, unbound: Mapping[str, str]) -> Reason | None:
    """Why a pod cannot be bound on its node any more."""
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
