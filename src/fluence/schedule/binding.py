"""Binding: checks that a pod may still be bound on its node, and sends failed binds again.

After it is decided, a bind may wait: for volumes, for other pods of its gang, for a retry after an error, or
for its turn in the binder. Meanwhile nodes close, other schedulers fill them, and devices go away. So each
bind is checked before it is handed out again, and once more before the binder sends it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from fluence.backoff import Backoff
from fluence.cluster.graph import ClusterGraph
from fluence.model.external_resources import DeviceGrant
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.placer.gang import GangHolding, PodPlacement
from fluence.placer.gang_fit import GangFit
from fluence.schedule.actions import Bind
from fluence.schedule.gangs.groups import Groups
from fluence.schedule.pod_set import PodSet, PodSets
from fluence.schedule.queueing.placeholder import is_placeholder_uid
from fluence.schedule.step import Step

if TYPE_CHECKING:
    from fluence.schedule.cycle import Decisions
    from fluence.schedule.lifecycle import Lifecycle


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
