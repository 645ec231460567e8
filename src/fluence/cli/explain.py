"""`fluence explain`: the state of a pod or a group, why it waits, when it starts, and what would help."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from fluence import messages
from fluence.act.conditions import GROUP_CONDITIONS, POD_SCHEDULED, read_message
from fluence.cli import view
from fluence.cli.choice import output_option
from fluence.cli.live import read_layout
from fluence.cli.settings import load_settings
from fluence.cluster.claims import Claims
from fluence.cluster.graph import ClusterGraph
from fluence.cluster.layout import GraphLayout
from fluence.errors import NotFound
from fluence.kube.access import find_access
from fluence.kube.client import Client
from fluence.kube.errors import ApiError
from fluence.kube.listing import list_groups
from fluence.kube.resource import CLAIMS, CSI_NODES, NODES, OWNERS, PODS, STORAGE_CLASSES, VOLUMES
from fluence.model.group import Group
from fluence.model.owner import Owner
from fluence.model.pod import Pod
from fluence.model.reason import Reason
from fluence.schedule.advice import Advice, advise
from fluence.schedule.gang import Gang
from fluence.schedule.groups import Groups
from fluence.schedule.scheduler import cluster_for
from fluence.schedule.settings import SchedulerSettings

T = TypeVar("T")

_RUNS = "status.phase!=Succeeded,status.phase!=Failed"


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the server holds, as far as we may read it."""

    pods: list[Pod]
    groups: list[Group]
    owners: list[Owner]
    followed: list[str]  # kinds of owners that we may read
    native: bool
    cluster: ClusterGraph | None
    notes: list[str]


@click.command()
@click.argument("kind", type=click.Choice(["pod", "group"]))
@click.argument("name")
@click.option("-n", "--namespace", metavar="NAME", help="Its namespace. Default: the kubeconfig's.")
@click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Which cluster.")
@click.option("--context", metavar="NAME", help="The kubeconfig's context.")
@click.option("--scheduler-name", metavar="NAME", default="fluence", show_default=True)
@click.option(
    "--level",
    "levels",
    multiple=True,
    metavar="TYPE=LABEL",
    help="A level above the nodes, outermost first, as the scheduler has it.",
)
@click.option(
    "--match-policy",
    metavar="NAME",
    help="Which nodes the scheduler takes first. [FLUENCE_MATCH_POLICY; default: as in --config, else first]",
)
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    type=click.Path(),
    envvar="FLUENCE_CONFIG",
    help="The scheduler's file of settings, for its match policy. [FLUENCE_CONFIG]",
)
@output_option((), note="table, wide (with every member), json, yaml.")
def explain(
    kind: str,
    name: str,
    namespace: str | None,
    kubeconfig: str | None,
    context: str | None,
    scheduler_name: str,
    levels: tuple[str, ...],
    match_policy: str | None,
    config_file: str | None,
    output: str,
) -> None:
    """Say in words what a pod or a group waits for, when it starts, and what would make it start sooner.

    The reason and both start times are those that the scheduler wrote into the pod's condition. What stands
    in the way now, and what would help, is tried out on a copy of the cluster as it is listed once, with the
    request that the scheduler makes; nothing is changed. Without the right to list nodes that part is left
    out.

    \b
    Examples:
      fluence explain pod solver-0 -n physics
      fluence explain group lammps -o wide       a PodGroup, a group by label, or the name of its Job

    \b
    Exit codes: 0 explained; 1 no such pod or group, or the server cannot be asked; 2 a wrong command line.
    """
    settings = load_settings(SchedulerSettings, config_file, {"match_policy": match_policy}).settings
    access = find_access(kubeconfig=kubeconfig, context=context)
    namespace = namespace or access.namespace or "default"

    async def read() -> _Seen:
        async with Client(access) as client:
            return await _read(client, namespace, read_layout(levels), settings.match_policy)

    seen = asyncio.run(read())
    groups = Groups(scheduler=scheduler_name, follows=seen.followed, native=seen.native)
    for owner in seen.owners:
        groups.set_owner(owner)
    for group in seen.groups:
        groups.set_group(group)
    for pod in seen.pods:
        groups.set_pod(pod)
    now = int(time.time() * 1000)
    if kind == "pod":
        value = _pod(name, namespace, seen, groups, now)
    else:
        value = _group(name, namespace, seen, groups, now)
    if seen.notes:
        value["notes"] = seen.notes
    if output in ("json", "yaml"):
        click.echo(view.json(value) if output == "json" else view.yaml(value))
    else:
        _show(value, wide=output == "wide")


