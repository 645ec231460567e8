"""Reconcile: what must change in the queue so that it has what a group is now; a pure function.

The cycle calls it for each group that something happened to, and applies the changes in their order.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fluence.cluster.graph import TopologyDomain
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.model.resources import pod_requests
from fluence.queue.job import Phase
from fluence.schedule.device_requests import device_request
from fluence.schedule.gang import Gang, request_arguments
from fluence.schedule.group_labels import pod_index
from fluence.schedule.planner import PodSetRequest
from fluence.schedule.pod_set import PodSet
from fluence.schedule.stand_in import is_stand_in, owner_of

IN_PLACE = 1 << 40  # the priority of a member whose place is there: above all that pods can have


@dataclass(frozen=True, slots=True)
class Adopt:
    """Pods of the group are on nodes, and nobody here put them there: a restart, or another replica."""

    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class TakeSeats:
    """Pods have come whose stand-ins have seats: (stand-in, pod)."""

    pairs: tuple[tuple[Pod, Pod], ...]


@dataclass(frozen=True, slots=True)
class GiveUpSeats:
    """Pods have come that ask for something else than their stand-ins: these owners' seats are no use."""

    owners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Withdraw:
    """A pod set that waits is not wanted any more, or not as it is."""

    pod_set: PodSet
    reason: Reason


@dataclass(frozen=True, slots=True)
class FreeSeats:
    """New members take the seats of those that ended; the others of the group go on."""

    pod_set: PodSet
    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Submit:
    """Pods are to be in the queue, exactly so. The request has no number yet: whoever submits it knows which
    are free. ``uid`` is what the number follows from."""

    key: str
    uid: str
    request: PodSetRequest
    priority: int


@dataclass(frozen=True, slots=True)
class Gather:
    """Members are missing."""

    pods: tuple[Pod, ...]
    missing: Reason


@dataclass(frozen=True, slots=True)
class Refuse:
    """What the group asks for contradicts itself."""

    pods: tuple[Pod, ...]
    fault: Reason


@dataclass(frozen=True, slots=True)
class Complete:
    """Nothing is missing any more, or nothing waits."""


@dataclass(frozen=True, slots=True)
class Begun:
    """All that the group needs is on nodes."""


Change: TypeAlias = (
    Adopt | TakeSeats | GiveUpSeats | Withdraw | FreeSeats | Submit | Gather | Refuse | Complete | Begun
)


def reconcile(
    gang: Gang | None,
    pod_sets: Mapping[str, PodSet],
    *,
    has_seat: Container[str],
    has_job: Container[int],
    exclude: frozenset[str],
    held: Mapping[str, int] | None = None,
) -> list[Change]:
    """The changes, in order. ``pod_sets`` are those of the group by key, ``has_seat`` the uids of pods with a
    seat, ``has_job`` the numbers of jobs in the ledger, ``exclude`` the nodes that the group must not have,
    ``held`` the devices that it has in the ledger, by type, for all of it to share.
    Where pods are to be adopted, or take the seats of their stand-ins, that is all that is answered:
    afterwards, ask again."""
    queued = [each for each in pod_sets.values() if not each.phase.holds]
    if gang is None:
        gone = Reason.of(Code.GROUP_GONE)
        return [*(Withdraw(each, gone) for each in queued), Complete()]
    unknown = tuple(pod for pod in gang.placed if pod.metadata.uid not in has_seat)
    if unknown:
        return [Adopt(unknown)]
    came = _arrivals(gang, has_seat)
    if came is not None:
        return [came]
    changes: list[Change] = []
    group = gang.group
    if group is not None and group.is_gang and not group.is_scheduled and gang.placed and not gang.needed:
        changes.append(Begun())
    waiting = tuple(pod for pod in gang.members if pod.metadata.uid not in has_seat)
    if not waiting or not (gang.fault or gang.missing):
        changes.append(Complete())
    wanted: list[Submit] = []
    if waiting and not gang.fault and not gang.missing:
        if gang.needed and any(each.phase is Phase.PREPARING for each in pod_sets.values()):
            # All or nothing: the rest follow when the first have their volumes, or all go anew.
            return changes
        freed = _free_seats(waiting, [each for each in pod_sets.values() if each.number in has_job])
        changes += freed
        wanted = _wanted(gang, waiting, pod_sets, exclude, _places(freed), held or {})
    if not waiting and gang.shrinks:
        changes += _surplus(gang, [each for each in pod_sets.values() if each.number in has_job])
    kept = {each.key for each in wanted if _is_queued(each, pod_sets.get(each.key), gang)}
    gathers = bool(waiting and gang.missing and not gang.fault)
    reused = {each.key for each in wanted}
    for each in queued:
        stays = each.key in reused or gathers if each.phase is Phase.GATHERING else each.key in kept
        if not stays:
            changes.append(Withdraw(each, Reason.of(Code.GROUP_CHANGED)))
    changes += [each for each in wanted if each.key not in kept]
    if waiting and gang.fault:
        changes.append(Refuse(waiting, gang.fault))
    elif gathers and gang.missing:
        changes.append(Gather(waiting, gang.missing))
    return changes


