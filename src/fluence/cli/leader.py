"""The leader's settings: what commands decide by that ask about a live cluster, unless told otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from fluence import event_loop, names
from fluence.config import Loaded, load
from fluence.kube.access import Access, find_access
from fluence.kube.client import Client
from fluence.kube.errors import Forbidden, Missing
from fluence.kube.lease import LEASE_OBJECTS, LeaseObject
from fluence.live.device_file import DeviceFile
from fluence.model.config_map import ConfigMap
from fluence.schedule.published_settings import PublishedSettings, read_published
from fluence.schedule.settings import SchedulerSettings

_ELSEWHERE = ("kube-system", names.INSTALLED_IN)  # the default, and where the manifests put it


@dataclass(frozen=True, slots=True)
class Asked:
    """The cluster, and settings to decide by. ``devices``: what a file of the user's declares; None: ask the
    cluster."""

    access: Access
    settings: SchedulerSettings
    notes: list[str] = field(default_factory=list)
    devices: list[ConfigMap] | None = None
    hides_devices: bool = False  # they are in a file of the leader's


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
    found = event_loop.run(lambda: _published(access, at))
    if found is None:
        return _asked(access, own, [] if config_file else [_UNSEEN])
    notes = []
    if found.unknown:
        notes.append(f"the scheduler's {', '.join(found.unknown)}: not known here, so the default is assumed")
    return _asked(access, merged(found.values), notes)


_UNSEEN = (
    "with these rights the scheduler's settings (its Lease) cannot be seen, and the defaults are assumed: "
    "name its file with --config"
)


def _asked(access: Access, loaded: Loaded[SchedulerSettings], notes: list[str]) -> Asked:
    settings = loaded.settings
    if not settings.resources:
        return Asked(access, settings, notes)
    if "resources" not in loaded.origins:
        return Asked(access, settings, notes, hides_devices=True)
    file = DeviceFile(settings.resources, lambda event: None)
    file.look()
    return Asked(access, settings, notes, [] if file.seen is None else [file.seen])


async def _published(access: Access, own: SchedulerSettings) -> PublishedSettings | None:
    """None: they may not be read. A scheduler without a lease says nothing."""
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
    if not found:
        return None if refused else PublishedSettings()
    latest = max(found, key=lambda each: each.spec.renew_time or "")
    return read_published((latest.metadata.annotations or {})[names.SETTINGS])


async def _named(client: Client, name: str, namespace: str) -> list[LeaseObject]:
    """Who may not list leases may be allowed to get this one."""
    try:
        return [await client.get(LEASE_OBJECTS, name, namespace=namespace)]
    except (Forbidden, Missing):
        return []


def _is_of(lease: LeaseObject, scheduler: str) -> bool:
    notes = lease.metadata.annotations or {}
    return notes.get(names.SCHEDULER_NAME) == scheduler and names.SETTINGS in notes