# -- what the server holds -----------------------------------------------------------------------------------


async def _read(client: Client, namespace: str, layout: GraphLayout, policy: str) -> _Seen:
    notes: list[str] = []

    async def may(what: str, call: Awaitable[T]) -> T | None:
        try:
            return await call
        except ApiError as error:
            notes.append(f"{what} cannot be read: {error}")
            return None

    pods = (await client.list(PODS, namespace=namespace)).items or []
    owners: list[Owner] = []
    followed: list[str] = []
    for resource in OWNERS:
        page = await may(resource.plural, client.list(resource, namespace=namespace))
        if page is not None:
            owners.extend(page.items or ())
            followed.append(resource.kind)
    native, groups = await may("PodGroups", list_groups(client, namespace=namespace)) or (False, [])
    nodes = await may("nodes", client.list(NODES))
    others = await may("pods of other namespaces", client.list(PODS, field_selector=_RUNS))
    cluster = None
    if nodes is not None and others is not None:
        cluster = cluster_for(layout, policy=policy)
        cluster.load(nodes.items or (), others.items or ())
        if cluster.mounts_claims(pods) and not await may("volumes", _volumes(client, namespace, cluster)):
            cluster = None  # better no advice than a wrong one
    return _Seen(pods, groups, owners, followed, native, cluster, notes)


async def _volumes(client: Client, namespace: str, cluster: ClusterGraph) -> bool:
    """What the claims of a namespace are tied to."""
    claims = Claims()
    for kind in (await client.list(STORAGE_CLASSES)).items or ():
        claims.set_class(kind)
    for volume in (await client.list(VOLUMES)).items or ():
        claims.set_volume(volume)
    for claim in (await client.list(CLAIMS, namespace=namespace)).items or ():
        claims.set_claim(claim)
    for drivers in (await client.list(CSI_NODES)).items or ():
        cluster.set_attach_limits(drivers.metadata.name, drivers.limits)
    for change in claims.everything():
        cluster.set_claim(*change)
    return True


# -- what there is to say ------------------------------------------------------------------------------------


def _pod(name: str, namespace: str, seen: _Seen, groups: Groups, now: int) -> dict[str, Any]:
    pod = next((each for each in seen.pods if each.metadata.name == name), None)
    if pod is None:
        raise NotFound(f"pod {namespace}/{name}: no such pod; name its namespace with -n")
    value: dict[str, Any] = {"kind": "pod", "namespace": namespace, "name": name}
    if pod.spec.scheduler_name != groups.scheduler:
        reason = f"it names the scheduler {pod.spec.scheduler_name!r}: set schedulerName: {groups.scheduler}"
        return {**value, "state": "not ours", "reason": reason}
    gang = groups.gang(groups.of(pod))
    assert gang is not None  # a pod of ours is in a gang
    advice = advise(gang, seen.cluster, now=now) if _waits(pod) else Advice()
    condition = pod.condition(POD_SCHEDULED)
    written = condition.message if condition is not None and condition.status == "False" else ""
    return {**value, **_state_of(pod), **_reason_and_start(written, gang, advice), **_gang(gang, advice)}


def _group(name: str, namespace: str, seen: _Seen, groups: Groups, now: int) -> dict[str, Any]:
    value: dict[str, Any] = {"kind": "group", "namespace": namespace, "name": name}
    found = [gang for gang in groups.gangs() if gang.name == name and not gang.is_single]
    if not found:
        group = next((each for each in seen.groups if each.name == name), None)
        if group is None:
            raise NotFound(
                f"group {namespace}/{name}: no PodGroup has this name and no pod with schedulerName: "
                f"{groups.scheduler} names it; see `kubectl get podgroups -n {namespace}`"
            )
        if not group.is_gang:
            reason = "it is a basic PodGroup: its pods start one by one; ask for a pod"
        else:
            reason = f"no pod with schedulerName: {groups.scheduler} names it"
        return {**value, "state": "empty", "reason": reason}
    gang = found[0]
    advice = advise(gang, seen.cluster, now=now) if gang.members or gang.gated else Advice()
    written = ""
    for condition in gang.group.conditions if gang.group is not None else ():
        if condition.type in GROUP_CONDITIONS.values() and condition.status == "False":
            written = condition.message
    if not written:
        conditions = (pod.condition(POD_SCHEDULED) for pod in gang.members)
        written = next(
            (each.message for each in conditions if each is not None and each.status == "False"), ""
        )
    return {
        **value,
        "state": _state(gang, advice),
        **_reason_and_start(written, gang, advice),
        **_gang(gang, advice),
    }


