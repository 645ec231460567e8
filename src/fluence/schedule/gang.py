"""Gang: pods that start together, and how one follows from pods, memberships, owners and a PodGroup.

`build` is a pure function: `Groups` calls it whenever something changed, and the same objects always give
the same gang. `request_arguments` is what a gang asks of a cluster, in one place: the scheduler plans with
it, and `advice` tries it out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypedDict

from fluence import names
from fluence.cluster.graph import TopologyDomain
from fluence.model.constraint import Constraint
from fluence.model.device import DeviceTerm
from fluence.model.group import Group
from fluence.model.held import is_cancelled, is_closed, is_seen, pinned_node
from fluence.model.jobspec import Jobspec
from fluence.model.meta import OwnerReference
from fluence.model.owner import Job, Owner
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.schedule import jobspecs
from fluence.schedule.annotations import GangAnnotations, gang_annotations
from fluence.schedule.gang_size import GangSize, gang_size, needed, single_size
from fluence.schedule.gate_dependency import waits_for_producer
from fluence.schedule.group_labels import pod_index
from fluence.schedule.membership import STRICT, Membership, single_key
from fluence.schedule.stand_in import is_stand_in
from fluence.text import natural_key

_NO_INDEX = 1 << 40
_TOO_WIDE = (Code.CLUSTER_HOLDS_FEWER, Code.TOO_MANY_HELD_PODS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """Pods that start together, as they are now."""

    key: str  # namespace/group, namespace/job:owner or namespace/pod:name
    uid: str  # allocation ids come from it
    namespace: str
    name: str  # as users know it
    members: tuple[Pod, ...] = ()  # wait and may be placed now, in order of index or name
    placed: tuple[Pod, ...] = ()  # are bound, those that are being deleted included while they hold
    gated: tuple[Pod, ...] = ()  # are alive and may not be placed yet
    ended: tuple[Pod, ...] = ()  # succeeded or failed
    minimum: int = 1  # how many must run together, counting `placed`
    needed: int = 1  # how many of `members` must be placed together; 0: each as it fits
    size: int = 1  # how many pods there will be, as far as is known
    priority: int = 0
    submit: int = 0  # ms
    user: str = ""
    limit: int | None = None  # ms
    bounded: bool = False  # Kubernetes ends it at its limit
    soft_limit: int | None = None  # ms
    policy: str | None = None
    queue: str = ""
    constraint: Constraint | None = None  # of the annotation and of the jobspec: both must hold
    excluded: frozenset[str] = frozenset()  # nodes that annotations exclude
    jobspec: Jobspec | None = None
    device_terms: tuple[DeviceTerm, ...] = ()  # what devices that belong to no node must be
    per_pod_devices: bool = False  # each pod has its own; otherwise they share
    source: str = ""  # what made these pods a gang
    group: Group | None = None
    missing: Reason | None = None  # why it cannot be tried yet
    fault: Reason | None = None  # why it is refused, and the cure
    warnings: tuple[Reason, ...] = ()  # what is declared and not used
    held: bool = False  # admission held it back until it starts
    shrinks: bool = False  # its owner may be scaled down: seats that nobody will take are given back
    # What its size was summed over, where nothing says it: uids of owners and of pods without one.
    parts: frozenset[str] = frozenset()
    newest: int = 0  # ms: when the youngest of them was made

    @property
    def is_ready(self) -> bool:
        """There is something to place, and nothing to wait for."""
        return bool(self.members) and self.missing is None and self.fault is None

    @property
    def is_over(self) -> bool:
        """Every member has ended: what it holds can be released. Gated members are alive."""
        return not (self.members or self.placed or self.gated)

    @property
    def is_open(self) -> bool:
        """Nothing says its size: more may join, and make it larger."""
        return bool(self.parts)

    @property
    def is_single(self) -> bool:
        return self.key == single_key(self.namespace, self.name)

    def __len__(self) -> int:
        return len(self.members) + len(self.placed) + len(self.gated)


# -- what a gang asks for ------------------------------------------------------------------------------------


class RequestArguments(TypedDict):
    """What a gang asks of a cluster; the fields of a request for its pods."""

    pods: tuple[Pod, ...]
    minimum: int
    policy: str | None
    exclude: frozenset[str]
    constraint: Constraint | None
    topology: TopologyDomain | None


def request_arguments(gang: Gang, excluded: Collection[str] = ()) -> RequestArguments:
    """The request for the waiting members of a gang. ``excluded``: nodes that turned out impossible for it,
    beside those that its annotations exclude."""
    return RequestArguments(
        pods=gang.members,
        minimum=max(1, gang.needed),
        policy=gang.policy,
        exclude=gang.excluded.union(excluded),
        constraint=gang.constraint,
        topology=topology_of(gang),
    )


def topology_of(gang: Gang) -> TopologyDomain | None:
    """The label of which all nodes of a gang must have one value, and the nodes that it has."""
    key = gang.group.topology_key if gang.group is not None else None
    if key is None:
        return None
    return TopologyDomain(key, frozenset(pod.spec.node_name for pod in gang.placed if pod.spec.node_name))


# -- how a gang follows from what there is -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pods:
    """The pods of a gang by what they do."""

    members: tuple[Pod, ...]
    placed: tuple[Pod, ...]
    gated: tuple[Pod, ...]
    ended: tuple[Pod, ...]
    waiting: tuple[Pod, ...]  # members and gated
    alive: tuple[Pod, ...]  # waiting and placed

    @property
    def living(self) -> int:
        """How many are placed and stay."""
        return sum(pod.metadata.deletion_timestamp is None for pod in self.placed)


@dataclass(frozen=True, slots=True)
class _Owners:
    """The owners of a gang's pods."""

    direct: list[Owner]  # of the pods themselves: they say how many pods there are
    every: list[Owner]  # and those above
    unseen: list[OwnerReference]

    @property
    def above(self) -> list[Owner]:
        return [each for each in self.every if each not in self.direct]


