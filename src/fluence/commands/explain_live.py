"""What `explain` does: lists what the user may see, asks a copy of the scheduler, and prints the answer."""

from __future__ import annotations

import time
from typing import Any

import click

from fluence import event_loop
from fluence.commands import view
from fluence.commands.cluster import Asked, ask_leader, levels_of, users_guard
from fluence.commands.explanation import Seen, no_pod
from fluence.commands.explanation import explain as explanation
from fluence.commands.view_api import ViewClient, path_of
from fluence.controller.flux_job import FLUX_JOBS, FluxJob
from fluence.errors import FluenceError, NotFound
from fluence.kube.client import Client
from fluence.kube.errors import ApiError, Forbidden, Missing
from fluence.kube.listing import ClusterListing, list_kueue, list_readable
from fluence.messages.rendering import when
from fluence.schedule.build import scheduler_for
from fluence.schedule.events import Object
from fluence.schedule.gangs.submitters import NameGuard
from fluence.schedule.inquiry import Inquiry
from fluence.units import parse_rfc3339

# As kubectl writes them. Other kinds are those of custom objects: jobset, mpijob.
_KINDS = {
    "po": "pod",
    "podgroup": "group",
    "pg": "group",
    "deploy": "deployment",
    "rs": "replicaset",
    "sts": "statefulset",
    "fj": "fluxjob",
}


def run(
    what: tuple[str, ...],
    *,
    namespace: str | None,
    kubeconfig: str | None,
    context: str | None,
    scheduler_name: str | None,
    levels: tuple[str, ...],
    match_policy: str | None,
    config_file: str | None,
    output: str,
) -> None:
    """Explain one object."""
    kind, name = _subject(what)
    flags: dict[str, object] = {"match_policy": match_policy, "scheduler_name": scheduler_name}
    if levels:
        flags["topology"] = levels_of(levels)
    leader = ask_leader(kubeconfig, context, config_file, flags)
    access, settings = leader.access, leader.settings
    namespace = namespace or access.namespace or "default"

    async def read() -> tuple[ClusterListing, NameGuard | None, list[FluxJob]]:
        async with Client(access) as client:
            only = name if kind in ("pod", "") else None
            listing = await list_readable(client, namespace, only, settings.device_config_map())
            if settings.kueue_queues:
                listing.kueue = await list_kueue(client)
            guard = await users_guard(client, settings, leader.notes)
            return listing, guard, await _flux_jobs(client, namespace)

    try:
        listing, guard, flux_jobs = event_loop.run(read)
    except Missing:
        raise NotFound(no_pod(namespace, name)) from None
    except Forbidden as error:
        raise FluenceError(error.for_user(name, namespace, role="view")) from None
    listing.name_once(settings.scheduler_name, settings.scheduler_aliases)
    seen = _see(leader, listing, namespace, flux_jobs, guard)
    value = explanation(kind, name, seen)
    if "reason" in value and "gang" in value and not value.keys() & {"ahead", "aheadAtMost"}:
        value |= _ahead_in_view(ViewClient(access), namespace, name, settings.scheduler_name)
    if output in ("json", "yaml"):
        click.echo(view.data(value, output))
    else:
        _show(value, seen.now, wide=output == "wide")


def _subject(words: tuple[str, ...]) -> tuple[str, str]:
    """Kind and name, of `job/NAME`, `job NAME` or `NAME`; the kind may be written as for kubectl."""
    parts = words[0].split("/", 1) if len(words) == 1 else list(words)
    if len(parts) > 2 or not all(parts):
        raise click.UsageError("name one object: NAME, KIND/NAME or KIND NAME")
    if len(parts) == 1:
        return "", parts[0]
    kind = parts[0].lower().partition(".")[0]
    kind = kind if kind in _KINDS else kind.removesuffix("s")
    return _KINDS.get(kind, kind), parts[1]