def _waits(pod: Pod) -> bool:
    return not (pod.spec.node_name or pod.is_terminal or pod.metadata.deletion_timestamp is not None)


def _state_of(pod: Pod) -> dict[str, Any]:
    if pod.is_terminal:
        return {"state": pod.status.phase.lower(), "node": pod.spec.node_name}
    if pod.metadata.deletion_timestamp is not None:
        return {"state": "is being deleted", "node": pod.spec.node_name}
    if pod.spec.node_name:
        return {"state": "placed", "node": pod.spec.node_name}
    return {"state": "gated" if pod.is_gated else "waits"}


def _state(gang: Gang, advice: Advice) -> str:
    if gang.fault:
        return "refused"
    if gang.is_over:
        return "ended"
    if gang.members or (gang.gated and not gang.placed):
        return "waits" if not gang.placed else "runs in part"
    return "runs"


def _reason_and_start(written: str, gang: Gang, advice: Advice) -> dict[str, Any]:
    """What the scheduler wrote; before it has written anything, what is found here."""
    reason, latest, expected = read_message(written)
    if not reason and not gang.is_over and (gang.members or gang.gated):
        reason = messages.texts(_why(gang, advice))
    value: dict[str, Any] = {}
    if reason:
        value["reason"] = reason
    if latest is not None:
        value["noLaterThan"] = _when(latest)
    if expected is not None:
        value["expected"] = _when(expected)
    return value


def _why(gang: Gang, advice: Advice) -> tuple[Reason, ...]:
    if gang.fault is not None:
        return (gang.fault,)
    return (gang.missing,) if gang.missing is not None else advice.blocks


def _gang(gang: Gang, advice: Advice) -> dict[str, Any]:
    counts = {"waiting": gang.members, "placed": gang.placed, "gated": gang.gated, "ended": gang.ended}
    value: dict[str, Any] = {
        "gang": {
            "key": gang.key,
            "from": gang.source,
            "minimum": gang.minimum,
            "size": gang.size,
            "priority": gang.priority,
            "user": gang.user,
            "queue": gang.queue,
            "limitSeconds": None if gang.limit is None else gang.limit / 1000,
            **{word: len(pods) for word, pods in counts.items()},
            "members": [
                {"pod": pod.metadata.name, "state": word, "node": pod.spec.node_name}
                for word, pods in counts.items()
                for pod in pods
            ],
        }
    }
    if advice.fits:
        value["blocks"] = ["nothing: there is room for it now, and it starts when it is its turn"]
    elif advice.blocks:
        value["blocks"] = list(map(messages.text, advice.blocks))
    if advice.sooner:
        value["sooner"] = list(map(messages.text, advice.sooner))
    if gang.warnings:
        value["warnings"] = list(map(messages.text, gang.warnings))
    return value


def _when(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _show(value: dict[str, Any], *, wide: bool) -> None:
    title = f"{value['kind']} {value['namespace']}/{value['name']}"
    node = f" on {value['node']}" if value.get("node") else ""
    click.echo(f"{click.style(view.clean(title), bold=True)}: {value['state']}{view.clean(node)}")
    rows: list[tuple[str, str]] = []
    if value.get("reason"):
        rows.append(("reason", value["reason"]))
    times = [
        f"{word} {value[key].replace('T', ' ').replace(':00Z', ' UTC')}"
        for key, word in (("noLaterThan", "no later than"), ("expected", "expected"))
        if key in value
    ]
    if times:
        rows.append(("starts", ", ".join(times)))
    gang = value.get("gang")
    if gang is not None:
        counts = ", ".join(
            f"{gang[word]} {word}" for word in ("waiting", "placed", "gated", "ended") if gang[word]
        )
        together = f"{gang['minimum']} must run together" if gang["minimum"] > 1 else "no company needed"
        rows.append(("gang", f"{gang['key']}, from {gang['from']}: {counts}; {together}"))
    for key in ("blocks", "sooner", "warnings", "notes"):
        for number, text in enumerate(value.get(key, ())):
            rows.append((key if not number else "", text))
    for word, text in rows:
        click.echo(f"  {word:<9} {view.clean(text)}")
    if wide and gang is not None and gang["members"]:
        members = [
            [view.clean(each["pod"]), each["state"], view.clean(each["node"] or "-")]
            for each in gang["members"]
        ]
        click.echo(view.table(["POD", "STATE", "NODE"], members))
