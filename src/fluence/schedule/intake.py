"""Intake: observes nodes, pods, owners and bind results. It decides nothing.

Events only note what they affect: which groups must be reconciled, and whether capacity was freed or taken.
At the start of a cycle, Intake updates placeholders and DRA devices once for all events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec import structs

from fluence.cluster.graph import ClusterGraph, FreedPlacements
from fluence.cluster.planner import ClusterPlanner
from fluence.model.grant import is_ours, pinned_node
from fluence.model.meta import KubeObject, Service
from fluence.model.node import Node
from fluence.model.owner import Group, Owner
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.queue import Queue
from fluence.schedule.binding import BindRetries
from fluence.schedule.dra import DynamicResources
from fluence.schedule.events import BindFinished, BindOutcome, BindResult, Changed, Event, NotBound
from fluence.schedule.gangs.groups import Exclusions, Groups
from fluence.schedule.lifecycle import Lifecycle
from fluence.schedule.pod_set import Changes, PodSets
from fluence.schedule.queueing.placeholder import is_placeholder, is_placeholder_uid
from fluence.schedule.queueing.placeholders import Added, Placeholders, Room
from fluence.schedule.restart import Takeover
from fluence.schedule.step import Step

if TYPE_CHECKING:
    from fluence.schedule.cycle import Decisions


class Intake(Step):
    """Observes the objects that everything else depends on."""

    def __init__(
        self,
        *,
        groups: Groups,
        cluster: ClusterGraph,
        planner: ClusterPlanner,
        queue: Queue,
        pod_sets: PodSets,
        retries: BindRetries,
        exclusions: Exclusions,
        placeholders: Placeholders,
        dynamic: DynamicResources,
        takeover: Takeover,
        lifecycle: Lifecycle,
        changes: Changes,
    ) -> None:
        self._groups = groups
        self._cluster = cluster
        self._planner = planner
        self._queue = queue
        self._pod_sets = pod_sets
        self._retries = retries
        self._exclusions = exclusions
        self._placeholders = placeholders
        self._dynamic = dynamic
        self._takeover = takeover
        self._lifecycle = lifecycle
        self._changes = changes

    def observe(self, event: Event | NotBound, now: int) -> None:
        if isinstance(event, BindFinished):
            self._bind_finished(event.result, now)
        elif isinstance(event, NotBound):
            self._not_bound(event.pod)
        elif isinstance(event, Changed):
            self._changed(event)

    def run(self, now: int, decisions: Decisions) -> None:
        """Update placeholders and the devices that drivers offer."""
        self.settle_placeholders(now)
        self._settle_devices()

    def _changed(self, event: Changed) -> None:
        item, groups = event.object, self._groups
        if isinstance(item, Pod):
            self._pod(event, item)
        elif isinstance(item, Node):
            self._node(event, item)
        elif isinstance(item, Group):
            self._changes.touch((groups.remove_group if event.new is None else groups.set_group)(item))
        elif isinstance(item, Owner):
            self._changes.touch((groups.remove_owner if event.new is None else groups.set_owner)(item))
        elif isinstance(item, Service):
            meta = item.metadata
            selector = None if event.new is None else item.spec.selector
            self._cluster.set_service(meta.namespace, meta.name, selector)
        elif type(item) is KubeObject:  # a namespace
            labels = None if event.new is None else item.metadata.labels
            self._cluster.set_namespace(item.metadata.name, labels)
            before = event.old.metadata.labels if isinstance(event.old, KubeObject) else None
            if groups.guard is not None and before != labels:
                self._changes.touch(groups.relabelled(item.metadata.name))

    # -- updates after events --------------------------------------------------------------------------------

    def _settle_devices(self) -> None:
        """Update nodes and pods after changes of devices, classes and claims, once for all events."""
        found = self._dynamic.settle()
        for node in found.nodes:
            if found.other_devices:
                self._node(Changed(None, node), node)
            else:  # no device was lost or freed: only pods that ask for the new kinds change, below
                self._cluster.set_node(self._dynamic.set_node(node))
        for pod in found.pods:
            if not is_placeholder(pod):
                self._pod(Changed(None, pod), pod)
            elif pod.metadata.uid not in self._pod_sets.by_pod:  # a placed pod keeps what it has
                self._placeholder(pod)

    def settle_placeholders(self, now: int) -> None:
        """Update the placeholders of held workloads after changes of owners and pods."""
        if self._changes.cluster_changed:
            self._placeholders.cluster_changed()
        due = self._placeholders.next_due()
        if not self._placeholders.has_changed and (due is None or due > now):
            return
        room = Room(
            self._pod_sets.by_pod,
            lambda name: self._cluster.node(name) is not None,
            self._planner.most_if_empty,
        )
        for change in list(self._placeholders.settle(room, now, everything=not self._takeover.has_begun)):
            if isinstance(change, Added):
                self._placeholder(change.pod)
            else:
                self._lose_seats(change.pods)
                for pod in change.pods:
                    self._pod_gone(pod)

    def _placeholder(self, pod: Pod) -> None:
        """Add a placeholder. If its note names a node, it counts there as if it were nominated."""
        shown = self._dynamic.set_pod(pod)
        if pod.spec.node_name is not None:
            before = self._taken_by(pod.metadata.uid)
            freed = self._cluster.set_pod(_nominated(shown, pod.spec.node_name))
            self._note_taken(before, self._taken_by(pod.metadata.uid), freed)
        touched = self._groups.set_pod(shown)
        for group in touched:
            self._changes.rank(group, pod)
        self._changes.touch(touched)

    # -- nodes -----------------------------------------------------------------------------------------------

    def _node(self, event: Changed, node: Node) -> None:
        if event.new is None:
            self._node_gone(node.name)
            return
        before, node = self._cluster.node(node.name), self._dynamic.set_node(node)
        self._cluster.set_node(node)
        if before is not None and _offers(before) == _offers(node):
            return  # a heartbeat
        self._changes.cluster_changed = True
        self._planner.note_freed()
        if before is not None:
            self._planner.note_taken()
            self._queue.note_loss(Reason.of(Code.NODE_CHANGED, node=node.name))

    def _node_gone(self, name: str) -> None:
        self._dynamic.remove_node(name)
        freed = self._cluster.remove_node(name)
        self._planner.note_taken()
        self._queue.note_loss(Reason.of(Code.NODE_GONE, node=name))
        self._changes.cluster_changed = True
        for uid in [uid for each in freed for uid in each.pods]:
            pod_set = self._pod_sets.by_pod.get(uid)
            if pod_set is None:
                continue
            if is_placeholder_uid(uid) or uid in pod_set.arrived:
                self._lifecycle.lose(pod_set, uid)  # its bind was not sent
            elif uid in pod_set.unbound and uid in self._retries:
                self._lifecycle.lose(pod_set, uid)

    # -- pods ------------------------------------------------------------------------------------------------

    def _pod(self, event: Changed, pod: Pod) -> None:
        if event.new is None:
            self._pod_gone(pod)
            return
        uid = pod.metadata.uid
        pod = self._dynamic.set_pod(pod)
        before = self._taken_by(uid)
        pin = None if pod.spec.node_name else pinned_node(pod)
        freed = self._cluster.set_pod(_counted(pod, pin, self._groups.scheduler))
        self._note_taken(before, self._taken_by(uid), freed)
        self._placeholders.set_pod(pod, self._groups.held_by(pod) if self._placeholders.operators else "")
        if pod.is_terminal:
            self._changes.claims_given_up(pod)
        touched = self._groups.set_pod(pod)
        if pod.spec.node_name is None:
            for group in touched:
                self._changes.rank(group, pod)
        pod_set = self._pod_sets.by_pod.get(uid)
        if pod_set is None or pod.is_terminal or not _is_alone(pod_set.group):
            # A single pod that got its node changes nothing for its group of one.
            self._changes.touch(touched)
        if pod_set is None:
            return
        if pod.is_terminal:
            self._lifecycle.pod_over(pod_set, pod)
        elif pod.spec.node_name is not None:
            self._lifecycle.bound(pod_set, uid)

    def _pod_gone(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self._dynamic.remove_pod(uid)
        before = self._taken_by(uid)
        freed = self._cluster.remove_pod(pod)
        self._note_taken(before, None, freed)
        self._changes.claims_given_up(pod)
        self._changes.touch(self._groups.remove_pod(pod))
        self._placeholders.remove_pod(pod)
        pod_set = self._pod_sets.by_pod.get(uid)
        if pod_set is not None:
            self._lifecycle.pod_over(pod_set, pod)

    def _not_bound(self, pod: Pod) -> None:
        """A pod that counted as bound is not. Its resources are free at once, although its job still runs,
        and the pod may be placed again."""
        self._lose_seats((pod,))
        self._pod_gone(pod)

    def _lose_seats(self, pods: Iterable[Pod]) -> None:
        of_set: dict[str, list[Pod]] = {}
        for pod in pods:
            pod_set = self._pod_sets.by_pod.get(pod.metadata.uid)
            if pod_set is not None:
                of_set.setdefault(pod_set.key, []).append(pod)
        for key, some in of_set.items():
            pod_set, uids = self._pod_sets.by_key[key], [pod.metadata.uid for pod in some]
            reason = Reason.of(Code.POD_NOT_BOUND, pod=some[0].key)
            self._cluster.release(pod_set.number, uids, reason=reason)
            self._lifecycle.lose(pod_set, *uids)

    def _taken_by(self, uid: str) -> tuple[str, Mapping[str, int]] | None:
        """The node and the requests of a pod that counts on a node."""
        entry = self._cluster.pods.entries.get(uid)
        return None if entry is None else (entry.node, entry.needs)

    def _note_taken(
        self,
        before: tuple[str, Mapping[str, int]] | None,
        after: tuple[str, Mapping[str, int]] | None,
        freed: tuple[FreedPlacements, ...],
    ) -> None:
        if freed or (before is not None and before != after):
            self._planner.note_freed()
        if after is not None and before != after:
            self._planner.note_taken()

    # -- binds -----------------------------------------------------------------------------------------------

    def _bind_finished(self, result: BindResult, now: int) -> None:
        bind, uid = result.bind, result.bind.uid
        pod_set = self._pod_sets.by_pod.get(uid)
        if pod_set is None or pod_set.key != bind.job or pod_set.unbound.get(uid) != bind.node:
            return
        match result.outcome:
            case BindOutcome.BOUND | BindOutcome.ELSEWHERE:
                # If something else bound the pod, the pod's own event says where, and the placement follows
                # it.
                self._lifecycle.bound(pod_set, uid)
            case BindOutcome.HANDED_OVER:
                self._retries.forget(uid)  # the pod's own event says when it is bound
            case BindOutcome.AGAIN:
                entry = self._cluster.pods.entries.get(uid)
                if entry is None or entry.node != bind.node:  # its node has gone since
                    self._lifecycle.lose(pod_set, uid)
                else:
                    self._retries.add(bind, now)
            case BindOutcome.IMPOSSIBLE:
                self._exclusions.refuse(pod_set.group, (bind.node,))
                self._lifecycle.lose(pod_set, uid)
            case BindOutcome.GONE | BindOutcome.STALE:
                self._lifecycle.lose(pod_set, uid)


def _counted(pod: Pod, pin: str | None, scheduler: str) -> Pod:
    """A pod as it counts on a node. A pod of ours does not count on its nominated node: an earmark holds the
    capacity there, and the pod itself may use it."""
    if pin is not None:
        return _nominated(pod, pin)
    if pod.spec.node_name or not pod.status.nominated_node_name or not is_ours(pod, scheduler):
        return pod
    return structs.replace(pod, status=structs.replace(pod.status, nominated_node_name=None))


def _nominated(pod: Pod, node: str) -> Pod:
    """A pod that counts on a node before it is bound there."""
    return structs.replace(
        pod,
        spec=structs.replace(pod.spec, node_name=None),
        status=structs.replace(pod.status, nominated_node_name=node),
    )


def _offers(node: Node) -> tuple[object, ...]:
    """The fields of a node that decide which pods fit."""
    return (
        node.metadata.labels,
        node.spec.taints,
        node.spec.unschedulable,
        node.is_ready,
        node.status.allocatable,
    )


def _is_alone(group: str) -> bool:
    """Whether a group is a single pod: `namespace/pod:name`."""
    return "/pod:" in group
