"""Gang: pods that start together, built from pods, memberships, owners and a PodGroup.

`build` is a pure function: `Groups` calls it when something changed, and the same objects always give the
same gang. `request_arguments` is the single definition of what a gang requests from a cluster: the scheduler
plans with it, and `inquiry` tries variants of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypedDict

from fluence import names
from fluence.cluster.graph import TopologyDomain
from fluence.model.constraint import Constraint
from fluence.model.external_resources import DeviceTerm
from fluence.model.grant import (
    is_cancelled,
    is_closed,
    is_held_by_admission,
    is_held_by_user,
    pinned_node,
)
from fluence.model.jobspec import Jobspec
from fluence.model.meta import OwnerReference
from fluence.model.owner import Group, Job, Owner
from fluence.model.pod import Pod
from fluence.model.reason import Code, Reason
from fluence.schedule.eligibility.depends_on import DependsOn
from fluence.schedule.external_resources.gate_dependency import waits_for_producer
from fluence.schedule.gangs import jobspecs
from fluence.schedule.gangs.annotations import GangAnnotations, gang_annotations
from fluence.schedule.gangs.membership import STRICT, Membership, single_key
from fluence.schedule.gangs.size import GangSize, gang_size, needed, pod_index, single_size
from fluence.schedule.queueing.placeholder import is_placeholder
from fluence.units import natural_key

_NO_INDEX = 1 << 40
_TOO_WIDE = (Code.CLUSTER_HOLDS_FEWER, Code.TOO_MANY_HELD_PODS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """Pods that start together, in their current state."""

    key: str  # namespace/group, namespace/job:owner or namespace/pod:name
    uid: str  # job numbers are derived from it
    namespace: str
    name: str  # as users know it
    members: tuple[Pod, ...] = ()  # waiting pods that may be placed now, by index or name
    placed: tuple[Pod, ...] = ()  # bound pods, including terminating ones that still hold resources
    gated: tuple[Pod, ...] = ()  # pods that are alive and may not be placed yet
    ended: tuple[Pod, ...] = ()  # pods that succeeded or failed
    minimum: int = 1  # how many pods must run together, counting `placed`
    needed: int = 1  # how many of `members` must be placed together; 0: each as it fits
    size: int = 1  # how many pods there will be, if that is known
    priority: int = 0
    submit: int = 0  # ms
    user: str = ""
    payer: str = ""  # the submitter, if admission recorded one: limits and shares count this user
    limit: int | None = None  # ms
    bounded: bool = False  # Kubernetes ends it at its limit
    soft_limit: int | None = None  # ms
    policy: str | None = None
    spread: bool | None = None  # spread over nodes and zones, by annotation
    queue: str = ""
    constraint: Constraint | None = None  # of the annotation and the jobspec: both must hold
    excluded: frozenset[str] = frozenset()  # nodes that annotations exclude
    jobspec: Jobspec | None = None
    device_terms: tuple[DeviceTerm, ...] = ()  # conditions on external resources
    per_pod_devices: bool = False  # each pod has its own; if not, they share
    depends_on: DependsOn | None = None  # what must happen to other jobs before it may start
    favour: int = 0  # the priority that its user gives it among their own jobs
    array: str = ""  # the Job whose pods count together
    max_running: int | None = None  # and how many of them may run at a time
    source: str = ""  # what made these pods a gang
    group: Group | None = None
    missing: Reason | None = None  # why it cannot be planned yet
    fault: Reason | None = None  # why it is refused, with the cure
    warnings: tuple[Reason, ...] = ()  # declarations that have no effect
    held: bool = False  # admission held it until it starts
    shrinks: bool = False  # its owner may scale down: placements without a pod are freed
    # What its size was summed over, if nothing declares it: uids of owners, and of pods without one.
    parts: frozenset[str] = frozenset()
    newest: int = 0  # ms: creation time of the youngest part
    listed_as: str | None = None  # the PodGroup that its pods name and that only lists it
    listing: Group | None = None  # that PodGroup, if it exists
    workloads: tuple[OwnerReference, ...] = ()  # the owners of that PodGroup, if there is one

    @property
    def eviction_priority(self) -> int:
        """Its priority when running pods are preempted: the lowest of its own and its pods'."""
        return min((self.priority, *(pod.spec.priority or 0 for pod in (*self.members, *self.placed))))

    @property
    def is_ready(self) -> bool:
        """Whether it has pods to place and waits for nothing else."""
        return bool(self.members) and self.missing is None and self.fault is None

    @property
    def is_over(self) -> bool:
        """Whether every member has ended, so that its resources can be freed. Gated members are alive."""
        return not (self.members or self.placed or self.gated)

    @property
    def shown_as(self) -> Group | None:
        """The PodGroup whose status says where it stands: the one that lists it, or its own."""
        return self.group if self.listed_as is None else self.listing

    @property
    def is_open(self) -> bool:
        """Whether nothing declares its size, so that more members may join."""
        return bool(self.parts)

    @property
    def is_single(self) -> bool:
        return self.key == single_key(self.namespace, self.name)

    def __len__(self) -> int:
        return len(self.members) + len(self.placed) + len(self.gated)