def build(
    key: str,
    pods: Collection[Pod],
    memberships: Mapping[str, Membership],
    *,
    owners: Mapping[str, Owner],
    find_group: Callable[[str, str], Group | None],
    strangers: Collection[Pod] = (),
    expected: Sequence[Owner] = (),
    scheduler: str = names.SCHEDULER,
    native: bool = False,
    systems: Collection[str] = (),
    withheld: Mapping[str, Reason] | None = None,
) -> Gang:
    """The gang of these pods. ``memberships`` by pod, ``owners`` by identity, ``find_group`` by namespace and
    name; ``strangers``: pods of other schedulers that name it; ``expected``: owners that name it and have no
    pods alive; ``native``: the server has PodGroups, so that a label which names one may be ahead of it;
    ``systems``: the other systems of which it has them; ``withheld``: owners whose pods are not all known,
    and why."""
    ordered = sorted(pods, key=_order) if len(pods) > 1 else list(pods)
    first_pod = _oldest(ordered)  # it names the group
    first, namespace = memberships[first_pod.key], first_pod.metadata.namespace
    group = find_group(namespace, first.label.pod_group) if first.label is not None else None
    by = _sort_out(ordered)
    # A gang's size follows the owners of its pods that live; with none alive, of all.
    counted = by.alive or tuple(ordered)
    of = [memberships[pod.key] for pod in counted]
    owned = _owners(of, owners, expected)
    size = _size(first, counted, owned, group=group, native=native, systems=systems, begun=by.living > 0)
    past = () if size.parts else _past([memberships[pod.key] for pod in by.ended], owned.direct)
    must = _needed(first, size, by, owned, past)
    annotations = gang_annotations(counted, owned.every, group)
    total = max(size.pods, len(by.alive))
    mismatch = None
    if annotations.jobspec is not None and by.alive:
        mismatch = jobspecs.mismatch(annotations.jobspec, by.alive, minimum=size.minimum, size=total)
    fault = (
        _disagreement(group, by.alive, strangers, scheduler)
        or next((each for membership in of for each in membership.faults), None)
        or size.fault
        or annotations.fault
        or _cancelled(by.waiting, owned.every)
        or _withheld(owned, withheld or {}, _TOO_WIDE)
        or mismatch
    )
    return Gang(
        key=key,
        uid=_uid(first_pod, first, group),
        namespace=namespace,
        name=first.name,
        members=by.members,
        placed=by.placed,
        gated=by.gated,
        ended=by.ended,
        minimum=size.minimum,
        needed=must,
        size=total,
        priority=_priority(group, counted),
        submit=_submit(group, by.waiting or (first_pod,)),
        source=_source(first, group),
        group=group,
        missing=None
        if fault
        else _withheld(owned, withheld or {}, (Code.NAMESPACE_HOLDS_TOO_MANY,))
        or _missing(first, size, must, by, owners=owned.every),
        fault=fault,
        warnings=tuple(dict.fromkeys((*size.warnings, *annotations.warnings))),
        held=is_seen(first_pod),
        shrinks=is_seen(first_pod) and bool(owned.direct) and not any(map(_counts, owned.direct)),
        parts=size.parts,
        newest=size.newest,
        **_annotated(annotations),
    )


