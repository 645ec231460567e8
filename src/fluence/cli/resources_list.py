"""`fluence resources list`: devices that belong to no node, who holds them until when, and who waits."""

from __future__ import annotations

import time
from typing import Any

import click

from fluence.cli import view
from fluence.cli.choice import output_option
from fluence.cli.leader import ask_leader
from fluence.cli.live import list_as
from fluence.kube.listing import ClusterListing
from fluence.messages.times import when
from fluence.schedule.build import scheduler_for
from fluence.schedule.device_holdings import DeviceUse, device_uses
from fluence.schedule.events import Changed, Object
from fluence.schedule.scheduler import Scheduler

_SHOWN = 3  # names in a cell


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

    It is read from the ConfigMap that declares them and from the pods; nothing is changed. You need the right
    to list pods and nodes of the cluster and to get that ConfigMap.

    \b
    Examples:
      fluence resources list
      fluence resources list --type qpu -o wide

    \b
    Exit codes: 0 listed; 1 the cluster cannot be asked, or the document not be read; 2 a wrong command line.
    """
    leader = ask_leader(kubeconfig, context, config_file)
    settings = leader.settings
    listing = list_as(leader)
    now = int(time.time() * 1000)
    scheduler = scheduler_for(settings, native=listing.native, systems=listing.systems)
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
    return device_uses(state.cluster.seats.backends, state.groups.gangs(), now)


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
    return f"{gang}, no limit" if until is None else f"{gang} until {when(until, now)}"


def _some(texts: list[str], wide: bool) -> str:
    most = len(texts) if wide else _SHOWN
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return "; ".join(texts[:most]) + more
