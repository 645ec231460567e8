"""Cluster rows: nodes, devices, the plan, promises, decisions and settings, and the table of all resources.

Work that a reader may not see is shown as taken capacity, as in `rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TypeAlias

import msgspec

from fluence.cluster.layout import GraphLayout
from fluence.model.meta import requirement_holds
from fluence.model.node import Node
from fluence.model.pod import Pod, add_into
from fluence.placer.backends import DeviceEntry
from fluence.schedule.overruns import holder
from fluence.units import format_amount, natural_key
from fluence.web import resources as wire
from fluence.web.kept import Row, Rows, Shown
from fluence.web.rows import (
    NO_ROW,
    Filter,
    Reader,
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
from fluence.web.view import Decision, Snapshot

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
    later, uses = _next_starts(snapshot), _uses(snapshot)
    seen: dict[str, bool] = {}
    found: Rows = []
    for node in chosen:
        here = uses.get(node.name, [])
        visible = []
        for use in here:
            namespace = use[0]
            sees = seen.get(namespace)
            if sees is None:
                sees = seen[namespace] = reader.sees(namespace)
            visible.append(sees)
        found.append((_node_row(snapshot, node, later.get(node.name), here, visible), None))
    return found


_Use: TypeAlias = tuple[str, Pod, Mapping[str, int], Shown | None]
"""A pod that counts on a node: its namespace, what it takes, and its gang, if that is known."""


def _uses(snapshot: Snapshot) -> dict[str, list[_Use]]:
    """The pods that count, by node."""
    gangs = {shown.request.number: shown for shown in snapshot.placed}
    found: dict[str, list[_Use]] = {}
    for entry in snapshot.pods.values():
        pod, gang = entry.pod, None
        if entry.job is not None:
            gang = gangs.get(entry.job)
            if gang is None and (pod_set := snapshot.set_of_number.get(entry.job)) is not None:
                gang = snapshot.shown(pod_set)
        use = (pod.metadata.namespace, pod, entry.needs, gang)
        here = found.get(entry.node)
        if here is None:
            found[entry.node] = [use]
        else:
            here.append(use)
    return found


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


def _node_row(
    snapshot: Snapshot, node: Node, later: int | None, uses: Sequence[_Use], visible: Sequence[bool]
) -> Row:
    layout = snapshot.layout
    key = node.name if all(visible) else (node.name, *visible)
    found: Row = snapshot.kept.get(
        "nodes",
        key,
        (node, later, layout, *uses),
        lambda: Row(partial(_node, layout, node, later, uses, visible)),
    )
    return found


def _node(
    layout: GraphLayout, node: Node, later: int | None, uses: Sequence[_Use], visible: Sequence[bool]
) -> wire.Node:
    taken: dict[str, int] = {}
    for _, _, needs, _ in uses:
        add_into(taken, needs)
    used = {layout.resource(type_): amount for type_, amount in taken.items()}
    amounts = [
        _amount(resource, size, used.get(resource, 0))
        for resource, size in node.allocatable().items()
        if size and resource != "ephemeral-storage"
    ]
    return wire.Node(
        name=node.name,
        state=_node_state(node),
        amounts=amounts,
        pods=len(uses),
        by=_users(uses, visible),
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


def _users(uses: Sequence[_Use], visible: Sequence[bool]) -> list[wire.Use]:
    """The users of a node, by gang or owner. Those of other namespaces are counted together."""
    counts: dict[tuple[str, str], int] = {}
    untils: dict[tuple[str, str], int] = {}
    for (namespace, pod, _, shown), sees in zip(uses, visible, strict=True):
        if not sees:
            continue
        if shown is None:
            name = str(holder((pod,))["name"])
        else:
            name = shown.job.array.partition("/")[2] or name_of(shown.group)[2]
            if shown.span is not None:
                untils[namespace, name] = max(shown.span[1], untils.get((namespace, name), 0))
        counts[namespace, name] = counts.get((namespace, name), 0) + 1
    users = [
        wire.Use(namespace=space, name=name, pods=pods, until=stamp(untils.get((space, name))))
        for (space, name), pods in sorted(counts.items())
    ]
    if not all(visible):
        users.append(wire.Use(pods=len(uses) - sum(visible), hidden=True))
    return users


def devices(snapshot: Snapshot, reader: Reader, wanted: Filter) -> Rows:
    """External resources, and their users."""
    by_device: dict[tuple[str, ...], list[tuple[int, int]]] = {}
    for allocation in snapshot.running.values():
        holding = holding_of(allocation)
        for grant in () if holding is None else holding.grants:
            by_device.setdefault(tuple(grant.device), []).append((allocation.number, grant.amount))
    return [
        (Row(partial(_device, snapshot, reader, entry, by_device.get(tuple(entry.key), ()))), None)
        for entry in snapshot.devices
        if wanted.name in ("", "/".join(entry.key))
    ]


def _device(
    snapshot: Snapshot, reader: Reader, entry: DeviceEntry, uses: Sequence[tuple[int, int]]
) -> wire.Device:
    return wire.Device(
        name="/".join(entry.key),
        type=entry.type,
        size=entry.size,
        taken=min(entry.size, sum(amount for _, amount in uses)),
        online=entry.online,
        by=_device_users(snapshot, reader, uses),
    )


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
    planned = [shown for shown in (*snapshot.queued, *snapshot.placed) if shown.span is not None]
    planned.sort(key=lambda shown: (shown.start, shown.group))
    found: Rows = []
    arrays: dict[str, tuple[int, list[Shown]]] = {}
    seen: dict[str, bool] = {}
    takes_all, expand = wanted.is_empty, wanted.expand
    for shown in planned:
        sees = seen.get(shown.namespace)
        if sees is None:
            sees = seen[shown.namespace] = reader.sees(shown.namespace)
        if not sees:
            if wanted.takes_hidden(shown):
                found.append((shown.taken or _taken_row(shown), None))
        elif takes_all or wanted.takes(shown):
            if expand or not shown.array:
                found.append((shown.entry or _entry_row(shown), None))
            elif shown.array in arrays:
                arrays[shown.array][1].append(shown)
            else:
                arrays[shown.array] = (len(found), [shown])
                found.append((NO_ROW, None))
    for key, (at, tasks) in arrays.items():
        counts = array_counts(snapshot, key)
        make = partial(Row, partial(_plan_array, key, tasks, counts))
        found[at] = (snapshot.kept.get("plan", key, (counts, *tasks), make), None)
    return found


def _plan_array(key: str, tasks: Sequence[Shown], counts: wire.Array) -> wire.PlanEntry:
    """All tasks of an array: from the first start to the last end."""
    holdings = [holding_of(task.held) for task in tasks]
    namespace, _, name = name_of(key)
    span = window(tasks)
    assert span is not None
    return wire.PlanEntry(
        state=tasks[0].state.value,
        start=span.start,
        end=span.end,
        nodes=sorted({node for holding in holdings for node in nodes_of(holding)}, key=natural_key),
        devices=sorted({device for holding in holdings for device in devices_of(holding)}),
        namespace=namespace,
        name=name,
        pods=sum(len(task.pods) for task in tasks),
        array=counts if counts.size > 1 else None,
    )


def _taken_row(shown: Shown) -> Row:
    row = shown.taken = Row(partial(_taken, shown))
    return row


def _taken(shown: Shown) -> wire.PlanEntry:
    """An entry for readers who may not see the gang."""
    span = window((shown,))
    assert span is not None
    nodes = nodes_of(holding_of(shown.held))
    return wire.PlanEntry(state=shown.state.value, start=span.start, end=span.end, nodes=nodes, hidden=True)


def _entry_row(shown: Shown) -> Row:
    row = shown.entry = Row(partial(_entry, shown))
    return row


def _entry(shown: Shown) -> wire.PlanEntry:
    namespace, _, name = name_of(shown.group)
    return msgspec.structs.replace(
        _taken(shown),
        devices=devices_of(holding_of(shown.held)),
        namespace=namespace,
        name=name,
        pods=len(shown.pods),
        hidden=False,
    )


def promises(snapshot: Snapshot, reader: Reader, wanted: Filter) -> Rows:
    """The promised starts of waiting and running jobs, and the broken ones."""
    return [
        (Row(partial(_promise, shown)), None)
        for shown in (*snapshot.queued, *snapshot.placed)
        if shown.bound is not None or shown.pod_set.promised is not None or shown.pod_set.broken
        if reader.sees(shown.namespace) and wanted.takes(shown)
    ]


def _promise(shown: Shown) -> wire.Promise:
    namespace, _, name = name_of(shown.group)
    in_queue = not shown.is_placed
    return wire.Promise(
        namespace=namespace,
        name=name,
        state=shown.state.value,
        no_later_than=stamp(shown.bound),
        expected=stamp(shown.expected) if in_queue else None,
        firm=in_queue and shown.firm,
        first=stamp(shown.pod_set.promised),
        broken=broken_promises(shown.pod_set),
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
        (Row(partial(_decision, entry)), None)
        for entry in reversed(snapshot.decisions)
        if reader.sees(entry.namespace)
        and wanted.namespace in ("", entry.namespace)
        and wanted.name in ("", name_of(entry.gang)[2])
    ]


def _decision(entry: Decision) -> wire.Decision:
    return wire.Decision(
        number=entry.number,
        at=moment(entry.at),
        decision=entry.kind,
        namespace=entry.namespace,
        name=name_of(entry.gang)[2] or entry.gang,
        pods=entry.pods,
        nodes=list(entry.nodes),
    )


def settings(snapshot: Snapshot, reader: Reader, wanted: Filter) -> Rows:
    """The deciding settings, as the leader publishes them on its Lease."""
    return [
        (Row(partial(wire.Setting, name=name, value=value)), None)
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