def _ahead_in_view(client: ViewClient, namespace: str, name: str, scheduler: str) -> dict[str, int]:
    """How many jobs are ahead, by the view: it counts also those that the user may not list."""
    try:
        page = client.get(path_of("jobs", namespace, name))
    except FluenceError:
        return {}
    finally:
        client.close()
    items = page.get("items") or []
    if page.get("metadata", {}).get("scheduler") != scheduler or len(items) != 1:
        return {}
    ahead = items[0].get("ahead")
    return {} if ahead is None else {"ahead": ahead}


async def _flux_jobs(client: Client, namespace: str) -> list[FluxJob]:
    """Those of a namespace; an empty list where the server has none, or they may not be read."""
    try:
        return (await client.list(FLUX_JOBS, namespace=namespace)).items or []
    except ApiError:
        return []


def _see(
    leader: Asked,
    listing: ClusterListing,
    namespace: str,
    flux_jobs: list[FluxJob],
    guard: NameGuard | None = None,
) -> Seen:
    listing.devices = listing.devices if leader.devices is None else leader.devices
    if leader.hides_devices:
        listing.unseen.append("devices")
    scheduler = scheduler_for(leader.settings, native=listing.native, systems=listing.systems)
    scheduler.follow(listing.kinds)
    scheduler.set_guard(guard)
    objects: list[Object] = [*listing.devices, *listing.queues, *listing.kueue, *listing.nodes]
    objects += [*listing.namespaces, *listing.csi_nodes]
    objects += [*listing.classes, *listing.priorities, *listing.budgets, *listing.volumes, *listing.claims]
    objects += [*listing.groups, *listing.owners, *listing.pods]
    now = int(time.time() * 1000)
    inquiry = Inquiry(scheduler, objects, now)
    mode = leader.settings.pod_groups
    return Seen(
        namespace, listing, inquiry, now, leader.notes, flux_jobs, leader.absent, leader.unleased, mode
    )


# -- the page ------------------------------------------------------------------------------------------------


def _show(value: dict[str, Any], now: int, *, wide: bool) -> None:
    title = f"{value['kind']} {value['namespace']}/{value['name']}"
    node = f" on {value['node']}" if value.get("node") else ""
    click.echo(f"{click.style(view.clean(title), bold=True)}: {value['state']}{view.clean(node)}")
    rows: list[tuple[str, str]] = []
    if value.get("reason"):
        rows.append(("reason", value["reason"]))
    starts = [
        f"{word} {when(_millis(value[key]), now)}"
        for key, word in (("noLaterThan", "by"), ("expected", "expected"))
        if key in value
    ]
    if value.get("restsOn") == "durations":
        starts.append("if running jobs keep their limits")
    if starts:
        rows.append(("starts", ", ".join(starts)))
    if "ahead" in value or "aheadAtMost" in value:
        rows.append(("queue", _ahead(value)))
    if "pods" in value:
        counts = ", ".join(f"{number} {word}" for word, number in value["pods"].items() if number)
        rows.append(("pods", f"{counts}; they start one by one, and this is about one of them"))
    gang = value.get("gang")
    if gang is not None:
        counts = ", ".join(
            f"{gang[word]} {word}" for word in ("waiting", "placed", "gated", "ended") if gang[word]
        )
        together = f"{gang['minimum']} must run together" if gang["minimum"] > 1 else "it starts alone"
        rows.append(("gang", f"{gang['key']}, from {gang['from']}: {counts}; {together}"))
        if wide and "podGroup" in gang:
            rows.append(("PodGroup", gang["podGroup"]))
        elif wide and "noPodGroup" in gang:
            rows.append(("PodGroup", f"none: {gang['noPodGroup']}"))
    blocks = value.get("blocks", [])
    if ". ".join(blocks) != value.get("reason"):  # the reason still holds
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


def _ahead(value: dict[str, Any]) -> str:
    number = value.get("ahead", value.get("aheadAtMost"))
    if not number:
        return "it is the next"
    jobs = "1 job is" if number == 1 else f"{number} jobs are"
    return f"{'' if 'ahead' in value else 'at most '}{jobs} ahead of it"


def _titled(title: str, texts: list[str]) -> list[tuple[str, str]]:
    return [(title if not number else "", text) for number, text in enumerate(texts)]


def _millis(stamp: str) -> int:
    return (parse_rfc3339(stamp) or 0) // 1000
