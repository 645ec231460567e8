"""Reconcile: the changes that bring the queue in line with a group; a pure function.

The cycle calls it for each group with an event, and applies the changes in order.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fluence.cluster.graph import TopologyDomain
from fluence.cluster.planner import PodSetRequest
from fluence.model.job_state import JobState
from fluence.model.pod import Pod, pod_requests
from fluence.model.reason import Code, Reason
from fluence.schedule.external_resources.requests import device_request
from fluence.schedule.gangs.gang import Gang, request_arguments
from fluence.schedule.pod_set import PodSet
from fluence.schedule.queueing.placeholder import is_placeholder, seat_of

SeatOf: TypeAlias = Callable[[Pod], tuple[str, object]]
IN_PLACE = 1 << 40  # priority of a member that replaces one with a placement: above any priority of a pod


@dataclass(frozen=True, slots=True)
class Adopt:
    """Pods of the group run without our knowledge: after a restart, or bound by another replica."""

    pods: tuple[Pod, ...]


@dataclass(frozen=True, slots=True)
class TakeSeats:
    """Pods have arrived whose placeholders have placements: (placeholder, pod)."""

    pairs: tuple[tuple[Pod, Pod], ...]


@dataclass(frozen=True, slots=True)
class GiveUpSeats:
    """Pods have arrived whose requests differ from their placeholders': the placements of these owners are of
    no use."""

    owners: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Withdraw:
    """A waiting pod set is not wanted any more, or not in this form."""

    pod_set: PodSet
    reason: Reason


@dataclass(frozen=True, slots=True)
class Amend:
    """A waiting pod set is the same job with other nodes to exclude, or with other pods in place of some."""

    pod_set: PodSet
    request: PodSetRequest


@dataclass(frozen=True, slots=True)
class Adjust:
    """The user changed the priority of a waiting pod set among their own jobs, or the size of its array."""

    pod_set: PodSet
    favour: int
    max_running: int | None


@dataclass(frozen=True, slots=True)
class FreeSeats:
    """New members take the places of ended ones, while the other members continue."""

    pod_set: PodSet
    pods: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Submit:
    """The queue must have exactly these pods. The request has no number yet, because only the caller knows
    which numbers are free. The number follows from ``uid``."""

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
    """The requests of the group contradict each other."""

    pods: tuple[Pod, ...]
    fault: Reason


@dataclass(frozen=True, slots=True)
class Complete:
    """No member is missing any more, or no pod waits."""


@dataclass(frozen=True, slots=True)
class Started:
    """All pods that the group needs are on nodes."""


Change: TypeAlias = (
    Adopt
    | TakeSeats
    | GiveUpSeats
    | Withdraw
    | Amend
    | Adjust
    | FreeSeats
    | Submit
    | Gather
    | Refuse
    | Complete
    | Started
)


def reconcile(
    gang: Gang | None,
    pod_sets: Mapping[str, PodSet],
    *,
    has_seat: Container[str],
    has_job: Container[int],
    exclude: frozenset[str],
    held: Mapping[str, int] | None = None,
    seat_of: SeatOf = lambda pod: seat_of(pod, ()),
) -> list[Change]:
    """The changes, in order.

    ``pod_sets`` are those of the group by key, ``has_seat`` the uids of placed pods, ``has_job`` the numbers
    of jobs in the ledger, ``exclude`` the nodes that the group must not use, and ``held`` the devices that it
    holds in the ledger and shares, by type. ``seat_of`` returns the owner of a pod and the seat of that owner
    which the pod may take.

    If pods must be adopted or take over from placeholders, the answer is only that: call again afterwards.
    """
    queued = [each for each in pod_sets.values() if not each.state.has_nodes]
    if gang is None:
        gone = Reason.of(Code.GROUP_GONE)
        return [*(Withdraw(each, gone) for each in queued), Complete()]
    unknown = tuple(pod for pod in gang.placed if pod.metadata.uid not in has_seat)
    if unknown:
        return [Adopt(unknown)]
    came = _arrivals(gang, has_seat, seat_of)
    if came is not None:
        return [came]
    changes: list[Change] = []
    group = gang.shown_as
    unlisted = gang.listed_as is not None if group is None else group.is_gang and not group.is_scheduled
    if unlisted and gang.placed and not gang.needed:
        changes.append(Started())
    waiting = tuple(pod for pod in gang.members if pod.metadata.uid not in has_seat)
    if not waiting or not (gang.fault or gang.missing):
        changes.append(Complete())
    wanted: list[Submit] = []
    if waiting and not gang.fault and not gang.missing:
        if gang.needed and any(each.state is JobState.PREPARING for each in pod_sets.values()):
            # All or nothing: the rest follow once the first pods have their volumes, or all are placed again.
            return changes
        freed = _free_seats(waiting, [each for each in pod_sets.values() if each.number in has_job])
        changes += freed
        wanted = _wanted(gang, waiting, pod_sets, exclude, _places(freed), held or {})
    if not waiting and gang.shrinks:
        changes += _surplus(gang, [each for each in pod_sets.values() if each.number in has_job])
    kept, amended = set[str](), list[Amend | Adjust]()
    for submit in wanted:
        pod_set = pod_sets.get(submit.key)
        if pod_set is not None and _is_same_job(submit, pod_set, gang, seat_of):
            kept.add(submit.key)
            if not _asks_for(submit.request, pod_set.request):
                amended.append(Amend(pod_set, submit.request))
            if (pod_set.job.favour, pod_set.job.max_running) != (gang.favour, gang.max_running):
                amended.append(Adjust(pod_set, gang.favour, gang.max_running))
    gathers = bool(waiting and gang.missing and not gang.fault)
    reused = {each.key for each in wanted}
    for each in queued:
        stays = each.key in reused or gathers if each.state is JobState.GATHERING else each.key in kept
        if not stays:
            changes.append(Withdraw(each, Reason.of(Code.GROUP_CHANGED)))
    changes += amended
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
    """The pod sets that should be in the queue: one for all pods that must start together, or one for each
    pod."""
    begun = [each for each in pod_sets.values() if each.state.has_nodes]
    together = gang.needed - (len(gang.members) - len(waiting))  # the other members are being bound
    topology = _topology(gang, begun)

    def submit(key: str, pods: tuple[Pod, ...], minimum: int) -> Submit:
        in_place = _take_places(pods, places) or _was_in_place(pods, pod_sets.get(key))
        asked = request_arguments(gang, exclude)
        devices = device_request(pods, gang.device_terms, per_pod=gang.per_pod_devices, held=held)
        request = PodSetRequest(
            pods,
            minimum,
            asked["policy"],
            asked["exclude"],
            asked["constraint"],
            topology,
            devices,
            spread=asked["spread"],
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
    """The key of a pod set, made from one of its pods. A started pod set may already have this key if the pod
    found no node in it."""
    keys = {each.key for each in taken}
    while (name := f"{group}+{uid}") in keys:
        uid += "'"
    return name


def _arrivals(gang: Gang, has_seat: Container[str], seat_of: SeatOf) -> TakeSeats | GiveUpSeats | None:
    """Match arrived pods with the placements of placeholders."""
    seated: dict[tuple[str, object], list[Pod]] = {}
    for pod in (*gang.members, *gang.placed):
        if is_placeholder(pod) and pod.metadata.uid in has_seat:
            seated.setdefault(seat_of(pod), []).append(pod)
    if not seated:
        return None
    pairs: list[tuple[Pod, Pod]] = []
    others: dict[str, None] = {}
    for pod in gang.members:
        if is_placeholder(pod) or pod.metadata.uid in has_seat:
            continue
        seat = seat_of(pod)
        free = seated.get(seat)
        if not free:
            continue  # more pods than planned: this one is placed by itself
        if not _fits_in_place_of(pod, free[0]):
            others[seat[0]] = None
            continue
        pairs.append((free.pop(0), pod))
    if others:
        return GiveUpSeats(tuple(others))
    return TakeSeats(tuple(pairs)) if pairs else None


def _fits_in_place_of(pod: Pod, placeholder: Pod) -> bool:
    """Whether a pod may take over from its placeholder: admission may have changed its requests."""
    had, needs = pod_requests(placeholder), pod_requests(pod)
    if any(amount > had.get(kind, 0) for kind, amount in needs.items()):
        return False
    one, other = pod.spec, placeholder.spec
    return (
        one.node_selector == other.node_selector
        and one.affinity == other.affinity
        and one.topology_spread_constraints == other.topology_spread_constraints
        and pod.host_ports() == placeholder.host_ports()
    )


def _surplus(gang: Gang, pod_sets: Sequence[PodSet]) -> list[FreeSeats]:
    """Placements of ended pods that no pod will take, because the owner was scaled down."""
    spare = sum(len(each.alive) + len(each.finished) for each in pod_sets) - gang.size
    found = []
    for each in pod_sets:
        given = tuple(each.finished)[: max(0, spare)]
        if given and each.alive:  # if no pod is alive, the whole pod set ends
            found.append(FreeSeats(each, given))
            spare -= len(given)
    return found


def _free_seats(waiting: Sequence[Pod], pod_sets: Iterable[PodSet]) -> list[FreeSeats]:
    """Placements of ended members, one for each waiting pod."""
    found, wanted = [], len(waiting)
    for each in pod_sets:
        given = tuple(each.finished)[:wanted]
        if given:
            found.append(FreeSeats(each, given))
            wanted -= len(given)
    return found


def _places(freed: Sequence[FreeSeats]) -> list[Pod]:
    """The pods whose placements are freed."""
    return [pod for each in freed for pod in each.pod_set.pods if pod.metadata.uid in each.pods]


def _take_places(pods: Sequence[Pod], places: list[Pod]) -> bool:
    """Whether the group frees a large enough placement for each of these pods. If so, no other job may take
    them."""
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
    """Whether these pods already wait for placements that their group freed."""
    if before is None or before.state.has_nodes or before.job.priority != IN_PLACE:
        return False
    return {pod.metadata.uid for pod in pods} <= {pod.metadata.uid for pod in before.pods}


def _topology(gang: Gang, begun: Sequence[PodSet]) -> TopologyDomain | None:
    """The label whose value must be the same on all nodes of a group, including the nodes of pods that are
    being bound."""
    topology = request_arguments(gang)["topology"]
    if topology is None:
        return None
    return TopologyDomain(topology.key, topology.nodes.union(*(each.unbound.values() for each in begun)))


def _is_same_job(wanted: Submit, found: PodSet, gang: Gang, seat_of: SeatOf) -> bool:
    """Whether the queue already has this job, so that it keeps its place and its promise. The pods or nodes
    may differ: a node was refused, or pods arrived whose placeholders lost their placements."""
    if found.state.has_nodes or found.state is JobState.GATHERING:
        return False
    was, is_, job = found.request, wanted.request, found.job
    asked = (is_.minimum, is_.policy, is_.constraint, is_.topology, is_.devices)
    if (was.minimum, was.policy, was.constraint, was.topology, was.devices) != asked:
        return False
    has = (job.priority, job.limit, job.enforced, job.soft_limit, job.user, job.payer, job.named_queue)
    asks = (gang.limit, gang.bounded, gang.soft_limit, gang.user, gang.payer, gang.queue)
    if has != (wanted.priority, *asks):
        return False
    return len(was.pods) == len(is_.pods) and _are_the_same(was.pods, is_.pods, seat_of)


def _are_the_same(before: Sequence[Pod], after: Sequence[Pod], seat_of: SeatOf) -> bool:
    """Whether each pod has the same requests as before, or replaces a pod like it."""
    if all(map(_asks_the_same, before, after)):
        return True
    had = {pod.metadata.uid: pod for pod in before}
    came = []
    for pod in after:
        old = had.pop(pod.metadata.uid, None)
        if old is None:
            came.append(pod)
        elif not _asks_the_same(old, pod):
            return False
    left = list(had.values())
    for pod in came:
        place = next((old for old in left if _comes_for(pod, old, seat_of)), None)
        if place is None:
            return False
        left.remove(place)
    return True


def _comes_for(pod: Pod, old: Pod, seat_of: SeatOf) -> bool:
    """Whether a pod replaces its placeholder, or a placeholder its pod."""
    if is_placeholder(pod) == is_placeholder(old):
        return False
    return seat_of(pod) == seat_of(old) and _fits_in_place_of(pod, old)


def _asks_for(wanted: PodSetRequest, queued: PodSetRequest) -> bool:
    """Whether the queued request of the same job is already exactly this one."""
    same = (wanted.exclude, wanted.spread) == (queued.exclude, queued.spread)
    return same and all(map(_asks_the_same, queued.pods, wanted.pods))


def _asks_the_same(one: Pod, other: Pod) -> bool:
    """Whether these are the same pod with the same labels and the same spec."""
    if one is other:
        return True
    same = one.metadata.uid == other.metadata.uid and one.metadata.labels == other.metadata.labels
    return same and one.spec == other.spec
