"""External resources: the devices that the ConfigMap declares, in its last readable version, and the requests
of gangs.

Of each type, a gang needs the largest request of any of its pods, and the pods share it. With the annotation
`devices: per-pod`, each pod has its own. The annotations `require-<attribute>`, `min-` and `max-` of any pod,
owner or PodGroup must all hold. A pod that names a backend and requests no device requests one unit of that
backend. The annotation `backend`, which older clients use, means the same as `require-backend`. The scheduler
writes the same annotation with the bind, so on bound pods it is not a request.

A gang shares its devices. Members that arrive later, or replace an ended one, use the devices that the first
ones hold: the job of the first ones lends them, and when it ends the later job holds them.

A document that cannot be read changes nothing: the last devices stay, and the fault is kept for reports.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from fluence import names
from fluence.cluster.graph import ClusterGraph
from fluence.cluster.planner import ClusterPlanner
from fluence.errors import InvalidInput
from fluence.model.external_resources import (
    DeviceGrant,
    DeviceRequest,
    DeviceTerm,
    DeviceTree,
    asked_by,
    document_of,
    parse,
)
from fluence.model.meta import ConfigMap
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.placer.backends import BackendTable
from fluence.queue import Queue
from fluence.schedule.events import Changed, Event, NotBound
from fluence.schedule.pod_set import Changes
from fluence.schedule.step import Step


class DeviceConfig:
    """The declared devices. They survive a rebuild."""

    def __init__(self) -> None:
        self.tree = DeviceTree()
        self.fault = ""  # why the newest document cannot be read
        self.source: ConfigMap | None = None  # the newest version

    def read(self, found: ConfigMap | None, own_types: Collection[str]) -> bool:
        """Read the current ConfigMap; None if it is gone, and with it all devices. Returns whether the
        devices changed. ``own_types`` are the types of devices on nodes."""
        self.source = found
        try:
            text = document_of(found.data if found is not None else None)
            tree = parse(text, source=names.RESOURCES_KEY, own_types=own_types)
        except InvalidInput as error:
            self.fault = str(error)
            return False
        self.fault = ""
        changed = tree != self.tree
        self.tree = tree if changed else self.tree
        return changed


class ExternalResources(Step):
    """Follows the ConfigMap, and passes changed devices to the cluster, the plan and the queue."""

    def __init__(
        self,
        *,
        config: DeviceConfig,
        cluster: ClusterGraph,
        planner: ClusterPlanner,
        queue: Queue,
        changes: Changes,
    ) -> None:
        self._config = config
        self._cluster = cluster
        self._planner = planner
        self._queue = queue
        self._changes = changes
        cluster.set_devices(config.tree)

    def observe(self, event: Event | NotBound, now: int) -> None:
        if isinstance(event, Changed) and isinstance(event.object, ConfigMap):
            self._read(event.object if event.new is not None else None)

    def _read(self, found: ConfigMap | None) -> None:
        """Use the changed devices: running work continues, and waiting work is checked again."""
        before = self._config.tree
        if self._config.read(found, self._cluster.layout.own_types):
            self._cluster.set_devices(self._config.tree)
            self._changes.cluster_changed = True
            self._planner.note_freed()
            if before.backends:  # at the start of a scheduler, no device can have been lost
                self._planner.note_taken()
                self._queue.note_loss(Reason.of(Code.DEVICES_CHANGED))


MAX_TERMS = 64
PER_POD = "per-pod"
SHARED = "shared"
_OPERATORS = ((names.REQUIRE, "="), (names.AT_LEAST, ">="), (names.AT_MOST, "<="))


def device_terms(objects: Iterable[Mapping[str, str]]) -> tuple[tuple[DeviceTerm, ...], list[Reason]]:
    """The conditions on devices in the annotations of some objects, and the ones that cannot be read."""
    found: dict[DeviceTerm, None] = {}
    faults: list[Reason] = []
    for each in objects:
        for key, text in each.items():
            if key == names.MAX_RUNNING:
                continue  # it does not concern devices
            for prefix, operator in _OPERATORS:
                if key.startswith(prefix):
                    value = text.strip()
                    if operator != "=" and not _is_number(value):
                        faults.append(Reason.of(Code.INVALID_DEVICES, key=key[:120], value=value[:60]))
                    elif value:
                        found[DeviceTerm(key.removeprefix(prefix)[:120], value[:1024], operator)] = None
            if key == names.BACKEND and (value := text.strip()):
                found[DeviceTerm("backend", value[:1024])] = None
    if len(found) > MAX_TERMS:
        many = Reason.of(Code.TOO_MANY_TERMS, given=len(found), most=MAX_TERMS)
        return (), [*faults, many]
    return tuple(sorted(found, key=str)), faults


def device_request(
    pods: Sequence[Pod], terms: tuple[DeviceTerm, ...], *, per_pod: bool, held: Mapping[str, int]
) -> DeviceRequest | None:
    """What some pods of a gang request. ``held``: what other pods of the gang hold and share with them."""
    needs: dict[str, int] = {}
    for pod in pods:
        for type_, count in asked_by(pod).items():
            needs[type_] = needs.get(type_, 0) + count if per_pod else max(needs.get(type_, 0), count)
    if not per_pod:
        needs = {type_: count - held.get(type_, 0) for type_, count in needs.items()}
    wanted = tuple(sorted((type_, count) for type_, count in needs.items() if count > 0))
    pinned = not needs and not held and any(term.key == "backend" for term in terms)
    return DeviceRequest(wanted, terms, per_pod) if wanted or pinned else None


def _is_number(text: str) -> bool:
    try:
        return float(text) == float(text)  # NaN is not a number
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Lent:
    """Devices that a job uses while another job holds them."""

    grants: tuple[DeviceGrant, ...]
    lender: int


def lent_to(pods: Sequence[Pod], holders: Mapping[int, tuple[DeviceGrant, ...]]) -> Lent | None:
    """The devices that pods can share with a job that holds what they request."""
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
    """Which grants of running pods are their own, and which another job of their group holds."""
    for number, held in holders.items():
        theirs = {each.device for each in held}
        lent = tuple(each for each in grants if each.shared and each.device in theirs)
        if lent:
            return tuple(each for each in grants if each not in lent), Lent(lent, number)
    return grants, None


def request_of(
    grants: Sequence[DeviceGrant], terms: tuple[DeviceTerm, ...], *, per_pod: bool
) -> DeviceRequest | None:
    """The request that some grants satisfy."""
    needs = amounts(grants)
    return DeviceRequest(tuple(sorted(needs.items())), terms, per_pod) if needs else None


def amounts(grants: Iterable[DeviceGrant]) -> dict[str, int]:
    """The total amount of some grants, by type."""
    found: dict[str, int] = {}
    for each in grants:
        found[each.type] = found.get(each.type, 0) + each.amount
    return found


def hand_off(grants: Sequence[DeviceGrant], backends: BackendTable) -> dict[str, str]:
    """The annotations that give a pod its devices: the backend and its attributes. Several values are
    separated by commas, always in the same order."""
    firsts = {grant.backend: backends.entry(grant.device) for grant in reversed(grants)}
    entries = [firsts[name] for name in dict.fromkeys(grant.backend for grant in grants)]
    keys = dict.fromkeys(key for entry in entries if entry is not None for key in entry.attributes)
    told = {names.BACKEND: ",".join(dict.fromkeys(grant.backend for grant in grants))}
    for key in keys:
        values = [entry.attributes.get(key, "") if entry is not None else "" for entry in entries]
        told[f"{names.ATTRIBUTE}{key}"] = ",".join(values)
    return told