# -- requests of a gang --------------------------------------------------------------------------------------


class RequestArguments(TypedDict):
    """What a gang requests from a cluster: the fields of a request for its pods."""

    pods: tuple[Pod, ...]
    minimum: int
    policy: str | None
    spread: bool | None
    exclude: frozenset[str]
    constraint: Constraint | None
    topology: TopologyDomain | None


def request_arguments(gang: Gang, excluded: Collection[str] = ()) -> RequestArguments:
    """The request for the waiting members of a gang. ``excluded`` are nodes that turned out to be impossible,
    in addition to those that annotations exclude."""
    return RequestArguments(
        pods=gang.members,
        minimum=max(1, gang.needed),
        policy=gang.policy,
        spread=spread_of(gang),
        exclude=gang.excluded.union(excluded),
        constraint=gang.constraint,
        topology=topology_of(gang),
    )


def spread_of(gang: Gang) -> bool | None:
    """Whether the pods of a gang are spread over nodes and zones. None: only if they serve something, which
    the cluster graph knows. Pods that start together, and work that ends, are placed by the match policy."""
    if gang.spread is not None:
        return gang.spread
    is_batch = gang.minimum > 1 or gang.limit is not None or gang.held
    return False if is_batch or gang.policy is not None else None


def topology_of(gang: Gang) -> TopologyDomain | None:
    """The label whose value must be the same on all nodes of a gang, and the nodes it already has."""
    key = gang.group.topology_key if gang.group is not None else None
    if key is None:
        return None
    return TopologyDomain(key, frozenset(pod.spec.node_name for pod in gang.placed if pod.spec.node_name))


# -- building a gang -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Pods:
    """The pods of a gang, by state."""

    members: tuple[Pod, ...]
    placed: tuple[Pod, ...]
    gated: tuple[Pod, ...]
    ended: tuple[Pod, ...]
    waiting: tuple[Pod, ...]  # members and gated
    alive: tuple[Pod, ...]  # waiting and placed

    @property
    def living(self) -> int:
        """How many placed pods are not terminating."""
        return sum(pod.metadata.deletion_timestamp is None for pod in self.placed)


@dataclass(frozen=True, slots=True)
class _Owners:
    """The owners of the pods of a gang."""

    direct: list[Owner]  # owners of the pods themselves: they say how many pods there are
    every: list[Owner]  # those and the owners above them
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
    kueue: Mapping[str, int] | None = None,
) -> Gang:
    """The gang of these pods.

    ``memberships`` are by pod, ``owners`` by identity, and ``find_group`` looks up by namespace and name.
    ``strangers`` are pods of other schedulers that name the gang. ``expected`` are owners that name it and
    have no pods alive. ``native``: the server has PodGroups, so a label may name one that is not known yet.
    ``systems``: other systems whose PodGroups the server has. ``withheld``: owners whose pods are not all
    planned, and why. ``kueue``: Kueue's labels count, with these priorities by class.
    """
    ordered = sorted(pods, key=_order) if len(pods) > 1 else list(pods)
    first_pod = _oldest(ordered)  # it names the group
    first, namespace = memberships[first_pod.key], first_pod.metadata.namespace
    group = find_group(namespace, first.label.pod_group) if first.label is not None else None
    by = _sort_out(ordered)
    # The size follows from the owners of the pods that are alive, or of all pods if none is.
    counted = by.alive or tuple(ordered)
    of = [memberships[pod.key] for pod in counted]
    owned = _owners(of, owners, expected)
    known = max(each.size for each in of) if first.operated is not None else 0
    begun = by.living > 0
    size = _size(first, counted, owned, known, group=group, native=native, systems=systems, begun=begun)
    past = () if size.parts else _past([memberships[pod.key] for pod in by.ended], owned.direct)
    must = _needed(first, size, by, owned, past)
    annotations = gang_annotations(counted, owned.every, group)
    priority = _priority(group, counted)
    if kueue is not None:
        queue, of_class = _kueue_labels(counted, owned.every)
        annotations = dataclasses.replace(annotations, queue=annotations.queue or queue)
        priority = kueue.get(of_class, priority)
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
        priority=priority,
        submit=_submit(group, by.waiting or (first_pod,)),
        source=_source(first, group),
        group=group,
        missing=None
        if fault
        else _held_by_user(by.waiting, owned.every, group)
        or _withheld(owned, withheld or {}, (Code.NAMESPACE_HOLDS_TOO_MANY,))
        or _missing(first, size, must, by, owners=owned.every),
        fault=fault,
        warnings=tuple(dict.fromkeys((*size.warnings, *annotations.warnings))),
        held=is_held_by_admission(first_pod),
        shrinks=is_held_by_admission(first_pod)
        and bool(owned.direct)
        and not any(map(_counts, owned.direct)),
        array=_array(first, owned, group),
        parts=size.parts,
        newest=size.newest,
        **_annotated(annotations),
    )