def _wanted(
    gang: Gang,
    waiting: tuple[Pod, ...],
    pod_sets: Mapping[str, PodSet],
    exclude: frozenset[str],
    places: list[Pod],
    held: Mapping[str, int],
) -> list[Submit]:
    """The pod sets that should be queued: all that must start together in one, or each pod by itself."""
    begun = [each for each in pod_sets.values() if each.phase.holds]
    together = gang.needed - (len(gang.members) - len(waiting))  # the binds of the others are under way
    topology = _topology(gang, begun)

    def submit(key: str, pods: tuple[Pod, ...], minimum: int) -> Submit:
        in_place = _take_places(pods, places) or _was_in_place(pods, pod_sets.get(key))
        asked = request_arguments(gang, exclude)
        devices = device_request(pods, gang.device_terms, per_pod=gang.per_pod_devices, held=held)
        request = PodSetRequest(
            -1, pods, minimum, asked["policy"], asked["exclude"], asked["constraint"], topology, devices
        )
        uid = gang.uid if key == gang.key else key.removeprefix(f"{gang.key}+")
        return Submit(key, uid, request, IN_PLACE if in_place else gang.priority)

    if together <= 0:
        return [submit(name_of(gang.key, pod.metadata.uid, begun), (pod,), 1) for pod in waiting]
    key = gang.key
    if any(each.key == key for each in begun):
        key = name_of(gang.key, min(pod.metadata.uid for pod in waiting), begun)
    return [submit(key, waiting, together)]


def name_of(group: str, uid: str, taken: Sequence[PodSet]) -> str:
    """The key of a pod set, by one of its pods. One that has begun may have this key though the pod found no
    seat in it."""
    keys = {each.key for each in taken}
    while (name := f"{group}+{uid}") in keys:
        uid += "'"
    return name


def _arrivals(gang: Gang, has_seat: Container[str]) -> TakeSeats | GiveUpSeats | None:
    """Which pods take the seats of which stand-ins."""
    seated: dict[str, dict[int | None, list[Pod]]] = {}  # by owner and index
    for pod in (*gang.members, *gang.placed):
        if is_stand_in(pod) and pod.metadata.uid in has_seat:
            seated.setdefault(owner_of(pod), {}).setdefault(pod_index(pod), []).append(pod)
    if not seated:
        return None
    pairs: list[tuple[Pod, Pod]] = []
    others: dict[str, None] = {}
    for pod in gang.members:
        if is_stand_in(pod) or pod.metadata.uid in has_seat:
            continue
        free = seated.get(owner_of(pod), {}).get(pod_index(pod))
        if not free:
            continue  # one more than was planned: it is placed by itself
        if not _fits_in_place_of(pod, free[0]):
            others[owner_of(pod)] = None
            continue
        pairs.append((free.pop(0), pod))
    if others:
        return GiveUpSeats(tuple(others))
    return TakeSeats(tuple(pairs)) if pairs else None


