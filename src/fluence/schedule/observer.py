"""Observer: takes in what happened to objects and binds; nothing is decided here.

`Scheduler.handle` calls it for each event. Events only note what they touch: which groups are to be
reconciled, whether something came free or was taken, and which jobs are to be judged again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import cast

from msgspec import structs

from fluence.cluster.claims import Change
from fluence.cluster.graph import FreedSeats
from fluence.model.config_map import ConfigMap
from fluence.model.dra import DeviceClass, ResourceClaimTemplate, ResourceSlice
from fluence.model.group import Group
from fluence.model.held import pinned_node
from fluence.model.meta import KubeObject
from fluence.model.node import Node
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.model.priority import PriorityClass
from fluence.model.reason import Code, Reason
from fluence.model.volume import CsiNode, PersistentVolume, StorageClass, VolumeClaim
from fluence.schedule.actions import BindOutcome, BindResult, ReleaseResult
from fluence.schedule.events import BindFinished, Changed, Event, NotBound, ReleaseFinished
from fluence.schedule.lifecycle import Lifecycle
from fluence.schedule.stand_in import is_stand_in, is_stand_in_uid
from fluence.schedule.stand_ins import Came, Room
from fluence.schedule.state import SchedulerState


class Observer:
    """Acts on the state of one scheduler."""

    def __init__(self, state: SchedulerState, lifecycle: Lifecycle) -> None:
        self._state = state
        self._lifecycle = lifecycle

    def observe(self, event: Event | NotBound, now: int) -> None:
        """Take one event in."""
        if isinstance(event, BindFinished):
            self._bind_finished(event.result, now)
            return
        if isinstance(event, NotBound):
            self._not_bound(event.pod)
            return
        if isinstance(event, ReleaseFinished):
            self._release_finished(event.result, now)
            return
        found = event.object
        if isinstance(found, Pod):
            self._pod(event, found)
        elif isinstance(found, Node):
            self._node(event, found)
        elif isinstance(found, Group):
            groups = self._state.groups
            change = groups.remove_group if event.new is None else groups.set_group
            self._state.touch(change(found))
        elif isinstance(found, Owner):
            self._owner(event, found)
            self._state.producer_gates.owner_changed(found)
        elif isinstance(found, ResourceSlice | DeviceClass | ResourceClaimTemplate):
            self._state.dynamic.change(found, gone=event.new is None)
        elif isinstance(found, PriorityClass):
            self._state.stand_ins.set_class(found, gone=event.new is None)
        elif isinstance(found, ConfigMap):
            self._devices(None if event.new is None else found)
        else:
            self._volume_or_namespace(event)

    def settle_claims(self) -> None:
        """What changes of volumes and classes mean to claims that wait, once for many of them."""
        self._claims_changed(self._state.claims.settle())

    # -- owners ----------------------------------------------------------------------------------------------

    def _owner(self, event: Changed, owner: Owner) -> None:
        state = self._state
        if event.new is None:
            state.stand_ins.remove_owner(owner)
            state.releases.forget(owner.identity)
            state.touch(state.groups.remove_owner(owner))
            return
        state.touch(state.groups.set_owner(owner))
        state.stand_ins.set_owner(owner)
        if not owner.spec.suspend:
            state.releases.forget(owner.identity)

    def _release_finished(self, result: ReleaseResult, now: int) -> None:
        """What was carried out is seen by the Job itself. What was not is tried again: if the Job has
        changed, its own event comes first, and takes the seats from its stand-ins."""
        releases = self._state.releases
        if result.outcome is BindOutcome.GONE:
            releases.forget(result.release.key)
        elif result.outcome is not BindOutcome.BOUND:
            releases.again(result.release, now)

    def settle_devices(self) -> None:
        """What changes of devices, classes and claims mean to nodes and pods, once for many of them."""
        state, found = self._state, self._state.dynamic.settle()
        for node in found.nodes:
            if found.other_devices:
                self._node(Changed(None, node), node)
            else:  # nothing was lost or came free: those who ask for the new kinds are presented below
                state.cluster.set_node(state.dynamic.set_node(node))
        for pod in found.pods:
            if not is_stand_in(pod):
                self._pod(Changed(None, pod), pod)
            elif pod.metadata.uid not in state.pod_sets.by_pod:  # one with a seat keeps what it has
                self._stand_in(pod)

    def settle_stand_ins(self, now: int) -> None:
        """What changes of owners and pods mean to the members that stand for pods still to come."""
        state = self._state
        if state.cluster_changed:
            state.stand_ins.cluster_changed()
        due = state.stand_ins.next_due()
        if not state.stand_ins.has_changed and (due is None or due > now):
            return
        room = Room(
            state.pod_sets.by_pod,
            lambda name: state.cluster.node(name) is not None,
            state.planner.most_if_empty,
        )
        for change in list(state.stand_ins.settle(room, now, everything=not state.takeover.has_begun)):
            if isinstance(change, Came):
                self._stand_in(change.pod)
            else:
                self._lose_seats(change.pods)
                for pod in change.pods:
                    self._pod_gone(pod)

    def _stand_in(self, pod: Pod) -> None:
        """It counts on the node that its note names as if it had been nominated for it."""
        state, shown = self._state, self._state.dynamic.set_pod(pod)
        if pod.spec.node_name is not None:
            before = self._taken_by(pod.metadata.uid)
            freed = state.cluster.set_pod(_nominated(shown, pod.spec.node_name))
            self._note_taken(before, self._taken_by(pod.metadata.uid), freed)
        touched = state.groups.set_pod(shown)
        for group in touched:
            state.rank(group, pod)
        state.touch(touched)

    # -- nodes -----------------------------------------------------------------------------------------------

    def _node(self, event: Changed, node: Node) -> None:
        if event.new is None:
            self._node_gone(node.name)
            return
        state = self._state
        before, node = state.cluster.node(node.name), state.dynamic.set_node(node)
        state.cluster.set_node(node)
        if before is not None and _offers(before) == _offers(node):
            return  # a heartbeat
        state.cluster_changed = True
        state.planner.note_freed()
        if before is not None:
            state.planner.note_taken()
            state.queue.note_loss(Reason.of(Code.NODE_CHANGED, node=node.name))

    def _node_gone(self, name: str) -> None:
        state = self._state
        state.dynamic.remove_node(name)
        freed = state.cluster.remove_node(name)
        state.planner.note_taken()
        state.queue.note_loss(Reason.of(Code.NODE_GONE, node=name))
        state.cluster_changed = True
        for uid in [uid for each in freed for uid in each.pods]:
            pod_set = state.pod_sets.by_pod.get(uid)
            if pod_set is None:
                continue
            if is_stand_in_uid(uid) or uid in pod_set.arrived:
                self._lifecycle.lose(pod_set, uid)  # nothing of it was sent
            elif uid in pod_set.unbound and uid in state.retries:
                self._lifecycle.lose(pod_set, uid)

    # -- devices ---------------------------------------------------------------------------------------------

    def _devices(self, found: ConfigMap | None) -> None:
        """Other devices than before: what runs, runs on; what waits is judged again."""
        state, before = self._state, self._state.devices.tree
        if state.devices.read(found, state.cluster.layout.own_types):
            state.cluster.set_devices(state.devices.tree)
            state.cluster_changed = True
            state.planner.note_freed()
            if before.backends:  # else nothing can have been lost: a scheduler that starts learns of them
                state.planner.note_taken()
                state.queue.note_loss(Reason.of(Code.DEVICES_CHANGED))

    # -- pods ------------------------------------------------------------------------------------------------

    def _pod(self, event: Changed, pod: Pod) -> None:
        if event.new is None:
            self._pod_gone(pod)
            return
        state, uid = self._state, pod.metadata.uid
        state.producer_gates.set_pod(pod)
        pod = state.dynamic.set_pod(pod)
        before = self._taken_by(uid)
        pin = None if pod.spec.node_name else pinned_node(pod)
        freed = state.cluster.set_pod(pod if pin is None else _nominated(pod, pin))
        self._note_taken(before, self._taken_by(uid), freed)
        state.stand_ins.set_pod(pod)
        if pod.is_terminal:
            state.claims_given_up(pod)
        touched = state.groups.set_pod(pod)
        if pod.spec.node_name is None:
            for group in touched:
                state.rank(group, pod)
        pod_set = state.pod_sets.by_pod.get(uid)
        if pod_set is None or pod.is_terminal or not _is_alone(pod_set.group):
            state.touch(touched)  # a single pod that got its node changes nothing for its group of one
        if pod_set is None:
            return
        if pod.is_terminal:
            self._lifecycle.pod_over(pod_set, pod)
        elif pod.spec.node_name is not None:
            self._lifecycle.bound(pod_set, uid)

    def _pod_gone(self, pod: Pod) -> None:
        state, uid = self._state, pod.metadata.uid
        state.producer_gates.remove_pod(pod)
        state.dynamic.remove_pod(uid)
        before = self._taken_by(uid)
        freed = state.cluster.remove_pod(pod)
        self._note_taken(before, None, freed)
        state.claims_given_up(pod)
        state.touch(state.groups.remove_pod(pod))
        state.stand_ins.remove_pod(pod)
        pod_set = state.pod_sets.by_pod.get(uid)
        if pod_set is not None:
            self._lifecycle.pod_over(pod_set, pod)

    def _not_bound(self, pod: Pod) -> None:
        """It has not ended: its seat is free at once, though others of its job go on, and it may have one."""
        self._lose_seats((pod,))
        self._pod_gone(pod)

    def _lose_seats(self, pods: Iterable[Pod]) -> None:
        state = self._state
        of_set: dict[str, list[Pod]] = {}
        for pod in pods:
            pod_set = state.pod_sets.by_pod.get(pod.metadata.uid)
            if pod_set is not None:
                of_set.setdefault(pod_set.key, []).append(pod)
        for key, some in of_set.items():
            pod_set, uids = state.pod_sets.by_key[key], [pod.metadata.uid for pod in some]
            reason = Reason.of(Code.POD_NOT_BOUND, pod=some[0].key)
            state.cluster.release(pod_set.number, uids, reason=reason)
            self._lifecycle.lose(pod_set, *uids)

    def _taken_by(self, uid: str) -> tuple[str, Mapping[str, int]] | None:
        """What a pod takes, and where."""
        entry = self._state.cluster.pods.entries.get(uid)
        return None if entry is None else (entry.node, entry.needs)

    def _note_taken(
        self,
        before: tuple[str, Mapping[str, int]] | None,
        after: tuple[str, Mapping[str, int]] | None,
        freed: tuple[FreedSeats, ...],
    ) -> None:
        if freed or (before is not None and before != after):
            self._state.planner.note_freed()
        if after is not None and before != after:
            self._state.planner.note_taken()

    # -- volumes and namespaces ------------------------------------------------------------------------------

    def _volume_or_namespace(self, event: Changed) -> None:
        found, gone, claims = event.object, event.new is None, self._state.claims
        if isinstance(found, VolumeClaim):
            self._claims_changed(claims.remove_claim(found) if gone else claims.set_claim(found))
        elif isinstance(found, PersistentVolume):
            self._claims_changed(claims.remove_volume(found) if gone else claims.set_volume(found))
        elif isinstance(found, StorageClass):
            if gone:
                claims.remove_class(found)
            else:
                claims.set_class(found)
        elif isinstance(found, CsiNode):
            limits = {} if gone else found.limits
            if self._state.cluster.set_attach_limits(found.metadata.name, limits):
                self._state.planner.note_freed()
        else:
            meta = cast(KubeObject, found).metadata
            self._state.cluster.set_namespace(meta.name, None if gone else meta.labels)

    def _claims_changed(self, changes: list[Change]) -> None:
        state = self._state
        for namespace, name, claim in changes:
            key = (namespace, name)
            state.volumes.observe(key, claim)
            if state.cluster.set_claim(namespace, name, claim):
                state.judge_again |= state.pod_sets.mounting((key,))
                state.planner.note_freed()

    # -- binds -----------------------------------------------------------------------------------------------

    def _bind_finished(self, result: BindResult, now: int) -> None:
        state, bind, uid = self._state, result.bind, result.bind.uid
        pod_set = state.pod_sets.by_pod.get(uid)
        if pod_set is None or pod_set.key != bind.job or pod_set.unbound.get(uid) != bind.node:
            return
        match result.outcome:
            case BindOutcome.BOUND | BindOutcome.ELSEWHERE:
                # Where somebody else has bound it, its own event says where; the seat follows it.
                self._lifecycle.bound(pod_set, uid)
            case BindOutcome.HANDED_OVER:
                state.retries.forget(uid)  # its own event says when it is bound
            case BindOutcome.AGAIN:
                entry = state.cluster.pods.entries.get(uid)
                if entry is None or entry.node != bind.node:  # its node went meanwhile
                    self._lifecycle.lose(pod_set, uid)
                else:
                    state.retries.add(bind, now)
            case BindOutcome.IMPOSSIBLE:
                state.exclusions.refuse(pod_set.group, (bind.node,))
                self._lifecycle.lose(pod_set, uid)
            case BindOutcome.GONE | BindOutcome.STALE:
                self._lifecycle.lose(pod_set, uid)


def _nominated(pod: Pod, node: str) -> Pod:
    """A pod that counts on a node before it is bound there."""
    return structs.replace(
        pod,
        spec=structs.replace(pod.spec, node_name=None),
        status=structs.replace(pod.status, nominated_node_name=node),
    )


def _offers(node: Node) -> tuple[object, ...]:
    """What of a node decides who may have it."""
    return (
        node.metadata.labels,
        node.spec.taints,
        node.spec.unschedulable,
        node.is_ready,
        node.status.allocatable,
    )


def _is_alone(group: str) -> bool:
    """Whether a group is one pod by itself: `namespace/pod:name`."""
    return "/pod:" in group