class _Annotated(TypedDict):
    """The fields of a gang that come from annotations as they are."""

    user: str
    limit: int | None
    bounded: bool
    soft_limit: int | None
    policy: str | None
    queue: str
    constraint: Constraint | None
    excluded: frozenset[str]
    jobspec: Jobspec | None
    device_terms: tuple[DeviceTerm, ...]
    per_pod_devices: bool


def _annotated(annotations: GangAnnotations) -> _Annotated:
    return _Annotated(
        user=annotations.user,
        limit=annotations.limit,
        bounded=annotations.bounded,
        soft_limit=annotations.soft_limit,
        policy=annotations.policy,
        queue=annotations.queue,
        constraint=annotations.constraint,
        excluded=annotations.excluded,
        jobspec=annotations.jobspec.jobspec if annotations.jobspec is not None else None,
        device_terms=annotations.device_terms,
        per_pod_devices=annotations.per_pod_devices,
    )


def _sort_out(pods: Sequence[Pod]) -> _Pods:
    waiting = tuple(
        pod
        for pod in pods
        if not pod.is_terminal and not _node(pod) and pod.metadata.deletion_timestamp is None
    )
    placed = tuple(pod for pod in pods if _node(pod) and not pod.is_terminal)
    return _Pods(
        members=tuple(pod for pod in waiting if not is_closed(pod)),
        placed=placed,
        gated=tuple(pod for pod in waiting if is_closed(pod)),
        ended=tuple(pod for pod in pods if pod.is_terminal),
        waiting=waiting,
        alive=(*waiting, *placed),
    )


def _owners(of: Sequence[Membership], known: Mapping[str, Owner], expected: Sequence[Owner]) -> _Owners:
    more = [owner.identity for owner in expected]
    direct = dict.fromkeys((*(each.owners[0].identity for each in of if each.owners), *more))
    every = dict.fromkeys((*(owner.identity for each in of for owner in each.owners), *more))
    return _Owners(
        direct=[known[each] for each in direct],
        every=[known[each] for each in every],
        unseen=[each.unseen for each in of if each.unseen is not None],
    )


def _past(of: Sequence[Membership], owners: Sequence[Owner]) -> list[Owner]:
    """The owners of pods that have ended, but for those whose others go on."""
    now = {owner.identity for owner in owners}
    found = {owner.identity: owner for each in of for owner in each.owners[:1]}
    return [owner for key, owner in found.items() if key not in now]