def _fits_in_place_of(pod: Pod, stand_in: Pod) -> bool:
    """Whether a pod may have the seat of its stand-in: admission may have changed what it asks for."""
    had, needs = pod_requests(stand_in), pod_requests(pod)
    if any(amount > had.get(kind, 0) for kind, amount in needs.items()):
        return False
    one, other = pod.spec, stand_in.spec
    return (
        one.node_selector == other.node_selector
        and one.affinity == other.affinity
        and one.topology_spread_constraints == other.topology_spread_constraints
        and pod.host_ports() == stand_in.host_ports()
    )


def _surplus(gang: Gang, pod_sets: Sequence[PodSet]) -> list[FreeSeats]:
    """The seats of pods that have ended and that nobody will take: the owner was scaled down."""
    spare = sum(len(each.alive) + len(each.finished) for each in pod_sets) - gang.size
    found = []
    for each in pod_sets:
        given = tuple(each.finished)[: max(0, spare)]
        if given and each.alive:  # without pods alive, all of it ends
            found.append(FreeSeats(each, given))
            spare -= len(given)
    return found


def _free_seats(waiting: Sequence[Pod], pod_sets: Iterable[PodSet]) -> list[FreeSeats]:
    """The seats of members that ended, for as many as wait."""
    found, wanted = [], len(waiting)
    for each in pod_sets:
        given = tuple(each.finished)[:wanted]
        if given:
            found.append(FreeSeats(each, given))
            wanted -= len(given)
    return found


def _places(freed: Sequence[FreeSeats]) -> list[Pod]:
    """The pods whose seats come free."""
    return [pod for each in freed for pod in each.pod_set.pods if pod.metadata.uid in each.pods]


def _take_places(pods: Sequence[Pod], places: list[Pod]) -> bool:
    """Whether seats that the group held come free for all of these, each large enough for the pod that takes
    it: nobody who waits may come between."""
    left = list(places)
    for pod in pods:
        needs = pod_requests(pod)
        for place in left:
            had = pod_requests(place)
            if all(amount <= had.get(kind, 0) for kind, amount in needs.items()):
                left.remove(place)
                break
        else:
            return False
    places[:] = left
    return True


def _was_in_place(pods: Sequence[Pod], before: PodSet | None) -> bool:
    """Whether these pods wait already for seats that came free for them."""
    if before is None or before.phase.holds or before.job.priority != IN_PLACE:
        return False
    return {pod.metadata.uid for pod in pods} <= {pod.metadata.uid for pod in before.pods}


def _topology(gang: Gang, begun: Sequence[PodSet]) -> TopologyDomain | None:
    """The label of which a group's nodes must have one value, those that it is about to have included."""
    topology = request_arguments(gang)["topology"]
    if topology is None:
        return None
    return TopologyDomain(topology.key, topology.nodes.union(*(each.unbound.values() for each in begun)))


def _is_queued(wanted: Submit, found: PodSet | None, gang: Gang) -> bool:
    """Whether the queue has just this."""
    if found is None or found.phase.holds or found.phase is Phase.GATHERING:
        return False
    was, is_ = found.request, wanted.request
    asked = (is_.minimum, is_.policy, is_.exclude, is_.constraint, is_.topology, is_.devices)
    same = (was.minimum, was.policy, was.exclude, was.constraint, was.topology, was.devices) == asked
    job = found.job
    has = (job.priority, job.limit, job.enforced, job.soft_limit, job.user, job.queue)
    limits = (gang.limit, gang.bounded, gang.soft_limit)
    same = same and has == (wanted.priority, *limits, gang.user, gang.queue)
    return same and len(was.pods) == len(is_.pods) and all(map(_asks_the_same, was.pods, is_.pods))


def _asks_the_same(one: Pod, other: Pod) -> bool:
    """Whether a pod asks for what it asked for."""
    if one is other:
        return True
    same = one.metadata.uid == other.metadata.uid and one.metadata.labels == other.metadata.labels
    return same and one.spec == other.spec
