"""`fluence explain`: the state of a pod or a group, why it waits, when it starts, and what would help."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import click

from fluence import event_loop, messages
from fluence.act.conditions import GROUP_CONDITIONS, POD_SCHEDULED, read_message, rests_on_durations
from fluence.cli import view
from fluence.cli.choice import output_option
from fluence.cli.leader import ask_leader
from fluence.cli.live import levels_of
from fluence.errors import NotFound
from fluence.kube.client import Client
from fluence.kube.errors import Missing
from fluence.kube.listing import ClusterListing, list_readable
from fluence.messages import states
from fluence.messages.queue import CANNOT_HOLD
from fluence.messages.times import when
from fluence.model.held import is_held, is_ours
from fluence.model.meta import Condition
from fluence.model.owner import OWNERS
from fluence.model.pod import Pod
from fluence.model.reason import Reason
from fluence.schedule.build import scheduler_for
from fluence.schedule.device_requests import asked_by
from fluence.schedule.events import Object
from fluence.schedule.gang import Gang
from fluence.schedule.group_labels import group_field, group_label, other_group
from fluence.schedule.inquiry import Inquiry, NextCycle
from fluence.schedule.settings import SchedulerSettings
from fluence.units import parse_rfc3339, rfc3339

_FOR_SEATS = ("nodes", "pods of other namespaces", "other pods")
_FOR_VOLUMES = ("volume claims", "persistentvolumes", "storageclasses", "csinodes")
_OWNERS = ("jobs", "deployments", "replicasets", "statefulsets")
_FOR_GANGS = (*_OWNERS, "PodGroups")


@click.command()
@click.argument("kind", type=click.Choice(["pod", "group"]))
@click.argument("name")
@click.option("-n", "--namespace", metavar="NAME", help="Its namespace. Default: the kubeconfig's.")
@click.option("--kubeconfig", metavar="FILE", type=click.Path(), help="Which cluster.")
@click.option("--context", metavar="NAME", help="The kubeconfig's context.")
@click.option("--scheduler-name", metavar="NAME", help="[FLUENCE_SCHEDULER_NAME; default: as in --config]")
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
    help="Which nodes the scheduler takes first. [FLUENCE_MATCH_POLICY; default: as in --config, else as the "
    "leader says]",
)
@click.option(
    "--config",
    "config_file",
    metavar="FILE",
    type=click.Path(),
    envvar="FLUENCE_CONFIG",
    help="The scheduler's file of settings, where it holds no Lease or you may not get it. [FLUENCE_CONFIG]",
)
@output_option((), note="table, wide (with every member), json, yaml.")
def explain(
    kind: str,
    name: str,
    namespace: str | None,
    kubeconfig: str | None,
    context: str | None,
    scheduler_name: str | None,
    levels: tuple[str, ...],
    match_policy: str | None,
    config_file: str | None,
    output: str,
) -> None:
    """Say in words what a pod or a group waits for, when it starts, and what would make it start sooner.

    The reason and both start times are those that the scheduler wrote into the pod's condition. What stands
    in the way now, and what would help, is what a scheduler with the same settings (the leader says them on
    its Lease) finds in a copy of the cluster, which is listed once; nothing is changed. With fewer rights
    less is said, and one line names what cannot be seen.

    \b
    States: Pending, Reserved (it has a place in the plan), Starting, Running, Succeeded, Failed,
    Unschedulable (it does not start as it is).

    \b
    Examples:
      fluence explain pod solver-0 -n physics
      fluence explain group lammps -o wide       a PodGroup, a group by label, or the name of its Job

    \b
    Exit codes: 0 explained; 1 no such pod or group, or the server cannot be asked; 2 a wrong command line.
    """
    flags: dict[str, object] = {"match_policy": match_policy, "scheduler_name": scheduler_name}
    if levels:
        flags["topology"] = levels_of(levels)
    leader = ask_leader(kubeconfig, context, config_file, flags)
    access, settings = leader.access, leader.settings
    namespace = namespace or access.namespace or "default"

    async def read() -> ClusterListing:
        async with Client(access) as client:
            only = name if kind == "pod" else None
            return await list_readable(client, namespace, only, settings.device_config_map())

    try:
        listing = event_loop.run(read)
    except Missing:
        raise NotFound(_NO_POD.format(namespace=namespace, name=name)) from None
    listing.devices = listing.devices if leader.devices is None else leader.devices
    if leader.hides_devices:
        listing.unseen.append("devices")
    seen = _see(listing, settings, namespace, int(time.time() * 1000), leader.notes)
    value = _pod(name, seen) if kind == "pod" else _group(name, seen)
    if output in ("json", "yaml"):
        click.echo(view.data(value, output))
    else:
        _show(value, seen.now, wide=output == "wide")


# -- what the server holds -----------------------------------------------------------------------------------

_NO_POD = "pod {namespace}/{name}: no such pod; name its namespace with -n"


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the server holds, as far as we may read it."""

    namespace: str
    listing: ClusterListing
    inquiry: Inquiry
    now: int  # ms
    guesses: list[str]  # what is not known of the scheduler's settings

    @property
    def unseen(self) -> list[str]:
        return self.listing.unseen

    def lacks(self, some: tuple[str, ...]) -> list[str]:
        return [each for each in self.unseen if each in some]

    def knows_group_of(self, pod: Pod) -> bool:
        """Whether all was seen that could say which pods this one starts with."""
        owned = any(
            each.controller and (each.api_version, each.kind) in OWNERS
            for each in pod.metadata.owner_references or ()
        )
        named = any(find(pod) is not None for find in (group_field, group_label, other_group))
        if owned and self.lacks(_OWNERS):
            return False
        return not ((owned or named) and self.lacks(("PodGroups", "other pods")))

    def can_try(self, gang: Gang) -> bool:
        """Whether all was seen that could be in the way of a gang."""
        if self.lacks(_FOR_SEATS):
            return False
        mounts = any(
            each.persistent_volume_claim or each.ephemeral
            for pod in gang.members
            for each in pod.spec.volumes or ()
        )
        asks = any(asked_by(pod) for pod in gang.members)
        return not (mounts and self.lacks(_FOR_VOLUMES)) and not (asks and self.lacks(("devices",)))


