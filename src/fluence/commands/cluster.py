"""Cluster: what commands read from a running cluster: its leader's settings, its graph, and its workloads.

Commands about a live cluster decide by the leader's settings, unless the user gives others.

Every user may read the nodes from the view API, but only some may list nodes of the API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import click
import msgspec

from fluence import event_loop, names
from fluence.cluster.graph import ClusterGraph
from fluence.cluster.layout import DEFAULT, GraphLayout
from fluence.cluster.pods import PodEntry
from fluence.cluster.vertices import as_fluxion
from fluence.commands import tree, view
from fluence.config import Loaded, load
from fluence.errors import FluenceError
from fluence.graph import files
from fluence.kube.access import Access, find_access
from fluence.kube.client import Client
from fluence.kube.errors import ApiError, Forbidden, Missing
from fluence.kube.lease import LEASE_OBJECTS, LeaseObject
from fluence.kube.listing import ClusterListing, list_cluster, list_devices, list_kueue
from fluence.kube.resource import NODES, PODS, VALIDATING_POLICIES, VALIDATING_POLICY_BINDINGS
from fluence.live.watches import DeviceFile
from fluence.model.meta import ConfigMap
from fluence.model.node import Node
from fluence.names import RESOURCES_CONFIGMAP
from fluence.schedule.build import PublishedSettings, read_published
from fluence.schedule.external_resources.requests import DeviceConfig
from fluence.schedule.gangs.submitters import NameGuard, NamePolicy, NamePolicyBinding, name_guard
from fluence.schedule.settings import SchedulerSettings
from fluence.units import format_amount, parse_rfc3339


class Unlisted(FluenceError):
    """The user may not list the objects that a command copies."""

    def __init__(self) -> None:
        super().__init__(
            "this is worked out on a copy of the cluster, and you may not list nodes and the pods of all "
            "namespaces; `kubectl fluence queue`, `nodes`, `plan` and `why` need no such right"
        )


@contextlib.contextmanager
def copying() -> Iterator[None]:
    """For commands that list the cluster: turn a refusal by the API server into one line for the user."""
    try:
        yield
    except Forbidden:
        raise Unlisted from None


_REVIEWS = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
_ELSEWHERE = ("kube-system", names.INSTALLED_IN)  # the default, and the namespace of the manifests


@dataclass(frozen=True, slots=True)
class Asked:
    """The cluster, and the settings to decide by. ``devices``: those in a file of the user; None: ask the
    cluster."""

    access: Access
    settings: SchedulerSettings
    notes: list[str] = field(default_factory=list)
    devices: list[ConfigMap] | None = None
    hides_devices: bool = False  # they are in a file of the leader
    absent: str = ""  # why no scheduler runs, by its Lease
    unleased: str = ""  # set if there is no Lease: a scheduler may run without one


def ask_leader(
    kubeconfig: str | None,
    context: str | None,
    config_file: str | None = None,
    flags: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
) -> Asked:
    """The leader's settings, then the file, the environment and flags; a later one wins."""
    environ = os.environ if environ is None else environ

    def merged(said: Mapping[str, object]) -> Loaded[SchedulerSettings]:
        return load(SchedulerSettings, file=config_file, environ=environ, flags=flags, base=said)

    own = merged({})
    at = own.settings
    access = find_access(kubeconfig=kubeconfig or at.kubeconfig, context=context or at.context)
    published, absent = event_loop.run(lambda: _published(access, at))
    if published is None:
        return _asked(access, own, [] if config_file else [_UNSEEN], absent)
    if absent is None:
        unleased = _NO_LEASE.format(name=at.scheduler_name) if at.lease else ""
        return replace(_asked(access, merged(published.values), [], ""), unleased=unleased)
    notes = []
    if published.unknown:
        notes.append(
            f"the scheduler's {', '.join(published.unknown)}: not known here, so the default is assumed; a "
            "plug-in must be installed here, or be named in --config"
        )
    return _asked(access, merged(published.values), notes, absent)


_UNSEEN = (
    "with these rights the scheduler's settings (its Lease) cannot be seen, and the defaults are assumed: "
    "name its file with --config"
)


def _asked(access: Access, loaded: Loaded[SchedulerSettings], notes: list[str], absent: str | None) -> Asked:
    absent = absent or ""
    settings = loaded.settings
    if not settings.resources:
        return Asked(access, settings, notes, absent=absent)
    if "resources" not in loaded.origins:
        return Asked(access, settings, notes, hides_devices=True, absent=absent)
    file = DeviceFile(settings.resources, lambda event: None)
    file.look()
    return Asked(access, settings, notes, [] if file.seen is None else [file.seen], absent=absent)


