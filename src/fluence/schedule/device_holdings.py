"""Device holdings: who has what of each backend and until when, and who waits for it, read from pods."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field

from fluence.cluster.ids import job_number
from fluence.model.device import DeviceGrant, DeviceRequest
from fluence.placer.backends import BackendTable, DeviceEntry
from fluence.schedule import recovery
from fluence.schedule.device_requests import device_request
from fluence.schedule.gang import Gang


@dataclass(frozen=True, slots=True)
class Holder:
    """A gang that has units of a device."""

    gang: str
    amount: int
    since: int  # ms
    until: int | None  # ms; None: nobody knows


@dataclass(slots=True)
class DeviceUse:
    """A device, and what becomes of it."""

    entry: DeviceEntry
    holders: list[Holder] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)  # gangs for which it would do

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
        for job in recovery.running(gang.placed, number, now=now, limit=gang.limit, per_pod=own):
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
    """A device that is had as a whole is had with all that is below it."""
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
