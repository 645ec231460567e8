"""Resources of a running cluster: `resources list` and `resources advertise`.

Which job uses or waits for a backend, and until when, is read from pods.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Hashable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from fluence import event_loop, names
from fluence.cluster.graph import job_number
from fluence.cluster.layout import DEFAULT
from fluence.commands import view
from fluence.commands.cluster import Unlisted, ask_leader, copying, list_as
from fluence.commands.options import output_option
from fluence.commands.running import run_until_stopped
from fluence.commands.view_api import ViewClient
from fluence.deviceplugin.advertising import Advertiser, advertise_once, follow_config_map, follow_file
from fluence.deviceplugin.settings import DEFAULT_CAPACITY, VARIABLE, offered, read_capacity
from fluence.errors import NotFound
from fluence.kube.access import find_access
from fluence.kube.client import Client
from fluence.kube.errors import Missing
from fluence.kube.listing import ClusterListing
from fluence.kube.resource import CONFIG_MAPS
from fluence.messages.rendering import when
from fluence.model.external_resources import DeviceGrant, DeviceRequest, DeviceTree, document_of, parse
from fluence.placer.backends import BackendTable, DeviceEntry
from fluence.schedule import restart
from fluence.schedule.build import scheduler_for
from fluence.schedule.events import Changed, Object
from fluence.schedule.external_resources.requests import device_request
from fluence.schedule.gangs.gang import Gang
from fluence.schedule.scheduler import Scheduler
from fluence.units import parse_rfc3339


@dataclass(frozen=True, slots=True)
class Holder:
    """A gang that has units of a device."""

    gang: str
    amount: int
    since: int  # ms
    until: int | None  # ms; None: unknown


@dataclass(slots=True)
class DeviceUse:
    """A device, its holders, and the gangs that wait for it."""

    entry: DeviceEntry
    holders: list[Holder] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)  # gangs that it would suit

    @property
    def used(self) -> int:
        return min(self.entry.size, sum(each.amount for each in self.holders))


def device_uses(table: BackendTable, gangs: Iterable[Gang], now: int) -> list[DeviceUse]:
    """All devices in the order of their document."""
    uses = {entry.key: DeviceUse(entry) for entry in table.entries}
    for gang in gangs:
        held: dict[str, int] = {}
        seen: set[tuple[object, ...]] = set()
        number, own = job_number(gang.uid), gang.per_pod_devices
        for job in restart.running(gang.placed, number, now=now, limit=gang.limit, per_pod=own):
            for grant in job.grants:
                mark = (grant.device, grant.type, grant.pods if own else None)
                if grant.device in uses and mark not in seen:
                    seen.add(mark)
                    held[grant.type] = held.get(grant.type, 0) + grant.amount
                    _hold(uses, grant, Holder(gang.key, grant.amount, job.start, job.end))
        request = device_request(gang.members, gang.device_terms, per_pod=gang.per_pod_devices, held=held)
        if request is not None and gang.members:
            for key in _suitable(table, request, gang):
                uses[key].waiting.append(gang.key)
    return list(uses.values())


def _hold(uses: dict[tuple[str, ...], DeviceUse], grant: DeviceGrant, holder: Holder) -> None:
    """Add a holder. A device that is held as a whole is held with everything below it."""
    uses[grant.device].holders.append(holder)
    depth = len(grant.device)
    for key, use in uses.items():
        if len(key) > depth and key[:depth] == grant.device:
            part = Holder(holder.gang, use.entry.size, holder.since, holder.until)
            use.holders.append(part)


def _suitable(table: BackendTable, request: DeviceRequest, gang: Gang) -> Iterable[tuple[str, ...]]:
    pods: dict[Hashable, dict[str, int]] = {}
    pods = {pod.metadata.uid: dict(request.needs) for pod in gang.members[:1]}
    needs = table.needs(request, pods)
    return dict.fromkeys(entry.key for need in needs for entry in table.entries_of(need.suits))


_SHOWN = 3  # names in a cell
_OTHERS = "(another namespace)"


@click.command(name="list")
@click.option("--type", "type_", metavar="TYPE", help="Only devices of this type.")
@click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Which cluster.")
@click.option("--context", metavar="NAME", help="The kubeconfig's context.")
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    type=click.Path(),
    envvar="FLUENCE_CONFIG",
    help="The scheduler's file of settings, where it holds no Lease or you may not get it. [FLUENCE_CONFIG]",
)
@output_option((), note="table, wide (with attributes, parts and everybody who waits), json, yaml.")
def list_resources(
    type_: str | None, kubeconfig: str | None, context: str | None, config_file: str | None, output: str
) -> None:
    """List devices that belong to no node: how many, who holds them and until when, who waits for them.

    It is read from the ConfigMap that declares them and from the pods; nothing is changed. Without the right
    to list the nodes and pods of the cluster it is read from the scheduler's view API: then others' jobs have
    no names, and attributes and waiting jobs are not shown.

    \b
    Examples:
      fluence resources list
      fluence resources list --type qpu -o wide

    \b
    Exit codes: 0 listed; 1 the cluster cannot be asked, or the document not be read; 2 a wrong command line.
    """
    leader = ask_leader(kubeconfig, context, config_file)
    settings = leader.settings
    try:
        with copying():
            listing = list_as(leader)
    except Unlisted:
        _show_view(kubeconfig, context, type_, output)
        return
    now = int(time.time() * 1000)
    scheduler = scheduler_for(settings, native=listing.native, systems=listing.systems)
    scheduler.follow(listing.kinds)
    uses = _uses(scheduler, listing, now)
    fault = scheduler.devices.fault
    if fault:
        click.echo(f"fluence: {'/'.join(settings.device_config_map() or ())}: {fault}", err=True)
    shown = [use for use in uses if type_ in (None, use.entry.type)]
    if output in ("json", "yaml"):
        click.echo(view.data([_value(use) for use in shown], output))
    else:
        _show(shown, scheduler.state.cluster.absent_backends, now, wide=output == "wide")
    if fault:
        raise SystemExit(1)


def _show_view(kubeconfig: str | None, context: str | None, type_: str | None, output: str) -> None:
    """The devices that the scheduler shows to this user."""
    rows, _ = ViewClient.of(kubeconfig, context).items("devices", None)
    shown = [row for row in rows if type_ in (None, row["type"])]
    click.echo(
        "note: you may not list nodes and all pods; shown is what the scheduler's view says, without "
        "attributes and without who waits",
        err=True,
    )
    if output in ("json", "yaml"):
        click.echo(view.data([_view_value(row) for row in shown], output))
        return
    now = int(time.time() * 1000)
    table = [
        [
            view.clean(row["type"]),
            view.clean(row["name"]),
            f"{row.get('taken', 0)}/{row['size']}" + ("" if row.get("online", True) else " offline"),
            _some([_held(each["gang"], each["until"], now) for each in _holders(row)], output == "wide")
            or "-",
        ]
        for row in shown
        if "/" not in row["name"] or output == "wide"
    ]
    if table:
        click.echo(view.table(["TYPE", "NAME", "USED", "HELD BY"], table))
    else:
        click.echo("no devices: the ConfigMap fluence-resources declares none")


def _holders(row: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for use in row.get("by", ()):
        until = parse_rfc3339(use.get("until") or "")
        name = _OTHERS if use.get("hidden") else view.clean(f"{use['namespace']}/{use['name']}")
        found.append(
            {"gang": name, "amount": use.get("amount"), "until": None if until is None else until // 1000}
        )
    return found


def _view_value(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": row["type"],
        "name": row["name"],
        "backend": row["name"].partition("/")[0],
        "status": "online" if row.get("online", True) else "offline",
        "count": row["size"],
        "used": row.get("taken", 0),
        "holders": _holders(row),
    }


def _uses(scheduler: Scheduler, listing: ClusterListing, now: int) -> list[DeviceUse]:
    objects: list[Object] = [
        *listing.devices,
        *listing.nodes,
        *listing.groups,
        *listing.owners,
        *listing.pods,
    ]
    scheduler.handle([Changed(None, each) for each in objects], now, decide=False)
    state = scheduler.state
    return device_uses(state.cluster.fit.backends, state.groups.gangs(), now)


def _value(use: DeviceUse) -> dict[str, Any]:
    entry = use.entry
    return {
        "type": entry.type,
        "name": "/".join(entry.key),
        "backend": entry.key[0],
        "status": "online" if entry.online else "offline",
        "attributes": dict(entry.attributes),
        "count": entry.size,
        "used": use.used,
        "holders": [
            {"gang": each.gang, "amount": each.amount, "since": each.since, "until": each.until}
            for each in use.holders
        ],
        "waiting": use.waiting,
    }


def _show(uses: list[DeviceUse], absent: list[str], now: int, *, wide: bool) -> None:
    rows = []
    for use in uses:
        entry = use.entry
        if len(entry.key) > 1 and not wide:
            continue
        parts = [other for other in uses if other.entry.key[:-1] == entry.key]
        has = ", ".join(f"{each.entry.size} {each.entry.type}" for each in parts)
        row = [
            entry.type,
            "/".join(entry.key),
            f"{use.used}/{entry.size}" + ("" if entry.online else " offline"),
            _some([_held(each.gang, each.until, now) for each in use.holders], wide) or "-",
            _some(use.waiting, wide) or "-",
        ]
        if wide:
            told = ", ".join(f"{key}={value}" for key, value in sorted(entry.attributes.items()))
            row[2:2] = [view.clean(told) or "-", has or "-"]
        rows.append(row)
    for name in absent:
        rows.append(
            ["-", name, "absent", "what it is under is not there", "-", *(["-", "-"] if wide else [])]
        )
    if not rows:
        click.echo("no devices: the ConfigMap fluence-resources declares none")
        return
    head = ["TYPE", "NAME", "USED", "HELD BY", "WAITING"]
    if wide:
        head[2:2] = ["ATTRIBUTES", "PARTS"]
    click.echo(view.table(head, rows))


def _held(gang: str, until: int | None, now: int) -> str:
    if gang == _OTHERS:
        return gang
    return f"{gang}, no limit" if until is None else f"{gang} until {when(until, now)}"


def _some(texts: list[str], wide: bool) -> str:
    most = len(texts) if wide else _SHOWN
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return "; ".join(texts[:most]) + more


@click.command()
@click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="The cluster; default: as kubectl's.")
@click.option("--context", metavar="NAME", help="The context in the kubeconfig.")
@click.option("--file", "file", metavar="FILE", type=click.Path(), help="Follow a file, not the ConfigMap.")
@click.option("--once", is_flag=True, help="Write what is missing, and end.")
@click.option("--remove", is_flag=True, help="Take all of it off the nodes, and end.")
def advertise(
    kubeconfig: str | None, context: str | None, file: str | None, once: bool, remove: bool
) -> None:
    """Keep the types of the document on every node's status, so that kube-scheduler can place their pods.

    Nodes get `fluxion.flux-framework.org/TYPE: 1000` (FLUENCE_RESOURCE_CAPACITY) for every type at every
    level; what is gone from the document goes from them. It follows the ConfigMap kube-system/
    fluence-resources and the nodes until it is stopped. Fluence's own scheduler needs none of it.

    \b
    It needs: nodes get, list, watch; nodes/status patch; configmaps get, list, watch of fluence-resources in
    kube-system (docs/devices.md has the roles).

    \b
    Examples:
      fluence resources advertise
      fluence resources advertise --once --file resources.yaml
      fluence resources advertise --remove          when it, or the device plugin, is no longer wanted

    \b
    Exit codes: 0 done, or told to stop; 1 a fault; 2 a wrong command line.
    """
    if once and remove:
        raise click.UsageError("--once and --remove: give one of them")
    capacity = read_capacity(os.environ.get(VARIABLE) or str(DEFAULT_CAPACITY))
    access = find_access(kubeconfig=kubeconfig, context=context)

    def trees(client: Client) -> AsyncIterator[DeviceTree]:
        return follow_config_map(client) if file is None else follow_file(Path(file))

    async def write_once() -> int:
        async with Client(access) as client:
            if remove:
                return await advertise_once(client, {}, zeros=True)
            return await advertise_once(client, offered(await _document(client, file), capacity))

    async def follow() -> None:
        async with Client(access) as client:
            await Advertiser(client, capacity=capacity).run(trees(client))

    if once or remove:
        changed = event_loop.run(write_once)
        click.echo(f"{changed} node{'' if changed == 1 else 's'} changed")
    else:
        run_until_stopped(follow)


async def _document(client: Client, file: str | None) -> DeviceTree:
    """The current document. One that cannot be read is an error, since there is no older one to keep."""
    if file is not None:
        return parse(Path(file).read_bytes().decode(), source=file, own_types=DEFAULT.own_types)
    space, name = names.RESOURCES_NAMESPACE, names.RESOURCES_CONFIGMAP
    try:
        found = await client.get(CONFIG_MAPS, name, namespace=space)
    except Missing:
        raise NotFound(f"ConfigMap {space}/{name}: there is none; create it, or name a --file") from None
    where = f"ConfigMap {space}/{name}"
    return parse(document_of(found.data), source=where, own_types=DEFAULT.own_types)
