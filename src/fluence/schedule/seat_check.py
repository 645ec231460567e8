"""Seat check: whether a seat that was given earlier is still good. Every bind passes it before it goes out.

A bind may wait after it was decided: for its volumes, for other pods of its gang, for the next try after an
error, or for its turn in the binder. Meanwhile nodes close, other schedulers fill them, and devices go. The
cycle asks here before it hands out a bind again, and the binder asks before it sends one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from fluence.model.device import DeviceGrant
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.placer.gang import Seat, Seating
from fluence.placer.gang_fit import GangFit
from fluence.schedule.pod_set import PodSet
from fluence.schedule.state import SchedulerState


def lost(state: SchedulerState, uid: str, node: str, pod: Pod | None = None) -> Reason | None:
    """Why a pod must not be bound on this node any more; None: it may. ``pod``: itself, if it has no seat."""
    cluster, entry = state.cluster, state.cluster.pods.entries.get(uid)
    if cluster.node(node) is None:
        return Reason.of(Code.NODE_GONE, node=node)
    known = pod if entry is None else entry.pod
    closed = None if known is None else cluster.closed(known, node)
    if closed is not None:
        return Reason.of(Code.NODE_CLOSED, node=node, why=closed)
    pod_set = state.pod_sets.by_pod.get(uid)
    if pod_set is None:
        return None  # since the state was built anew, nobody counts it by its job
    if entry is None or entry.node != node:  # the node was gone, and its seats went with it
        return Reason.of(Code.NODE_GONE, node=node)
    seats = state.cluster.seats
    seating = seats.jobs.get(pod_set.number)
    if seating is None or uid not in seating.seats:
        return None
    for grant in (*seating.grants, *seating.shares):
        if uid in grant.pods and not keeps(state, pod_set, grant):
            return Reason.of(Code.DEVICE_LOST, type=grant.type, backend=grant.backend)
    if _is_overcommitted(seats, _rows(seats, seating.seats[uid])):
        return Reason.of(Code.ROOM_TAKEN, node=node)
    return None


def keeps(state: SchedulerState, pod_set: PodSet, grant: DeviceGrant) -> bool:
    """Whether a device that a pod set was given is still there for it."""
    seats, asked = state.cluster.seats, pod_set.request.devices
    rows, _ = seats.backends.held((grant,))
    suits = seats.backends.suits(grant, () if asked is None else asked.terms)
    return (suits and not _is_overcommitted(seats, rows)) or _is_in_use(state, pod_set, grant)


def _is_in_use(state: SchedulerState, pod_set: PodSet, grant: DeviceGrant) -> bool:
    """Whether bound pods of the group use a device: then the others share it, whatever becomes of it."""
    if not grant.shared:
        return False
    jobs, entries = state.cluster.seats.jobs, state.cluster.pods.entries
    numbers = (each.number for each in state.pod_sets.of_group(pod_set.group).values())
    users = {
        pod
        for number in numbers
        if number in jobs
        for each in (*jobs[number].grants, *jobs[number].shares)
        if each.device == grant.device and each.shared
        for pod in each.pods
    }
    return any(entry.bound for pod in users if (entry := entries.get(str(pod))) is not None)


def _rows(seats: GangFit, seat: Seat) -> list[int]:
    """What a seat takes of its node, as rows of the graph."""
    at, pools = seats.position[seat.node], seats.table.pools
    return [*(int(pools[kind][at]) for kind, n in seat.needs.items() if n and kind in pools), *seat.devices]


def _is_overcommitted(seats: GangFit, rows: Iterable[int]) -> bool:
    """Whether more is taken of something than there is: somebody else took it, or it became less."""
    free = seats.availability.view.free
    short = {row: int(free[row]) for row in rows if free[row] < 0}
    if not short:
        return False
    # What is reserved from now on has not begun: its room may be held by somebody who runs on.
    planned = _planned(seats)
    return any(amount + planned[row] < 0 for row, amount in short.items())


def _planned(seats: GangFit) -> Counter[int]:
    """What reservations take that should have begun by now, by row."""
    found: Counter[int] = Counter()
    for each in seats.jobs.values():
        if each.reserved and each.start <= seats.availability.now:
            found.update(_taken(seats, each))
    return found


def _taken(seats: GangFit, seating: Seating) -> Counter[int]:
    found = Counter(seats.backends.held(seating.grants)[0])
    pools = seats.table.pools
    for seat in seating.seats.values():
        at = seats.position.get(seat.node)
        if at is not None:
            found.update({int(pools[kind][at]): n for kind, n in seat.needs.items() if kind in pools})
            found.update(seat.devices)
    return found
