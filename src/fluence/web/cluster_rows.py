"""Cluster rows: nodes, devices, the plan, promises, decisions and settings, and the table of all resources.

Work that a reader may not see is shown as taken capacity, as in `rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial

import msgspec

from fluence.cluster.pods import PodEntry
from fluence.model.meta import requirement_holds
from fluence.model.node import Node
from fluence.model.pod import add_into
from fluence.queue.allocations import Allocation
from fluence.schedule.pod_set import PodSet
from fluence.schedule.status.holders import holder
from fluence.text import natural_key
from fluence.units import format_amount
from fluence.web import resources as wire
from fluence.web.rows import (
    Filter,
    Reader,
    Rows,
    array_counts,
    broken_promises,
    devices_of,
    groups,
    holding_of,
    jobs,
    moment,
    name_of,
    nodes_of,
    queue,
    stamp,
    window,
)
from fluence.web.snapshot import Snapshot

# -- nodes and devices ---------------------------------------------------------------------------------------


def nodes(snapshot: Snapshot, reader: Reader, wanted: Filter) -> Rows:
    """Every node, with its free capacity and the users of the rest."""
    chosen = [
        node
        for node in snapshot.nodes
        if (not wanted.name or node.name == wanted.name)
        and all(requirement_holds(each, node.labels) for each in wanted.labels)
        and (not wanted.states or _node_state(node).partition(",")[0].lower() in wanted.states)
    ]
    chosen.sort(key=lambda node: natural_key(node.name))
    later = _next_starts(snapshot)
    return [partial(_node, snapshot, reader, node, later.get(node.name)) for node in chosen]


def _node_state(node: Node) -> str:
    state = "Ready" if node.is_ready else "NotReady"
    return f"{state},SchedulingDisabled" if node.spec.unschedulable else state


def _next_starts(snapshot: Snapshot) -> dict[str, int]:
    """By node: the next planned start of a gang."""
    starts: dict[str, int] = {}
    for reservation in snapshot.reservations:
        holding = holding_of(reservation)
        if reservation is not None and holding is not None:
            for node in {each.node for each in list(holding.placements.values())}:
                starts[node] = min(starts.get(node, reservation.start), reservation.start)
    return starts


def _node(snapshot: Snapshot, reader: Reader, node: Node, later: int | None) -> wire.Node:
    entries = snapshot.pods_on.get(node.name, [])
    taken: dict[str, int] = {}
    for entry in entries:
        add_into(taken, entry.needs)
    used = {snapshot.layout.resource(type_): amount for type_, amount in taken.items()}
    amounts = [
        _amount(resource, size, used.get(resource, 0))
        for resource, size in node.allocatable().items()
        if size and resource != "ephemeral-storage"
    ]
    return wire.Node(
        name=node.name,
        state=_node_state(node),
        amounts=amounts,
        pods=len(entries),
        by=_users(snapshot, reader, entries),
        next=stamp(later),
        labels=dict(node.labels),
    )


@lru_cache(maxsize=8192)
def _amount(resource: str, size: int, taken: int) -> wire.Amount:
    """Cached, because nodes of one kind have the same amounts."""
    return wire.Amount(
        resource=resource,
        size=format_amount(resource, size),
        taken=format_amount(resource, taken),
        free=format_amount(resource, max(0, size - taken)),
    )


def _users(snapshot: Snapshot, reader: Reader, entries: Sequence[PodEntry]) -> list[wire.Use]:
    """The users of a node, by gang or owner. Those of other namespaces are counted together."""
    counts: dict[tuple[str, str], int] = {}
    untils: dict[tuple[str, str], int] = {}
    hidden = 0
    for entry in entries:
        namespace = entry.pod.metadata.namespace
        if not reader.sees(namespace):
            hidden += 1
            continue
        pod_set = None if entry.job is None else snapshot.set_of_number.get(entry.job)
        if pod_set is None:
            name = str(holder((entry.pod,))["name"])
        else:
            name = snapshot.array_name(pod_set) or name_of(pod_set.group)[2]
            held = snapshot.running.get(pod_set.key)
            if held is not None:
                untils[namespace, name] = max(held.end, untils.get((namespace, name), 0))
        counts[namespace, name] = counts.get((namespace, name), 0) + 1
    users = [
        wire.Use(namespace=space, name=name, pods=pods, until=stamp(untils.get((space, name))))
        for (space, name), pods in sorted(counts.items())
    ]
    if hidden:
        users.append(wire.Use(pods=hidden, hidden=True))
    return users


def devices(snapshot: Snapshot, reader: Reader, wanted: Filter) -> Rows:
    """External resources, and their users."""
    by_device: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for allocation in snapshot.running.values():
        holding = holding_of(allocation)
        for grant in () if holding is None else holding.grants:
            by_device.setdefault(tuple(grant.device), []).append((allocation.number, grant.amount))
    return [
        partial(
            wire.Device,
            name="/".join(entry.key),
            type=entry.type,
            size=entry.size,
            taken=min(entry.size, sum(amount for _, amount in by_device.get(tuple(entry.key), ()))),
            online=entry.online,
            by=_device_users(snapshot, reader, by_device.get(tuple(entry.key), ())),
        )
        for entry in snapshot.devices
        if wanted.name in ("", "/".join(entry.key))
    ]


def _device_users(snapshot: Snapshot, reader: Reader, uses: Sequence[tuple[int, int]]) -> list[wire.Use]:
    users, hidden = [], 0
    for number, amount in uses:
        pod_set = snapshot.set_of_number.get(number)
        namespace, _, name = ("", "", "") if pod_set is None else name_of(pod_set.group)
        if pod_set is None or not reader.sees(namespace):
            hidden += amount
            continue
        held = snapshot.running.get(pod_set.key)
        until = None if held is None else stamp(held.end)
        users.append(wire.Use(namespace=namespace, name=name, amount=amount, until=until))
    if hidden:
        users.append(wire.Use(amount=hidden, hidden=True))
    return users


# -- the plan and its promises -------------------------------------------------------------------------------


def plan(snapshot: Snapshot, reader: Reader, wanted: Filter) -> Rows:
    """Which job has which nodes from when until when: running jobs, then reservations by their start."""
    planned = [
        (reservation.start, pod_set, reservation)
        for pod_set, reservation in zip(snapshot.pending, snapshot.reservations, strict=True)
        if reservation is not None
    ]
    for key, allocation in snapshot.running.items():
        held = snapshot.sets.get(key)
        if held is not None:
            planned.append((allocation.start, held, allocation))
    planned.sort(key=lambda entry: (entry[0], entry[1].group))
    makers: Rows = []
    arrays: dict[str, list[tuple[PodSet, Allocation]]] = {}
    for _, pod_set, allocation in planned:
        namespace = pod_set.group.partition("/")[0]
        sees = reader.sees(namespace)
        takes = wanted.takes(snapshot, pod_set, namespace) if sees else wanted.takes_hidden(snapshot, pod_set)
        key = snapshot.array(pod_set) if sees and not wanted.expand else ""
        if not takes:
            continue
        if not key:
            makers.append(partial(_plan_entry, snapshot, pod_set, allocation, sees))
        elif key in arrays:
            arrays[key].append((pod_set, allocation))
        else:
            arrays[key] = [(pod_set, allocation)]
            makers.append(partial(_plan_array, snapshot, key, arrays[key]))
    return makers


def _plan_array(snapshot: Snapshot, key: str, tasks: Sequence[tuple[PodSet, Allocation]]) -> wire.PlanEntry:
    """All tasks of an array: from the first start to the last end."""
    first, allocations = tasks[0][0], [allocation for _, allocation in tasks]
    holdings = [holding_of(allocation) for allocation in allocations]
    namespace, _, name = name_of(key)
    counts, span = array_counts(snapshot, key), window(allocations)
    assert span is not None
    return wire.PlanEntry(
        state=snapshot.state(first).value,
        start=span.start,
        end=span.end,
        nodes=sorted({node for holding in holdings for node in nodes_of(holding)}, key=natural_key),
        devices=sorted({device for holding in holdings for device in devices_of(holding)}),
        namespace=namespace,
        name=name,
        pods=sum(len(task.pods) for task, _ in tasks),
        array=counts if counts.size > 1 else None,
    )


def _plan_entry(snapshot: Snapshot, pod_set: PodSet, allocation: Allocation, sees: bool) -> wire.PlanEntry:
    holding = holding_of(allocation)
    namespace, _, name = name_of(pod_set.group)
    start, end = moment(allocation.start), stamp(allocation.end)
    state, places = snapshot.state(pod_set).value, nodes_of(holding)
    if not sees:
        return wire.PlanEntry(state=state, start=start, end=end, nodes=places, hidden=True)
    return wire.PlanEntry(
        state=state,
        start=start,
        end=end,
        nodes=places,
        devices=devices_of(holding),
        namespace=namespace,
        name=name,
        pods=len(pod_set.pods),
    )


def promises(snapshot: Snapshot, reader: Reader, wanted: Filter) -> Rows:
    """The promised starts of waiting and running jobs, and the broken ones."""
    makers: Rows = []
    for pod_set in (
        *snapshot.pending,
        *(snapshot.sets[key] for key in snapshot.running if key in snapshot.sets),
    ):
        namespace = pod_set.group.partition("/")[0]
        place = snapshot.place(pod_set)
        bound = None if place is None else snapshot.bounds[place]
        if bound is None and pod_set.promised is None and not pod_set.broken:
            continue
        if reader.sees(namespace) and wanted.takes(snapshot, pod_set, namespace):
            makers.append(partial(_promise, snapshot, pod_set))
    return makers


def _promise(snapshot: Snapshot, pod_set: PodSet) -> wire.Promise:
    namespace, _, name = name_of(pod_set.group)
    place = snapshot.place(pod_set)
    return wire.Promise(
        namespace=namespace,
        name=name,
        state=snapshot.state(pod_set).value,
        no_later_than=None if place is None else stamp(snapshot.bounds[place]),
        expected=None if place is None else stamp(snapshot.expected[place]),
        firm=place is not None and snapshot.firm[place],
        first=stamp(pod_set.promised),
        broken=broken_promises(pod_set),
    )


def totals(snapshot: Snapshot) -> wire.PromiseTotals:
    """The numbers of kept and broken promises."""
    return wire.PromiseTotals(
        kept=snapshot.tally.kept, broken={code.value: count for code, count in snapshot.tally.broken.items()}
    )


# -- decisions and settings ----------------------------------------------------------------------------------


def decisions(snapshot: Snapshot, reader: Reader, wanted: Filter) -> Rows:
    """The last decisions, newest first. Work of other namespaces is not shown."""
    return [
        partial(
            wire.Decision,
            number=entry.number,
            at=moment(entry.at),
            decision=entry.kind,
            namespace=entry.namespace,
            name=name_of(entry.gang)[2] or entry.gang,
            pods=entry.pods,
            nodes=list(entry.nodes),
        )
        for entry in reversed(snapshot.decisions)
        if reader.sees(entry.namespace)
        and wanted.namespace in ("", entry.namespace)
        and wanted.name in ("", name_of(entry.gang)[2])
    ]


def settings(snapshot: Snapshot, reader: Reader, wanted: Filter) -> Rows:
    """The deciding settings, as the leader publishes them on its Lease."""
    return [
        partial(wire.Setting, name=name, value=value)
        for name, value in snapshot.settings.items()
        if wanted.name in ("", name)
    ]


Maker = Callable[[Snapshot, Reader, Filter], Rows]
RESOURCES: Mapping[str, tuple[str, Maker, type[msgspec.Struct]]] = {
    "queue": ("QueueList", queue, wire.Job),
    "jobs": ("JobList", jobs, wire.Job),
    "groups": ("GroupList", groups, wire.Group),
    "nodes": ("NodeList", nodes, wire.Node),
    "devices": ("DeviceList", devices, wire.Device),
    "plan": ("PlanList", plan, wire.PlanEntry),
    "promises": ("PromiseList", promises, wire.Promise),
    "decisions": ("DecisionList", decisions, wire.Decision),
    "settings": ("SettingList", settings, wire.Setting),
}
"""By name: the kind of the list, the function that makes its rows, and the type of a row."""