class _Annotated(TypedDict):
    """The fields of a gang that are copied from annotations."""

    user: str
    limit: int | None
    bounded: bool
    soft_limit: int | None
    policy: str | None
    spread: bool | None
    queue: str
    constraint: Constraint | None
    excluded: frozenset[str]
    jobspec: Jobspec | None
    device_terms: tuple[DeviceTerm, ...]
    per_pod_devices: bool
    depends_on: DependsOn | None
    favour: int
    max_running: int | None


def _annotated(annotations: GangAnnotations) -> _Annotated:
    return _Annotated(
        user=annotations.user,
        limit=annotations.limit,
        bounded=annotations.bounded,
        soft_limit=annotations.soft_limit,
        policy=annotations.policy,
        spread=annotations.spread,
        queue=annotations.queue,
        constraint=annotations.constraint,
        excluded=annotations.excluded,
        jobspec=annotations.jobspec.jobspec if annotations.jobspec is not None else None,
        device_terms=annotations.device_terms,
        per_pod_devices=annotations.per_pod_devices,
        depends_on=annotations.depends_on,
        favour=annotations.favour,
        max_running=annotations.max_running,
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
    """The owners of ended pods, except owners with other pods alive."""
    now = {owner.identity for owner in owners}
    found = {owner.identity: owner for each in of for owner in each.owners[:1]}
    return [owner for key, owner in found.items() if key not in now]


def _size(
    first: Membership,
    pods: Sequence[Pod],
    owners: _Owners,
    known: int,
    *,
    group: Group | None,
    native: bool,
    systems: Collection[str],
    begun: bool,
) -> GangSize:
    """``known``: the size that the custom object of an operator declares."""
    if first.is_single:
        return single_size(pods[0], owners.every, group=group, unseen=owners.unseen, unread=first.unread)
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
        operated=first.operated,
        known=known,
    )


def _needed(first: Membership, size: GangSize, pods: _Pods, owners: _Owners, past: Sequence[Owner]) -> int:
    if first.is_single:
        return int(bool(pods.waiting))
    if (
        pods.living
        and pods.waiting
        and is_held_by_admission(pods.waiting[0])
        and not any(map(_counts, owners.direct))
    ):
        return 0  # a started Deployment or StatefulSet that was held grows pod by pod
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
    """What the gang waits for before it can be planned."""
    if size.waits is not None:
        return size.waits
    suspended = next((owner for owner in owners if owner.spec.suspend), None)
    if suspended is not None and not is_held_by_admission(suspended):  # a Job that we hold is released by us
        return Reason.of(Code.OWNER_SUSPENDED, kind=suspended.kind, owner=suspended.key)
    if len(pods.members) >= must or not pods.waiting:
        return None
    there = pods.living + len(pods.waiting)
    if len(pods.waiting) >= must or first.is_single:
        gated = Reason.of(Code.PODS_GATED, gated=len(pods.gated), pods=there)
        return waits_for_producer(pods.gated, there) or gated
    group = f"{pods.waiting[0].metadata.namespace}/{first.name}"
    makers = [] if first.operated is not None else [each for each in owners if each.kind != "Deployment"]
    return _too_few(group, there, size.minimum, pods.living, makers)


def _too_few(group: str, there: int, minimum: int, living: int, owners: Sequence[Owner]) -> Reason:
    """Why there are fewer pods than must start together: whether their owners create no more."""
    ordered = next((each for each in owners if each.is_ordered), None)
    at_once = sum(1 if each.is_ordered else each.pods for each in owners)
    runs = sum(each.pods for each in owners)
    if ordered is not None and living + at_once < minimum:
        return Reason.of(Code.OWNER_IS_ORDERED, group=group, pods=there, minimum=minimum, owner=ordered.key)
    if owners and runs < minimum:
        first, others = owners[0], len(owners) - 1
        return Reason.of(
            Code.OWNER_RUNS_TOO_FEW,
            group=group,
            pods=there,
            minimum=minimum,
            kind=first.kind,
            owner=first.key,
            others=others,
            runs=runs,
        )
    return Reason.of(Code.PODS_MISSING, group=group, pods=there, minimum=minimum)


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
    # A placeholder has no priority yet: the server looks it up when it creates a pod.
    alive = [pod for pod in alive if not is_placeholder(pod)] or alive
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
    """Why pods do not start although they may fit: their FluxJob was deleted."""
    carriers: Sequence[Pod | Owner] = (*owners, *waiting)
    found = next((each for each in carriers if is_cancelled(each)), None) if waiting else None
    return None if found is None else Reason.of(Code.FLUX_JOB_DELETED, what=found.key, key=names.CANCELLED)