def _see(
    listing: ClusterListing, settings: SchedulerSettings, namespace: str, now: int, guesses: list[str]
) -> _Seen:
    scheduler = scheduler_for(settings, native=listing.native, systems=listing.systems)
    objects: list[Object] = [*listing.devices, *listing.nodes, *listing.namespaces, *listing.csi_nodes]
    objects += listing.classes
    objects += [*listing.volumes, *listing.claims, *listing.groups, *listing.owners, *listing.pods]
    return _Seen(namespace, listing, Inquiry(scheduler, objects, now), now, guesses)


# -- what there is to say ------------------------------------------------------------------------------------


def _pod(name: str, seen: _Seen) -> dict[str, Any]:
    groups, namespace = seen.inquiry.groups, seen.namespace
    found = (each for each in seen.listing.pods if each.key == f"{namespace}/{name}")
    pod = next(found, None)
    if pod is None:
        raise NotFound(_NO_POD.format(namespace=namespace, name=name))
    value: dict[str, Any] = {"kind": "pod", "namespace": namespace, "name": name}
    condition = pod.condition(POD_SCHEDULED)
    told = condition if condition is not None and condition.status == "False" else Condition()
    if is_held(pod):
        told = Condition()  # that it is gated says nothing: the gate is ours, and goes when it starts
    if not is_ours(pod, groups.scheduler):
        reason = f"it names the scheduler {pod.spec.scheduler_name!r}: set schedulerName: {groups.scheduler}"
        return {**value, **_state_of(pod, told, NextCycle(), seen.now), "reason": reason}
    gang = groups.gang(groups.of(pod)) if seen.knows_group_of(pod) else None
    finding, tried = NextCycle(), False
    if gang is not None and _waits(pod) and told.reason != _PREPARES:
        tried = seen.can_try(gang)
        finding = seen.inquiry.about(gang, with_cluster=tried)
    return {
        **value,
        **_state_of(pod, told, finding, seen.now),
        **_reason_and_start(told.message, finding),
        **_gang(gang, finding),
        **_notes(seen, _waits(pod), gang, tried=tried),
    }


