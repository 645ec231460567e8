"""Observer: takes in what happened to objects and binds; nothing is decided here.

`Scheduler.handle` calls it for each event. Events only note what they touch: which groups are to be
reconciled, whether something came free or was taken, and which jobs are to be judged again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from fluence.cluster.claims import Change
from fluence.cluster.graph import FreedSeats
from fluence.model.group import Group
from fluence.model.meta import KubeObject
from fluence.model.node import Node
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.model.volume import CsiNode, PersistentVolume, StorageClass, VolumeClaim
from fluence.schedule.actions import BindOutcome, BindResult
from fluence.schedule.events import BindFinished, Changed, Event, NotBound
from fluence.schedule.lifecycle import Lifecycle
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
            groups = self._state.groups
            set_owner = groups.remove_owner if event.new is None else groups.set_owner
            self._state.touch(set_owner(found))
        else:
            self._volume_or_namespace(event)

    def settle_claims(self) -> None:
        """What changes of volumes and classes mean to claims that wait, once for many of them."""
        self._claims_changed(self._state.claims.settle())

    # -- nodes -----------------------------------------------------------------------------------------------

    def _node(self, event: Changed, node: Node) -> None:
        if event.new is None:
            self._node_gone(node.name)
            return
        state = self._state
        before = state.cluster.node(node.name)
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
        freed = state.cluster.remove_node(name)
        state.planner.note_taken()
        state.queue.note_loss(Reason.of(Code.NODE_GONE, node=name))
        state.cluster_changed = True
        for uid in [uid for each in freed for uid in each.pods]:
            pod_set = state.pod_sets.by_pod.get(uid)
            if pod_set is not None and uid in pod_set.unbound and uid in state.retries:
                self._lifecycle.lose(pod_set, uid)

    # -- pods ------------------------------------------------------------------------------------------------

    def _pod(self, event: Changed, pod: Pod) -> None:
        if event.new is None:
            self._pod_gone(pod)
            return
        state, uid = self._state, pod.metadata.uid
        before = self._taken_by(uid)
        freed = state.cluster.set_pod(pod)
        self._note_taken(before, self._taken_by(uid), freed)
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
            self._lifecycle.pod_over(pod_set, uid, failed=pod.status.phase != "Succeeded")
        elif pod.spec.node_name is not None:
            self._lifecycle.bound(pod_set, uid)

    def _pod_gone(self, pod: Pod) -> None:
        state, uid = self._state, pod.metadata.uid
        before = self._taken_by(uid)
        freed = state.cluster.remove_pod(pod)
        self._note_taken(before, None, freed)
        state.claims_given_up(pod)
        state.touch(state.groups.remove_pod(pod))
        pod_set = state.pod_sets.by_pod.get(uid)
        if pod_set is not None:
            self._lifecycle.pod_over(pod_set, uid, failed=pod.status.phase != "Succeeded")

    def _not_bound(self, pod: Pod) -> None:
        """It has not ended: its seat is free at once, though others of its job go on, and it may have one."""
        state, uid = self._state, pod.metadata.uid
        pod_set = state.pod_sets.by_pod.get(uid)
        if pod_set is not None:
            reason = Reason.of(Code.POD_NOT_BOUND, pod=pod.key)
            state.cluster.release(pod_set.number, (uid,), reason=reason)
            self._lifecycle.lose(pod_set, uid)
        self._pod_gone(pod)

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