async def _published(access: Access, own: SchedulerSettings) -> tuple[PublishedSettings | None, str | None]:
    """The published settings of the leader (None: they may not be read), and why it does not run (None: there
    is no lease). A scheduler without a lease publishes nothing."""
    found: list[LeaseObject] = []
    refused = False
    async with Client(access) as client:
        for place in (*dict.fromkeys((own.lease_namespace, *_ELSEWHERE)), None):
            if place is None and (found or refused):
                break
            try:
                found += (await client.list(LEASE_OBJECTS, namespace=place)).items or []
            except Forbidden:
                refused = True
                if place is not None:
                    found += await _named(client, own.lease_name, place)
            found = [each for each in found if _is_of(each, own.scheduler_name)]
        if not found and refused:
            return None, ""
        if not found:
            return PublishedSettings(), None
        latest = max(found, key=lambda each: each.spec.renew_time or "")
        absent = await _absence(client, latest)
    return read_published((latest.metadata.annotations or {})[names.SETTINGS]), absent


_NO_LEASE = (
    "no scheduler {name} holds a Lease: unless one runs with lease: false, it does not start; see "
    "`fluence doctor`"
)
_LOOK_S = 1.0  # between two reads of a lease that seems to have expired


async def _absence(client: Client, lease: LeaseObject) -> str:
    """Why the holder of a lease seems to be gone. A lease that looks expired is watched until its holder
    should have renewed it, because clocks may differ."""
    spec, meta = lease.spec, lease.metadata
    place = f"Lease {meta.namespace}/{meta.name}"
    if not spec.holder_identity:
        return f"no scheduler runs: the {place} has no holder"
    duration, at = spec.lease_duration_seconds or 15, parse_rfc3339(spec.renew_time or "")
    age = client.clock.now() - (at or 0) / 1_000_000
    if -duration <= age <= duration:
        return ""
    for _ in range(max(1, int(duration / 2 / _LOOK_S))):
        await asyncio.sleep(_LOOK_S)
        now = await _named(client, meta.name, meta.namespace)
        if not now or now[0].spec.renew_time != spec.renew_time:
            return ""
    ago = f" since {spec.renew_time}" if spec.renew_time else ""
    return f"no scheduler runs: {spec.holder_identity} holds the {place} and has not renewed it{ago}"


async def _named(client: Client, name: str, namespace: str) -> list[LeaseObject]:
    """The lease by name: a user who may not list leases may still be allowed to get this one."""
    try:
        return [await client.get(LEASE_OBJECTS, name, namespace=namespace)]
    except (Forbidden, Missing):
        return []


def _is_of(lease: LeaseObject, scheduler: str) -> bool:
    notes = lease.metadata.annotations or {}
    return notes.get(names.SCHEDULER_NAME) == scheduler and names.SETTINGS in notes


_IN_A_FILE = "the scheduler reads them from a file of its own; name a copy with --config and resources: FILE"
_RUNS = "status.phase!=Succeeded,status.phase!=Failed"


def levels_of(levels: Sequence[str]) -> tuple[str, ...]:
    """Levels such as `rack=topology.kubernetes.io/rack`, outermost first."""
    pairs = []
    for text in levels:
        type_, equals, label = text.partition("=")
        if not (type_ and equals and label):
            raise click.UsageError(f"--level {text}: write TYPE=LABEL, such as zone={DEFAULT.levels[0][1]}")
        pairs.append((type_, label))
    GraphLayout(levels=tuple(pairs))  # raises an error if it is invalid
    return tuple(levels)


def read_cluster(
    kubeconfig: str | None, context: str | None, levels: Sequence[str]
) -> tuple[ClusterGraph, str]:
    """The cluster as the API server lists it once, with the leader's layout unless ``levels`` are given, and
    its name for people."""
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


async def users_guard(client: Client, settings: SchedulerSettings, notes: list[str]) -> NameGuard | None:
    """What keeps users from forging the submitter of a pod, as the scheduler reads it. None: limits per user
    and shares count namespaces."""
    name = settings.users_policy
    if not name:
        return None
    try:
        policy = await client.get(VALIDATING_POLICIES.of(NamePolicy), name)
        binding = await client.get(VALIDATING_POLICY_BINDINGS.of(NamePolicyBinding), name)
    except Missing:
        return None
    except Forbidden:
        notes.append(
            f"the ValidatingAdmissionPolicy {name} cannot be read: jobs count for their namespaces here, not "
            "for the users who submitted them"
        )
        return None
    return name_guard(policy, binding)