def _group(name: str, seen: _Seen) -> dict[str, Any]:
    groups, namespace = seen.inquiry.groups, seen.namespace
    value: dict[str, Any] = {"kind": "group", "namespace": namespace, "name": name}
    gang = groups.named(namespace, name)
    if gang is None:
        return {**value, "state": states.PENDING, "reason": _no_pods(name, seen)}
    told = _told(gang)
    waits = bool(gang.members or gang.gated)
    finding, tried = NextCycle(), False
    known = all(map(seen.knows_group_of, gang.members))
    if waits and known and told.reason != _PREPARES:
        tried = seen.can_try(gang)
        finding = seen.inquiry.about(gang, with_cluster=tried)
    return {
        **value,
        "state": _state(gang, told, finding, seen.now),
        **_reason_and_start(told.message, finding),
        **_gang(gang if known else None, finding),
        **_notes(seen, waits, gang if known else None, tried=tried),
    }


def _no_pods(name: str, seen: _Seen) -> str:
    """Why there is no gang of a name."""
    scheduler, namespace = seen.inquiry.groups.scheduler, seen.namespace
    group = next((each for each in seen.listing.groups if each.key == f"{namespace}/{name}"), None)
    if group is not None and not group.is_gang:
        return "it is a basic PodGroup: its pods start one by one; ask for a pod"
    if group is not None:
        return f"no pod with schedulerName: {scheduler} names it"
    hidden = seen.lacks(_FOR_GANGS)
    if hidden:
        raise NotFound(
            f"group {namespace}/{name}: no pod with schedulerName: {scheduler} names it, and with these "
            f"rights {_and(hidden)} cannot be seen"
        )
    raise NotFound(
        f"group {namespace}/{name}: no PodGroup has this name and no pod with schedulerName: "
        f"{scheduler} names it; see `kubectl get podgroups -n {namespace}`"
    )


def _notes(seen: _Seen, waits: bool, gang: Gang | None, *, tried: bool) -> dict[str, Any]:
    """What cannot be seen, where that leaves something out: a line, and one of the scheduler's settings."""
    lost = []
    if gang is None:
        lost.append("which pods it starts together with")
    if waits and not tried and (gang is None or gang.is_ready):
        lost += ["what is in its way now", "what would help it"]
    hidden = seen.lacks((*_FOR_SEATS, *_FOR_GANGS)) or seen.unseen
    if lost and hidden:
        owners = [each for each in hidden if each in _OWNERS]
        if len(owners) == len(_OWNERS):
            hidden = [*(each for each in hidden if each not in _OWNERS), "owners of pods"]
        return {"notes": [f"with these rights {_and(hidden)} cannot be seen, so it is not said {_and(lost)}"]}
    notes = list(seen.guesses) if waits and tried else []
    if waits and tried and seen.listing.elsewhere:
        hidden = seen.listing.elsewhere
        note = f"with these rights {_and(hidden)} of other namespaces cannot be seen: work of theirs that "
        notes.append(note + "is ahead of it is not counted")
    return {"notes": notes} if notes else {}


def _and(words: list[str]) -> str:
    return " and ".join((", ".join(words[:-1]), words[-1])) if len(words) > 1 else "".join(words)


# -- states --------------------------------------------------------------------------------------------------

_PREPARES = "WaitingForVolumes"


def _waits(pod: Pod) -> bool:
    return not (pod.spec.node_name or pod.is_terminal or pod.metadata.deletion_timestamp is not None)


def _state_of(pod: Pod, told: Condition, finding: NextCycle, now: int) -> dict[str, Any]:
    node = {"node": pod.spec.node_name} if pod.spec.node_name else {}
    if pod.is_terminal:
        return {"state": pod.status.phase, **node}
    if pod.metadata.deletion_timestamp is not None:
        return {"state": states.TERMINATING, **node}
    if pod.spec.node_name:
        return {"state": states.RUNNING if pod.status.phase == "Running" else states.STARTING, **node}
    return {"state": _waiting(told, finding, now)}


def _waiting(told: Condition, finding: NextCycle, now: int) -> str:
    if told.reason == _PREPARES:
        return states.STARTING
    nothing_found = not (finding.blocks or finding.starts)
    if finding.never or (nothing_found and told.message.startswith(CANNOT_HOLD)):
        return states.UNSCHEDULABLE
    latest = read_message(told.message)[1]
    return states.RESERVED if latest is not None and latest >= now else states.PENDING