def _size(
    first: Membership,
    pods: Sequence[Pod],
    owners: _Owners,
    *,
    group: Group | None,
    native: bool,
    systems: Collection[str],
    begun: bool,
) -> GangSize:
    if first.is_single:
        return single_size(pods[0], owners.every, group=group, unseen=owners.unseen)
    label, awaited = first.label, None
    if label is not None and group is None:
        name = f"{pods[0].metadata.namespace}/{label.name}"
        if label.is_field:
            waits = Reason.of(Code.POD_GROUP_NOT_SEEN, group=name)
            return GangSize(1, max(1, len(pods)), waits=waits)
        if (native and label.key in names.POD_GROUP_NAMES) or label.system in systems:
            awaited = name
    return gang_size(
        pods,
        owners.direct,
        group=group,
        above=owners.above,
        unseen=owners.unseen,
        awaited_group=awaited,
        named=label is not None,
        system=label.system if label is not None else "",
        begun=begun,
    )


def _needed(first: Membership, size: GangSize, pods: _Pods, owners: _Owners, past: Sequence[Owner]) -> int:
    if first.is_single:
        return int(bool(pods.waiting))
    if pods.living and pods.waiting and is_seen(pods.waiting[0]) and not any(map(_counts, owners.direct)):
        return 0  # a held Deployment or StatefulSet that has begun grows by each pod that fits
    return needed(
        size.minimum,
        living=pods.living,
        pods=pods.alive,
        ended=pods.ended,
        owners=owners.direct,
        past=past,
    )


def _missing(
    first: Membership,
    size: GangSize,
    must: int,
    pods: _Pods,
    *,
    owners: Sequence[Owner],
) -> Reason | None:
    """What the gang waits for before it can be tried."""
    if size.waits is not None:
        return size.waits
    suspended = next((owner for owner in owners if owner.spec.suspend), None)
    if suspended is not None and not is_seen(suspended):  # one that we hold, we let go
        return Reason.of(Code.OWNER_SUSPENDED, kind=suspended.kind, owner=suspended.key)
    if len(pods.members) >= must or not pods.waiting:
        return None
    there = pods.living + len(pods.waiting)
    if len(pods.waiting) >= must or first.is_single:
        gated = Reason.of(Code.PODS_GATED, gated=len(pods.gated), pods=there)
        return waits_for_producer(pods.gated, there) or gated
    return _too_few(there, size.minimum, pods.living, [each for each in owners if each.kind != "Deployment"])


def _too_few(there: int, minimum: int, living: int, owners: Sequence[Owner]) -> Reason:
    """Why there are fewer pods than must start together: do their owners make no more?"""
    ordered = next((each for each in owners if each.is_ordered), None)
    at_once = sum(1 if each.is_ordered else each.pods for each in owners)
    runs = sum(each.pods for each in owners)
    if ordered is not None and living + at_once < minimum:
        return Reason.of(Code.OWNER_IS_ORDERED, pods=there, minimum=minimum, owner=ordered.key)
    if owners and runs < minimum:
        first, others = owners[0], len(owners) - 1
        return Reason.of(
            Code.OWNER_RUNS_TOO_FEW,
            pods=there,
            minimum=minimum,
            kind=first.kind,
            owner=first.key,
            others=others,
            runs=runs,
        )
    return Reason.of(Code.PODS_MISSING, pods=there, minimum=minimum)


def _disagreement(
    group: Group | None, alive: Sequence[Pod], strangers: Collection[Pod], scheduler: str
) -> Reason | None:
    """Why pods of one gang cannot start together."""
    others = sorted({pod.spec.scheduler_name for pod in strangers if not pod.is_terminal})
    if others:
        return Reason.of(Code.OTHER_SCHEDULER, others=tuple(others), scheduler=scheduler)
    if group is not None and group.topology_key and not group.is_gang:
        return Reason.of(Code.TOPOLOGY_NEEDS_GANG, group=group.key, key=group.topology_key)
    if group is not None and group.claims and group.is_gang:
        return Reason.of(Code.SHARED_CLAIMS, group=group.key, claims=group.claims)
    # A stand-in has no priority yet: the server looks it up when a pod is made.
    alive = [pod for pod in alive if not is_stand_in(pod)] or alive
    priorities = sorted({pod.spec.priority or 0 for pod in alive})
    if len(priorities) > 1:
        return Reason.of(Code.DIFFERENT_PRIORITIES, priorities=tuple(priorities))
    if group is not None and group.source == STRICT and group.is_gang and group.priority is not None:
        wanted = group.priority
        if priorities and priorities[0] != wanted:
            return Reason.of(Code.GROUP_PRIORITY_DIFFERS, group=group.key, wanted=wanted, given=priorities[0])
    policies = sorted({pod.spec.preemption_policy or "PreemptLowerPriority" for pod in alive})
    if len(policies) > 1:
        return Reason.of(Code.DIFFERENT_PREEMPTION_POLICIES, policies=tuple(policies))
    return None