def users_as(leader: Asked) -> tuple[NameGuard | None, str]:
    """The same for a command that copies the cluster, and the current user, who would be the submitter."""
    if not leader.settings.users_policy:
        return None, ""
    notes: list[str] = []

    async def read() -> tuple[NameGuard | None, str]:
        async with Client(leader.access) as client:
            guard = await users_guard(client, leader.settings, notes)
            return guard, "" if guard is None else await _who(client)

    found = event_loop.run(read)
    for note in notes:
        click.echo(f"note: {note}", err=True)
    return found


async def _who(client: Client) -> str:
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    try:
        answer = await client.request("POST", _REVIEWS, body=msgspec.json.encode(body))
    except ApiError:
        return ""
    return str(msgspec.json.decode(answer).get("status", {}).get("userInfo", {}).get("username") or "")


def list_as(leader: Asked) -> ClusterListing:
    """Everything that the scheduler decides by, as the API server lists it now, with notes about what could
    not be read."""

    async def lists() -> ClusterListing:
        async with Client(leader.access) as client:
            found = await list_cluster(client, leader.settings.device_config_map())
            if leader.settings.kueue_queues:
                found.kueue = await list_kueue(client)
            return found

    listing = event_loop.run(lists)
    listing.name_once(leader.settings.scheduler_name, leader.settings.scheduler_aliases)
    listing.devices = listing.devices if leader.devices is None else leader.devices
    hidden = [f"devices cannot be seen: {_IN_A_FILE}"] if leader.hides_devices else []
    absent = [leader.absent] if leader.absent else []
    for note in (*absent, *leader.notes, *listing.notes, *hidden):
        click.echo(f"note: {note}", err=True)
    return listing


def usage(cluster: ClusterGraph) -> list[dict[str, Any]]:
    """The size and the free amount of each resource, by Kubernetes' names."""
    seats = cluster.fit
    found = []
    for type_ in seats.types:
        size, free = int(seats.size(type_).sum()), int(seats.free(type_).clip(min=0).sum())
        if size:
            name = cluster.layout.resource(type_)
            found.append({"resource": name, "size": size, "used": size - free, "free": free})
    return found


def running(cluster: ClusterGraph) -> list[dict[str, Any]]:
    """The pods on nodes, grouped by owner."""
    groups: dict[tuple[str, str, str], list[PodEntry]] = {}
    for entry in cluster.pods:
        pod = entry.pod
        owner = pod.metadata.controller_reference
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
    """An amount of a type of vertex in Kubernetes' notation: 128Gi, 1500m."""
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


def show(nodes: Iterable[Mapping[str, Any]], settings: Mapping[str, Any], *, what: str, output: str) -> None:
    """Print the graph of the rows of nodes. ``settings`` are those of the scheduler."""
    chosen = {key: tuple(settings[key]) for key in ("topology", "devices") if settings.get(key)}
    cluster = ClusterGraph(msgspec.structs.replace(SchedulerSettings(), **chosen).layout())
    cluster.load([_node(row) for row in nodes], ())
    graph = cluster.graph
    if what == "jgf":
        click.echo(files.render(as_fluxion(graph), "jgf"), nl=False)
        return
    if output != "wide":
        graph.properties.clear()  # labels differ between nodes, and would unfold the tree
    folded = tree.fold(graph, depth=None, subsystem="containment")
    if output in ("json", "yaml"):
        click.echo(view.data(tree.to_value(graph, folded), output))
        return
    for line in tree.lines(graph, folded, write=lambda type_, size: write_amount(cluster, type_, size)):
        click.echo(line)


def _node(row: Mapping[str, Any]) -> Node:
    state, _, disabled = str(row["state"]).partition(",")
    return msgspec.convert(
        {
            "metadata": {"name": row["name"], "labels": row.get("labels") or {}},
            "spec": {"unschedulable": bool(disabled)},
            "status": {
                "allocatable": {each["resource"]: each["size"] for each in row.get("amounts") or ()},
                "conditions": [{"type": "Ready", "status": "True" if state == "Ready" else "False"}],
            },
        },
        Node,
    )