def _state(gang: Gang, told: Condition, finding: NextCycle, now: int) -> str:
    if gang.is_over:
        failed = any(pod.status.phase != "Succeeded" for pod in gang.ended)
        return states.FAILED if failed else states.SUCCEEDED
    if gang.placed and (not gang.needed or not gang.members):
        runs = any(pod.status.phase == "Running" for pod in gang.placed)
        return states.RUNNING if runs else states.STARTING
    return _waiting(told, finding, now)


def _told(gang: Gang) -> Condition:
    """What a group was told, or else its pods."""
    for condition in gang.group.conditions if gang.group is not None else ():
        if condition.type in GROUP_CONDITIONS.values() and condition.status == "False":
            return condition
    conditions = (pod.condition(POD_SCHEDULED) for pod in gang.members)
    return next((each for each in conditions if each is not None and each.status == "False"), Condition())


# -- the value -----------------------------------------------------------------------------------------------


def _reason_and_start(written: str, finding: NextCycle) -> dict[str, Any]:
    """What the scheduler wrote; before it has written anything, what is found here."""
    reason, latest, expected = read_message(written)
    value: dict[str, Any] = {}
    if reason or finding.blocks:
        value["reason"] = reason or messages.texts(finding.blocks)
    if latest is not None:
        value["noLaterThan"] = _stamp(latest)
        value["restsOn"] = "durations" if rests_on_durations(written) else "limits"
    if expected is not None:
        value["expected"] = _stamp(expected)
    return value


def _gang(gang: Gang | None, finding: NextCycle) -> dict[str, Any]:
    if gang is None:
        return {}
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
                {"pod": pod.metadata.name, "state": _member(pod), "node": pod.spec.node_name}
                for pods in counts.values()
                for pod in pods
            ],
        }
    }
    if finding.starts:
        value["blocks"] = ["nothing: the next cycle of the scheduler starts it"]
    elif finding.blocks:
        value["blocks"] = _texts(finding.blocks)
    if finding.sooner:
        value["sooner"] = _texts(finding.sooner)
    if gang.warnings:
        value["warnings"] = _texts(gang.warnings)
    return value


def _member(pod: Pod) -> str:
    state: str = _state_of(pod, Condition(), NextCycle(), 0)["state"]
    return state


def _texts(reasons: tuple[Reason, ...]) -> list[str]:
    return list(map(messages.text, reasons))


def _stamp(ms: int) -> str:
    return rfc3339(ms * 1000)


# -- the page ------------------------------------------------------------------------------------------------


def _show(value: dict[str, Any], now: int, *, wide: bool) -> None:
    title = f"{value['kind']} {value['namespace']}/{value['name']}"
    node = f" on {value['node']}" if value.get("node") else ""
    click.echo(f"{click.style(view.clean(title), bold=True)}: {value['state']}{view.clean(node)}")
    rows: list[tuple[str, str]] = []
    if value.get("reason"):
        rows.append(("reason", value["reason"]))
    kind = " by durations that nothing enforces" if value.get("restsOn") == "durations" else ""
    times = [
        f"{word} {when(_millis(value[key]), now)}{more}"
        for key, word, more in (("noLaterThan", "no later than", kind), ("expected", "expected", ""))
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
    blocks = value.get("blocks", [])
    if "; ".join(blocks) != value.get("reason"):  # it was told before, and is so still
        rows += _titled("now", blocks)
    for key in ("sooner", "warnings", "notes"):
        rows += _titled(key, value.get(key, []))
    for word, text in rows:
        click.echo(f"  {word:<9} {view.clean(text)}")
    if wide and gang is not None and gang["members"]:
        members = [
            [view.clean(each["pod"]), each["state"], view.clean(each["node"] or "-")]
            for each in gang["members"]
        ]
        click.echo(view.table(["POD", "STATE", "NODE"], members))


def _titled(title: str, texts: list[str]) -> list[tuple[str, str]]:
    return [(title if not number else "", text) for number, text in enumerate(texts)]


def _millis(stamp: str) -> int:
    return (parse_rfc3339(stamp) or 0) // 1000