def _held_by_user(waiting: Sequence[Pod], owners: Sequence[Owner], group: Group | None) -> Reason | None:
    """Whether the user holds the gang: one object that says so is enough."""
    if not waiting:
        return None
    key = names.HOLD
    if group is not None and is_held_by_user(group.annotations):
        return Reason.of(Code.HELD_BY_USER, kind="PodGroup", what=group.key, key=key)
    for owner in owners:
        if is_held_by_user(owner.metadata.annotations):
            return Reason.of(Code.HELD_BY_USER, kind=owner.kind, what=owner.key, key=key)
    pod = next((each for each in waiting if is_held_by_user(each.metadata.annotations)), None)
    return None if pod is None else Reason.of(Code.HELD_BY_USER, kind="Pod", what=pod.key, key=key)


def _withheld(owners: _Owners, withheld: Mapping[str, Reason], codes: Collection[Code]) -> Reason | None:
    """Why not all pods of a held owner are planned."""
    if not withheld:
        return None
    found = (withheld.get(owner.identity) for owner in owners.direct)
    return next((each for each in found if each is not None and each.code in codes), None)


# -- single fields -------------------------------------------------------------------------------------------


def _order(pod: Pod) -> tuple[str, int, tuple[tuple[int, str], ...]]:
    """Sort key: owner, index, then name. Numbers in a name count as numbers."""
    index = pod_index(pod)
    owner = pod.metadata.controller_reference
    return (
        "" if owner is None else owner.name,
        _NO_INDEX if index is None else index,
        natural_key(pod.metadata.name),
    )


def _counts(owner: Owner) -> bool:
    """Whether an owner runs its pods to completion."""
    return isinstance(owner, Job)


def _node(pod: Pod) -> str | None:
    """The node of a pod, or the one that kube-scheduler is to bind it to."""
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
        # A Workload of Kubernetes 1.35 holds many gangs under one uid.
        is_whole = group.name == label.instance and "/" not in group.name
        return group.uid if is_whole else f"{group.uid}/{first.name}"
    if first.operated is not None:
        return f"{first.operated.metadata.uid}/{first.key.partition(':')[2]}"
    uid = first.owners[-1].metadata.uid if first.owners else first_pod.metadata.uid
    # Two groups may share an owner, such as a producer and its consumers.
    return f"{uid}/{first.name}" if label is not None else uid


def _kueue_labels(pods: Sequence[Pod], owners: Sequence[Owner]) -> tuple[str, str]:
    """The queue and the priority class in Kueue's labels: on pods, otherwise on their owners."""
    metas = [*(pod.metadata for pod in pods), *(owner.metadata for owner in owners)]
    found = []
    for key in (names.KUEUE_QUEUE, names.KUEUE_PRIORITY):
        values = (value for meta in metas if (value := (meta.labels or {}).get(key)))
        found.append(next(values, ""))
    return found[0], found[1]


def _priority(group: Group | None, pods: Sequence[Pod]) -> int:
    """The priority of a gang. A PodGroup does not raise the priority of its pods: on 1.36 quota by
    PriorityClass counts pods only, so any user may name any class in a PodGroup. Placeholders may have no
    priority yet."""
    own = [pod.spec.priority for pod in pods if pod.spec.priority is not None]
    if group is not None and group.is_gang and group.priority is not None:
        return min((group.priority, *own))
    return max(own, default=0)


def _submit(group: Group | None, waiting: Sequence[Pod]) -> int:
    """Since when the gang waits, by the server's clock. A PodGroup or an ended member may be arbitrarily old,
    so they must not move new pods ahead of older ones."""
    oldest = min(_ms(pod.metadata.creation_timestamp) for pod in waiting)
    return max(oldest, _ms(group.created) if group is not None else 0)


def _array(first: Membership, owners: _Owners, group: Group | None) -> str:
    """The array of pods that start one by one: their Job, or their PodGroup if it is not a gang."""
    if not first.is_single:
        return ""
    job = next((owner for owner in owners.direct if _counts(owner)), None)
    if job is not None:
        return f"job/{job.metadata.name}"
    return "" if group is None else f"group/{group.name}"


def _source(first: Membership, group: Group | None) -> str:
    if first.is_single:
        return "pod"
    if first.operated is not None:
        return f"owner {first.operated.kind}"
    if first.label is None:
        return f"owner {first.owners[-1].kind}"
    if group is not None and first.label.is_field:
        return group.source
    return first.label.source


def _ms(when: datetime | None) -> int:
    return int(when.timestamp() * 1000) if when is not None else 0
