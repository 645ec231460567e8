"""Binding: checks that a pod may still be bound on its node, sends failed binds again, and releases held
Jobs.

After it is decided, a bind may wait: for volumes, for other pods of its gang, for a retry after an error, or
for its turn in the binder. Meanwhile nodes close, other schedulers fill them, and devices go away. So each
bind is checked before it is handed out again, and once more before the binder sends it.

The lifecycle orders a release when a gang with placeholders starts. `Releasing` hands out releases, and the
binds of pods that took over from placeholders.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from fluence.backoff import Backoff
from fluence.cluster.graph import ClusterGraph
from fluence.model.external_resources import DeviceGrant
from fluence.model.grant import ReleaseNote
from fluence.model.job_state import JobState
from fluence.model.owner import Owner, StatefulSet
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.placer.gang_fit import GangFit
from fluence.placer.placer import GangHolding, PodPlacement
from fluence.schedule.events import (
    Bind,
    BindOutcome,
    Changed,
    Event,
    NotBound,
    Release,
    ReleaseFinished,
    ReleaseResult,
)
from fluence.schedule.gangs.groups import Groups
from fluence.schedule.pod_set import PodSet, PodSets
from fluence.schedule.queueing.placeholder import (
    is_placeholder,
    is_placeholder_uid,
    owner_of,
    placeholder_uid,
)
from fluence.schedule.step import Step, working_on

if TYPE_CHECKING:
    from fluence.schedule.cycle import Decisions
    from fluence.schedule.lifecycle import Lifecycle
    from fluence.schedule.queueing.placeholders import Placeholders
    from fluence.schedule.volumes import VolumeChecks


class PlacementCheck:
    """Checks whether an earlier placement is still valid."""

    def __init__(self, *, cluster: ClusterGraph, pod_sets: PodSets) -> None:
        self._cluster = cluster
        self._pod_sets = pod_sets

    def lost(self, uid: str, node: str, pod: Pod | None = None) -> Reason | None:
        """Why a pod must not be bound on this node any more; None if it may. ``pod``: the pod itself, if it
        has no placement."""
        cluster, entry = self._cluster, self._cluster.pods.entries.get(uid)
        if cluster.node(node) is None:
            return Reason.of(Code.NODE_GONE, node=node)
        known = pod if entry is None else entry.pod
        closed = None if known is None else cluster.closed(known, node)
        if closed is not None:
            return Reason.of(Code.NODE_CLOSED, node=node, why=closed)
        pod_set = self._pod_sets.by_pod.get(uid)
        if pod_set is None:
            return None  # after a rebuild, the pod has no pod set
        if entry is None or entry.node != node:  # the node was gone for a while, and its placements with it
            return Reason.of(Code.NODE_GONE, node=node)
        seats = self._cluster.fit
        holding = seats.jobs.get(pod_set.number)
        if holding is None or uid not in holding.placements:
            return None
        for grant in (*holding.grants, *holding.shares):
            if uid in grant.pods and not self.keeps(pod_set, grant):
                return Reason.of(Code.DEVICE_LOST, type=grant.type, backend=grant.backend)
        if _is_overcommitted(seats, _rows(seats, holding.placements[uid])):
            return Reason.of(Code.ROOM_TAKEN, node=node)
        return None

    def keeps(self, pod_set: PodSet, grant: DeviceGrant) -> bool:
        """Whether a device that was granted to a pod set is still available to it."""
        seats, asked = self._cluster.fit, pod_set.request.devices
        rows, _ = seats.backends.held((grant,))
        suits = seats.backends.suits(grant, () if asked is None else asked.terms)
        return (suits and not _is_overcommitted(seats, rows)) or self._is_in_use(pod_set, grant)

    def _is_in_use(self, pod_set: PodSet, grant: DeviceGrant) -> bool:
        """Whether bound pods of the group use a device. If so, the other pods share it even if it has changed
        since."""
        if not grant.shared:
            return False
        jobs, entries = self._cluster.fit.jobs, self._cluster.pods.entries
        numbers = (each.number for each in self._pod_sets.of_group(pod_set.group).values())
        users = {
            pod
            for number in numbers
            if number in jobs
            for each in (*jobs[number].grants, *jobs[number].shares)
            if each.device == grant.device and each.shared
            for pod in each.pods
        }
        return any(entry.bound for pod in users if (entry := entries.get(str(pod))) is not None)


class BindRetries:
    """Binds that wait for a retry, by the uid of the pod. ``first`` and ``most`` are the shortest and the
    longest pause in milliseconds."""

    def __init__(self, first: int, most: int) -> None:
        self._backoff = Backoff(first, most)
        self._waiting: dict[str, tuple[int, Bind]] = {}  # when to send it, and the bind
        self._tries: dict[str, int] = {}

    def __contains__(self, uid: str) -> bool:
        """Whether a bind of this pod waits for a retry."""
        return uid in self._waiting

    def __iter__(self) -> Iterator[str]:
        return iter(self._waiting)

    def was_tried(self, uid: str) -> bool:
        return uid in self._tries

    def add(self, bind: Bind, now: int) -> None:
        tries = self._tries[bind.uid] = self._tries.get(bind.uid, 0) + 1
        self._waiting[bind.uid] = (now + self._backoff.after(tries), bind)

    def forget(self, uid: str) -> None:
        self._waiting.pop(uid, None)
        self._tries.pop(uid, None)

    def stop(self, uid: str) -> None:
        """Cancel a retry because the pod is placed again. Its tries so far still count."""
        self._waiting.pop(uid, None)

    def is_due(self, uid: str, now: int) -> bool:
        return self._waiting[uid][0] <= now

    def take(self, uid: str) -> Bind:
        """Remove the bind and return it, to be sent now."""
        return self._waiting.pop(uid)[1]

    def next_due(self) -> int | None:
        return min((at for at, _ in self._waiting.values()), default=None)


class StartOver(Step):
    """Restarts a gang as a whole if it lost a member before its first bind."""

    def __init__(
        self, *, groups: Groups, pod_sets: PodSets, retries: BindRetries, lifecycle: Lifecycle
    ) -> None:
        self._groups = groups
        self._pod_sets = pod_sets
        self._retries = retries
        self._lifecycle = lifecycle

    def run(self, now: int, decisions: Decisions) -> None:
        """A gang with no bound pod that lost a placed member would start in part, so its pods that are not
        being bound wait again with the rest. A gang with bound pods continues."""
        by_pod = self._pod_sets.by_pod
        groups = {by_pod[uid].group for uid in self._retries}
        groups |= {pod_set.group for pod_set in self._pod_sets.expecting.values()}
        for key in groups:
            gang = self._groups.gang(key)
            if gang is None or gang.placed:
                continue
            seated = [pod.metadata.uid for pod in gang.members if pod.metadata.uid in by_pod]
            if gang.needed > len(seated):
                unsent = [
                    uid
                    for uid in seated
                    if uid in self._retries or uid in by_pod[uid].arrived or is_placeholder_uid(uid)
                ]
                for pod_set, lost in by_pod_set(unsent, by_pod):
                    self._lifecycle.lose(pod_set, *lost)


class Binding(Step):
    """Hands out binds that were decided earlier."""

    def __init__(
        self,
        *,
        groups: Groups,
        pod_sets: PodSets,
        retries: BindRetries,
        check: PlacementCheck,
        lifecycle: Lifecycle,
    ) -> None:
        self._groups = groups
        self._pod_sets = pod_sets
        self._retries = retries
        self._check = check
        self._lifecycle = lifecycle

    def next_due(self) -> int | None:
        return self._retries.next_due()

    def run(self, now: int, decisions: Decisions) -> None:
        due_at = self._retries.next_due()
        if due_at is None or due_at > now:
            return
        of_group: dict[str, list[str]] = {}
        for uid in self._retries:
            of_group.setdefault(self._pod_sets.by_pod[uid].group, []).append(uid)
        for group, uids in of_group.items():
            due = [uid for uid in uids if self._retries.is_due(uid, now)]
            if due and not self._has_begun(group):
                due = uids  # the first binds of a gang go together: if one is stale, none is sent
            if due:
                self.send_again(group, [self._retries.take(uid) for uid in due], decisions)

    def send_again(self, group: str, binds: list[Bind], decisions: Decisions) -> None:
        """Hand out binds that were decided earlier and are still valid. While no pod of a gang is bound, one
        stale bind stops the others too, as in the binder."""
        by_pod = self._pod_sets.by_pod
        stale = self.lose_stale(bind.uid for bind in binds)
        good = [bind for bind in binds if bind.uid not in stale]
        if stale and not self._has_begun(group):
            for pod_set, lost in by_pod_set((bind.uid for bind in good), by_pod):
                self._lifecycle.lose(pod_set, *lost)
        elif good:
            decisions.binds.append(good)

    def _has_begun(self, group: str) -> bool:
        gang = self._groups.gang(group)
        return gang is not None and bool(gang.placed)

    def lose_stale(self, uids: Iterable[str]) -> list[str]:
        """The pods among these whose earlier placements are not valid any more. They wait again."""
        by_pod = self._pod_sets.by_pod
        nodes = {uid: by_pod[uid].unbound.get(uid, "") for uid in uids if uid in by_pod}
        stale = [uid for uid, node in nodes.items() if self._check.lost(uid, node) is not None]
        for pod_set, lost in by_pod_set(stale, by_pod):
            self._lifecycle.lose(pod_set, *lost)
        return stale


def by_pod_set(uids: Iterable[str], by_pod: Mapping[str, PodSet]) -> list[tuple[PodSet, list[str]]]:
    """Placed pods, grouped by pod set."""
    found: dict[str, list[str]] = {}
    for uid in uids:
        found.setdefault(by_pod[uid].key, []).append(uid)
    return [(by_pod[some[0]], some) for some in found.values()]


def _rows(seats: GangFit, seat: PodPlacement) -> list[int]:
    """The graph vertices that a placement uses on its node."""
    at, pools = seats.position[seat.node], seats.table.pools
    return [*(int(pools[kind][at]) for kind, n in seat.needs.items() if n and kind in pools), *seat.devices]


def _is_overcommitted(seats: GangFit, rows: Iterable[int]) -> bool:
    """Whether more of a vertex is used than exists, because other work took it or it shrank."""
    free = seats.availability.view.free
    short = {row: int(free[row]) for row in rows if free[row] < 0}
    if not short:
        return False
    # A reservation that should start now has not started: overdue work may still use its capacity.
    planned = _planned(seats)
    return any(amount + planned[row] < 0 for row, amount in short.items())


def _planned(seats: GangFit) -> Counter[int]:
    """What reservations use that should have started by now, by vertex."""
    found: Counter[int] = Counter()
    for each in seats.jobs.values():
        if each.reserved and each.start <= seats.availability.now:
            found.update(_taken(seats, each))
    return found


def _taken(seats: GangFit, holding: GangHolding) -> Counter[int]:
    found = Counter(seats.backends.held(holding.grants)[0])
    pools = seats.table.pools
    for seat in holding.placements.values():
        at = seats.position.get(seat.node)
        if at is not None:
            found.update({int(pools[kind][at]): n for kind, n in seat.needs.items() if kind in pools})
            found.update(seat.devices)
    return found


class Releases:
    """Ordered releases by the identity of the Job. ``first`` and ``most`` are the shortest and the longest
    pause in milliseconds."""

    def __init__(self, first: int, most: int) -> None:
        self._backoff = Backoff(first, most)
        self._ordered: dict[str, Release] = {}  # not seen released yet
        self._due: dict[str, int] = {}  # when to send it
        self._tries: dict[str, int] = {}

    def __contains__(self, key: str) -> bool:
        return key in self._ordered

    def order(self, release: Release, now: int) -> None:
        self._ordered[release.key] = release
        self._due[release.key] = now

    def again(self, release: Release, now: int) -> None:
        """Try a failed release again, unless another one was ordered since."""
        key = release.key
        ordered = self._ordered.get(key)
        if ordered is not None and ordered.note == release.note:
            tries = self._tries[key] = self._tries.get(key, 0) + 1
            self._due[key] = now + self._backoff.after(tries)

    def forget(self, key: str) -> None:
        """Drop a release that was carried out or is not wanted any more."""
        self._ordered.pop(key, None)
        self._due.pop(key, None)
        self._tries.pop(key, None)

    def take_due(self, now: int) -> list[Release]:
        """The releases to send now. They stay ordered."""
        keys = [key for key, at in self._due.items() if at <= now]
        for key in keys:
            del self._due[key]
        return [self._ordered[key] for key in keys]

    def next_due(self) -> int | None:
        return min(self._due.values(), default=None)


class Releasing(Step):
    """Releases held Jobs that have placements, and binds the pods that arrive for them together, like any
    gang. Pods are bound one by one if the gang has started or its owner creates one pod after the other."""

    def __init__(
        self,
        *,
        groups: Groups,
        pod_sets: PodSets,
        placeholders: Placeholders,
        releases: Releases,
        volumes: VolumeChecks,
        binding: Binding,
    ) -> None:
        self._groups = groups
        self._pod_sets = pod_sets
        self._placeholders = placeholders
        self._releases = releases
        self._volumes = volumes
        self._binding = binding

    def observe(self, event: Event | NotBound, now: int) -> None:
        if isinstance(event, ReleaseFinished):
            self._release_finished(event.result, now)
        elif isinstance(event, Changed) and isinstance(owner := event.object, Owner):
            self._owner_changed(owner, gone=event.new is None)

    def next_due(self) -> int | None:
        return self._releases.next_due()

    def run(self, now: int, decisions: Decisions) -> None:
        for key, owner in self._placeholders.unplanned.items():
            if key not in self._releases:
                note = ReleaseNote("", "", (), owner.metadata.generation or 0)
                self._releases.order(Release(owner, "", note), now)
        for order in self._releases.take_due(now):
            self._send(order, decisions)
        for pod_set in list(self._pod_sets.expecting.values()):
            with working_on(pod_set.group):
                self._bind_arrived(pod_set, now, decisions)

    def _release_finished(self, result: ReleaseResult, now: int) -> None:
        """A successful release shows on the Job itself. A failed one is tried again: if the Job has changed,
        its own event arrives first and takes the placements from its placeholders."""
        releases = self._releases
        if result.outcome is BindOutcome.GONE:
            releases.forget(result.release.key)
        elif result.outcome is not BindOutcome.BOUND:
            releases.again(result.release, now)

    def _owner_changed(self, owner: Owner, *, gone: bool) -> None:
        if gone or not owner.spec.suspend:
            self._releases.forget(owner.identity)

    def _send(self, order: Release, decisions: Decisions) -> None:
        owner = self._groups.owner(order.key)
        uids = [placeholder_uid(order.key, index) for index, _ in order.note.nodes]
        placed = all(uid in self._pod_sets.by_pod for uid in uids)
        if owner is None or not owner.spec.suspend or not placed:
            self._releases.forget(order.key)
        elif not self._binding.lose_stale(uids):
            decisions.releases.append(replace(order, owner=owner))

    def _bind_arrived(self, pod_set: PodSet, now: int, decisions: Decisions) -> None:
        arrived = list(pod_set.arrived)
        if arrived and self._may_begin(pod_set) and not self._binding.lose_stale(arrived):
            binds = list(pod_set.arrived.values())
            pod_set.arrived.clear()
            starts = pod_set.state is JobState.STARTING
            if not starts or not self._volumes.prepare(pod_set, binds, now, decisions):
                decisions.binds.append(binds)
        if not pod_set.arrived and not pod_set.expects:
            self._pod_sets.expecting.pop(pod_set.key, None)

    def _may_begin(self, pod_set: PodSet) -> bool:
        """Whether the pods that have arrived may be bound now, even if others do not exist yet."""
        gang = self._groups.gang(pod_set.group)
        if gang is None:
            return False
        if any(pod.spec.node_name and not is_placeholder(pod) for pod in gang.placed):
            return True
        awaited = [pod for pod in pod_set.pods if pod.metadata.uid in pod_set.alive and is_placeholder(pod)]
        if any(not isinstance(self._groups.owner(owner_of(pod)), StatefulSet) for pod in awaited):
            return False
        seated = sum(pod.metadata.uid in self._pod_sets.by_pod for pod in gang.members)
        return gang.needed <= seated
