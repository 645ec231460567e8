"""Group devices: which job of a group holds the devices that its pods share, and what each pod is told.

A gang shares its devices. Members that come later, or take the place of one that ended, use what the first
ones hold: the job of the first is the lender, and when it is over the device is theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fluence import names
from fluence.model.device import DeviceGrant, DeviceRequest, DeviceTerm
from fluence.model.pod import Pod
from fluence.placer.backends import BackendTable
from fluence.schedule.device_requests import asked_by


@dataclass(frozen=True, slots=True)
class Lent:
    """Devices that a job uses and another holds."""

    grants: tuple[DeviceGrant, ...]
    lender: int


def lent_to(pods: Sequence[Pod], holders: Mapping[int, tuple[DeviceGrant, ...]]) -> Lent | None:
    """What pods share with one of the jobs that hold what they ask for."""
    asked = {pod.metadata.uid: asked_by(pod) for pod in pods}
    for number, grants in holders.items():
        users = {
            grant: frozenset(uid for uid, needs in asked.items() if grant.type in needs) for grant in grants
        }
        shared = tuple(grant._replace(pods=uids) for grant, uids in users.items() if uids)
        if shared:
            return Lent(shared, number)
    return None


def split(
    grants: tuple[DeviceGrant, ...], holders: Mapping[int, tuple[DeviceGrant, ...]]
) -> tuple[tuple[DeviceGrant, ...], Lent | None]:
    """What pods that are found running hold themselves, and what another job of their group holds."""
    for number, held in holders.items():
        theirs = {each.device for each in held}
        lent = tuple(each for each in grants if each.shared and each.device in theirs)
        if lent:
            return tuple(each for each in grants if each not in lent), Lent(lent, number)
    return grants, None


def request_of(
    grants: Sequence[DeviceGrant], terms: tuple[DeviceTerm, ...], *, per_pod: bool
) -> DeviceRequest | None:
    """The request that some grants are the answer to."""
    needs = amounts(grants)
    return DeviceRequest(tuple(sorted(needs.items())), terms, per_pod) if needs else None


def amounts(grants: Iterable[DeviceGrant]) -> dict[str, int]:
    """How much some grants are together, by type."""
    found: dict[str, int] = {}
    for each in grants:
        found[each.type] = found.get(each.type, 0) + each.amount
    return found


def hand_off(grants: Sequence[DeviceGrant], backends: BackendTable) -> dict[str, str]:
    """What a pod is told of its devices: the backend and its attributes; of several, with commas between
    them, in one order."""
    firsts = {grant.backend: backends.entry(grant.device) for grant in reversed(grants)}
    entries = [firsts[name] for name in dict.fromkeys(grant.backend for grant in grants)]
    keys = dict.fromkeys(key for entry in entries if entry is not None for key in entry.attributes)
    told = {names.BACKEND: ",".join(dict.fromkeys(grant.backend for grant in grants))}
    for key in keys:
        values = [entry.attributes.get(key, "") if entry is not None else "" for entry in entries]
        told[f"{names.ATTRIBUTE}{key}"] = ",".join(values)
    return told
