"""`fluence graph --live`: the graph of a running cluster, and what runs on it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import click

from fluence import event_loop
from fluence.cli import view
from fluence.cli.leader import Asked, ask_leader
from fluence.cluster.graph import ClusterGraph
from fluence.cluster.layout import DEFAULT, GraphLayout
from fluence.cluster.pods import PodEntry
from fluence.kube.client import Client
from fluence.kube.errors import Forbidden
from fluence.kube.listing import ClusterListing, list_cluster, list_devices
from fluence.kube.resource import NODES, PODS
from fluence.model.config_map import ConfigMap
from fluence.names import RESOURCES_CONFIGMAP
from fluence.schedule.device_config import DeviceConfig
from fluence.units import format_amount

_IN_A_FILE = "the scheduler reads them from a file of its own; name a copy with --config and resources: FILE"
_RUNS = "status.phase!=Succeeded,status.phase!=Failed"


def levels_of(levels: Sequence[str]) -> tuple[str, ...]:
    """`rack=topology.kubernetes.io/rack` and its like, outermost first."""
    pairs = []
    for text in levels:
        type_, equals, label = text.partition("=")
        if not (type_ and equals and label):
            raise click.UsageError(f"--level {text}: write TYPE=LABEL, such as zone={DEFAULT.levels[0][1]}")
        pairs.append((type_, label))
    GraphLayout(levels=tuple(pairs))  # says what is wrong with it
    return tuple(levels)


def read_cluster(
    kubeconfig: str | None, context: str | None, levels: Sequence[str]
) -> tuple[ClusterGraph, str]:
    """The cluster as its API server lists it once, laid out as by its leader unless ``levels`` say else, and
    what to call it."""
    flags: dict[str, object] = {"topology": levels_of(levels)} if levels else {}
    leader = ask_leader(kubeconfig, context, flags=flags)
    layout, where = leader.settings.layout(), leader.settings.device_config_map()

    async def lists() -> ClusterGraph:
        async with Client(leader.access) as client:
            nodes, pods = await asyncio.gather(client.list(NODES), client.list(PODS, field_selector=_RUNS))
            declared = await _devices(client, where)
        cluster = ClusterGraph(layout)
        devices = DeviceConfig()
        devices.read(declared, layout.own_types)
        if devices.fault:
            click.echo(f"note: ConfigMap {RESOURCES_CONFIGMAP}: {devices.fault}", err=True)
        cluster.set_devices(devices.tree)
        cluster.load(nodes.items or (), pods.items or ())
        return cluster

    return event_loop.run(lists), leader.access.server


async def _devices(client: Client, where: tuple[str, str] | None) -> ConfigMap | None:
    try:
        return next(iter(await list_devices(client, where)), None)
    except Forbidden:
        click.echo(f"note: you may not read the ConfigMap {RESOURCES_CONFIGMAP}: no devices", err=True)
        return None


def list_as(leader: Asked) -> ClusterListing:
    """Everything that the scheduler decides by, as the API server lists it now; what is unseen is told."""

    async def lists() -> ClusterListing:
        async with Client(leader.access) as client:
            return await list_cluster(client, leader.settings.device_config_map())

    listing = event_loop.run(lists)
    listing.devices = listing.devices if leader.devices is None else leader.devices
    hidden = [f"devices cannot be seen: {_IN_A_FILE}"] if leader.hides_devices else []
    for note in (*leader.notes, *listing.notes, *hidden):
        click.echo(f"note: {note}", err=True)
    return listing


def usage(cluster: ClusterGraph) -> list[dict[str, Any]]:
    """What there is and what is free, by Kubernetes' names."""
    seats = cluster.seats
    found = []
    for type_ in seats.types:
        size, free = int(seats.size(type_).sum()), int(seats.free(type_).clip(min=0).sum())
        if size:
            name = cluster.layout.resource(type_)
            found.append({"resource": name, "size": size, "used": size - free, "free": free})
    return found


def running(cluster: ClusterGraph) -> list[dict[str, Any]]:
    """The pods on nodes, those of one owner together."""
    groups: dict[tuple[str, str, str], list[PodEntry]] = {}
    for entry in cluster.pods:
        pod = entry.pod
        owner = next((each for each in pod.metadata.owner_references or () if each.controller), None)
        name = f"{owner.kind}/{owner.name}" if owner else f"Pod/{pod.metadata.name}"
        groups.setdefault((pod.metadata.namespace, name, pod.spec.scheduler_name), []).append(entry)
    found = []
    for (namespace, name, scheduler), entries in sorted(groups.items()):
        holds: dict[str, int] = {}
        for entry in entries:
            for type_, amount in entry.needs.items():
                resource = cluster.layout.resource(type_)
                holds[resource] = holds.get(resource, 0) + amount
        found.append(
            {
                "namespace": namespace,
                "job": name,
                "scheduler": scheduler,
                "pods": len(entries),
                "nodes": sorted({entry.node for entry in entries}),
                "holds": holds,
            }
        )
    return found


def write_amount(cluster: ClusterGraph, type_: str, size: int) -> str:
    """An amount of a type of vertex as Kubernetes writes it: 128Gi, 1500m."""
    return format_amount(cluster.layout.resource(type_), size)


def show_usage(cluster: ClusterGraph) -> None:
    rows = [
        [each["resource"], *(format_amount(each["resource"], each[key]) for key in ("size", "used", "free"))]
        for each in usage(cluster)
    ]
    if rows:
        click.echo(view.table(["RESOURCE", "SIZE", "USED", "FREE"], rows))


def show_running(cluster: ClusterGraph) -> None:
    rows = []
    for each in running(cluster):
        holds = {name: amount for name, amount in each["holds"].items() if name != "pods"}
        told = ", ".join(f"{format_amount(name, amount)} {name}" for name, amount in holds.items())
        rows.append(
            [
                each["namespace"],
                view.clean(each["job"]),
                view.clean(each["scheduler"]) or "-",
                str(each["pods"]),
                view.hosts(each["nodes"]),
                told or "-",
            ]
        )
    if rows:
        click.echo(view.table(["NAMESPACE", "JOB", "SCHEDULER", "PODS", "NODES", "HOLDS"], rows))
    else:
        click.echo("no pods on nodes")
