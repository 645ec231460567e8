"""A cluster in memory whose controllers, servers and kube-scheduler always do as they are told, with a record
of all that its scheduler decided."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec
from msgspec.structs import replace

from fluence import names
from fluence.model.grant import ReleaseNote, is_delegated, with_condition
from fluence.model.meta import Condition, ConfigMap, Requirement
from fluence.model.node import Node
from fluence.model.owner import Group, Job, Owner, ReplicaSet, StatefulSet
from fluence.model.pod import Affinity, NodeAffinity, NodeSelector, NodeSelectorTerm, Pod
from fluence.schedule.cycle import Decisions
from fluence.schedule.events import (
    Bind,
    BindOutcome,
    BindResult,
    Changed,
    Release,
    ReleaseFinished,
    ReleaseResult,
)
from fluence.schedule.overruns import EndOverrun
from fluence.schedule.queueing.placeholder import index_of, is_placeholder_uid, owner_of_uid
from fluence.schedule.restart import AllocationNote, Promise, promise_condition
from tests.unit.schedule import kit
from tests.unit.schedule.driver import Driver

GOOD, EVIL = "good", "evil"
SEEN = {names.SEEN: names.SEEN_YES}


@dataclass(slots=True)
class Outcome:
    """What was decided at one moment for the objects of one namespace."""

    binds: dict[str, str] = field(default_factory=dict)  # pod -> node
    devices: dict[str, object] = field(default_factory=dict)  # pod -> what it was given
    releases: dict[str, tuple[tuple[int, str], ...]] = field(default_factory=dict)  # Job -> its seats
    ended: list[tuple[str, ...]] = field(default_factory=list)  # pods that were warned or ended
    promises: dict[str, tuple[int | None, int | None]] = field(default_factory=dict)  # no later than, likely


class World:
    """``config``: of the scheduler. Objects by key, as the server has them."""

    def __init__(self, config: dict[str, Any], devices: ConfigMap) -> None:
        self.config, self.devices = config, devices
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.owners: dict[str, Owner] = {}
        self.groups: dict[str, Group] = {}
        self.lazy: set[str] = set()  # owners whose pods do not come
        self.made: dict[str, int] = {}  # pods that each owner has made
        self.children: dict[str, str] = {}  # by the uid of a pod: the owner that has really made it
        self.given: dict[str, set[tuple[str, int]]] = {}  # by uid: the nodes it was given, and its cores
        self.devices_of: dict[str, set[tuple[str, str]]] = {}  # by uid: devices and types
        self.handed: dict[str, str] = {}  # by uid: the node that kube-scheduler is to bind it to
        self.ends: list[EndOverrun] = []
        self.scheduler = self._fresh()

    # -- objects ---------------------------------------------------------------------------------------------

    def put(self, found: Pod | Owner | Group | Node) -> None:
        if isinstance(found, Pod):
            self.pods[found.key] = found
        elif isinstance(found, Owner):
            self.owners[found.identity] = found
        elif isinstance(found, Group):
            self.groups[found.key] = found
        else:
            self.nodes[found.name] = found
        self.scheduler.handle(Changed(None, found))

    def remove(self, found: Pod | Owner) -> None:
        """An owner goes with its pods."""
        if isinstance(found, Pod):
            del self.pods[found.key]
        else:
            del self.owners[found.identity]
        self.scheduler.handle(Changed(found, None))
        if isinstance(found, Owner):
            for pod in [pod for pod in self.pods.values() if self._is_child(pod, found)]:
                self.remove(pod)

    def _is_child(self, pod: Pod, owner: Owner) -> bool:
        return self.children.get(pod.metadata.uid) == owner.identity

    # -- time ------------------------------------------------------------------------------------------------

    def run(self, now: int, *, carried_out: bool = True) -> Outcome:
        """Cycles until nothing is left to do now. Unless ``carried_out``, the first one is followed by a
        crash, before anything that it decided is done."""
        outcome = Outcome()
        for _ in range(200):
            decisions = self.scheduler.cycle(now)
            self._record(decisions, outcome)
            if not carried_out:
                return outcome
            self._carry_out(decisions, now)
            busy = self._kube_scheduler(now)
            busy |= sum(self._control(owner, now) for owner in list(self.owners.values())) > 0
            done = decisions.binds or decisions.releases
            if not (busy or done or self.scheduler.has_more):
                break
        else:
            raise AssertionError("cycles without end")
        for key, found in self.scheduler.pod_sets.by_key.items():
            if key.startswith(f"{GOOD}/") and not (found.state.has_nodes or found.state.leaves_queue):
                outcome.promises[key] = (found.no_later_than, found.expected)
        return outcome

    def restart(self) -> None:
        """Starts that were told are on the pods, in their status."""
        for found in list(self.scheduler.pod_sets.by_key.values()):
            if not (found.state.has_nodes or found.state.leaves_queue) and found.no_later_than is not None:
                told = Promise(found.no_later_than, found.expected, limit=found.job.limit)
                said = msgspec.convert(promise_condition(told), Condition)
                for pod in [pod for pod in found.pods if pod.key in self.pods]:
                    held = self.pods[pod.key]
                    status = replace(held.status, conditions=with_condition(held.status.conditions, said))
                    self.pods[pod.key] = replace(held, status=status)
        self.scheduler = self._fresh()
        for objects in (self.nodes, self.groups, self.owners, self.pods):
            for item in objects.values():
                self.scheduler.handle(Changed(None, item))

    def _fresh(self) -> Driver:
        found = Driver(**self.config)
        found.handle(Changed(None, self.devices))
        return found

    # -- what was decided ------------------------------------------------------------------------------------

    def _record(self, decisions: Decisions, outcome: Outcome) -> None:
        for bind in (bind for binds in decisions.binds for bind in binds):
            known = self.pods.get(bind.pod.key)
            assert known is not None and known.metadata.uid == bind.uid, f"{bind.pod.key} is not there"
            self.given.setdefault(bind.uid, set()).add((bind.node, cores(bind.pod)))
            self.devices_of.setdefault(bind.uid, set()).update((it.device, it.type) for it in bind.devices)
            if bind.pod.metadata.namespace == GOOD:
                outcome.binds[bind.pod.key] = bind.node
                outcome.devices[bind.pod.key] = bind.devices
        for release in decisions.releases:
            self._record_release(release)
            if release.owner.metadata.namespace == GOOD:
                outcome.releases[release.owner.key] = release.note.nodes
        for order in decisions.overruns:
            if isinstance(order, EndOverrun):
                self.ends.append(order)
            if order.pods[0].metadata.namespace == GOOD:
                outcome.ended.append((type(order).__name__, *(pod.key for pod in order.pods)))
        for gate in decisions.gates:
            assert gate.pod.metadata.namespace != GOOD, "nobody there waits for a producer"

    def _record_release(self, release: Release) -> None:
        owner, note = release.owner, release.note
        assert self.owners.get(owner.identity) is not None, f"{owner.key} is not there"
        assert owner.spec.template is not None
        need = cores(Pod(spec=owner.spec.template.spec))
        for index, node in note.nodes:
            self.given.setdefault(f"{owner.identity}#{index}", set()).add((node, need))
        said = msgspec.json.decode(note.allocation, type=AllocationNote) if note.allocation else None
        for index, _ in note.nodes if said is not None else ():
            held = self.devices_of.setdefault(f"{owner.identity}#{index}", set())
            held.update((each.device, each.type) for each in said.devices)  # type: ignore[union-attr]

    def _carry_out(self, decisions: Decisions, now: int) -> None:
        for bind in (bind for binds in decisions.binds for bind in binds):
            if is_delegated(bind.pod):
                self._hand_over(bind, now)
            else:
                self.put(_bound(bind.carried_out(self.pods[bind.pod.key]), bind.node, now))
                self.scheduler.told(BindResult(bind, BindOutcome.BOUND), now)
        for release in decisions.releases:
            job = self.owners[release.key]
            same = job.metadata.generation == release.owner.metadata.generation and job.spec.suspend
            if same:
                self.put(_stamped(release.carried_out(job), release.note, now))
            outcome = BindOutcome.BOUND if same else BindOutcome.AGAIN
            self.scheduler.handle(ReleaseFinished(ReleaseResult(release, outcome)), now=now)

    def _hand_over(self, bind: Bind, now: int) -> None:
        pod = pinned(bind.granted(self.pods[bind.pod.key]), bind.node)
        self.handed[bind.uid] = bind.node
        self.put(pod)
        self.scheduler.told(BindResult(bind, BindOutcome.HANDED_OVER), now)

    def _kube_scheduler(self, now: int) -> bool:
        """It binds what it was handed."""
        ready = [pod for pod in self.pods.values() if pod.metadata.uid in self.handed]
        for pod in ready:
            node = self.handed.pop(pod.metadata.uid)
            if not pod.is_terminal:
                self.put(_bound(pod, node, now))
        return bool(ready)

    # -- controllers -----------------------------------------------------------------------------------------

    def _control(self, owner: Owner, now: int) -> bool:
        """Whether a pod was made."""
        template = owner.spec.template
        suspended = isinstance(owner, Job) and owner.spec.suspend
        if owner.identity in self.lazy or template is None or suspended:
            return False
        made, wanted = self.made.get(owner.identity, 0), owner.spec.replicas or owner.spec.completions or 0
        if made >= wanted or (isinstance(owner, StatefulSet) and self._waits(owner)):
            return False
        self.made[owner.identity] = made + 1
        labels = {**(template.metadata.labels or {})}
        if isinstance(owner, StatefulSet):
            labels[names.POD_INDEX] = str(made)
        elif owner.spec.completion_mode == "Indexed":
            labels[names.COMPLETION_INDEX] = str(made)
        kind = owner.kind.lower()
        pod = kit.pod(f"{owner.metadata.name}-{kind}-{made}", namespace=owner.metadata.namespace, owner=owner)
        created = datetime.fromtimestamp(now // 1000, UTC)
        notes = template.metadata.annotations
        meta = replace(pod.metadata, labels=labels, annotations=notes, creation_timestamp=created)
        self.children[meta.uid] = owner.identity
        self.put(replace(pod, metadata=meta, spec=template.spec))
        return True

    def _waits(self, owner: Owner) -> bool:
        pods = (pod for pod in self.pods.values() if self._is_child(pod, owner))
        return any(pod.spec.node_name is None for pod in pods)

    # -- what always holds -----------------------------------------------------------------------------------

    def judge(self, forged: set[str]) -> None:
        """What the ledger has for the tenant is what it was given, or what really runs; nobody's work is
        ended for what runs in another namespace. ``forged``: uids that were given nothing."""
        uids = {pod.metadata.uid: pod for pod in self.pods.values()}
        for uid, entry in self.scheduler.cluster.pods.entries.items():
            if entry.pod.metadata.namespace != EVIL:
                continue
            pod, need = uids.get(uid), entry.needs.get("cpu", 0) // 1000
            if pod is not None and pod.spec.node_name == entry.node:
                continue
            assert uid not in forged, f"{uid} holds room on {entry.node}"
            if is_placeholder_uid(uid):
                owner = self.owners.get(owner_of_uid(uid))
                assert owner is not None and owner.identity not in forged, f"{uid} holds {entry.node}"
                if not isinstance(owner, Job):
                    assert index_of(entry.pod) < (owner.spec.replicas or 0)
                    continue
            allowed = self.given.get(uid, self._seat_of(pod))
            assert any(node == entry.node and need <= cpu for node, cpu in allowed), (
                f"{uid} holds {need} cores of {entry.node}, and was given {allowed}"
            )
        for seating in self.scheduler.cluster.fit.jobs.values():
            for grant in () if seating.reserved else seating.grants:
                for uid in map(str, grant.pods):
                    if "/StatefulSet/" in uid:
                        continue  # nothing is written for pods that it makes later
                    said = ("/".join(map(str, grant.device)), grant.type)
                    assert said in self.devices_of.get(uid, set()), f"{uid} was not given {said}"
        for order in self.ends:
            if order.owner is not None:
                spaces = {order.owner.metadata.namespace, *(pod.metadata.namespace for pod in order.pods)}
                assert len(spaces) == 1, f"{order.owner.key} is ended for what others do"
                made = {self.children.get(pod.metadata.uid) for pod in order.pods}
                assert spaces == {EVIL} or made == {order.owner.identity}, f"{order.owner.key} is ended"

    def _seat_of(self, pod: Pod | None) -> set[tuple[str, int]]:
        """What was held for a pod that came for it."""
        owner = None if pod is None else self.children.get(pod.metadata.uid)
        if owner is None:
            return set()
        return {seat for uid, seats in self.given.items() if uid.startswith(f"{owner}#") for seat in seats}


def cores(pod: Pod) -> int:
    assert pod.spec.containers
    return int(float((pod.spec.containers[0].resources.requests or {})["cpu"]))


def pinned(pod: Pod, where: str) -> Pod:
    """A pod as it is handed to kube-scheduler."""
    pin = Requirement(key="metadata.name", operator="In", values=[where])
    terms = NodeSelector(node_selector_terms=[NodeSelectorTerm(match_fields=[pin])])
    affinity = Affinity(node_affinity=NodeAffinity(required=terms))
    return replace(pod, spec=replace(pod.spec, affinity=affinity, scheduling_gates=None))


def _bound(pod: Pod, node: str, now: int) -> Pod:
    stamp = datetime.fromtimestamp(now // 1000, UTC).isoformat()
    said = Condition(type="PodScheduled", status="True", last_transition_time=stamp)
    status = replace(pod.status, phase="Running", conditions=with_condition(pod.status.conditions, said))
    return replace(pod, spec=replace(pod.spec, node_name=node, scheduling_gates=None), status=status)


def _stamped(job: Owner, note: ReleaseNote, now: int) -> Owner:
    """A server stamps conditions with whole seconds."""
    stamp = datetime.fromtimestamp(now // 1000, UTC).isoformat()
    said = replace(note.condition(), last_transition_time=stamp)
    return replace(job, status=replace(job.status, conditions=with_condition(job.status.conditions, said)))


OWNER_KINDS: tuple[type[Owner], ...] = (Job, ReplicaSet, StatefulSet)