def _cancelled(waiting: Sequence[Pod], owners: Sequence[Owner]) -> Reason | None:
    """Why pods are held although there may be room: their FluxJob was deleted."""
    carriers: Sequence[Pod | Owner] = (*owners, *waiting)
    found = next((each for each in carriers if is_cancelled(each)), None) if waiting else None
    return None if found is None else Reason.of(Code.FLUX_JOB_DELETED, what=found.key, key=names.CANCELLED)


def _withheld(owners: _Owners, withheld: Mapping[str, Reason], codes: Collection[Code]) -> Reason | None:
    """Why not all pods of a held owner are planned."""
    if not withheld:
        return None
    found = (withheld.get(owner.identity) for owner in owners.direct)
    return next((each for each in found if each is not None and each.code in codes), None)


# -- single fields -------------------------------------------------------------------------------------------


def _order(pod: Pod) -> tuple[str, int, tuple[tuple[int, str], ...]]:
    """By owner, index, then name; numbers in a name count as numbers."""
    index = pod_index(pod)
    owner = next((each.name for each in pod.metadata.owner_references or () if each.controller), "")
    return owner, _NO_INDEX if index is None else index, natural_key(pod.metadata.name)


def _counts(owner: Owner) -> bool:
    """Whether an owner runs its pods to completion."""
    return isinstance(owner, Job)


def _node(pod: Pod) -> str | None:
    """The node that a pod is on, or that kube-scheduler was told to put it on."""
    return pod.spec.node_name or pinned_node(pod)


def _oldest(pods: Sequence[Pod]) -> Pod:
    if len(pods) == 1:
        return pods[0]
    return min(pods, key=lambda pod: (_ms(pod.metadata.creation_timestamp), pod.metadata.name))


def _uid(first_pod: Pod, first: Membership, group: Group | None) -> str:
    if first.is_single:
        return first_pod.metadata.uid
    label = first.label
    if group is not None and group.uid and label is not None:
        # A Workload of 1.35 holds many gangs under one uid.
        is_whole = group.name == label.instance and "/" not in group.name
        return group.uid if is_whole else f"{group.uid}/{first.name}"
    uid = first.owners[-1].metadata.uid if first.owners else first_pod.metadata.uid
    # Two groups may share an owner: a producer and its consumers do.
    return f"{uid}/{first.name}" if label is not None else uid


def _priority(group: Group | None, pods: Sequence[Pod]) -> int:
    if group is not None and group.is_gang and group.priority is not None:
        return group.priority
    return max((pod.spec.priority or 0 for pod in pods), default=0)


def _submit(group: Group | None, waiting: Sequence[Pod]) -> int:
    """Since when it waits, by the server's clock. A group, or a member that ended, may be as old as its user
    likes: pods that came today go behind those of yesterday all the same."""
    oldest = min(_ms(pod.metadata.creation_timestamp) for pod in waiting)
    return max(oldest, _ms(group.created) if group is not None else 0)


def _source(first: Membership, group: Group | None) -> str:
    if first.is_single:
        return "pod"
    if first.label is None:
        return f"owner {first.owners[-1].kind}"
    if group is not None and first.label.is_field:
        return group.source
    return first.label.source


def _ms(when: datetime | None) -> int:
    return int(when.timestamp() * 1000) if when is not None else 0
